"""
From which offset on a partition's owners judge what earlier versions do not know: seals tell it, and all keep to it.
"""

from abc import ABC, abstractmethod

from kafka_timers.core.changes import Scan
from kafka_timers.core.wire import Sealed

__all__ = ["Judging"]


class Judging(ABC):
    """
    What an owner may judge, and from which offset on.

    Args:
        format: of seals that this owner may write; conditions are judged once a scan began with 2, and moments within a
            second with 3.
        takes_callbacks: whether every member of the group knows requests with a `callBackRecord`.

    Attributes:
        conditions_from: the offset from which on all owners judge conditions; None before a seal tells it.
        millis_from: the offset from which on a record may withdraw a request up to its millisecond; below it up to the
            begin of its second. None before a seal tells it.
        callbacks_from: the offset from which on requests with a `callBackRecord` are taken. None before a seal tells
            it.
    """

    def __init__(self, format: int, takes_callbacks: bool) -> None:
        self.format = format
        self.takes_callbacks = takes_callbacks
        self.conditions_from: int | None = None
        self.millis_from: int | None = None
        self.callbacks_from: int | None = None

    @property
    @abstractmethod
    def scan(self) -> Scan | None:
        """What is being fired, if anything."""

    def judge_from(self, conditions: int | None, millis: int | None, callbacks: int | None) -> None:
        """Take the offsets that are told now; None tells nothing."""
        if conditions is not None:
            self.conditions_from = conditions
        if millis is not None:
            self.millis_from = millis
        if callbacks is not None:
            self.callbacks_from = callbacks

    def tell(self, seal: Sealed, snapshot: int) -> None:
        """Have *seal*, of a scan with this *snapshot*, tell the offsets."""
        conditions_from = snapshot if self.waits_to_judge else self.conditions_from
        if conditions_from is not None:
            seal.conditions_from = conditions_from
        millis_from = snapshot if self.is_to_count_millis and self._is_first_slice else self.millis_from
        if millis_from is not None:
            seal.millis_from = millis_from
        callbacks_from = snapshot if self.waits_to_take else self.callbacks_from
        if callbacks_from is not None:
            seal.callbacks_from = callbacks_from

    def may_be_in_time(self, appended_ms: int, due_ms: int) -> bool:
        """Tell whether it depends on the open scan, which is to tell that milliseconds count, what is in time."""
        return self.is_to_count_millis and self._is_first_slice and appended_ms < due_ms

    @property
    def is_to_judge_conditions(self) -> bool:
        """Whether conditions will be judged, and no seal tells yet from which offset on."""
        return self.format > 1 and self.conditions_from is None

    @property
    def is_to_count_millis(self) -> bool:
        """Whether milliseconds will count, and no seal tells yet from which offset on."""
        return self.format > 2 and self.millis_from is None

    @property
    def is_to_take_callbacks(self) -> bool:
        """Whether requests with a `callBackRecord` will be taken, and no seal tells yet from which offset on."""
        return self.takes_callbacks and self.callbacks_from is None

    @property
    def _is_first_slice(self) -> bool:
        # A scan that was left open by an owner of an earlier format has slices: what lies behind its snapshot was
        # judged by that.
        return self.scan is not None and not self.scan.through

    @property
    def waits_to_judge(self) -> bool:
        """Whether conditions are judged from the open scan's snapshot on, once a slice of it is sealed."""
        return self.is_to_judge_conditions and self._is_first_slice

    @property
    def has_to_tell(self) -> bool:
        """Whether the next seal is to tell from which offset on something is judged, and so is worth to be written."""
        return self.is_to_judge_conditions or self.is_to_count_millis or self.is_to_take_callbacks

    @property
    def waits_to_take(self) -> bool:
        """Whether requests with a `callBackRecord` are taken from the open scan's snapshot on, once it is sealed."""
        return self.is_to_take_callbacks and self._is_first_slice

    def refuses_callback(self, offset: int) -> bool:
        """Tell whether a request at *offset* may have no `callBackRecord`; as with conditions: `refuses_condition`."""
        if self.callbacks_from is None:
            return not self.waits_to_take
        return offset < self.callbacks_from

    def refuses_condition(self, offset: int) -> bool:
        """
        Tell whether a record at *offset* may have no condition: some owner did not know what that is.

        That owner has read on behind its last seal, and may have answered what it found there. So where no seal says
        from where on conditions are judged, they are refused up to the snapshot of a scan that is to say so, and held
        back only from there:
         1. an owner of format 1 refuses the condition of offset 5, and answers the cancel of offset 6: in time
         2. all know format 2; the next owner would hold back 5, and so 6, and fire what was cancelled
        Held by test_what_was_answered_behind_a_refused_condition_stays_true_through_an_upgrade.
        """
        if self.conditions_from is None:
            return not self.waits_to_judge
        # Also where a member of an earlier version has joined since: what was accepted under a condition must come to
        # the same end whenever it is read again.
        return offset < self.conditions_from
