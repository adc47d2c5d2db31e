"""
Committed records of one topic, read straight from the batches that the broker sends.

aiokafka's consumer makes an object of eleven fields for each record, which takes longer than all the later work on a
request. So we use only its compiled parser, and return the parser's own records.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, dropwhile
from typing import Any

from aiokafka.errors import (
    CorruptRecordException,
    KafkaError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    StaleMetadata,
    for_code,
)
from aiokafka.record.control_record import ABORT_MARKER, ControlRecord
from aiokafka.record.memory_records import MemoryRecords

from kafka_timers.broker import codes
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.odd_batches import records_of
from kafka_timers.broker.requests import Fetch
from kafka_timers.core.wire import ReadRecord

_BYTES_MAX, _BYTES_MIN = 8 << 20, 64 << 10
_PARTITION_BYTES_MAX = 2 << 20


@dataclass(frozen=True, slots=True)
class Fetched:
    """
    The answer to a fetch for one partition.

    Attributes:
        records: the committed records, offsets ascending. You can iterate once.
        position: the next offset to fetch. It lies after the records, and after aborted and control records.
        is_large: True if the partition probably has more records already.
        stable: the last stable offset: no transaction is open below it, so committed readers can read up to it.
        end: the offset after the last record. It lies above `stable` while a transaction is open.
    """

    records: Iterator[ReadRecord]
    position: int
    is_large: bool
    stable: int
    end: int


class Fetcher:
    """
    Fetches records of *topic*.

    Args:
        cluster: the cluster to ask. It must have looked the topic up.
        topic: name of the topic.
        lane: lane of the questions, see `Cluster`.
        is_committed: whether to read only committed records.
    """

    def __init__(self, cluster: Cluster, topic: str, lane: str, *, is_committed: bool = True) -> None:
        self._cluster = cluster
        self._topic = topic
        self._lane = lane
        self._is_committed = is_committed
        # Current size limit by node.
        self._bytes_max: dict[int, int] = {}

    def leaders(self, numbers: Iterable[int]) -> dict[int, list[int]]:
        """
        Return the partitions *numbers* by the node that leads them. Partitions without a known leader are left out.
        """
        return self._cluster.led(self._topic, numbers)

    async def find_leaders(self) -> None:
        """Look up again which node leads each partition."""
        await self._cluster.refresh()

    async def moved(self) -> None:
        """Return once a partition has another leader."""
        await self._cluster.moved(self._topic)

    async def fetch(self, node: int, positions: Mapping[int, int], wait_ms: int) -> dict[int, Fetched | KafkaError]:
        """
        Return the records of partitions from their *positions* on, or the reason why a partition cannot be read.

        The reason is a StaleMetadata if another node may lead the partition, or if the same node may lead it in a
        moment.

        Args:
            node: the node that leads the partitions.
            positions: the offset to read from, by partition.
            wait_ms: how long the broker waits for a first record, in milliseconds.

        Raises:
            aiokafka.errors.KafkaError: *node* does not answer.
        """
        wanted = {number: (self._epoch(number, node), position) for number, position in positions.items()}
        bytes_max = self._bytes_max.get(node, _BYTES_MAX)
        limits = wait_ms, bytes_max, min(bytes_max, _PARTITION_BYTES_MAX)
        request = Fetch(self._topic, wanted, *limits, is_committed=self._is_committed)
        try:
            answer = await self._cluster.send(node, request, lane=self._lane)
        except RequestTimedOutError:
            # An answer that is too large for the connection would never arrive in time, so ask for less.
            self._bytes_max[node] = max(bytes_max // 4, _BYTES_MIN)
            raise
        self._bytes_max[node] = min(bytes_max * 2, _BYTES_MAX)
        came: dict[int, Fetched | KafkaError] = {}
        for _, partitions, *_ in answer.topics:
            for number, code, end, stable, _, aborted, _, data, *_ in partitions:
                position = positions[number]
                if code:
                    came[number] = self._failure(code, node, number, position)
                    continue
                ends = [(producer_id, first) for producer_id, first, *_ in aborted or ()]
                came[number] = parsed(data or b"", ends, position, stable, end)
        return came

    async def fetch_one(self, number: int, position: int, wait_ms: int) -> Fetched | KafkaError:
        """
        Return the records of one partition from *position* on, or the reason why it cannot be read, see `fetch`.

        Raises:
            aiokafka.errors.KafkaError: the leader does not answer.
        """
        for node in self.leaders([number]):
            if (part := (await self.fetch(node, {number: position}, wait_ms)).get(number)) is not None:
                return part
            # This is how a broker answers while a quota holds us back.
            return StaleMetadata(f"{self._cluster.name_of(node)} sends nothing for now, because of a quota")
        return StaleMetadata("no leader is known")

    def _epoch(self, number: int, node: int) -> int:
        """Return the leader epoch in which *node* leads partition *number*; -1 for any."""
        leader = self._cluster.leader(self._topic, number)
        return leader.epoch if leader and leader.node == node else -1

    def _failure(self, code: int, node: int, number: int, position: int) -> KafkaError:
        where = f"{self._cluster.name_of(node)}: {self._topic} partition {number}"
        if code == OffsetOutOfRangeError.errno:
            return OffsetOutOfRangeError(f"{where} has no offset {position}")
        kind: type[KafkaError] = StaleMetadata if code in codes.DELAYS_OF_LEADERS else for_code(code)
        return kind(f"{where} cannot be read at offset {position}: {codes.name_of(code)}")


def parsed(data: bytes, aborted: Sequence[tuple[int, int]], position: int, stable: int, end: int) -> Fetched:
    """
    Parse the answer to a fetch.

    Args:
        data: the batches.
        aborted: producer id and first offset of each aborted transaction that overlaps the batches.
        position: the requested offset.
        stable: see `Fetched`.
        end: see `Fetched`.
    """
    batches, parser, behind = [], MemoryRecords(data), position
    while parser.has_next():
        batch = parser.next_batch()
        batches.append(batch)
        behind = batch.next_offset
    records = chain.from_iterable(records_of(batch, data) for batch in _committed(batches, aborted))
    return Fetched(
        # A batch is sent whole, even if it begins before the requested offset.
        dropwhile(lambda record: record.offset < position, records),
        max(behind, position),
        len(data) >= _PARTITION_BYTES_MAX // 2,
        stable,
        end,
    )


def _committed(batches: Iterable[Any], aborted: Sequence[tuple[int, int]]) -> Iterator[Any]:
    """
    Yield the batches that hold records which were not aborted.

    Args:
        batches: batches, offsets ascending.
        aborted: producer id and first offset of each aborted transaction that overlaps *batches*.
    """
    left = sorted(aborted, key=lambda transaction: transaction[1])
    aborting: set[int] = set()
    for batch in batches:
        if not batch.validate_crc():
            raise CorruptRecordException(f"the batch before offset {batch.next_offset} does not match its checksum")
        if batch.producer_id is not None:
            while left and left[0][1] <= batch.base_offset:
                aborting.add(left.pop(0)[0])
            # The log cleaner keeps the last batch of a producer that is still alive, without its marker.
            marker = next(iter(batch), None) if batch.is_control_batch else None
            if marker and ControlRecord.parse(marker.key) == ABORT_MARKER:
                aborting.discard(batch.producer_id)
        if not batch.is_control_batch and not (batch.is_transactional and batch.producer_id in aborting):
            yield batch
