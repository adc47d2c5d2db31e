"""
Rows of the store → record batches, grouped by callback partition.

A hot second is some hundred thousand passes through the loop of `Slice._add`, so that loop holds names in locals and
appends in place.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from aiokafka.producer.message_accumulator import BatchBuilder
from google.protobuf.message import DecodeError
from murmurhash2 import murmurhash2

from kafka_timers.clock import Clock
from kafka_timers.service.partition import REFUSED, ROW_BYTES, parts_of, unpack_row
from kafka_timers.service.requests import OVERHEAD_BYTES, Reason, Target, fits, unpack_refused
from kafka_timers.service.sender import BATCH_BYTES, Sender
from kafka_timers.service.targets import CallbackTopics
from kafka_timers.wire import EXPIRY_HEADER, REQUEST_HEADER, Future, callback_headers, plain_fields

Headers = list[tuple[str, bytes | None]]

# The seed of murmur2 in Kafka's clients, whose default partitioner takes the lower 31 bits modulo the partitions.
_SEED = 0x9747B28C
_POSITIVE = 0x7FFF_FFFF

# Rows between two looks at the event loop: about 10 ms, so that heartbeats and the other partitions go on.
_STRIDE_ROWS = 2_000
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
    """The open batches of one callback topic, one per partition, and how many callbacks have gone there."""

    topic: str
    target: Target
    batches: list[BatchBuilder | None]
    fired: int = 0


class Slice:
    """
    One transaction's worth of rows, sent as it is built.

    Args:
        number: of the partition that the rows are from.
        sender: has begun a transaction.
        targets: what is known of callback topics.
        rejects: where refused requests go.
        clock: tells how late callbacks leave.

    Attributes:
        due: keys of all rows taken, in order.
        rejected: those of them that went to `timer-rejected`, with the reason.
        seconds: callbacks by their second, without those whose request came late itself.
        complete: no row of the scan is left.
    """

    def __init__(self, number: int, sender: Sender, targets: CallbackTopics, rejects: Rejects, clock: Clock) -> None:
        self.due: list[bytes] = []
        self.rejected: dict[bytes, Reason] = {}
        self.seconds: Counter[int] = Counter()
        self.complete = False
        self._number = number
        self._sender = sender
        self._targets = targets
        self._rejects = rejects
        self._reject_lane = _lane_to(rejects.topic, rejects.target)
        self._clock = clock
        self._lanes: dict[bytes, _Lane | Reason] = {}
        self._full: list[tuple[BatchBuilder, str, int]] = []

    @property
    def fired(self) -> dict[str, int]:
        """Callbacks by topic."""
        return {lane.topic: lane.fired for lane in self._lanes.values() if isinstance(lane, _Lane)}

    async def take(self, rows: Iterator[tuple[bytes, bytes]], rows_max: int, bytes_max: int) -> None:
        """Send callbacks for *rows* until they end or the slice is full."""
        bytes_left, row_bytes = bytes_max, _ROW_BYTES_GUESS
        while not self.complete and (rows_left := rows_max - len(self.due)) > 0 and bytes_left > 0:
            wanted = max(min(_STRIDE_ROWS, _STRIDE_BYTES // row_bytes, rows_left), 1)
            stride = list(islice(rows, wanted))
            self.complete = len(stride) < wanted
            if stride:
                size = sum([len(row) for _, row in stride])
                bytes_left, row_bytes = bytes_left - size, size // len(stride) + 1
                await self._add(stride)
            await self._send_full()
            await asyncio.sleep(0)
        for lane in (*self._lanes.values(), self._reject_lane):
            if isinstance(lane, _Lane):
                self._full += [(batch, lane.topic, at) for at, batch in enumerate(lane.batches) if batch]
        await self._send_full()

    async def _add(self, stride: list[tuple[bytes, bytes]]) -> None:
        now_ms = int(self._clock.wall_s() * 1000)
        number, lanes, seconds = self._number, self._lanes, self.seconds
        expiry_of, expiry = -1, b""
        for key, row in stride:
            late = len(key) != ROW_BYTES
            second, _, offset = parts_of(key) if late else unpack_row(key)
            if second == REFUSED:
                self._reject(key, offset, *unpack_refused(row))
                continue
            fields = plain_fields(row)
            if fields is not None:
                topic, to_key, value = fields
                if second != expiry_of:
                    expiry_of, expiry = second, b"%d" % second
                headers: Headers = [(EXPIRY_HEADER, expiry), (REQUEST_HEADER, b"%d:%d" % (number, offset))]
            else:
                try:
                    future = Future.FromString(row)
                except DecodeError:
                    self._reject(key, offset, Reason.VALUE_NOT_A_FUTURE, b"%d" % second, row)
                    continue
                topic, to_key, value = future.callBackTopic.encode(), future.callBackKey.encode(), future.callBack
                headers = callback_headers(future, second, b"%d:%d" % (number, offset))
            lane = lanes.get(topic)
            if lane is None:
                await self._open_lanes(stride)
                lane = lanes[topic]
            if isinstance(lane, Reason):
                self._reject(key, offset, lane, b"%d" % second, row)
                continue
            bytes_max = lane.target.batch_bytes_max
            if len(row) + OVERHEAD_BYTES > bytes_max and not fits(Future.FromString(row), len(row), lane.target):
                self._reject(key, offset, Reason.TOO_LARGE, b"%d" % second, row)
                continue
            at = (murmurhash2(to_key, _SEED) & _POSITIVE if to_key else second) % lane.target.partitions
            batch = lane.batches[at]
            if (
                batch is None
                # A batch has at most what the producer takes; the topic may take less.
                or (bytes_max < BATCH_BYTES and batch.size() + len(row) + OVERHEAD_BYTES > bytes_max)
                or batch.append(timestamp=now_ms, key=to_key or None, value=value, headers=headers) is None
            ):
                self._append_to_new(lane, at, now_ms, to_key or None, value, headers)
            lane.fired += 1
            if not late:
                seconds[second] += 1
        self.due += [key for key, _ in stride]

    def lateness_ms(self, share: float) -> int:
        """Return how late *share* (0 to 1) of the callbacks are at most, from their second until now; 0 without any."""
        late, left = 0, share * self.seconds.total()
        for second in sorted(self.seconds, reverse=True):
            if left <= 0:
                break
            late = int((self._clock.wall_s() - second) * 1000)
            left -= self.seconds[second]
        return late

    async def _open_lanes(self, stride: list[tuple[bytes, bytes]]) -> None:
        """Open a lane for each topic of *stride*; all at once, since a second may name thousands that are not known."""
        names, verdicts = _topics_of(stride), self._targets.verdicts
        while unknown := names - verdicts.keys():
            await self._targets.resolve(unknown)
        for name in names:
            verdict = verdicts[name]
            if name.encode() not in self._lanes:
                self._lanes[name.encode()] = verdict if isinstance(verdict, Reason) else _lane_to(name, verdict)

    def _append_to_new(
        self, lane: _Lane, at: int, now_ms: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        full = lane.batches[at]
        if full is not None:
            self._full.append((full, lane.topic, at))
        # The first record is taken whatever its size; that the topic takes it too was checked before.
        batch = lane.batches[at] = self._sender.new_batch()
        batch.append(timestamp=now_ms, key=key, value=value, headers=headers)

    def _reject(self, row_key: bytes, offset: int, reason: Reason, key: bytes | None, value: bytes | None) -> None:
        self.rejected[row_key] = reason
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
        now_ms = int(self._clock.wall_s() * 1000)
        at = self._number % lane.target.partitions
        batch = lane.batches[at]
        if (
            batch is None
            or batch.size() + size > lane.target.batch_bytes_max
            or batch.append(timestamp=now_ms, key=key, value=value, headers=headers) is None
        ):
            self._append_to_new(lane, at, now_ms, key, value, headers)

    async def _send_full(self) -> None:
        for batch, topic, partition in self._full:
            await self._sender.send(batch, topic, partition)
        self._full.clear()


def _lane_to(topic: str, target: Target) -> _Lane:
    return _Lane(topic, target, [None] * target.partitions)


def _topics_of(stride: list[tuple[bytes, bytes]]) -> set[str]:
    topics = set()
    for key, row in stride:
        if parts_of(key)[0] != REFUSED:
            with suppress(DecodeError):
                topics.add(Future.FromString(row).callBackTopic)
    return topics
