"""
The checks when a history is over: the promises of docs/design.md, by request log, seals and visible records.

It follows the words of `sealed.proto`, `future.proto` and docs/design.md, not the code of `core`. So it is also P12:
under any owners, the fired timers follow from the request log and the snapshots in the seals.
"""

import heapq
import struct
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import xxhash

from kafka_timers.core.changes import Swept
from kafka_timers.core.sweep import is_of_a_sweep, sweeps_in
from kafka_timers.core.versions import Original
from kafka_timers.core.wire import COPY_STALE_S, ID_MEMORY_S, Condition, Future, Record, Reply, Sealed

_KEY = struct.Struct(">QHQ")
# How many offsets to tell of, which may be thousands.
_SHOWN = 50


class PromiseError(AssertionError):
    """A promise does not hold; the text says which."""


class Wish(NamedTuple):
    """
    The request of a record on `timer-request`, known without parsing it.

    Attributes:
        second: UNIX second in which it is due; 0 for a cancel.
        millis: within that second.
        appended_ms: UNIX milliseconds of its append.
        timer_id: empty without one.
        is_cancel: withdraws the timer of its id.
        asks: wants an answer.
        is_refused: its own bytes show that no worker may accept it.
        condition: under which it means anything.
        expected: offset of the only request that `IF_PENDING` means; None for any.
        original: set for a copy.
        has_callback: whether its callback is in the field `callBackRecord`.
        first_ms: UNIX milliseconds of its first append, if it was sent on from another partition.
    """

    second: int = 0
    millis: int = 0
    appended_ms: int = 0
    timer_id: bytes = b""
    is_cancel: bool = False
    asks: bool = False
    is_refused: bool = False
    condition: int = Condition.CONDITION_UNSPECIFIED
    expected: int | None = None
    original: Original | None = None
    has_callback: bool = False
    first_ms: int | None = None

    @property
    def due_ms(self) -> int:
        """UNIX milliseconds in which it is due."""
        return self.second * 1000 + self.millis

    def is_in_time(self, by: "Wish") -> bool:
        """Tell whether *by* was appended before this is due."""
        return by.appended_ms < self.due_ms


class Callback(NamedTuple):
    """The visible record of the request at `offset`: its callback, or its reject."""

    offset: int
    appended_ms: int
    is_reject: bool


@dataclass(frozen=True, slots=True)
class Terms:
    """
    The settings of a history.

    Attributes:
        horizon_s: requests due more seconds than this after their append are left to a lake; 0 leaves none.
        memory_s: how long a timer id is known after its second.
        stale_s: how long after its decision a copy may be appended.
        is_forgetful: whether ids may have been forgotten, so that `UNKNOWN` is true of one whose hour is over.
    """

    horizon_s: int = 0
    memory_s: int = ID_MEMORY_S
    stale_s: int = COPY_STALE_S
    is_forgetful: bool = False


@dataclass(slots=True)
class _Request:
    """A request that was read: its own place, and its outcome so far."""

    wish: Wish
    at: int
    is_refused: bool = False
    # Left to the lake, and not come back.
    is_far: bool = False
    withdrawn_by: int | None = None
    is_done: bool = False
    is_late: bool = False
    # A record was appended in time to withdraw it, and could only be read when it was done.
    is_doubtful: bool = False
    # The append of the first cancel that was appended in time.
    cancelled_ms: int = 0

    @property
    def due_ms(self) -> int:
        return 0 if self.is_refused else self.wish.due_ms


@dataclass(slots=True)
class Audit:
    """
    The facts of request log and seals, once `follow` has gone through both.

    Attributes:
        requests: by offset; without cancels and copies.
        true: the answers that the record at an offset may get.
        ignored: offsets of records whose condition did not hold.
        number: of the partition.
    """

    wishes: Mapping[int, Wish]
    terms: Terms
    requests: dict[int, _Request] = field(default_factory=dict)
    true: dict[int, set[int]] = field(default_factory=dict)
    ignored: set[int] = field(default_factory=set)
    # Those that are held and not done: also a withdrawn request waits for its second.
    _waiting: dict[int, _Request] = field(default_factory=dict)
    # A heap of their dues with their offsets; and those that no seal was held against, since it is one in millions.
    _dues: list[tuple[int, int]] = field(default_factory=list)
    _fresh: list[_Request] = field(default_factory=list)
    # What the last seal says of where the log must be read from.
    _from: tuple[int, tuple[Swept, ...]] = 0, ()
    # The offset of the last request of each id, and of its last record that meant anything.
    _standing: dict[bytes, int] = field(default_factory=dict)
    _latest: dict[bytes, int] = field(default_factory=dict)
    _came_back: set[int] = field(default_factory=set)
    # Ids of far requests that came back when another request of their id stood already.
    _came_back_behind: set[bytes] = field(default_factory=set)
    # By the begin of a sweep, the requests that it repeats.
    repeated: Mapping[int, Collection[int]] = field(default_factory=dict)
    number: int = 0
    # When the last cancel of each id was appended at first.
    _cancelled_ms: dict[bytes, int] = field(default_factory=dict)

    def follow(self, seals: Sequence[Sealed], rejected: Collection[int]) -> None:
        """
        Go through the records as the *seals* say that they were read.

        Args:
            seals: in their order.
            rejected: offsets of the requests that were visible as rejected.

        Raises:
            PromiseError: P8, a seal contradicts the requests or the seals before it.
        """
        left = iter(sorted(self.wishes))
        ahead = next(left, None)
        end_ms, fence = 1000, 0
        scan: tuple[int, int] | None = None
        for index, seal in enumerate(seals):
            told_ms = seal.end_ms
            if seal.first_ms != end_ms or told_ms <= end_ms:
                raise PromiseError(f"P8: {seal.first_ms}..{told_ms} is sealed after {end_ms}")
            if seal.fence < fence:
                raise PromiseError(f"P8: the fence went back from {fence} to {seal.fence} with {told_ms}")
            if scan not in (None, (told_ms, seal.fence)):
                raise PromiseError(f"P8: {scan} was left unfinished for {(told_ms, seal.fence)}")
            while ahead is not None and ahead < seal.fence:
                self._read(ahead)
                ahead = next(left, None)
            self._close(index, seal, end_ms, told_ms, rejected)
            if seal.HasField("through"):
                scan = told_ms, seal.fence
            else:
                end_ms, fence, scan = told_ms, seal.fence, None
        while ahead is not None:
            self._read(ahead)
            ahead = next(left, None)

    def _close(self, index: int, seal: Sealed, start_ms: int, end_ms: int, rejected: Collection[int]) -> None:
        keys = {}
        while self._dues and self._dues[0][0] < end_ms:
            due_ms, offset = heapq.heappop(self._dues)
            self._waiting[offset].is_late = due_ms < start_ms
            keys[offset] = (*divmod(max(start_ms, due_ms), 1000), offset)
        if seal.HasField("through"):
            through = _KEY.unpack_from(seal.through)
            for offset in [offset for offset, key in keys.items() if key > through]:
                del keys[offset]
                heapq.heappush(self._dues, (self._waiting[offset].due_ms, offset))
        closed = {offset: self._waiting.pop(offset) for offset in keys}
        for request in closed.values():
            request.is_done = True
        gone = [each.withdrawn_by for each in closed.values() if each.withdrawn_by is not None]
        cancelled = sum(self.wishes[by].is_cancel for by in gone)
        due = [offset for offset, each in closed.items() if each.withdrawn_by is None]
        fired = [offset for offset in due if offset not in rejected]
        late = sum(closed[offset].is_late for offset in due)
        said = (seal.due, seal.fired, seal.rejected, seal.late_arrivals, seal.fired_digest)
        meant = (len(due), len(fired), len(due) - len(fired), late, fired_digest(self.number, fired))
        withdrawn, gone_by = (seal.cancelled, seal.moved), (cancelled, len(gone) - cancelled)
        if self.terms.is_forgetful:
            # A request withdrawn an hour ago is not read again by an owner without a store, which then counts less.
            gone_by = min(withdrawn[0], gone_by[0]), min(withdrawn[1], gone_by[1])
        if (said, withdrawn) != (meant, gone_by):
            said, meant = (*said, *withdrawn), (*meant, *gone_by)
            raise PromiseError(f"P8: seal {index} says {said}, requests say {meant}: {sorted(keys)[:_SHOWN]}")
        sweeps, fresh = sweeps_in(seal), self._fresh
        told, self._from, self._fresh = self._from, (seal.restore_from, sweeps), []
        waiting = fresh if self._from == told else self._waiting.values()
        behind = [each for each in waiting if each.at < seal.restore_from and each.withdrawn_by is None]
        left = [lies_at(each.at, sweeps, self.repeated) for each in behind]
        if left and min(left) < seal.restore_from:
            raise PromiseError(f"P8: #{min(left)} waits below restore_from {seal.restore_from} of {seal.end_ms}")

    # --- one record --------------------------------------------------------------------------------------------------

    def _read(self, offset: int) -> None:
        """Read the record at *offset*."""
        wish = self.wishes[offset]
        if wish.is_refused:
            if not wish.original:
                self.requests[offset] = refused = _Request(wish, offset, is_refused=True)
                self._wait(offset, refused)
            return
        if wish.original:
            self._read_copy(offset, wish, wish.original)
            return
        if wish.timer_id and not self._decide(offset, wish):
            self.ignored.add(offset)
            return
        if wish.timer_id:
            self._latest[wish.timer_id] = offset
        if wish.is_cancel:
            if not wish.condition:
                self._cancelled_ms[wish.timer_id] = wish.appended_ms if wish.first_ms is None else wish.first_ms
            return
        is_far = 0 < self.terms.horizon_s < wish.second - wish.appended_ms // 1000
        self.requests[offset] = request = _Request(wish, offset, is_far=is_far)
        if not is_far:
            self._wait(offset, request)
        if wish.timer_id:
            self._standing[wish.timer_id] = offset

    def _decide(self, offset: int, wish: Wish) -> bool:
        """Note the effect of the record on the request of its id before it; False when it is ignored."""
        of = self._standing.get(wish.timer_id)
        before = None if of is None else self.requests[of]
        is_in_time = before is not None and before.wish.is_in_time(wish)
        withdraws = before is not None and before.withdrawn_by is None and is_in_time and not before.is_done
        holds = True
        # Nobody knows of a far request for longer than an hour after its append, until it comes back; nor of one that
        # is not far for longer than an hour after a cancel.
        hour_from_ms = 0
        if before:
            hour_from_ms = before.wish.appended_ms if before.is_far else before.cancelled_ms or before.wish.due_ms
        is_known = before is not None and wish.appended_ms < self._hours_end_ms(hour_from_ms)
        if wish.condition == Condition.IF_ABSENT:
            holds = not is_known or (wish.expected == of and not is_in_time)
        elif wish.condition == Condition.IF_PENDING:
            holds = withdraws and is_known and wish.expected in (None, of)
        if wish.first_ms is not None and not wish.is_cancel:
            cancelled_ms = self._cancelled_ms.get(wish.timer_id, 0)
            is_overtaken = wish.first_ms < cancelled_ms and wish.appended_ms < self._hours_end_ms(cancelled_ms)
            holds = holds and not is_overtaken
        was_doubtful = before is not None and before.is_doubtful
        if before is not None and before.is_done and is_in_time:
            before.is_doubtful = True
        if not holds:
            self.true[offset] = {Reply.IGNORED}
            return False
        if before is not None and wish.is_cancel and is_in_time and not before.is_far:
            before.cancelled_ms = before.cancelled_ms or wish.appended_ms
        if wish.condition == Condition.IF_ABSENT:
            true = {Reply.ACCEPTED}
            if before is not None and withdraws:
                before.withdrawn_by = offset
        elif before is None:
            true = {Reply.UNKNOWN}
        elif before.withdrawn_by is not None:
            true = {Reply.CANCELLED, Reply.UNKNOWN} if wish.is_cancel else {Reply.UNKNOWN}
        elif withdraws:
            true = {Reply.CANCELLED if wish.is_cancel else Reply.MOVED}
            before.withdrawn_by = offset
        else:
            # An owner that reads the log again cannot tell whether an earlier record in time could be read in time.
            true = {Reply.TOO_LATE, Reply.UNKNOWN} if was_doubtful else {Reply.TOO_LATE}
        if self.terms.is_forgetful and not is_known:
            true.add(Reply.UNKNOWN)
        if wish.timer_id in self._came_back_behind and not (wish.condition or is_known):
            # An owner that begins at the copy knows no other request of the id.
            true.add(Reply.TOO_LATE)
        self.true[offset] = true
        return True

    def _hours_end_ms(self, moment_ms: int) -> int:
        return moment_ms - moment_ms % 1000 + self.terms.memory_s * 1000

    def _read_copy(self, offset: int, wish: Wish, original: Original) -> None:
        request = self.requests.get(original.offset)
        if request is None or not (request.is_far or original.offset in self._came_back):
            return
        is_stale = wish.appended_ms // 1000 - original.decided_s > self.terms.stale_s
        is_overtaken = bool(wish.timer_id) and self._latest[wish.timer_id] >= original.decided
        if is_stale or is_overtaken or original.offset in self._came_back:
            return
        self._came_back.add(original.offset)
        request.is_far, request.at = False, offset
        if wish.timer_id and self._standing[wish.timer_id] != original.offset:
            self._came_back_behind.add(wish.timer_id)
        self._wait(original.offset, request)

    def _wait(self, offset: int, request: _Request) -> None:
        self._waiting[offset] = request
        heapq.heappush(self._dues, (request.due_ms, offset))
        self._fresh.append(request)


def check(
    wishes: Mapping[int, Wish],
    seals: Sequence[Sealed],
    callbacks: Sequence[Callback],
    replies: Iterable[tuple[int, int]],
    terms: Terms,
    repeated: Mapping[int, Collection[int]] = MappingProxyType({}),
) -> Audit:
    """
    Check the promises about a partition in which everything that was asked for is sealed.

    Args:
        wishes: the requests of the records on its request log, by offset.
        seals: in their order.
        callbacks: in their order; rejects among them.
        replies: the offset of each record that was answered, and the outcome that was told.
        terms: of the history.
        repeated: by the begin of a sweep, the requests that it repeats.

    Raises:
        PromiseError: one does not hold.
    """
    visible = Counter(callback.offset for callback in callbacks)
    rejected = {callback.offset for callback in callbacks if callback.is_reject}
    for offset, times in visible.items():
        if times > 1:
            raise PromiseError(f"P2: #{offset} is visible {times} times")
    audit = Audit(wishes, terms, repeated=repeated)
    audit.follow(seals, rejected)
    check_callbacks(wishes, callbacks, audit.requests)
    for offset, request in audit.requests.items():
        if request.is_far:
            if visible[offset]:
                raise PromiseError(f"P5: #{offset} fired, which is far, and of which there is no copy")
            if request.withdrawn_by is None:
                raise PromiseError(f"P1: #{offset}, which is far, is lost")
        elif not request.is_done:
            raise PromiseError(f"P8: the seals do not say of #{offset} that it is done")
        elif request.withdrawn_by is None and not visible[offset]:
            raise PromiseError(f"P1: #{offset} for {request.wish.second} is lost")
        elif request.withdrawn_by is not None and visible[offset]:
            raise PromiseError(f"P5: #{offset} fired, though #{request.withdrawn_by} has withdrawn it")
    for offset in visible:
        if offset in audit.ignored:
            raise PromiseError(f"P5: #{offset} fired, though its condition does not hold")
    check_answers(wishes, replies, audit.true)
    last = seals[-1] if seals else Sealed()
    if last.pending:
        raise PromiseError(f"P8: the last seal says that {last.pending} wait, and none does")
    is_remembered = terms.horizon_s or any(wish.timer_id for wish in wishes.values())
    if last.restore_from < last.fence and not is_remembered:
        raise PromiseError(f"P8: the log must be read from {last.restore_from} on, though nothing waits")
    return audit


def check_callbacks(
    wishes: Mapping[int, Wish], callbacks: Iterable[Callback], requests: Mapping[int, _Request] | None = None
) -> None:
    """Check that callbacks are of requests (P7), not early (P3), and in order (P6) if *requests* name late ones."""
    latest: dict[int, int] = {}
    for offset, appended_ms, is_reject in callbacks:
        wish = wishes.get(offset)
        if wish is None or wish.original or (wish.is_cancel and not is_reject):
            raise PromiseError(f"P7: a callback of #{offset}, which is no request")
        if wish.is_refused and not is_reject:
            raise PromiseError(f"P10: #{offset} fired, though it is to be refused")
        if is_reject:
            continue
        if appended_ms < wish.second * 1000:
            raise PromiseError(f"P3: #{offset} for {wish.second} fired at {appended_ms}")
        if requests is None or ((request := requests[offset]).at != offset and request.is_late):
            # The copy of a far request that was late itself comes behind those that were in time.
            continue
        if latest.get(wish.due_ms, -1) > offset:
            raise PromiseError(f"P6: #{offset} for {wish.due_ms} fired after #{latest[wish.due_ms]}")
        latest[wish.due_ms] = offset


def check_answers(
    wishes: Mapping[int, Wish], replies: Iterable[tuple[int, int]], true: Mapping[int, Collection[int]]
) -> None:
    """Check that each question was answered, and truly (P4)."""
    said: dict[int, set[int]] = defaultdict(set)
    for offset, outcome in replies:
        said[offset].add(outcome)
    for offset, outcomes in said.items():
        if not outcomes <= set(true.get(offset, ())):
            names = [sorted(map(Reply.Outcome.Name, each)) for each in (outcomes, true.get(offset, ()))]
            raise PromiseError(f"P4: #{offset} was answered {names[0]}, and true is {names[1]}")
    for offset in true:
        if wishes[offset].asks and offset not in said:
            raise PromiseError(f"P4: #{offset} was not answered")


def check_at_least_once(wishes: Mapping[int, Wish], seals: Iterable[Sealed], callbacks: Sequence[Callback]) -> None:
    """
    Check the promises that hold also where no fence shuts out a paused owner: nothing is lost, and no second left out.

    Raises:
        PromiseError: one does not hold.
    """
    visible = {callback.offset for callback in callbacks}
    followed = _followed_in_time(wishes)
    for offset, wish in wishes.items():
        if not (wish.is_cancel or wish.original or offset in visible or offset in followed):
            raise PromiseError(f"P1: #{offset} for {wish.second} is lost")
    check_callbacks(wishes, callbacks)
    end_ms = 1000
    for seal in seals:
        if seal.first_ms > end_ms:
            raise PromiseError(f"P8: {end_ms}..{seal.first_ms} is not sealed")
        if seal.due != seal.fired + seal.rejected:
            raise PromiseError(f"P8: the seal before {seal.end_ms} does not balance")
        if not seal.HasField("through"):
            end_ms = max(end_ms, seal.end_ms)


def _followed_in_time(wishes: Mapping[int, Wish]) -> set[int]:
    """Return the offsets of the requests that a record behind them was appended in time to withdraw."""
    followed: set[int] = set()
    last: dict[bytes, int] = {}
    for offset, wish in wishes.items():
        if not wish.timer_id or wish.is_refused or wish.original:
            continue
        before = last.get(wish.timer_id)
        if before is not None and wishes[before].is_in_time(wish):
            followed.add(before)
        if not wish.is_cancel:
            last[wish.timer_id] = offset
    return followed


def fired_digest(number: int, offsets: Iterable[int]) -> int:
    """Return the digest of fired requests, as `sealed.proto` has it: those of partition *number* at *offsets*."""
    seed = xxhash.xxh64(number.to_bytes(8, "little"), 42).intdigest()
    return sum(xxhash.xxh64(offset.to_bytes(8, "little"), seed).intdigest() for offset in offsets) % 2**64


def lies_at(offset: int, sweeps: Sequence[Swept], repeated: Mapping[int, Collection[int]]) -> int:
    """
    Return an offset from which on the log must be read to find the request at *offset*, which waits.

    Args:
        sweeps: that the last seal tells of.
        repeated: by the begin of a sweep, the requests that it repeats.
    """
    for swept in sweeps[-1:]:
        if offset < swept.below and offset in repeated.get(swept.begun_us, ()):
            return swept.since
    return offset


def repeated_of(records: Iterable[Record]) -> dict[int, set[int]]:
    """Return the offsets of the requests that each sweep in *records* repeats, by its begin."""
    every: dict[int, set[int]] = defaultdict(set)
    for record in filter(is_of_a_sweep, records):
        kept = Future.FromString(record.value or b"").kept
        every[kept.begun].update(each.offset for each in kept.requests)
    return every
