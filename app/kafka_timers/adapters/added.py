"""
Rejects records of partitions that were added to `timer-request` after the service's start.

Kafka cannot remove partitions, and the original number of partitions decides the partition of a timer id. So added
partitions are never served. Clients with their own partitioner write there all the same. Their requests go to
`timer-rejected`, exactly once, in the way in which a door passes records on.
"""

from collections.abc import Callable
from enum import StrEnum

from aiokafka import TopicPartition

from kafka_timers.adapters import added_group
from kafka_timers.adapters.commands import Parsed, SourceRecord
from kafka_timers.adapters.passing import DoorSettings, OwnedPartition, Passing
from kafka_timers.adapters.reader import AdapterReader
from kafka_timers.clock import Clock
from kafka_timers.core.refused import Reason
from kafka_timers.core.wire import reject_headers
from kafka_timers.runtime.metrics import WorkerMetrics
from kafka_timers.runtime.outlet import Outlet
from kafka_timers.runtime.priority import PriorityGate
from kafka_timers.runtime.rejecting import Headers


class AddedPartitions(AdapterReader):
    """
    Rejects all records in the partitions of *topic* from number *served* on. *topic* is the name of `timer-request`.
    """

    def __init__(
        self,
        settings: DoorSettings,
        topic: str,
        served: int,
        outlet: Outlet,
        gate: PriorityGate,
        metrics: WorkerMetrics,
        clock: Clock,
    ) -> None:
        super().__init__(settings, "added", topic, outlet, gate, metrics, clock)
        self._title = f"added partitions of {topic}"
        self._served = served
        self._rejected = metrics.rejected

    def _parser(self) -> Callable[[SourceRecord], Parsed | StrEnum]:
        return lambda _: Reason.PARTITION_ADDED

    def _group_in(self, group: str) -> str:
        return added_group(group)

    def _is_read(self, at: TopicPartition) -> bool:
        return bool(at.partition >= self._served)

    def _told_of(self, record: SourceRecord, reason: StrEnum) -> Headers:
        [headers] = reject_headers(reason, record.topic, record.partition, [record.offset])
        return headers

    def _count(self, owned: OwnedPartition, records: int, batch: Passing) -> None:
        for reason, count in batch.refused.items():
            self._rejected.labels(reason).inc(count)

    def _show_lag(self) -> None:
        # This reader is no door.
        pass
