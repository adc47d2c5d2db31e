"""Fills record batches for several topics."""

from collections.abc import Callable

from aiokafka.producer.message_accumulator import BatchBuilder

from kafka_timers.broker.batches import Batch

BATCH_BYTES = 512 << 10

# A batch, and its topic and partition.
Ready = tuple[Batch, str, int]


class Filling:
    """Batches to be filled, one for each topic and partition."""

    def __init__(self, new_batch: Callable[[], BatchBuilder]) -> None:
        self._new_batch = new_batch
        self._open: dict[tuple[str, int], BatchBuilder] = {}
        self._full: list[tuple[BatchBuilder, str, int]] = []

    def add(
        self,
        topic: str,
        partition: int,
        now_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] = [],  # noqa: B006  # read only, once per record
    ) -> None:
        """Add a record that the topic accepts, with the timestamp *now_ms*."""
        at = (topic, partition)
        batch = self._open.get(at)
        if batch is None or batch.append(timestamp=now_ms, key=key, value=value, headers=headers) is None:
            if batch is not None:
                self._full.append((batch, *at))
            # The first record fits at any size. The topic's limit was checked before.
            batch = self._open[at] = self._new_batch()
            batch.append(timestamp=now_ms, key=key, value=value, headers=headers)

    def all(self) -> list[tuple[BatchBuilder, str, int]]:
        """Return all batches, in the order in which they must be sent."""
        return [*self._full, *[(batch, *at) for at, batch in self._open.items()]]
