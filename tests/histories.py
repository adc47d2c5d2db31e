"""Random histories of one timer id, as cases of the law that nobody has thought of; a seed is a history."""

import random
from collections.abc import Sequence

from law_cases import HORIZON_S, ID, Case, Record, cancel, part_of, request

from kafka_timers.core.outcomes import State, outcomes_of
from kafka_timers.core.wire import Condition, Copy, Future, Sealed, last_second_of

LETTERS = {
    State.PENDING: "P",
    State.PARKED: "K",
    State.FIRED: "F",
    State.CANCELLED: "C",
    State.MOVED: "M",
    State.TOO_LATE: "L",
    State.UNKNOWN: "U",
    State.IGNORED: "I",
    State.REFUSED: "R",
}


def history(seed: int) -> Case:
    """Return a history with the states that `core.outcomes` tells; every second one has a lake, and conditions."""
    made = _History(seed)
    states = [LETTERS[each.state] for each in _outcomes(made.records, made.seals)]
    return Case(f"history {seed}", made.records, made.seals, "".join(states))


def _outcomes(records: Sequence[Record], seals: Sequence[Sealed]) -> list:
    return outcomes_of(records, seals, 0, 1, whole=True)


class _History:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.has_horizon, self.has_conditions, self.counts_millis = seed % 2 == 1, seed % 4 > 1, seed % 8 > 3
        self.records: list[Record] = []
        self.seals: list[Sealed] = []
        self.requests: dict[int, tuple[int, int]] = {}
        self.now_s, self.offset = 1.0, 0
        for _ in range(self.random.randrange(2, 14)):
            self._go_on()
        for more_s in self.random.choice([(), (1,), (3, 40), (200,)]):
            self._seal(max(self._last, int(self.now_s)) + more_s, self.offset + 1)

    def _go_on(self) -> None:
        some = self.random
        self.now_s += some.choice([0, 0.3, 0.5, 1, 1, 2, 5, 20])
        what = some.random()
        if what < 0.45:
            self._request()
        elif what < 0.7:
            self._add(cancel(self._next(), max(0.5, self.now_s + some.choice([0, 0, -1])), **self._condition(True)))
        elif what < 0.75:
            self._add(request(self._next(), self.now_s, None))
        elif what < 0.85 and self.has_horizon and self.requests:
            self._copy(some.choice(list(self.requests)))
        else:
            self.now_s += some.choice([0, 0, 5, 30, 100])
            self._seal(int(self.now_s) - some.choice([0, 0, 0, 1]), self.offset + some.choice([-2, 0, 1, 1]))

    def _request(self) -> None:
        some, now = self.random, int(self.now_s)
        second = max(1, now + some.choice([-3, 0, 1, 1, 2, 3, 5, 10, 30]))
        if self.has_horizon and some.random() < 0.4:
            second = now + some.choice([HORIZON_S - 1, HORIZON_S, HORIZON_S + 1, HORIZON_S + 50])
        # Append times go back where a partition gets another leader.
        appended_s = max(0.5, self.now_s + some.choice([0, 0, 0, 0, -1, -0.5]))
        millis = some.choice([0, 0, 300, 500, 800])
        self._add(request(self._next(), appended_s, second, millis=millis, **self._condition(False)))
        self.requests[self.offset] = second, int(appended_s)

    def _condition(self, is_cancel: bool) -> dict[str, object]:
        some = self.random
        if not self.has_conditions or some.random() > 0.4:
            return {}
        is_absent = not is_cancel and some.random() < 0.4
        meant = {"ifRequest": f"0:{some.choice(list(self.requests))}"} if self.requests and some.random() < 0.5 else {}
        return {"condition": Condition.IF_ABSENT if is_absent else Condition.IF_PENDING, **meant}

    def _copy(self, of: int) -> None:
        some, (second, appended) = self.random, self.requests[of]
        decided = max(of + 1, self.offset - some.choice([-1, -1, 0]))
        known = [record for record in self.records if record.offset < decided]
        waits = {each.offset for each in _outcomes(known, self.seals) if each.state in (State.PARKED, State.PENDING)}
        # The lake copies far requests that it believes to be pending; those with a condition once a seal covers them.
        if second - appended <= HORIZON_S or of not in waits or of >= self._fence:
            return
        self.now_s = max(self.now_s, second - some.choice([60, 20, 3, 0]))
        copy = Copy(
            offset=of, appended=appended, decidedOffset=decided, decided=int(self.now_s) - some.choice([0, 2000])
        )
        future = Future(callBackTopic="calls", callBackKey="k", timerId=ID, copy=copy)
        value = future.SerializeToString()
        self._add(Record(b"%d" % second, value, self._next(), round(self.now_s * 1000)))

    def _seal(self, last: int, fence: int) -> None:
        end_ms, ended_ms = (last + 1) * 1000, self._ended_ms
        if self.counts_millis:
            end_ms -= self.random.choice([0, 0, 200, 500, 999])
        if end_ms <= ended_ms:
            return
        made = part_of(ended_ms / 1000, end_ms / 1000, max(self._fence, fence))
        made.horizon_s = HORIZON_S if self.has_horizon else 0
        self.seals.append(made)

    @property
    def _ended_ms(self) -> int:
        return self.seals[-1].end_ms if self.seals else 1000

    @property
    def _last(self) -> int:
        return last_second_of(self.seals[-1]) if self.seals else 0

    @property
    def _fence(self) -> int:
        return self.seals[-1].fence if self.seals else 0

    def _next(self) -> int:
        self.offset += self.random.choice([1, 1, 1, 2])
        return self.offset

    def _add(self, record: Record) -> None:
        self.records.append(record)
