"""
Committed records of one topic, read straight from the batches that the broker sends.

aiokafka's consumer makes an object of eleven fields for each record, which takes longer than all the later work on a
request. So we use only its compiled parser, and return the parser's own records.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from crc32c import crc32c

from kafka_timers.broker import codes
from kafka_timers.broker.batches import CHECKED_FROM
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.odd_batches import records_of, size_of
from kafka_timers.broker.requests import Fetch
from kafka_timers.core.log_identity import mark_of
from kafka_timers.core.wire import Record

_BYTES_MAX, _BYTES_MIN = 8 << 20, 64 << 10
_PARTITION_BYTES_MAX = 2 << 20


_NO_SESSION = 0, -1
_SESSION_LOST = frozenset((codes.FETCH_SESSION_ID_NOT_FOUND, codes.INVALID_FETCH_SESSION_EPOCH))
_FETCHES_MAX = (1 << 31) - 1

# The expected leader epoch and the offset to read from, by partition.
_Wanted = Mapping[int, tuple[int, int]]
# What is wanted and the broker does not know, the partitions that are no longer wanted, and the place in a session.
_Question = tuple[_Wanted, Collection[int], tuple[int, int]]


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
        epoch: the leader epoch under which they were read; -1 if it is not known.
        mark: of the first batch, see `log_identity`; empty if there is none.
    """

    records: Iterator[Record]
    position: int
    is_large: bool
    stable: int
    end: int
    epoch: int
    mark: bytes = b""


class _Session:
    """
    A fetch session (KIP-227): the broker remembers what was asked for.

    Only what has changed is sent, in both directions. Without it, question and answer name all partitions: with 64
    idle ones, that is most of what a worker does.
    """

    def __init__(self) -> None:
        self._id = 0
        self._fetches = 0
        self._known: _Wanted = {}

    def restart(self) -> None:
        """Have the next fetch begin a new session and end this one."""
        self._fetches, self._known = 0, {}

    def request(self, wanted: _Wanted) -> _Question:
        """Return the next question for *wanted*."""
        changed = {number: place for number, place in wanted.items() if self._known.get(number) != place}
        return changed, self._known.keys() - wanted.keys(), (self._id, self._fetches)

    def answered(self, session: int, wanted: _Wanted) -> None:
        """Note that the question for *wanted* was answered in *session*; 0 if the broker has no room for sessions."""
        self._id = session
        if session:
            self._fetches, self._known = self._fetches % _FETCHES_MAX + 1, wanted


class Fetcher:
    """Fetches records of *topic*. *cluster* must have looked the topic up."""

    def __init__(self, cluster: Cluster, topic: str, lane: str, *, is_committed: bool = True) -> None:
        self._cluster = cluster
        self._topic = topic
        self._lane = lane
        self._is_committed = is_committed
        # Current size limit by node.
        self._bytes_max: dict[int, int] = {}
        self._sessions: dict[int, _Session] = {}

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

    async def fetch(
        self, node: int, positions: Mapping[int, int], wait_ms: int, *, anew: bool = True
    ) -> dict[int, Fetched | KafkaError]:
        """
        Return the records of partitions from their *positions* on, or the reason why a partition cannot be read.

        The reason is a StaleMetadata if another node may lead the partition, or if the same node may lead it in a
        moment. Fetch from one node only one at a time.

        Args:
            positions: the offset to read from, by partition.
            wait_ms: how long the broker waits for a first record, in milliseconds.
            anew: whether to return all partitions. If not, those are left out which have no more to tell than when this
                node was last fetched from.
        """
        session = self._sessions.setdefault(node, _Session())
        if anew:
            session.restart()
        wanted = self._wanted(node, positions)
        answer = await self._ask(node, session.request(wanted), wait_ms)
        if answer.error_code in _SESSION_LOST:
            # The broker was started again, has too many sessions, or has counted a fetch whose answer was lost.
            session.restart()
            answer = await self._ask(node, session.request(wanted), wait_ms)
        if answer.error_code:
            words = codes.name_of(answer.error_code)
            raise for_code(answer.error_code)(f"{self._cluster.name_of(node)}: fetching {self._topic}: {words}")
        session.answered(answer.session, wanted)
        return self._parts(answer, node, wanted)

    async def fetch_one(self, number: int, position: int, wait_ms: int) -> Fetched | KafkaError:
        """Return the records of one partition from *position* on, or the reason why it cannot be read, see `fetch`."""
        for node in self.leaders([number]):
            wanted = self._wanted(node, {number: position})
            answer = await self._ask(node, (wanted, (), _NO_SESSION), wait_ms)
            if (part := self._parts(answer, node, wanted).get(number)) is not None:
                return part
            # This is how a broker answers while a quota holds us back.
            return StaleMetadata(f"{self._cluster.name_of(node)} sends nothing for now, because of a quota")
        return StaleMetadata("no leader is known")

    def _wanted(self, node: int, positions: Mapping[int, int]) -> _Wanted:
        return {number: (self._epoch(number, node), position) for number, position in positions.items()}

    async def _ask(self, node: int, question: _Question, wait_ms: int) -> Any:
        wanted, forgotten, session = question
        bytes_max = self._bytes_max.get(node, _BYTES_MAX)
        limits = wait_ms, bytes_max, min(bytes_max, _PARTITION_BYTES_MAX)
        request = Fetch(
            self._topic, wanted, *limits, is_committed=self._is_committed, session=session, forgotten=forgotten
        )
        try:
            answer = await self._cluster.send(node, request, lane=self._lane)
        except RequestTimedOutError:
            # An answer that is too large for the connection would never arrive in time, so ask for less.
            self._bytes_max[node] = max(bytes_max // 4, _BYTES_MIN)
            raise
        self._bytes_max[node] = min(bytes_max * 2, _BYTES_MAX)
        return answer

    def _parts(self, answer: Any, node: int, wanted: _Wanted) -> dict[int, Fetched | KafkaError]:
        came: dict[int, Fetched | KafkaError] = {}
        for _, partitions, *_ in answer.topics:
            for number, code, end, stable, _, aborted, _, data, *_ in partitions:
                epoch, position = wanted[number]
                if code:
                    came[number] = self._failure(code, node, number, position)
                    continue
                ends = [(producer_id, first) for producer_id, first, *_ in aborted or ()]
                came[number] = parsed(data or b"", ends, position, stable, end, epoch)
        return came

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


def parsed(
    data: bytes, aborted: Sequence[tuple[int, int]], position: int, stable: int, end: int, epoch: int
) -> Fetched:
    """
    Parse the answer to a fetch. *aborted* has producer id and first offset of each aborted transaction that overlaps
    the batches.
    """
    batches, parser, behind, rest = [], MemoryRecords(data), position, memoryview(data)
    while parser.has_next():
        batch, size = parser.next_batch(), size_of(rest)
        batches.append((batch, rest[:size]))
        behind, rest = batch.next_offset, rest[size:]
    records = chain.from_iterable(records_of(batch, raw) for batch, raw in _committed(batches, aborted))
    return Fetched(
        # A batch is sent whole, even if it begins before the requested offset.
        dropwhile(lambda record: record.offset < position, records),
        max(behind, position),
        len(data) >= _PARTITION_BYTES_MAX // 2,
        stable,
        end,
        epoch,
        _mark_of(batches[0][0]) if batches else b"",
    )


def _mark_of(batch: Any) -> bytes:
    # Of the formats before Kafka 0.11 the parser tells no offset.
    return mark_of(batch.base_offset, batch.max_timestamp, batch.crc) if hasattr(batch, "crc") else b""


def _matches(batch: Any, raw: memoryview) -> bool:
    return bool(crc32c(raw[CHECKED_FROM:]) == batch.crc if hasattr(batch, "crc") else batch.validate_crc())


def _committed(
    batches: Iterable[tuple[Any, memoryview]], aborted: Sequence[tuple[int, int]]
) -> Iterator[tuple[Any, memoryview]]:
    """Yield the batches, with their bytes, that hold records which were not aborted. *aborted* is as in `parsed`."""
    left = sorted(aborted, key=lambda transaction: transaction[1])
    aborting: set[int] = set()
    for batch, raw in batches:
        if not _matches(batch, raw):
            raise CorruptRecordException(f"the batch before offset {batch.next_offset} does not match its checksum")
        if batch.producer_id is not None:
            while left and left[0][1] <= batch.base_offset:
                aborting.add(left.pop(0)[0])
            # The log cleaner keeps the last batch of a producer that is still alive, without its marker.
            marker = next(iter(batch), None) if batch.is_control_batch else None
            if marker and ControlRecord.parse(marker.key) == ABORT_MARKER:
                aborting.discard(batch.producer_id)
        if not batch.is_control_batch and not (batch.is_transactional and batch.producer_id in aborting):
            yield batch, raw
