"""The batches of a slice, as its seal names them, so that readers can tell whether a callback topic has all of them."""

from collections import defaultdict
from operator import itemgetter

from kafka_timers.broker.batches import Batch
from kafka_timers.core.sums import hash_of_batches
from kafka_timers.core.wire import Sealed

# With more of them, a seal might exceed what a topic takes.
_BATCHES_MAX = 1_000


class SentBatches:
    """The batches that leave in one transaction."""

    def __init__(self) -> None:
        self._by_topic: defaultdict[str, list[tuple[int, int, bytes]]] = defaultdict(list)
        self._batches = 0

    def add(self, batch: Batch, topic: str, partition: int) -> None:
        """Add the next *batch* of that partition, which takes no more records from now on."""
        self._batches += 1
        if self._batches <= _BATCHES_MAX:
            self._by_topic[topic].append((partition, batch.record_count(), batch.digest()))

    def tell(self, seal: Sealed) -> None:
        """Write all of them into *seal*, unless they are too many."""
        if self._batches > _BATCHES_MAX:
            return
        for topic, batches in sorted(self._by_topic.items()):
            batches.sort(key=itemgetter(0))
            partitions, records, digests = zip(*batches, strict=True)
            seal.sent.add(topic=topic, partitions=partitions, records=records, sha256=hash_of_batches(digests))
