"""
What requests and cancels mean for earlier requests of the same timer id, and what is answered.

Pure. All records of an id lie in one partition, so they have one order, and each means something for at most one other:
the last request of the id before it, its version. `Partition.effect` says whether it withdraws that one.

    the version before              a cancel            a request
    none is known                   UNKNOWN             UNKNOWN, and it stands
    it was cancelled                CANCELLED again     UNKNOWN, and it stands
    it waits                        CANCELLED           MOVED: it takes its place
    it fires, or has fired          TOO_LATE            TOO_LATE, and it stands too
    one or the other, long ago      not answered again  not answered again, and it stands

    IF_ABSENT                       none is known, or its hour is over: ACCEPTED, else IGNORED
    IF_PENDING                      it waits, and is the one that was meant: as above, else IGNORED
"""

import struct
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, NamedTuple

from kafka_timers.core.keys import Copied
from kafka_timers.core.wire import COPY_STALE_S, ID_MEMORY_MS, Condition, Reply

if TYPE_CHECKING:
    from kafka_timers.core.partition import Partition

_VERSION = struct.Struct(">QHQQB")
_COPIED = struct.Struct(">QQ")
_ANSWER = struct.Struct(">BBI")
_OFFSET = struct.Struct(">Q")

# Requests that are read together are due in many seconds, and in few minutes.
_MINUTE_S = 60


class KnownFromError(Exception):
    """A copy was decided on what lies below `offset`, which the store has not read: it has to be read from there."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"a copy was decided at offset {offset}: the log is read again from there")
        self.offset = offset


class Version(NamedTuple):
    """
    What is known of a timer id: its last request, and what came of that.

    Attributes:
        due_ms: UNIX milliseconds that it asks for; 0 when a cancel is all that is known.
        offset: of the request; of a copy that of its original.
        cancelled: whether a cancel has withdrawn it.
        by: offset of the last cancel behind it; kept where there is a horizon, else 0.
        far: whether it is left to the lake.
        copied: where its copy lies, if it is one.
    """

    due_ms: int
    offset: int
    cancelled: bool = False
    by: int = 0
    far: bool = False
    copied: Copied | None = None

    @property
    def second(self) -> int:
        """UNIX second that it asks for."""
        return self.due_ms // 1000

    @property
    def closes_ms(self) -> int:
        """The moment from which on it is too late to withdraw it: all callbacks of a second leave at its tick."""
        return self.due_ms - self.due_ms % 1000

    @property
    def latest(self) -> int:
        """Offset of the last record that this follows from."""
        return self.by or self.offset

    @property
    def at(self) -> int:
        """Offset at which it lies itself."""
        return self.copied.at if self.copied else self.offset

    @property
    def counted(self) -> int:
        """Offset under which it counts as pending."""
        return self.copied.decided if self.copied else self.offset

    def pack(self) -> bytes:
        """Return it as a row of the store."""
        second, millis = divmod(self.due_ms, 1000)
        row = _VERSION.pack(second, millis, self.offset, self.by, self.cancelled | self.far << 1)
        return row + _COPIED.pack(*self.copied) if self.copied else row

    @classmethod
    def unpack(cls, row: bytes) -> "Version":
        """Return what `pack` was called on."""
        second, millis, offset, by, flags = _VERSION.unpack_from(row)
        copied = Copied(*_COPIED.unpack_from(row, _VERSION.size)) if len(row) > _VERSION.size else None
        return cls(second * 1000 + millis, offset, bool(flags & 1), by, bool(flags & 2), copied)


class Effect(Enum):
    """
    What a cancel, or a request with the same timer id, means for an earlier request.

    Attributes:
        WITHDRAWS: the earlier one does not fire.
        TOO_LATE: it fires, or has fired.
        FORGOTTEN: one or the other, long ago: a worker that reads the log again cannot tell, and nobody asks any more.
        UNDECIDED: whether it fires will be known when the open scan is sealed.
    """

    WITHDRAWS = auto()
    TOO_LATE = auto()
    FORGOTTEN = auto()
    UNDECIDED = auto()


class Original(NamedTuple):
    """
    What a copy is a copy of.

    Attributes:
        offset: of the original.
        appended_s: UNIX second of its append.
        decided: all below this offset was known when it was decided that the original is to fire.
        decided_s: UNIX second of that decision.
    """

    offset: int
    appended_s: int
    decided: int
    decided_s: int

    @property
    def name(self) -> bytes:
        """What stands for it among timer ids, which are UTF-8 and never begin so."""
        return b"\xff" + _OFFSET.pack(self.offset)


class TimerRecord(NamedTuple):
    """
    A record that has a timer id, or is a copy.

    Attributes:
        timer_id: empty without one.
        due_ms: None for a cancel.
        offset: of the record.
        appended_ms: UNIX milliseconds of its append.
        reply_topic: empty when no answer is wanted.
        far: whether the request is left to the lake.
        original: set for a copy.
        condition: under which it means anything.
        expected: offset of the only request that `IF_PENDING` means; None for any.
    """

    timer_id: bytes
    due_ms: int | None
    offset: int
    appended_ms: int
    reply_topic: bytes
    far: bool = False
    original: Original | None = None
    condition: int = Condition.CONDITION_UNSPECIFIED
    expected: int | None = None

    @property
    def names(self) -> Iterable[bytes]:
        """What has to be known of to decide."""
        return filter(None, (self.timer_id, self.original and self.original.name))


class Answer(NamedTuple):
    """What the record at `offset` is answered, on `topic`: a `Reply.Outcome` and the request that it is about."""

    offset: int
    topic: bytes
    timer_id: bytes
    outcome: int
    version: Version | None

    def pack(self) -> bytes:
        """Return it as a row of the store, without its offset."""
        version = self.version.pack() if self.version else b""
        return _ANSWER.pack(self.outcome, len(version), len(self.topic)) + version + self.topic + self.timer_id

    @classmethod
    def unpack(cls, offset: int, row: bytes) -> "Answer":
        """Return what `pack` was called on."""
        outcome, version_bytes, topic_bytes = _ANSWER.unpack_from(row)
        version_end = _ANSWER.size + version_bytes
        topic_end = version_end + topic_bytes
        version = Version.unpack(row[_ANSWER.size : version_end]) if version_bytes else None
        return cls(offset, row[version_end:topic_end], row[topic_end:], outcome, version)

    def by_now(self, partition: "Partition") -> "Answer":
        """Return what is true of this, which was not sent, after others may have owned the *partition*."""
        version = self.version
        says_withdrawn = self.outcome in (Reply.CANCELLED, Reply.MOVED)
        if version is None or not says_withdrawn or not partition.is_done(version):
            return self
        if version.cancelled:
            # Asked for the second time. Whether the first time was in time for the others is not known here.
            return self._replace(outcome=Reply.UNKNOWN, version=None)
        # No seal covers the record that asks, so the scan that covers what it asks for was made without it.
        return self._replace(outcome=Reply.TOO_LATE)

    def reply(self, partition: int) -> Reply:
        """Return the message that says so; *partition* is the one of `timer-request` that all of it lies in."""
        reply = Reply(
            timerId=self.timer_id.decode(), outcome=Reply.Outcome.Name(self.outcome), asked=f"{partition}:{self.offset}"
        )
        if self.version:
            reply.second, reply.request = self.version.second, f"{partition}:{self.version.offset}"
        return reply


class Withdrawn(NamedTuple):
    """
    A request that is held and does not fire.

    Attributes:
        key: of its row.
        counted: the offset under which it counts as pending.
        timer_id: the timer id of the request.
        superseded: whether another request has taken its place; else a cancel has withdrawn it.
    """

    key: bytes
    counted: int
    timer_id: bytes
    superseded: bool


class Dropped(StrEnum):
    """
    Why a copy means nothing.

    Attributes:
        HELD: its original is, or was, held by the workers: their horizon is longer than the lake's.
        STALE: it was appended too long after it was decided: what came in between may be forgotten here.
        REPEATED: there is one of its original already.
        OVERTAKEN: there is a record of its timer id that was not known when it was decided.
    """

    HELD = "held"
    STALE = "stale"
    REPEATED = "repeated"
    OVERTAKEN = "overtaken"


@dataclass(slots=True)
class Decided:
    """
    What follows from some records with timer ids, and from copies.

    Attributes:
        versions: what is to be kept of each id, None for nothing.
        withdrawn: requests that are held and do not fire.
        answers: in the order of the records.
        expiring: ids, and offsets that the last record of each must have to be forgotten, by the UNIX second that ends
            the minute from which on an hour is counted.
        last: offset of the last record.
        remember: offsets of requests that do not wait, and the UNIX milliseconds at which that was decided.
        dropped: offsets of copies that mean nothing, and why.
        ignored: offsets of requests whose condition does not hold, and their due.
        undecided_at: offset of the first record that nothing can be said of yet; it and all behind it are left out.
    """

    versions: dict[bytes, Version | None] = field(default_factory=dict)
    withdrawn: list[Withdrawn] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    expiring: dict[int, tuple[list[bytes], list[int]]] = field(default_factory=dict)
    last: int = 0
    remember: list[tuple[int, int]] = field(default_factory=list)
    dropped: dict[int, Dropped] = field(default_factory=dict)
    ignored: dict[int, int] = field(default_factory=dict)
    undecided_at: int | None = None

    @property
    def changes_nothing(self) -> bool:
        """Whether nothing has to be kept of it."""
        return not (self.versions or self.answers or self.dropped or self.ignored)

    def keep(self, name: bytes, version: Version, from_s: int) -> None:
        """Keep *version* of *name* for an hour from the UNIX second *from_s* on."""
        self.versions[name] = version
        minute = from_s - from_s % _MINUTE_S + _MINUTE_S
        expiring = self.expiring.get(minute)
        if expiring is None:
            expiring = self.expiring[minute] = ([], [])
        expiring[0].append(name)
        expiring[1].append(version.latest)


Known = MutableMapping[bytes, Version | None]


def decide(records: Iterable[TimerRecord], known: Known, partition: "Partition") -> Decided:
    """
    Return what *records* mean.

    Args:
        records: offsets ascending; requests that are refused left out.
        known: the last request of each name before these; is changed to that after them.
        partition: knows what has fired.

    Raises:
        KnownFromError: what a copy means depends on earlier records than have been read.
    """
    out = Decided()
    for record in records:
        if record.original:
            _decide_copy(record, record.original, known, partition, out)
        elif not _decide(record, known, partition, out):
            break
        out.last = record.offset
    return out


def _decide(record: TimerRecord, known: Known, partition: "Partition", out: Decided) -> bool:
    """Decide on a request or a cancel; False when nothing can be said of it yet."""
    before = known.get(record.timer_id)
    effect = None
    if before is not None and not before.cancelled:
        effect = partition.effect(before, record.offset, record.appended_ms)
        if effect is Effect.UNDECIDED:
            out.undecided_at = record.offset
            return False
    outcome = _outcome_of(record, before, effect)
    if record.condition:
        if not partition.judges_conditions:
            out.undecided_at = record.offset
            return False
        if not _holds(record, before, effect, partition):
            _ignore(record, before, partition, out)
            return True
        if record.condition == Condition.IF_ABSENT:
            outcome, before = Reply.ACCEPTED, None
    kept = before
    if effect is Effect.WITHDRAWS and before is not None:
        kept = before._replace(cancelled=True)
        if not before.far:
            _withdraw(record, before, partition, out)
    elif effect is Effect.FORGOTTEN:
        kept = None
    _keep(record, before, kept, known, partition, out)
    if record.reply_topic and not partition.is_answered(record.offset):
        about = None if outcome in (Reply.UNKNOWN, Reply.ACCEPTED) else before
        out.answers.append(Answer(record.offset, record.reply_topic, record.timer_id, outcome, about))
    return True


def _outcome_of(record: TimerRecord, before: Version | None, effect: Effect | None) -> Reply.Outcome:
    is_cancel = record.due_ms is None
    if before is not None and before.cancelled:
        return Reply.CANCELLED if is_cancel and before.due_ms else Reply.UNKNOWN
    if effect is Effect.WITHDRAWS:
        return Reply.CANCELLED if is_cancel else Reply.MOVED
    return Reply.TOO_LATE if effect is Effect.TOO_LATE else Reply.UNKNOWN


def _withdraw(record: TimerRecord, before: Version, partition: "Partition", out: Decided) -> None:
    key = partition.key_of(before)
    if key is None:
        raise AssertionError(f"offset {record.offset} withdraws offset {before.offset}, which is done")
    out.withdrawn.append(Withdrawn(key, before.counted, record.timer_id, record.due_ms is not None))
    out.remember.append((before.counted, record.appended_ms // 1000 * 1000))


def _keep(
    record: TimerRecord,
    before: Version | None,
    kept: Version | None,
    known: Known,
    partition: "Partition",
    out: Decided,
) -> None:
    """Keep what is known of the id after *record*; *kept* is what is known of the request *before* it."""
    appended_s, horizon_s = record.appended_ms // 1000, partition.horizon_s
    # From this UNIX second on an hour is counted; 0 where it is counted already.
    from_s = 0
    if record.due_ms is not None:
        kept = Version(record.due_ms, record.offset, far=record.far)
        from_s = kept.second
        if record.far:
            from_s = appended_s
            out.remember.append((record.offset, appended_s * 1000))
        elif kept.due_ms < partition.scanned_ms:
            if partition.is_done(kept):
                out.remember.append((record.offset, from_s * 1000))
            else:
                from_s = partition.scanned_ms // 1000
        if horizon_s:
            from_s = max(from_s, appended_s)
    elif horizon_s:
        # It may be about a request that the lake has, and lie behind what the lake knew when it made a copy.
        kept = (kept or Version(0, 0, cancelled=True))._replace(by=record.offset)
        from_s = appended_s if kept.far else max(kept.second, appended_s)
    if from_s and kept:
        if from_s * 1000 <= _now_ms(record, partition) - ID_MEMORY_MS:
            kept = None
        else:
            out.keep(record.timer_id, kept, from_s)
    if kept is not before or record.condition:
        known[record.timer_id] = out.versions[record.timer_id] = kept


def _now_ms(record: TimerRecord, partition: "Partition") -> int:
    """Return the moment by which it is judged whether an hour is over."""
    sealed_ms = partition.sealed_ms - 1000
    # A copy that follows may have been decided without this record, however long ago that is when the log is read anew.
    return min(sealed_ms, record.appended_ms // 1000 * 1000) if partition.horizon_s else sealed_ms


# --- conditions ------------------------------------------------------------------------------------------------------


def _holds(record: TimerRecord, before: Version | None, effect: Effect | None, partition: "Partition") -> bool:
    """Tell whether the condition of *record* holds."""
    if record.offset in partition.ignored:
        return False
    if record.condition == Condition.IF_ABSENT:
        # By the append time, not by what is remembered: whoever reads the log again comes to the same end.
        return before is None or not before.due_ms or record.appended_ms >= before.closes_ms + ID_MEMORY_MS
    if before is None and record.offset < partition.replaced_below:
        # The request that it has replaced lies below what is read again; had it found none, it would be in `ignored`.
        return True
    is_meant = record.expected is None or (before is not None and before.offset == record.expected)
    return is_meant and effect in (Effect.WITHDRAWS, Effect.FORGOTTEN)


def _ignore(record: TimerRecord, before: Version | None, partition: "Partition", out: Decided) -> None:
    if record.due_ms is not None and not partition.is_done(Version(record.due_ms, record.offset)):
        out.ignored[record.offset] = record.due_ms
    if record.reply_topic and not partition.is_answered(record.offset):
        about = before if before and before.due_ms else None
        out.answers.append(Answer(record.offset, record.reply_topic, record.timer_id, Reply.IGNORED, about))


# --- copies ----------------------------------------------------------------------------------------------------------


def _decide_copy(record: TimerRecord, original: Original, known: Known, partition: "Partition", out: Decided) -> None:
    if record.due_ms is None:
        raise AssertionError("a cancel is no copy")
    appended_s = record.appended_ms // 1000
    before = known.get(record.timer_id) if record.timer_id else None
    why: Dropped | None = None
    if appended_s - original.decided_s > COPY_STALE_S:
        why = Dropped.STALE
    elif partition.holds_original(record.due_ms, original.offset, original.appended_s):
        why = Dropped.HELD
    elif original.decided < partition.head.known_from:
        raise KnownFromError(original.decided)
    elif known.get(original.name) is not None:
        why = Dropped.REPEATED
    elif before is not None and before.latest >= original.decided:
        why = Dropped.OVERTAKEN
    if why:
        out.dropped[record.offset] = why
        return
    # Another copy of the same original may follow for as long as it is not stale, and is known by its name for an hour.
    version = Version(record.due_ms, original.offset, copied=Copied(record.offset, original.decided))
    known[original.name] = version
    out.keep(original.name, version, appended_s)
    # A later request of the id, made when this one's second had begun already, stays the last.
    if record.timer_id and (before is None or before.offset <= original.offset):
        known[record.timer_id] = version
        out.keep(record.timer_id, version, max(version.second, appended_s))
        if partition.is_done(version):
            out.remember.append((original.decided, version.second * 1000))
