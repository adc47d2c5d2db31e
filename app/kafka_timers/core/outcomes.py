"""
The outcome of each record of a timer id, computed from the request log and the seals.

Pure. The records are read again by the code of a partition's owner, and each seal is put where it belongs: records
below a seal's snapshot were read before its scan, all others after it.

    offset  appended  asks for       about                                    sealed: up to second 20, snapshot 14
    11      9 s       second 15                                               cancelled
    12      14 s      cancel         11, in time                              cancelled
    13      16 s      second 18                                               fired
    14      17 s      second 30      13, behind the snapshot: read too late   pending
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from kafka_timers.core import rows as batches
from kafka_timers.core.accepting import IN_TIME, LATE, Accepted, accept
from kafka_timers.core.callbacks import Shown
from kafka_timers.core.changes import Changes
from kafka_timers.core.contents import Contents
from kafka_timers.core.keys import REFUSED_MS, parts_of
from kafka_timers.core.memory_store import MemoryStore
from kafka_timers.core.partition import Partition
from kafka_timers.core.refused import Reason
from kafka_timers.core.verdicts import Ask, Cancel, SendOn, Verdict, judged
from kafka_timers.core.versions import Answer
from kafka_timers.core.wire import Future, Record, Reply, Sealed, future_from, is_complete, is_question, unframed
from kafka_timers.errors import WireError


class State(StrEnum):
    """
    The state of a record.

    Attributes:
        PENDING: a request that will fire, unless it is withdrawn in time.
        PARKED: a request in the lake, which publishes it again so that it fires in its second.
        FIRED: a request whose callback was sent.
        CANCELLED: a request that was withdrawn, or a cancel that found one.
        MOVED: a request that was replaced by a later one.
        TOO_LATE: a cancel whose timer fires or has fired.
        UNKNOWN: a cancel that found no timer in the records that were read.
        IGNORED: a record whose condition did not hold.
        REFUSED: a request that lies on `timer-rejected`, with the reason.
    """

    PENDING = "pending"
    PARKED = "parked"
    FIRED = "fired"
    CANCELLED = "cancelled"
    MOVED = "moved"
    TOO_LATE = "too late"
    UNKNOWN = "unknown"
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    One record and its state.

    Attributes:
        offset: offset on `timer-request`; for a timer that came back from the lake, the offset of its original.
        appended_ms: UNIX milliseconds at which the broker appended it; None if only a sweep has it, and nobody knows.
        due_ms: UNIX milliseconds of the timer; None for a cancel, and for a request that no worker accepts.
        reason: why it was refused; empty otherwise.
        by: offset of the record that withdrew it in time; None if none did.
        copied_at: offset of the copy from the lake that workers took; None if they took none.
        seal: the seal by which it has fired; None of one that has not.
    """

    offset: int
    appended_ms: int | None
    due_ms: int | None
    cancel: bool
    topic: str
    key: bytes | None
    state: State
    reason: str = ""
    by: int | None = None
    copied_at: int | None = None
    seal: Sealed | None = None

    @property
    def second(self) -> int | None:
        """UNIX second of the timer; None for a cancel, and for a request that no worker accepts."""
        return None if self.due_ms is None else self.due_ms // 1000


_OF_A_CANCEL: dict[int, State] = {Reply.CANCELLED: State.CANCELLED, Reply.TOO_LATE: State.TOO_LATE}
_WITHDRAWN: dict[int, State] = {Reply.CANCELLED: State.CANCELLED, Reply.MOVED: State.MOVED}


class _Asking(NamedTuple):
    key: bytes | None
    value: bytes | None
    offset: int
    timestamp: int
    headers: Sequence[tuple[str, bytes | None]] = ()


def _reason_in(verdict: Verdict) -> str:
    if isinstance(verdict, SendOn):
        return Reason.ID_IN_FOREIGN_PARTITION
    return verdict if isinstance(verdict, Reason) else ""


def records_of(records: Iterable[Record], timer_id: str) -> list[Record]:
    """Return those of *records* that have *timer_id*, in their order. Questions are left out: they change nothing."""
    name, found = timer_id.encode(), []
    for record in records:
        # Parsing costs many times as much as a search for the bytes.
        if name not in (record.value or b""):
            continue
        try:
            future = future_from(record.value or b"")
        except WireError:
            continue
        if future.timerId == timer_id and not is_question(future):
            found.append(record)
    return found


def uncertain(records: Sequence[Record], partition: int, partitions: int) -> list[int]:
    """
    Return the dues, in UNIX milliseconds, whose covering seal tells whether a withdrawal was read in time.

    Args:
        records: records of one timer id, offsets ascending.
    """
    dues: list[int] = []
    before_ms = 0
    for record in records:
        verdict = judged(record, partition, partitions)
        if not isinstance(verdict, Ask | Cancel):
            continue
        if record.timestamp < before_ms:
            dues.append(before_ms)
        before_ms = verdict.due_ms if isinstance(verdict, Ask) else before_ms
    return dues


def outcomes_of(
    records: Sequence[Record],
    seals: Iterable[Sealed],
    partition: int,
    partitions: int,
    *,
    whole: bool = False,
) -> list[Outcome]:
    """
    Return the outcome of each of *records*, in their order.

    Args:
        records: all records of one timer id from some offset on, offsets ascending. Copies belong to their originals.
        seals: seals of the partition, in the order of the log: the last ones, and those that cover the dues of
            `uncertain`. A missing one in between changes nothing else.
        whole: whether *records* are all records that the id has ever had. If not, a conditional request may replace one
            that lies before them. Such a request stands, unless it came within an hour of the last seal or that seal
            says otherwise: no request that was replaced within an hour is below `restore_from`.

    Returns:
        Outcomes as if every topic had taken its callback, see `with_rejected`.
    """
    return _History(partition, partitions, list(seals), whole=whole).live(records)


def with_rejected(outcomes: Iterable[Outcome], rejected: Mapping[int, str]) -> list[Outcome]:
    """Return *outcomes* with callbacks on `timer-rejected` as refused; *rejected* has their reasons by offset."""
    return [
        replace(each, state=State.REFUSED, reason=rejected[each.offset])
        if each.state is State.FIRED and each.offset in rejected
        else each
        for each in outcomes
    ]


def standing(outcomes: Sequence[Outcome]) -> Outcome | None:
    """
    Return the timer that stands under an id, of the *outcomes* of its records; None if there is none.

    It is the last request that workers have accepted, whatever became of it: a cancel or a later record that changed
    nothing does not stand. If they have accepted none, it is the last one that they refused as it came.
    """
    refused = [each for each in outcomes if not each.cancel and each.state is State.REFUSED]
    return next(reversed(accepted_in(outcomes) or refused), None)


def accepted_in(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return those of *outcomes* whose requests workers have accepted: neither ignored nor refused as they came."""
    return [
        each
        for each in outcomes
        if not each.cancel
        and each.state is not State.IGNORED
        and (each.state is not State.REFUSED or each.seal is not None)
    ]


class _HistoricPartition(Partition):
    """A partition in the past, for which no record was answered before."""

    def __init__(self, number: int, last: Sealed) -> None:
        super().__init__(number, last.horizon_s)
        self._newest_ms = last.end_ms - 1000

    def is_answered(self, offset: int) -> bool:
        return False

    @property
    def newest_ms(self) -> int:
        # Of the last seal, from whose `restore_from` on there are records, not of the seal that is replayed.
        return self._newest_ms


class _History:
    def __init__(self, partition: int, partitions: int, seals: list[Sealed], *, whole: bool) -> None:
        last = seals[-1] if seals else Sealed()
        self._seals, self._last = seals, last
        self._number, self._partitions = partition, partitions
        self._partition = _HistoricPartition(partition, last)
        self._partition.horizon_from = last.horizon_from
        self._partition.ignored = dict.fromkeys(last.ignored, 0)
        self._partition.replaced_below = 0 if whole else last.fence
        self._store = MemoryStore()
        self._outcomes: dict[int, Outcome] = {}
        self._copied: set[int] = set()

    def live(self, records: Sequence[Record]) -> list[Outcome]:
        left = deque((record, future_from(record.value or b"")) for record in records)
        self._copied = {future.copy.offset for _, future in left if future.HasField("copy")}
        for seal in self._seals:
            if seal.end_ms < self._partition.sealed_ms:
                continue
            while left and left[0][0].offset < seal.fence:
                self._read(*left.popleft())
            self._seal(seal)
        for record, future in left:
            self._read(record, future)
        return list(self._outcomes.values())

    def _read(self, record: Record, future: Future) -> None:
        value = record.value or b""
        # Keep a schema registry's framing, since it may be the reason for a refusal.
        framing = value[: len(value) - len(unframed(value))]
        # With an answer, so that the decision about it can be seen.
        future.replyTopic = future.replyTopic or "-"
        asking = _Asking(record.key, framing + future.SerializeToString(), record.offset, record.timestamp)
        self._partition.horizon_s = self._horizon_s_for(record.offset, future)
        accepted = accept([asking], self._partition, self._partitions, self._store.versions)
        verdict = judged(asking, self._number, self._partitions)
        due_ms = verdict.due_ms if isinstance(verdict, Ask) else None
        topic, key, _ = Shown.of(future)
        outcome = Outcome(
            *(record.offset, record.timestamp, due_ms, future.cancel, topic, key),
            state=self._state_of(accepted, future),
            reason=next(iter(accepted.refused), "") or _reason_in(verdict),
        )
        if future.HasField("copy"):
            self._came_back(outcome, future, accepted)
        else:
            self._outcomes[record.offset] = outcome
            for answer in accepted.decided.answers:
                self._withdraw(answer)
        # A slice may end between requests that another owner has kept in one batch.
        rows = [single for row in accepted.rows for single in batches.singles(*row)]
        self._write(self._partition.read(record.offset + 1, rows, accepted.offsets, accepted.decided))

    def _horizon_s_for(self, offset: int, future: Future) -> int:
        """Return the horizon of the worker that judged the record at *offset*, or one with the same result."""
        if offset >= self._last.horizon_from:
            return self._last.horizon_s
        # By an earlier horizon, of which no more is known: a request that was far by it has a copy.
        is_held = not (future.cancel or future.HasField("copy") or offset in self._copied)
        return 0 if is_held else 1

    def _state_of(self, accepted: Accepted, future: Future) -> State:
        if accepted.refused:
            return State.REFUSED
        said = accepted.decided.answers[0].outcome if accepted.decided.answers else Reply.UNKNOWN
        if said == Reply.IGNORED:
            return State.IGNORED
        if future.cancel:
            return _OF_A_CANCEL.get(said, State.UNKNOWN)
        return State.PARKED if accepted.far else State.PENDING

    def _came_back(self, outcome: Outcome, future: Future, accepted: Accepted) -> None:
        """Treat the copy of a request as that request."""
        if not accepted.copies.keys() & {IN_TIME, LATE}:
            return
        original = self._outcomes.get(future.copy.offset)
        if original:
            self._outcomes[original.offset] = replace(original, state=State.PENDING, copied_at=outcome.offset)
        else:
            of, appended_ms = future.copy.offset, future.copy.appended * 1000
            self._outcomes[of] = replace(outcome, offset=of, appended_ms=appended_ms, copied_at=outcome.offset)

    def _withdraw(self, answer: Answer) -> None:
        state = _WITHDRAWN.get(answer.outcome)
        before = self._outcomes.get(answer.version.offset) if answer.version else None
        if state and before and before.state in (State.PENDING, State.PARKED):
            self._outcomes[before.offset] = replace(before, state=state, by=answer.offset)

    def _seal(self, seal: Sealed) -> None:
        partition, store = self._partition, self._store
        self._write(partition.read(max(seal.fence, partition.position)))
        partition.begin(seal.end_ms)
        start, end = partition.keys_left()
        if not is_complete(seal):
            end = seal.through + b"\0"
        for key, row in store.rows(start, end):
            for single, _ in batches.singles(key, row):
                due_ms, offset = parts_of(single)
                if due_ms != REFUSED_MS:
                    self._outcomes[offset] = replace(self._outcomes[offset], state=State.FIRED, seal=seal)
        self._write(partition.sealed(seal, Contents(through=seal.through), end))

    def _write(self, changes: Changes) -> None:
        self._store.write(changes)
        self._partition.apply(changes)
