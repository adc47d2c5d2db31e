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

from aiokafka.producer.message_accumulator import BatchBuilder
from google.protobuf.message import DecodeError
from murmurhash2 import murmurhash2

from kafka_timers.clock import Clock
from kafka_timers.service.partition import REFUSED, ROW_BYTES, parts_of, unpack_row
from kafka_timers.service.requests import OVERHEAD_BYTES, Reason, Target, fits, unpack_refused
from kafka_timers.service.sender import BATCH_BYTES, Sender
from kafka_timers.service.targets import CallbackTopics
from kafka_timers.wire import Future, callback_headers

Headers = list[tuple[str, bytes | None]]

# The seed of murmur2 in Kafka's clients, whose default partitioner takes the lower 31 bits modulo the partitions.
_SEED = 0x9747B28C
_POSITIVE = 0x7FFF_FFFF

# Rows between two looks at the event loop: about 10 ms, so that heartbeats and the other partitions go on.
_STRIDE_ROWS = 2_000
_STRIDE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Rejects:
    """Where refused requests go, and the topic that they came from."""

    topic: str
    target: Target
    source: str


class Slice:
    """
    One transaction's worth of rows, sent as it is built.

    Args:
        number: of the partition that the rows are from.
        sender: has begun a transaction.
        targets: what is known of callback topics.
        rejects: the topic `timer-rejected`.
        clock: tells how late callbacks leave.

    Attributes:
        due: keys of all rows taken, in order.
        rejected: those of them that went to `timer-rejected`, with the reason.
        fired: callbacks by topic.
        seconds: callbacks by their second, without those whose request came late itself.
        complete: no row of the scan is left.
    """

    def __init__(self, number: int, sender: Sender, targets: CallbackTopics, rejects: Rejects, clock: Clock) -> None:
        self.due: list[bytes] = []
        self.rejected: dict[bytes, Reason] = {}
        self.fired: Counter[str] = Counter()
        self.seconds: Counter[int] = Counter()
        self.complete = False
        self._number = number
        self._sender = sender
        self._targets = targets
        self._rejects = rejects
        self._clock = clock
        self._open: dict[tuple[str, int], BatchBuilder] = {}
        self._full: list[tuple[BatchBuilder, str, int]] = []

    async def take(self, rows: Iterator[tuple[bytes, bytes]], rows_max: int, bytes_max: int) -> None:
        """Send callbacks for *rows* until they end or the slice is full."""
        bytes_left = bytes_max
        while not self.complete and (rows_left := rows_max - len(self.due)) > 0 and bytes_left > 0:
            stride, size, self.complete = _stride(rows, rows_left)
            bytes_left -= size
            await self._add(stride)
            await self._send_full()
            await asyncio.sleep(0)
        self._full += [(batch, topic, partition) for (topic, partition), batch in self._open.items()]
        self._open.clear()
        await self._send_full()

    async def _add(self, stride: list[tuple[bytes, bytes]]) -> None:
        now_ms = int(self._clock.wall_s() * 1000)
        verdicts, parse, number, open_batch = self._targets.verdicts, Future.FromString, self._number, self._open.get
        fired, seconds = self.fired, self.seconds
        for key, row in stride:
            late = len(key) != ROW_BYTES
            second, _, offset = parts_of(key) if late else unpack_row(key)
            if second == REFUSED:
                self._reject(key, offset, *unpack_refused(row))
                continue
            try:
                future = parse(row)
            except DecodeError:
                self._reject(key, offset, Reason.VALUE_NOT_A_FUTURE, b"%d" % second, row)
                continue
            topic = future.callBackTopic
            target = verdicts.get(topic)
            if target is None:
                await self._targets.resolve(_topics_of(stride) - verdicts.keys())
                target = verdicts[topic]
            if isinstance(target, Reason):
                self._reject(key, offset, target, b"%d" % second, row)
                continue
            bytes_max = target.batch_bytes_max
            if len(row) + OVERHEAD_BYTES > bytes_max and not fits(future, len(row), target):
                self._reject(key, offset, Reason.TOO_LARGE, b"%d" % second, row)
                continue
            to_key = future.callBackKey.encode() or None
            partition = (murmurhash2(to_key, _SEED) & _POSITIVE if to_key else second) % target.partitions
            value = future.callBack
            headers = callback_headers(future, second, b"%d:%d" % (number, offset))
            batch = open_batch((topic, partition))
            if (
                batch is None
                # A batch has at most what the producer takes; the topic may take less.
                or (bytes_max < BATCH_BYTES and batch.size() + len(row) + OVERHEAD_BYTES > bytes_max)
                or batch.append(timestamp=now_ms, key=to_key, value=value, headers=headers) is None
            ):
                self._append_to_new(topic, partition, now_ms, to_key, value, headers)
            fired[topic] += 1
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

    def _append_to_new(
        self, topic: str, partition: int, now_ms: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        full = self._open.get((topic, partition))
        if full is not None:
            self._full.append((full, topic, partition))
        # The first record is taken whatever its size; that the topic takes it too was checked before.
        batch = self._open[topic, partition] = self._sender.new_batch()
        batch.append(timestamp=now_ms, key=key, value=value, headers=headers)

    def _reject(self, row_key: bytes, offset: int, reason: Reason, key: bytes | None, value: bytes | None) -> None:
        self.rejected[row_key] = reason
        rejects = self._rejects
        headers: Headers = [
            ("timer-rejected-reason", reason.encode()),
            ("timer-rejected-topic", rejects.source.encode()),
            ("timer-rejected-partition", b"%d" % self._number),
            ("timer-rejected-offset", b"%d" % offset),
        ]
        # A topic that takes less than `timer-request` gets what fits.
        room = rejects.target.batch_bytes_max - 2 * OVERHEAD_BYTES
        key, value = key and key[:room], value and value[: max(room - len(key or b""), 0)]
        now_ms = int(self._clock.wall_s() * 1000)
        partition = self._number % rejects.target.partitions
        batch = self._open.get((rejects.topic, partition))
        if (
            batch is None
            or batch.size() + len(key or b"") + len(value or b"") + 2 * OVERHEAD_BYTES > rejects.target.batch_bytes_max
            or batch.append(timestamp=now_ms, key=key, value=value, headers=headers) is None
        ):
            self._append_to_new(rejects.topic, partition, now_ms, key, value, headers)

    async def _send_full(self) -> None:
        for batch, topic, partition in self._full:
            await self._sender.send(batch, topic, partition)
        self._full.clear()


def _topics_of(stride: list[tuple[bytes, bytes]]) -> set[str]:
    """Return the callback topics of *stride*, to be looked up at once: a second may name thousands."""
    topics = set()
    for key, row in stride:
        if parts_of(key)[0] != REFUSED:
            with suppress(DecodeError):
                topics.add(Future.FromString(row).callBackTopic)
    return topics


def _stride(rows: Iterator[tuple[bytes, bytes]], rows_max: int) -> tuple[list[tuple[bytes, bytes]], int, bool]:
    """Return the next rows, their bytes, and whether none is left."""
    stride: list[tuple[bytes, bytes]] = []
    size = 0
    for item in rows:
        stride.append(item)
        size += len(item[1])
        if len(stride) == min(rows_max, _STRIDE_ROWS) or size >= _STRIDE_BYTES:
            return stride, size, False
    return stride, size, True
