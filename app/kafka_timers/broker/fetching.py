"""
Committed records of one topic, straight from the batches that the broker sends.

aiokafka's consumer makes an object of eleven fields of each record, which takes longer than all that is done with a
request afterwards. So only its client and its compiled parser are used here: a record is what that parser gives.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain, dropwhile, islice
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import CorruptRecordException, KafkaError, OffsetOutOfRangeError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.control_record import ABORT_MARKER, ControlRecord
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.headerless import batch_at, headerless
from kafka_timers.core.wire import Record

_READ_COMMITTED = 1
_BYTES_MAX = 8 << 20
_PARTITION_BYTES_MAX = 2 << 20
# The first version of the answer whose last field but one is no longer the list of aborted transactions.
_WITH_REPLICA = 11
# Parsed in one go.
_RECORDS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Fetched:
    """
    What came of one partition.

    Attributes:
        records: the committed ones, offsets ascending; to be taken once.
        position: the offset behind them, and behind aborted and control records.
        is_large: there is likely to be more already.
        stable: the offset up to which records can be read: no transaction is open below it.
        end: the offset behind the last record, which lies above it while one is.
    """

    records: Iterator[Record]
    position: int
    is_large: bool
    stable: int
    end: int


class Fetcher:
    """
    Fetches of *topic*; `open` makes one.

    Args:
        client: connected.
        topic: whose records are fetched.
    """

    def __init__(self, client: AIOKafkaClient, topic: str) -> None:
        self._client = client
        self._topic = topic

    @classmethod
    @asynccontextmanager
    async def open(cls, kafka: Kafka, topic: str) -> AsyncIterator["Fetcher"]:
        """
        Connect.

        Raises:
            aiokafka.errors.KafkaError: no broker answers.
        """
        client = AIOKafkaClient(**kafka.client_options())
        try:
            await client.bootstrap()
            await client.set_topics([topic])
            yield cls(client, topic)
        finally:
            await client.close()

    def leaders(self, numbers: Iterable[int]) -> dict[int, list[int]]:
        """Return the partitions *numbers* by the node that leads them, without those of which none is known."""
        by_node: dict[int, list[int]] = {}
        for number in numbers:
            node = self._client.cluster.leader_for_partition(TopicPartition(self._topic, number))
            if node is not None and node >= 0:
                by_node.setdefault(node, []).append(number)
        return by_node

    async def find_leaders(self) -> None:
        """Ask anew which node leads which partition."""
        await self._client.force_metadata_update()

    async def fetch(self, node: int, positions: Mapping[int, int], wait_ms: int) -> dict[int, Fetched | KafkaError]:
        """
        Return what partitions have from their *positions* on, or why they cannot be read.

        Args:
            node: that leads the partitions.
            positions: by partition.
            wait_ms: how long the broker waits for a first record.

        Raises:
            aiokafka.errors.KafkaError: *node* does not answer.
        """
        wanted = [(number, position, _PARTITION_BYTES_MAX) for number, position in positions.items()]
        request = FetchRequest(wait_ms, 1, _BYTES_MAX, _READ_COMMITTED, [(self._topic, wanted)])
        answer = await self._client.send(node, request)
        came: dict[int, Fetched | KafkaError] = {}
        for _, partitions in answer.topics:
            for number, code, end, *fields in partitions:
                position = positions[number]
                if code:
                    came[number] = _failure(code, TopicPartition(self._topic, number), position)
                    continue
                aborted = fields[-3 if answer.API_VERSION >= _WITH_REPLICA else -2]
                came[number] = _parsed(fields[-1] or b"", aborted or (), position, fields[0], end)
        return came


def _failure(code: int, at: TopicPartition, position: int) -> KafkaError:
    kind: type[KafkaError] = for_code(code)
    if kind is OffsetOutOfRangeError:
        return kind(f"{at.topic} partition {at.partition} has no offset {position}")
    return kind(f"{at.topic} partition {at.partition} cannot be read at offset {position}")


def _parsed(data: bytes, aborted: Sequence[tuple[int, int]], position: int, stable: int, end: int) -> Fetched:
    batches, parser, behind = [], MemoryRecords(data), position
    while parser.has_next():
        batch = parser.next_batch()
        batches.append(batch)
        behind = batch.next_offset
    read = (_records_of(batch, data) for batch in _committed(batches, aborted))
    records = chain.from_iterable(chain.from_iterable(read))
    return Fetched(
        # A batch is sent whole, also when it begins before the offset that was asked for.
        dropwhile(lambda record: record.offset < position, records),
        max(behind, position),
        len(data) >= _PARTITION_BYTES_MAX // 2,
        stable,
        end,
    )


def _committed(batches: Iterable[Any], aborted: Sequence[tuple[int, int]]) -> Iterator[Any]:
    """
    Yield the batches that hold records which are not aborted.

    Args:
        batches: offsets ascending.
        aborted: producer id and first offset of each aborted transaction that reaches into *batches*.
    """
    left = sorted(aborted, key=lambda transaction: transaction[1])
    aborting: set[int] = set()
    for batch in batches:
        if not batch.validate_crc():
            raise CorruptRecordException(f"the batch before offset {batch.next_offset} does not match its checksum")
        if batch.producer_id is not None:
            while left and left[0][1] <= batch.base_offset:
                aborting.add(left.pop(0)[0])
            if batch.is_control_batch and ControlRecord.parse(next(iter(batch)).key) == ABORT_MARKER:
                aborting.discard(batch.producer_id)
        if not batch.is_control_batch and not (batch.is_transactional and batch.producer_id in aborting):
            yield batch


def _records_of(batch: Any, data: bytes) -> Iterator[Iterable[Any]]:
    """Yield the records of *batch*, which lies in *data*, some at once."""
    # The parser is asked for its iterator once, and nothing more once that has ended.
    given, records = 0, chain(batch)
    try:
        while some := list(islice(records, _RECORDS_AT_ONCE)):
            given += len(some)
            yield some
    except UnicodeDecodeError:
        # The name of a header is not UTF-8. Nothing here looks at headers.
        yield islice(headerless(batch_at(data, batch.base_offset)), given, None)
