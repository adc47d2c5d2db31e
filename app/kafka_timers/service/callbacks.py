"""
Rows of the store → record batches, grouped by callback partition.

A hot second is some hundred thousand passes through the loop of `Slice._add`, so that loop holds names in locals and
knows only the most common kind of request; `Slice._add_any` knows all of them.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from aiokafka.producer.message_accumulator import BatchBuilder
from google.protobuf.message import DecodeError
from murmurhash2 import murmurhash2

from kafka_timers.clock import Clock
from kafka_timers.service.partition import REFUSED, Taken, is_late, on_time, parts_of
from kafka_timers.service.requests import OVERHEAD_BYTES, Reason, Row, Target, fits, unpack_refused
from kafka_timers.service.sender import BATCH_BYTES, Ready
from kafka_timers.service.targets import CallbackTopics
from kafka_timers.wire import EXPIRY_HEADER, REQUEST_HEADER, Future, callback_headers, plain_fields

Headers = list[tuple[str, bytes | None]]

# The seed of murmur2 in Kafka's clients, whose default partitioner takes the lower 31 bits modulo the partitions.
_SEED = 0x9747B28C
_POSITIVE = 0x7FFF_FFFF

# Rows between two turns of the event loop: some 5 ms of work.
_STRIDE_ROWS = 1_000
_STRIDE_BYTES = 4 << 20
# Assumed of the first rows, before their size is known: few enough that the largest ones fit into memory.
_ROW_BYTES_GUESS = 64 << 10


@dataclass(frozen=True, slots=True)
class Rejects:
    """Where refused requests go, and the topic that they came from."""

    topic: str
    target: Target
    source: str


@dataclass(slots=True)
class _Lane:
    """
    The open batches of one callback topic, one per partition, and how many callbacks have gone there.

    A request of at most *plain_bytes_max* needs no look at what the topic takes.
    """

    topic: str
    target: Target
    batches: list[BatchBuilder | None]
    plain_bytes_max: int
    fired: int = 0


class Slice:
    """
    Rows that leave in one transaction, and the callbacks built from them.

    Args:
        number: of the partition that the rows are from.
        new_batch: makes a batch for the sender.
        targets: what is known of callback topics.
        rejects: where refused requests go.
        clock: tells when callbacks are built, and how late they are.
        rows_max: most rows.
        bytes_max: of the rows; the last of them may exceed it.
        not_before_s: the second that fires; no callback is dated before it, though it is built earlier.

    Attributes:
        taken: the rows.
        refused: how many of them go to `timer-rejected`, by reason.
        seconds: rows by their second, without those that came late themselves.
        bytes: of the rows.
    """

    def __init__(
        self,
        number: int,
        new_batch: Callable[[], BatchBuilder],
        targets: CallbackTopics,
        rejects: Rejects,
        clock: Clock,
        *,
        rows_max: int,
        bytes_max: int,
        not_before_s: int,
    ) -> None:
        self.taken = Taken()
        self.refused: Counter[Reason] = Counter()
        self.seconds: Counter[int] = Counter()
        self.bytes = 0
        self._number = number
        self._new_batch = new_batch
        self._targets = targets
        self._rejects = rejects
        self._reject_lane = _lane_to(rejects.topic, rejects.target)
        self._clock = clock
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._not_before_ms = not_before_s * 1000
        self._lanes: dict[bytes, _Lane] = {}
        self._full: list[Ready] = []

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.taken.offsets)

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be added."""
        return len(self) >= self._rows_max or self.bytes >= self._bytes_max

    @property
    def fired(self) -> dict[str, int]:
        """Callbacks by topic."""
        return {lane.topic: lane.fired for lane in self._lanes.values()}

    async def add(self, rows: Iterator[Row]) -> bool:
        """
        Build the callbacks of the next of *rows*, some milliseconds' worth; False when the rows have ended.

        Raises:
            aiokafka.errors.KafkaError: no broker tells what callback topics there are.
        """
        row_bytes = self.bytes // len(self) + 1 if len(self) else _ROW_BYTES_GUESS
        wanted = max(min(_STRIDE_ROWS, _STRIDE_BYTES // row_bytes, self._rows_max - len(self)), 1)
        stride = list(islice(rows, wanted))
        if stride:
            await self._add(stride)
        if len(stride) < wanted:
            return False
        # Heartbeats and the other partitions get their turn.
        await asyncio.sleep(0)
        return True

    def full(self) -> list[Ready]:
        """Hand out the batches that are full, in the order in which they must be sent."""
        full, self._full = self._full, []
        return full

    def rest(self) -> list[Ready]:
        """Hand out all batches that are left; nothing can be added any more."""
        rest = self.full()
        for lane in (*self._lanes.values(), self._reject_lane):
            rest += [(batch, lane.topic, at) for at, batch in enumerate(lane.batches) if batch]
        return rest

    async def _add(self, stride: list[Row]) -> None:
        now_ms, lanes, request = self._now_ms(), self._lanes, b"%d:%%d" % self._number
        keys, rows = [key for key, _ in stride], [row for _, row in stride]
        self.bytes += sum(map(len, rows))
        expiry_of, expiry = -1, (EXPIRY_HEADER, b"")
        for second, offset, row, plain in zip(*self._take(keys), rows, plain_fields(rows), strict=True):
            if plain:
                topic, to_key, value = plain
                lane = lanes.get(topic)
                if lane and to_key and len(row) <= lane.plain_bytes_max:
                    if second != expiry_of:
                        expiry_of, expiry = second, (EXPIRY_HEADER, b"%d" % second)
                    headers: Headers = [expiry, (REQUEST_HEADER, request % offset)]
                    at = (murmurhash2(to_key, _SEED) & _POSITIVE) % lane.target.partitions
                    batch = lane.batches[at]
                    if (
                        batch is None
                        or batch.append(timestamp=now_ms, key=to_key, value=value, headers=headers) is None
                    ):
                        self._append_to_new(lane, at, now_ms, to_key, value, headers)
                    lane.fired += 1
                    continue
            await self._add_any(second, offset, row, stride)

    def _take(self, keys: list[bytes]) -> tuple[Sequence[int], Sequence[int]]:
        """Note that the rows under *keys* are taken, and return their own seconds and offsets."""
        taken, parts = self.taken, on_time(keys)
        if parts:
            seconds, offsets = parts
            self.seconds.update(seconds)
        else:
            seconds, _, offsets = zip(*map(parts_of, keys), strict=True)
            late = [is_late(key) for key in keys]
            taken.late += sum(late)
            self.seconds.update([second for second, came_late in zip(seconds, late, strict=True) if not came_late])
        taken.offsets += offsets
        taken.through = max(taken.through, keys[-1])
        return seconds, offsets

    async def _add_any(self, second: int, offset: int, row: bytes, stride: list[Row]) -> None:
        """Add a row of any kind, the way that knows all of them."""
        if second == REFUSED:
            self._reject(offset, *unpack_refused(row))
            return
        try:
            future = Future.FromString(row)
        except DecodeError:
            self._reject(offset, Reason.VALUE_NOT_A_FUTURE, b"%d" % second, row)
            return
        lane = self._lanes.get(future.callBackTopic.encode())
        if lane is None:
            verdict = await self._verdict(future.callBackTopic, stride)
            if isinstance(verdict, Reason):
                self._reject(offset, verdict, b"%d" % second, row)
                return
            lane = self._lanes[future.callBackTopic.encode()] = _lane_to(future.callBackTopic, verdict)
        if not fits(future, len(row), lane.target):
            self._reject(offset, Reason.TOO_LARGE, b"%d" % second, row)
            return
        key, value = future.callBackKey.encode(), future.callBack
        at = (murmurhash2(key, _SEED) & _POSITIVE if key else second) % lane.target.partitions
        headers = callback_headers(future, second, b"%d:%d" % (self._number, offset))
        self._append(lane, at, len(row) + OVERHEAD_BYTES, key or None, value, headers)
        lane.fired += 1

    def lateness_ms(self, share: float) -> int:
        """Return how late *share* (0 to 1) of the rows are at most, from their second until now; 0 without any."""
        late, left = 0, share * self.seconds.total()
        for second in sorted(self.seconds, reverse=True):
            if left <= 0:
                break
            late = int((self._clock.wall_s() - second) * 1000)
            left -= self.seconds[second]
        return late

    async def _verdict(self, topic: str, stride: list[Row]) -> Target | Reason:
        """Tell what *topic* takes; all unknown ones of *stride* are asked for at once, since there may be thousands."""
        verdicts = self._targets.verdicts
        while topic not in verdicts:
            await self._targets.resolve(_topics_of(stride) - verdicts.keys())
        return verdicts[topic]

    def _append(
        self, lane: _Lane, at: int, bytes_max: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        """Append to a lane whose topic may take less than a batch of the producer; *bytes_max* is added at most."""
        now_ms, batch = self._now_ms(), lane.batches[at]
        if (
            batch is None
            or batch.size() + bytes_max > lane.target.batch_bytes_max
            or batch.append(timestamp=now_ms, key=key, value=value, headers=headers) is None
        ):
            self._append_to_new(lane, at, now_ms, key, value, headers)

    def _append_to_new(
        self, lane: _Lane, at: int, now_ms: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        full = lane.batches[at]
        if full is not None:
            self._full.append((full, lane.topic, at))
        # The first record is taken whatever its size; that the topic takes it too was checked before.
        batch = lane.batches[at] = self._new_batch()
        batch.append(timestamp=now_ms, key=key, value=value, headers=headers)

    def _reject(self, offset: int, reason: Reason, key: bytes | None, value: bytes | None) -> None:
        self.taken.rejected.append(offset)
        self.refused[reason] += 1
        lane = self._reject_lane
        headers: Headers = [
            ("timer-rejected-reason", reason.encode()),
            ("timer-rejected-topic", self._rejects.source.encode()),
            ("timer-rejected-partition", b"%d" % self._number),
            ("timer-rejected-offset", b"%d" % offset),
        ]
        # A topic that takes less than `timer-request` gets what fits.
        room = lane.target.batch_bytes_max - 2 * OVERHEAD_BYTES
        key, value = key and key[:room], value and value[: max(room - len(key or b""), 0)]
        size = len(key or b"") + len(value or b"") + 2 * OVERHEAD_BYTES
        self._append(lane, self._number % lane.target.partitions, size, key, value, headers)

    def _now_ms(self) -> int:
        return max(int(self._clock.wall_s() * 1000), self._not_before_ms)


def _lane_to(topic: str, target: Target) -> _Lane:
    # A batch has at most what the producer takes. Where the topic takes less, each one is looked at.
    plain_bytes_max = target.batch_bytes_max - OVERHEAD_BYTES if target.batch_bytes_max >= BATCH_BYTES else -1
    return _Lane(topic, target, [None] * target.partitions, plain_bytes_max)


def _topics_of(stride: list[Row]) -> set[str]:
    topics = set()
    for key, row in stride:
        if parts_of(key)[0] != REFUSED:
            with suppress(DecodeError):
                topics.add(Future.FromString(row).callBackTopic)
    return topics
