"""
What requests and cancels mean for earlier requests of the same timer id, and what is answered.

Pure. All records of an id lie in one partition, so they have one order, and each means something for at most one other:
the last request of the id before it. `Partition.fate` says what.
"""

import struct
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import NamedTuple

from murmurhash2 import murmurhash2

from kafka_timers.service.partition import Fate, Partition, Version
from kafka_timers.wire import ID_MEMORY_S, Reply

_ANSWER = struct.Struct(">QHQ?BI")

# Requests that are read together are due in many seconds, and in few minutes.
_MINUTE_S = 60

# The seed of murmur2 in Kafka's clients, whose default partitioner takes the lower 31 bits modulo the partitions.
SEED = 0x9747B28C
POSITIVE = 0x7FFF_FFFF


def hash_of(name: bytes) -> int:
    """Return what Kafka's default partitioner takes modulo the number of partitions."""
    return murmurhash2(name, SEED) & POSITIVE


class Asked(NamedTuple):
    """A record with a timer id; `second` is None for a cancel."""

    timer_id: bytes
    second: int | None
    millis: int
    offset: int
    appended_ms: int
    reply_topic: bytes


class Answer(NamedTuple):
    """What the record at `offset` is answered, on `topic`: a `Reply.Outcome` and the request that it is about."""

    offset: int
    topic: bytes
    timer_id: bytes
    outcome: int
    version: Version | None

    def pack(self) -> bytes:
        """Return it as a row of the store, without its offset."""
        version = self.version or Version(0, 0, 0)
        return _ANSWER.pack(*version, self.outcome, len(self.topic)) + self.topic + self.timer_id

    @classmethod
    def unpack(cls, offset: int, row: bytes) -> "Answer":
        """Return what `pack` was called on."""
        *version, outcome, topic_bytes = _ANSWER.unpack_from(row)
        topic_end = _ANSWER.size + topic_bytes
        about = Version(*version) if version[0] else None
        return cls(offset, row[_ANSWER.size : topic_end], row[topic_end:], outcome, about)

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
    """A request that does not fire: the key of its row, its offset, and whether another one has taken its place."""

    key: bytes
    offset: int
    timer_id: bytes
    moved: bool


@dataclass(slots=True)
class Decided:
    """
    What follows from some records with timer ids.

    Attributes:
        versions: what is to be kept of each id, None for nothing.
        taken_back: requests that do not fire.
        answers: in the order of the records.
        past: ids and offsets of requests, by the end of the minute in which they are due.
        remember: offsets of requests that do not wait, and the second in which that was decided.
        open_at: offset of the first record that nothing can be said of yet; it and all behind it are left out.
    """

    versions: dict[bytes, Version | None] = field(default_factory=dict)
    taken_back: list[TakenBack] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    past: dict[int, tuple[list[bytes], list[int]]] = field(default_factory=dict)
    remember: list[tuple[int, int]] = field(default_factory=list)
    open_at: int | None = None


def decide(asked: Iterable[Asked], known: MutableMapping[bytes, Version | None], partition: Partition) -> Decided:
    """
    Return what *asked* means.

    Args:
        asked: offsets ascending; requests that are refused left out.
        known: the last request of each id before these; is changed to that after them.
        partition: knows what has fired.
    """
    out = Decided()
    versions, looked_at, forgotten = out.versions, partition.looked_at, partition.second - ID_MEMORY_S
    for ask in asked:
        timer_id, asked_second, _, offset, appended_ms, reply_topic = ask
        before = known.get(timer_id)
        outcome, kept = Reply.UNKNOWN, before
        if before is not None and before.cancelled:
            outcome = Reply.CANCELLED if asked_second is None else Reply.UNKNOWN
        elif before is not None:
            fate = partition.fate(before, offset, appended_ms)
            if fate is Fate.OPEN:
                out.open_at = offset
                break
            if fate is Fate.TAKEN_BACK:
                second, millis, of, _ = before
                key = partition.place(second, millis, of)
                if key is None:
                    raise AssertionError("what is done cannot be taken back")
                outcome = Reply.CANCELLED if asked_second is None else Reply.MOVED
                out.taken_back.append(TakenBack(key, of, timer_id, asked_second is not None))
                out.remember.append((of, appended_ms // 1000))
                kept = Version(second, millis, of, cancelled=True)
            elif fate is Fate.TOO_LATE:
                outcome = Reply.TOO_LATE
            else:
                kept = None
        if asked_second is not None:
            kept, second = Version(asked_second, ask.millis, offset), asked_second
            if second <= looked_at:
                if partition.is_done(kept):
                    out.remember.append((offset, second))
                else:
                    second = looked_at + 1
            if second <= forgotten:
                kept = None
            else:
                minute = second - second % _MINUTE_S + _MINUTE_S
                past = out.past.get(minute)
                if past is None:
                    past = out.past[minute] = ([], [])
                past[0].append(timer_id)
                past[1].append(offset)
        if kept is not before:
            known[timer_id] = versions[timer_id] = kept
        if reply_topic and not partition.is_answered(offset):
            about = None if outcome == Reply.UNKNOWN else before
            out.answers.append(Answer(offset, reply_topic, timer_id, outcome, about))
    return out
