"""
What requests and cancels mean for earlier requests of the same timer id, and what is answered.

Pure. All records of an id lie in one partition, so they have one order, and each means something for at most one other:
the last request of the id before it. `Partition.fate` says what.
"""

import struct
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from murmurhash2 import murmurhash2

from kafka_timers.core.partition import Copied, Fate, Partition, Version
from kafka_timers.core.wire import COPY_STALE_S, ID_MEMORY_S, Reply

_ANSWER = struct.Struct(">BBI")
_OFFSET = struct.Struct(">Q")

# Requests that are read together are due in many seconds, and in few minutes.
_MINUTE_S = 60

# The seed of murmur2 in Kafka's clients, whose default partitioner takes the lower 31 bits modulo the partitions.
SEED = 0x9747B28C
POSITIVE = 0x7FFF_FFFF


def hash_of(name: bytes) -> int:
    """Return what Kafka's default partitioner takes modulo the number of partitions."""
    return murmurhash2(name, SEED) & POSITIVE


class KnownFromError(Exception):
    """A copy was decided on what lies below `offset`, which the store has not read: it has to be read from there."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"a copy was decided at offset {offset}: the log is read again from there")
        self.offset = offset


class CopyOf(NamedTuple):
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


class Asked(NamedTuple):
    """
    A record that has a timer id or is a copy.

    Attributes:
        timer_id: empty without one.
        second: None for a cancel.
        millis: within that second.
        offset: of the record.
        appended_ms: UNIX milliseconds of its append.
        reply_topic: empty when no answer is wanted.
        far: whether the request is left to the lake.
        copy_of: set for a copy.
    """

    timer_id: bytes
    second: int | None
    millis: int
    offset: int
    appended_ms: int
    reply_topic: bytes
    far: bool = False
    copy_of: CopyOf | None = None

    @property
    def names(self) -> Iterable[bytes]:
        """What has to be known of to decide."""
        return filter(None, (self.timer_id, self.copy_of and self.copy_of.name))


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

    def by_now(self, partition: Partition) -> "Answer":
        """Return what is true of this, which was not sent, after others may have owned the *partition*."""
        version = self.version
        if version is None or self.outcome == Reply.TOO_LATE or not partition.is_done(version):
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


class TakenBack(NamedTuple):
    """
    A request that is held and does not fire.

    Attributes:
        key: of its row.
        counted: the offset under which it counts as pending.
        timer_id: its.
        moved: whether another one has taken its place, rather than a cancel.
    """

    key: bytes
    counted: int
    timer_id: bytes
    moved: bool


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
        taken_back: requests that are held and do not fire.
        answers: in the order of the records.
        past: ids, and offsets that the last record of each must have to be forgotten, by the end of the minute from
            which on an hour is counted.
        last: offset of the last record.
        remember: offsets of requests that do not wait, and the second in which that was decided.
        dropped: offsets of copies that mean nothing, and why.
        open_at: offset of the first record that nothing can be said of yet; it and all behind it are left out.
    """

    versions: dict[bytes, Version | None] = field(default_factory=dict)
    taken_back: list[TakenBack] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    past: dict[int, tuple[list[bytes], list[int]]] = field(default_factory=dict)
    last: int = 0
    remember: list[tuple[int, int]] = field(default_factory=list)
    dropped: dict[int, Dropped] = field(default_factory=dict)
    open_at: int | None = None

    def keep(self, name: bytes, version: Version, from_s: int) -> None:
        """Keep *version* of *name* for an hour from second *from_s* on."""
        self.versions[name] = version
        minute = from_s - from_s % _MINUTE_S + _MINUTE_S
        past = self.past.get(minute)
        if past is None:
            past = self.past[minute] = ([], [])
        past[0].append(name)
        past[1].append(version.latest)


def decide(asked: Iterable[Asked], known: MutableMapping[bytes, Version | None], partition: Partition) -> Decided:
    """
    Return what *asked* means.

    Args:
        asked: offsets ascending; requests that are refused left out.
        known: the last request of each name before these; is changed to that after them.
        partition: knows what has fired.

    Raises:
        KnownFromError: what a copy means depends on earlier records than have been read.
    """
    out = Decided()
    for ask in asked:
        if ask.copy_of:
            _decide_copy(ask, ask.copy_of, known, partition, out)
        elif not _decide_ask(ask, known, partition, out):
            break
        out.last = ask.offset
    return out


def _decide_ask(ask: Asked, known: MutableMapping[bytes, Version | None], partition: Partition, out: Decided) -> bool:
    """Decide on a request or cancel; False when nothing can be said of it yet."""
    timer_id, asked_second, _, offset, appended_ms, reply_topic, *_ = ask
    appended_s = appended_ms // 1000
    before = known.get(timer_id)
    outcome, kept, keep_from = Reply.UNKNOWN, before, 0
    if before is not None and before.cancelled:
        if asked_second is None and before.second:
            outcome = Reply.CANCELLED
    elif before is not None:
        fate = partition.fate(before, offset, appended_ms)
        if fate is Fate.OPEN:
            out.open_at = offset
            return False
        if fate is Fate.TAKEN_BACK:
            outcome = Reply.CANCELLED if asked_second is None else Reply.MOVED
            kept = before._replace(cancelled=True)
            if not before.far:
                second, millis, of, *_ = before
                key = partition.place(second, millis, of, before.copied)
                if key is None:
                    raise AssertionError("what is done cannot be taken back")
                counted = before.copied.decided if before.copied else of
                out.taken_back.append(TakenBack(key, counted, timer_id, asked_second is not None))
                out.remember.append((counted, appended_s))
        elif fate is Fate.TOO_LATE:
            outcome = Reply.TOO_LATE
        else:
            kept = None
    if asked_second is not None:
        kept, keep_from = Version(asked_second, ask.millis, offset, far=ask.far), asked_second
        if ask.far:
            keep_from = appended_s
            out.remember.append((offset, appended_s))
        elif keep_from <= partition.looked_at:
            if partition.is_done(kept):
                out.remember.append((offset, keep_from))
            else:
                keep_from = partition.looked_at + 1
        if partition.horizon_s:
            keep_from = max(keep_from, appended_s)
    elif partition.horizon_s:
        # It may be about a request that the lake has, and lie behind what the lake knew when it made a copy.
        kept = (kept or Version(0, 0, 0, cancelled=True))._replace(by=offset)
        keep_from = appended_s if kept.far else max(kept.second, appended_s)
    # A copy that follows may have been decided without this record, however long ago that is when the log is read anew.
    now = min(partition.second, appended_s) if partition.horizon_s else partition.second
    if keep_from and kept:
        if keep_from <= now - ID_MEMORY_S:
            kept = None
        else:
            out.keep(timer_id, kept, keep_from)
    if kept is not before:
        known[timer_id] = out.versions[timer_id] = kept
    if reply_topic and not partition.is_answered(offset):
        about = None if outcome == Reply.UNKNOWN else before
        out.answers.append(Answer(offset, reply_topic, timer_id, outcome, about))
    return True


def _decide_copy(
    ask: Asked,
    copy_of: CopyOf,
    known: MutableMapping[bytes, Version | None],
    partition: Partition,
    out: Decided,
) -> None:
    if ask.second is None:
        raise AssertionError("a cancel is no copy")
    appended_s = ask.appended_ms // 1000
    before = known.get(ask.timer_id) if ask.timer_id else None
    why: Dropped | None = None
    if appended_s - copy_of.decided_s > COPY_STALE_S:
        why = Dropped.STALE
    elif partition.holds_original(ask.second, copy_of.offset, copy_of.appended_s):
        why = Dropped.HELD
    elif copy_of.decided < partition.known_from:
        raise KnownFromError(copy_of.decided)
    elif known.get(copy_of.name) is not None:
        why = Dropped.REPEATED
    elif before is not None and before.latest >= copy_of.decided:
        why = Dropped.OVERTAKEN
    if why:
        out.dropped[ask.offset] = why
        return
    # Another copy of the same original may follow for as long as it is not stale, and is known by its name for an hour.
    version = Version(ask.second, ask.millis, copy_of.offset, copied=Copied(ask.offset, copy_of.decided))
    known[copy_of.name] = version
    out.keep(copy_of.name, version, appended_s)
    # A later request of the id, made when this one's second had begun already, stays the last.
    if ask.timer_id and (before is None or before.offset <= copy_of.offset):
        known[ask.timer_id] = version
        out.keep(ask.timer_id, version, max(ask.second, appended_s))
        if partition.is_done(version):
            out.remember.append((copy_of.decided, ask.second))
