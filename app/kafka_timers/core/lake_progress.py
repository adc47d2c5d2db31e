"""
How far a lake is behind with bringing far timers back to the workers. Pure.

`lake promote` tells the second up to which workers have all far timers. If it keeps up, that second lies ahead by half
of the horizon or more. Below a quarter of it, the lake is behind; once the second has passed, timers are overdue:

    promoted up to │ …  now │ … a quarter of the horizon │ …  now + horizon
                   └────────┘ overdue, since nobody has them
                   └─────────────────────────────────────┘ behind

A lake that has never told anything may have none to promote: a far timer is due more than a horizon after its append.
So it counts as promoted up to a horizon after the append of the first of them.
"""

from datetime import UTC, datetime
from typing import NamedTuple

from kafka_timers.core.wire import SECOND_LIMIT

# As the alarm TimersPromoteSlow has it for the timers that have come back.
_LEAD_SHARE = 4


class LakeProgress(NamedTuple):
    """
    The progress of a lake, as seen at a moment.

    Attributes:
        now_s: that moment, in UNIX seconds.
        horizon_s: horizon of the workers; 0 if they leave nothing to a lake.
        told_s: the UNIX second up to which workers have all far timers, as promote has told; None if it has not.
        far: number of requests that workers have ever left to the lake; 0 also if it is not known.
        far_from_s: without told_s, a UNIX second before which none of those was appended; None if there are none.
    """

    now_s: int
    horizon_s: int
    told_s: int | None = None
    far: int = 0
    far_from_s: int | None = None

    @property
    def promoted_s(self) -> int | None:
        """The UNIX second up to which no far timer is left in the lake; None if there are no far timers."""
        if self.told_s is None and self.far_from_s is not None:
            return self.far_from_s + self.horizon_s
        return self.told_s

    @property
    def needed_s(self) -> int:
        """The UNIX second up to which it should have promoted by now at least."""
        return self.now_s + self.horizon_s // _LEAD_SHARE

    @property
    def behind_s(self) -> int:
        """Seconds that it has promoted too little; 0 if it keeps up, or if there is nothing to promote."""
        if not self.horizon_s or self.promoted_s is None:
            return 0
        return max(self.needed_s - self.promoted_s, 0)

    @property
    def overdue_s(self) -> int:
        """Seconds for which a far timer may have been due without firing; 0 if none can be."""
        return max(self.now_s - self.promoted_s, 0) if self.behind_s and self.promoted_s is not None else 0

    @property
    def problem(self) -> str:
        """A sentence with the step to take; empty if the lake keeps up."""
        if not self.behind_s:
            return ""
        to = "nothing yet" if self.told_s is None else f"timers up to {_utc(self.told_s)}"
        if self.overdue_s:
            of = f" of {self.far:,} ever left to it" if self.far else ""
            late = f"those due in the last {self.overdue_s:,} s have not fired; how many{of} is not known here"
        else:
            late = f"those due in more than {self.needed_s - self.behind_s - self.now_s:,} s will be late"
        return (
            f"the lake has promoted {to}, {self.behind_s:,} s too little, and {late}: start kafka-timers lake promote; "
            "if it runs, its log and /readyz say why it waits"
        )

    def problem_of(self, request: str, due_ms: int) -> str:
        """
        Return why the timer of *request*, which is parked and due at UNIX millisecond *due_ms*, is late or will be.

        It is a sentence with the step to take; empty while there is time to promote it.
        """
        due_s = due_ms // 1000
        why = self.problem or "no lake tells how far it has promoted: start kafka-timers lake promote"
        if self.promoted_s is not None and due_s <= self.promoted_s:
            why = "the lake says that it has promoted that second: kafka-timers lake audit tells what it left out"
        if due_s < self.now_s:
            return f"request {request} is parked, and overdue by {self.now_s - due_s:,} s: {why}"
        if self.behind_s and due_s <= self.needed_s:
            return f"request {request} is parked, and due in {due_s - self.now_s:,} s: {why}"
        return ""


def _utc(second: int) -> str:
    # Whoever may write to the group may write any number there.
    at = datetime.fromtimestamp(min(second, SECOND_LIMIT - 1), UTC)
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
