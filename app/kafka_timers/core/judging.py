"""
The offsets from which a partition's owners apply rules that earlier versions do not know. Seals tell them to all
owners.
"""

from abc import ABC, abstractmethod

from kafka_timers.core.changes import Scan
from kafka_timers.core.wire import Sealed

__all__ = ["Judging"]


class Judging(ABC):
    """
    Which rules an owner applies, and from which offset on.

    Args:
        format: format of the seals that this owner may write. Conditions are judged once a scan began with format 2,
            and moments within a second with 3.
        takes_callbacks: whether every member of the group knows requests with a `callBackRecord`.

    Attributes:
        conditions_from: offset from which on all owners judge conditions; None until a seal tells it.
        millis_from: offset from which on a record may withdraw a request up to its millisecond; below it, up to the
            begin of its second. None until a seal tells it.
        callbacks_from: offset from which on requests with a `callBackRecord` are taken. None until a seal tells it.
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
        """The open scan, if there is one."""

    def judge_from(self, conditions: int | None, millis: int | None, callbacks: int | None) -> None:
        """Set the offsets that are known now; None changes nothing."""
        if conditions is not None:
            self.conditions_from = conditions
        if millis is not None:
            self.millis_from = millis
        if callbacks is not None:
            self.callbacks_from = callbacks

    def tell(self, seal: Sealed, snapshot: int) -> None:
        """Write the offsets into *seal*, a seal of a scan with this *snapshot*."""
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
        """Tell whether a withdrawal may be in time, once the seal of the open scan says that milliseconds count."""
        return self.is_to_count_millis and self._is_first_slice and appended_ms < due_ms

    @property
    def is_to_judge_conditions(self) -> bool:
        """Whether conditions will be judged, but no seal tells yet from which offset on."""
        return self.format > 1 and self.conditions_from is None

    @property
    def is_to_count_millis(self) -> bool:
        """Whether milliseconds will count, but no seal tells yet from which offset on."""
        return self.format > 2 and self.millis_from is None

    @property
    def is_to_take_callbacks(self) -> bool:
        """Whether requests with a `callBackRecord` will be taken, but no seal tells yet from which offset on."""
        return self.takes_callbacks and self.callbacks_from is None

    @property
    def _is_first_slice(self) -> bool:
        # A scan that an owner of an earlier format left open has slices. That owner has judged the records behind its
        # snapshot.
        return self.scan is not None and not self.scan.through

    @property
    def waits_to_judge(self) -> bool:
        """Whether conditions are judged from the open scan's snapshot on, once a slice of it is sealed."""
        return self.is_to_judge_conditions and self._is_first_slice

    @property
    def has_to_tell(self) -> bool:
        """Whether the next seal must tell one of the offsets, so that it is worth writing."""
        return self.is_to_judge_conditions or self.is_to_count_millis or self.is_to_take_callbacks

    @property
    def waits_to_take(self) -> bool:
        """Whether requests with a `callBackRecord` are taken from the open scan's snapshot on, once it is sealed."""
        return self.is_to_take_callbacks and self._is_first_slice

    def refuses_callback(self, offset: int) -> bool:
        """
        Tell whether a request at *offset* may have no `callBackRecord`, for the reason that `refuses_condition` gives.
        """
        if self.callbacks_from is None:
            return not self.waits_to_take
        return offset < self.callbacks_from

    def refuses_condition(self, offset: int) -> bool:
        """
        Tell whether a record at *offset* may have no condition, since some owner did not know conditions.

        That owner has read beyond its last seal, and may have answered the records there. So while no seal tells from
        which offset on conditions are judged, they are refused up to the snapshot of the scan that will tell it. Only
        from there on they are held back:
         1. an owner of format 1 refuses the condition of offset 5, and answers the cancel of offset 6: in time
         2. all know format 2; the next owner would hold back 5, and so 6, and fire the request that was cancelled
        Held by test_an_answer_behind_a_refused_condition_stays_true_through_an_upgrade.
        """
        if self.conditions_from is None:
            return not self.waits_to_judge
        # This holds even if a member of an earlier version has joined since. A request that was accepted under a
        # condition must end the same way whenever it is read again.
        return offset < self.conditions_from
