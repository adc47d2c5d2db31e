"""
The open batches of a slice, by topic, the partition of each callback, and the batches as a seal names them.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from kafka_timers.broker.batches import Batch
from kafka_timers.clock import Clock
from kafka_timers.core.callbacks import OVERHEAD_BYTES, Outgoing, Target, fits
from kafka_timers.core.refused import Reason
from kafka_timers.core.routing import hash_of
from kafka_timers.core.sums import hash_of_batches
from kafka_timers.core.wire import Request, Sealed
from kafka_timers.runtime.filling import BATCH_BYTES, Ready
from kafka_timers.runtime.rejecting import Headers

# With more of them, a seal might exceed what a topic takes.
_BATCHES_MAX = 1_000


@dataclass(slots=True)
class Accumulator:
    """
    The open batches of one callback topic, one for each partition, and the number of callbacks so far.

    A request of at most *plain_bytes_max* bytes fits without a check of the topic's limits.
    """

    topic: str
    target: Target
    batches: list[Batch | None]
    plain_bytes_max: int
    fired: int = 0


def place_in(outgoing: Outgoing, request: Request, size: int, target: Target, otherwise: int) -> int | Reason:
    """
    Return the partition of *outgoing*, or the reason why *target* refuses it. *size* is that of *request* in bytes.
    """
    if outgoing.key is None and target.needs_key:
        return Reason.TOPIC_NEEDS_KEY
    if not fits(request, size, target):
        return Reason.TOO_LARGE
    at = outgoing.at(target.partitions, otherwise)
    if at in target.unavailable:
        return Reason.TOPIC_UNAVAILABLE
    return Reason.PARTITION_UNKNOWN if at is None else at


def tombstone_in(request: Request, to: Accumulator) -> int:
    """Return the partition for the tombstone that *request* asks for."""
    # A missing field reads as 0, so 0 alone proves nothing.
    at, partitions = request.tombstonePartition, to.target.partitions
    if 0 < at < partitions or (at == 0 and request.HasField("tombstonePartition")):
        return at
    return hash_of(request.tombstoneKey) % partitions


def accumulator_to(topic: str, target: Target) -> Accumulator:
    """Return an accumulator without batches for *topic*, with the limits of *target*."""
    # No batch exceeds the producer's limit. Where the topic's limit is smaller, each batch is checked.
    plain_bytes_max = target.batch_bytes_max - OVERHEAD_BYTES if target.batch_bytes_max >= BATCH_BYTES else -1
    return Accumulator(topic, target, [None] * target.partitions, plain_bytes_max)


class OpenBatches:
    """
    The batches of a slice while they are filled.

    Args:
        callbacks: the topics of callbacks and tombstones.
        own: topics of the service. Their batches leave last, and no seal names them.
    """

    def __init__(
        self,
        new_batch: Callable[[], Batch],
        clock: Clock,
        not_before_ms: int,
        callbacks: Mapping[bytes, Accumulator],
        own: Sequence[Accumulator],
    ) -> None:
        self._new_batch = new_batch
        self._clock = clock
        self._not_before_ms = not_before_ms
        self._callbacks = callbacks
        self._own = own
        self._full: list[Ready] = []
        # Of those that a seal names: partition, number of records and SHA-256, by topic.
        self._sent: defaultdict[str, list[tuple[int, int, bytes]]] = defaultdict(list)
        self._sent_count = 0

    def append(
        self, to: Accumulator, at: int, bytes_max: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        """Append a record of at most *bytes_max* bytes to a topic whose limit may be below the producer's."""
        dated_ms, batch = self._not_before_ms, to.batches[at]
        if (
            batch is None
            or batch.size() + bytes_max > to.target.batch_bytes_max
            or batch.append(timestamp=dated_ms, key=key, value=value, headers=headers) is None
        ):
            self.append_to_new(to, at, key, value, headers)

    def append_to_new(self, to: Accumulator, at: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        """Append a record to a new batch. The one before it is full."""
        full = to.batches[at]
        if full is not None:
            self._full.append((full, to.topic, at))
            if not any(to is own for own in self._own):
                self._note(full, to.topic, at)
        # The first record fits at any size. The topic's limit was checked before.
        batch = to.batches[at] = self._new_batch()
        batch.append(timestamp=self._not_before_ms, key=key, value=value, headers=headers)

    def full(self) -> list[Ready]:
        """Return the full batches, in the order in which they must be sent, with their timestamps set."""
        full, self._full = self._full, []
        return self._dated(full)

    def rest(self) -> list[Ready]:
        """Return all remaining batches. Nothing can be appended any more."""
        rest, self._full = self._full, []
        for to in self._callbacks.values():
            for at, batch in enumerate(to.batches):
                if batch:
                    rest.append((batch, to.topic, at))
                    self._note(batch, to.topic, at)
        for to in self._own:
            rest += [(batch, to.topic, at) for at, batch in enumerate(to.batches) if batch]
        return self._dated(rest)

    def tell(self, seal: Sealed) -> None:
        """Write the batches of callbacks and tombstones into *seal*, after `rest`, unless they are too many."""
        if self._sent_count > _BATCHES_MAX:
            return
        for topic, batches in sorted(self._sent.items()):
            batches.sort(key=itemgetter(0))
            partitions, records, digests = zip(*batches, strict=True)
            seal.sent.add(topic=topic, partitions=partitions, records=records, sha256=hash_of_batches(digests))

    def _note(self, batch: Batch, topic: str, partition: int) -> None:
        self._sent_count += 1
        if self._sent_count <= _BATCHES_MAX:
            self._sent[topic].append((partition, batch.record_count(), batch.digest()))

    def _dated(self, batches: list[Ready]) -> list[Ready]:
        # They may have been built seconds ago, and receivers should see when they were sent.
        now_ms = max(int(self._clock.wall_s() * 1000), self._not_before_ms)
        for batch, _, _ in batches:
            batch.leave(now_ms)
        return batches
