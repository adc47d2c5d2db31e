"""The version of a timer id, and the possible results of its records; `decisions` has the rules."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import NamedTuple

from kafka_timers.core.hour import over_ms
from kafka_timers.core.keys import Copied
from kafka_timers.core.wire import ANSWER_HEADER, Condition, Reply, Sealed

_VERSION = struct.Struct(">QHQQB")
_COPIED = struct.Struct(">QQ")
_SINCE = struct.Struct(">Q")
_ANSWER = struct.Struct(">BBI")
_OFFSET = struct.Struct(">Q")
# A later program version may have left an answer with an outcome that this one does not know.
_OUTCOMES = {number: name for name, number in Reply.Outcome.items()}


class KnownFromError(Exception):
    """
    A copy's decision needs the records from `offset` on, but the store has not read them. Read the log from there.
    """

    def __init__(self, offset: int) -> None:
        super().__init__(f"a copy was decided at offset {offset}: the log is read again from there")
        self.offset = offset


class Version(NamedTuple):
    """
    The last request of a timer id, and its state.

    Attributes:
        due_ms: due of the request in UNIX milliseconds; 0 if only a cancel is known.
        offset: offset of the request; for a copy that of its original.
        cancelled: whether a cancel has withdrawn it.
        by: offset of the last cancel behind it; kept if there is a horizon, else 0.
        unsure: whether it is done, but nobody can tell any more whether a cancel was in time; then it counts as
            cancelled.
        waits: only in an answer: whether it could still be withdrawn when that was decided.
        since_ms: UNIX milliseconds from which its hour is counted, where that is not its due: the append of a request
            that is left to the lake, or of the first cancel that was appended before the due. Else 0.
    """

    due_ms: int
    offset: int
    cancelled: bool = False
    by: int = 0
    far: bool = False
    copied: Copied | None = None
    unsure: bool = False
    waits: bool = False
    since_ms: int = 0

    @property
    def second(self) -> int:
        """UNIX second of the due."""
        return self.due_ms // 1000

    def is_over(self, appended_ms: int) -> bool:
        """
        Tell whether its id is unknown by now to a record that was appended at *appended_ms*.

        Nobody knows the id of a far request for longer than an hour, until it comes back as a copy; and nobody that of
        a cancelled one, however far its due: else `timer-request` would have to be kept until an hour after that.
        """
        return not self.due_ms or appended_ms >= over_ms(self.since_ms or self.due_ms)

    @property
    def latest(self) -> int:
        """Offset of the last record that this state follows from; for a copy that of its original."""
        return self.by or self.offset

    @property
    def at(self) -> int:
        """Offset of its own record: of the copy, if it is one."""
        return self.copied.at if self.copied else self.offset

    @property
    def made_at(self) -> int:
        """Offset of the record that made this state; a copy makes another one than its original."""
        return self.by or self.at

    @property
    def counted(self) -> int:
        """Offset under which it counts as pending."""
        return self.copied.decided if self.copied else self.offset

    @property
    def doubted(self) -> "Version":
        """
        The state to keep of it once it is done, when nobody can tell whether it was withdrawn.

        A request on condition that there is none must hear that there was one. Held by
        test_an_id_whose_outcome_is_unknown_is_not_absent.
        """
        return self._replace(cancelled=True, unsure=True)

    def pack(self) -> bytes:
        """Return it as a row of the store."""
        second, millis = divmod(self.due_ms, 1000)
        flags = self.cancelled | self.far << 1 | self.unsure << 2 | self.waits << 3 | bool(self.since_ms) << 4
        row = _VERSION.pack(second, millis, self.offset, self.by, flags)
        if self.since_ms:
            row += _SINCE.pack(self.since_ms)
        return row + _COPIED.pack(*self.copied) if self.copied else row

    @classmethod
    def unpack(cls, row: bytes) -> "Version":
        """Return the version in a *row* from `pack`."""
        second, millis, offset, by, flags = _VERSION.unpack_from(row)
        cancelled, far, unsure, waits, has_since = (bool(flags & bit) for bit in (1, 2, 4, 8, 16))
        end, since_ms, copied = _VERSION.size, 0, None
        if has_since:
            (since_ms,) = _SINCE.unpack_from(row, end)
            end += _SINCE.size
        if len(row) > end:
            copied = Copied(*_COPIED.unpack_from(row, end))
        return cls(second * 1000 + millis, offset, cancelled, by, far, copied, unsure, waits, since_ms)


class Effect(Enum):
    """
    The effect of a cancel, or of a request with the same timer id, on an earlier request.

    Attributes:
        WITHDRAWS: the earlier request does not fire.
        TOO_LATE: it fires, or has fired.
        FORGOTTEN: one of these two: a worker that reads the log again cannot tell, and nobody asks any more.
        UNDECIDED: only the seal of the open scan will decide whether it fires.
    """

    WITHDRAWS = auto()
    TOO_LATE = auto()
    FORGOTTEN = auto()
    UNDECIDED = auto()


class Original(NamedTuple):
    """
    The original of a copy.

    Attributes:
        appended_s: UNIX second of its append.
        decided: all records below this offset were known when the lake decided to publish the copy.
        decided_s: UNIX second of that decision.
    """

    offset: int
    appended_s: int
    decided: int
    decided_s: int

    @property
    def name(self) -> bytes:
        """A name for it among timer ids. It cannot clash, since they are UTF-8 and never begin with this byte."""
        return b"\xff" + _OFFSET.pack(self.offset)


def cancel_name(timer_id: bytes) -> bytes:
    """Return a name for the last cancel of *timer_id*. No timer id begins with this byte, since they are UTF-8."""
    return b"\xfe" + timer_id


class TimerRecord(NamedTuple):
    """
    A record that has a timer id, or is a copy.

    Attributes:
        due_ms: due in UNIX milliseconds; None for a cancel.
        appended_ms: UNIX milliseconds of its append.
        reply_topic: topic for the answer; empty if no answer is wanted.
        expected: offset of the request that the condition names: the only one that `IF_PENDING` accepts, or the one
            that `IF_ABSENT` does not count once its second has begun.
        first: partition:offset at which it was first written, if it was sent on; else empty.
        first_ms: UNIX milliseconds of that append; 0 without one.
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
    first: str = ""
    first_ms: int = 0

    @property
    def names(self) -> Iterable[bytes]:
        """Names whose versions are needed to decide."""
        if self.original is None and not self.first:
            return (self.timer_id,)
        last_cancel = cancel_name(self.timer_id) if self.first and self.due_ms is not None else b""
        return filter(None, (self.timer_id, self.original and self.original.name, last_cancel))


class Answer(NamedTuple):
    """
    The answer to the record at `offset`, for `topic`: a `Reply.Outcome` and the request that it is about.

    Attributes:
        first: partition:offset at which the record was first written, if it was sent on; else empty.
    """

    offset: int
    topic: bytes
    timer_id: bytes
    outcome: int
    version: Version | None
    first: str = ""

    def pack(self) -> bytes:
        """Return it as a row of the store, without its offset."""
        version = self.version.pack() if self.version else b""
        # No topic has a zero byte in its name.
        topic = self.topic + b"\0" + self.first.encode() if self.first else self.topic
        return _ANSWER.pack(self.outcome, len(version), len(topic)) + version + topic + self.timer_id

    @classmethod
    def unpack(cls, offset: int, row: bytes) -> "Answer":
        """Return the answer in a *row* from `pack`."""
        outcome, version_bytes, topic_bytes = _ANSWER.unpack_from(row)
        version_end = _ANSWER.size + version_bytes
        topic_end = version_end + topic_bytes
        version = Version.unpack(row[_ANSWER.size : version_end]) if version_bytes else None
        topic, _, first = row[version_end:topic_end].partition(b"\0")
        return cls(offset, topic, row[topic_end:], outcome, version, first.decode())

    def reply(self, partition: int) -> Reply:
        """Return the answer as a message; *partition* is the partition of `timer-request` that holds the records."""
        reply = Reply(
            timerId=self.timer_id.decode(),
            outcome=Reply.Outcome.Name(self.outcome),
            asked=self.first or f"{partition}:{self.offset}",
        )
        if self.version:
            reply.second, reply.millis = divmod(self.version.due_ms, 1000)
            reply.request = f"{partition}:{self.version.offset}"
            if self.outcome == Reply.IGNORED:
                reply.waits = self.version.waits
        return reply


class Letter(NamedTuple):
    """An answer as a record for `topic`."""

    topic: str
    key: bytes
    value: bytes

    @classmethod
    def of(cls, answer: Answer, partition: int, future: bytes = b"") -> "Letter":
        """
        Return the letter with *answer*, which is about a record of *partition* of `timer-request`.

        Args:
            future: of the request that the answer names, if that may have left the log.
        """
        reply = answer.reply(partition)
        if future:
            reply.future = future
        return cls(answer.topic.decode(), answer.timer_id, reply.SerializeToString())

    @classmethod
    def unsent(cls, seal: Sealed) -> list["Letter"]:
        """Return the letters that had not been sent when *seal* was made."""
        return [cls(each.topic, each.key, each.reply) for each in seal.unsent]

    def size(self) -> int:
        """Return its approximate size in a seal, in bytes."""
        return len(self.topic) + len(self.key) + len(self.value) + 12


def headers_of_reply(value: bytes) -> list[tuple[str, bytes | None]]:
    """Return the headers of an answer, which tell clients without protobuf what its *value* tells the others."""
    reply = Reply.FromString(value)
    headers: list[tuple[str, bytes | None]] = [
        (ANSWER_HEADER, _OUTCOMES.get(reply.outcome, str(reply.outcome)).encode()),
        (f"{ANSWER_HEADER}-to", reply.asked.encode()),
    ]
    if reply.request:
        headers += [
            (f"{ANSWER_HEADER}-request", reply.request.encode()),
            (f"{ANSWER_HEADER}-due-ms", b"%d" % (reply.second * 1000 + reply.millis)),
        ]
    if reply.waits:
        headers.append((f"{ANSWER_HEADER}-waits", b"1"))
    return headers


class Withdrawn(NamedTuple):
    """
    A held request that does not fire.

    Attributes:
        counted: offset under which it counts as pending.
        superseded: whether another request has taken its place; else a cancel has withdrawn it.
    """

    key: bytes
    counted: int
    timer_id: bytes
    superseded: bool


class Dropped(StrEnum):
    """
    Reasons to drop a copy.

    Attributes:
        HELD: its original is, or was, held by the workers: their horizon is longer than the lake's.
        STALE: it was appended too long after it was decided: records in between may be forgotten here.
        REPEATED: there is a copy of its original already.
        OVERTAKEN: there is a record of its timer id that was not known when it was decided.
    """

    HELD = "held"
    STALE = "stale"
    REPEATED = "repeated"
    OVERTAKEN = "overtaken"


@dataclass(slots=True)
class Decided:
    """
    The decisions on some records with timer ids, and on copies.

    Attributes:
        versions: version to keep of each id; None for none.
        answers: answers in the order of the records.
        expiring: ids, and offsets that the last record of each must have to be forgotten, by the UNIX second that ends
            the minute from which on an hour is counted.
        remember: offsets of requests that do not wait, and the UNIX milliseconds at which that was decided.
        dropped: offsets of dropped copies, with the reasons.
        ignored: offsets of requests whose condition does not hold, and their due.
        undecided_at: offset of the first record that cannot be decided yet; it and all behind it are left out.
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
