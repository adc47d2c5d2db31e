"""
Reads one partition of another system's topic in order, committed records only.

A leader that is silent, moves or is cut off delays its own partition by seconds and no other, since each partition has
its own fetches and its own connection.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from aiokafka.errors import KafkaConnectionError, KafkaError, OffsetOutOfRangeError, RequestTimedOutError, StaleMetadata

from kafka_timers.adapters.commands import SourceHeaders, SourceRecord
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.fetching import Fetched, Fetcher
from kafka_timers.runtime.tasks import cancel

log = logging.getLogger(__name__)

# How long the broker waits for a first record. Once a partition has been quiet for some seconds, it waits longer: a
# worker with 64 such partitions does little else. The limit of a question is well above.
_WAIT_MS, _WAIT_LONG_MS = 1_000, 2_000
_QUIET_FETCHES = 5
_RETRY_S = 0.1
# Some 5 ms of work between two turns of the event loop.
_STRIDE_RECORDS = 250
# Another leader may answer, or the same one later.
_DELAYS = (KafkaConnectionError, RequestTimedOutError, StaleMetadata)


class _Read(NamedTuple):
    """A record with the fields of `SourceRecord`."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: SourceHeaders


class CutError(Exception):
    """The log has lost its records from offset *kept_to* on. It was read up to offset *to*."""

    def __init__(self, topic: str, number: int, kept_to: int, to: int) -> None:
        super().__init__(
            f"{topic} partition {number} has lost its records from offset {kept_to} on, as in an unclean election, and "
            f"was read up to {to}"
        )


class SourceLog:
    """
    Reads the records of a partition.

    Args:
        cluster: the cluster to ask. It must have looked the topic up.
        lane: lane of the fetches; nothing else may use it.
        epoch: leader epoch under which the records below *position* were read; -1 for any.

    Attributes:
        position: the offset after all taken records, and after markers and aborted records.
        epoch: the leader epoch under which the log was read last.
        stable: the last stable offset in the last fetch. Committed readers can read up to it; no transaction is open
            below it.
    """

    def __init__(self, cluster: Cluster, topic: str, number: int, position: int, lane: str, epoch: int = -1) -> None:
        self.position = self.stable = position
        self.epoch = epoch
        self._cluster = cluster
        self._topic = topic
        self._number = number
        self._lane = lane
        self._fetcher = Fetcher(cluster, topic, lane)
        self._bounds = LogBounds(cluster, topic)
        # Records that were fetched and not taken yet, and the offset after them.
        self._left: Iterator[Any] | None = None
        self._behind = position
        self._coming: asyncio.Task[Fetched] | None = None
        self._is_silent = False
        # Fetches without a record, since the last one with records.
        self._quiet = 0

    @property
    def has_more(self) -> bool:
        """True if `take` need not wait for a broker."""
        return self._left is not None or (self._coming is not None and self._coming.done())

    async def take(self, count_max: int) -> list[SourceRecord]:
        """
        Return the next records, at most *count_max*, offsets ascending; none if none arrived within two seconds.

        Raises:
            CutError: the log has lost records that were read.
            OffsetOutOfRangeError: the log ends before the position.
            CorruptRecordException: a batch is damaged.
            aiokafka.errors.KafkaError: the leader refuses. If no leader answers, this waits.
        """
        if self._left is None:
            coming, self._coming = self._coming, None
            fetched = await (coming or self._fetched(self._behind))
            await self._led(fetched.epoch)
            self._left, self._behind, self.stable = fetched.records, fetched.position, fetched.stable
            if fetched.is_large:
                # Fetch more while the caller works on these.
                self._coming = asyncio.create_task(self._fetched(self._behind))
        topic, number = self._topic, self._number
        records: list[SourceRecord] = [
            _Read(topic, number, each.offset, each.timestamp, each.key, each.value, each.headers)
            for each in islice(self._left, count_max)
        ]
        if len(records) < count_max:
            self._left, self.position = None, self._behind
        else:
            self.position = records[-1].offset + 1
        return records

    async def close(self) -> None:
        """Stop reading, and close the connection."""
        if self._coming is not None:
            await cancel([self._coming])
        await self._cluster.close_lane(self._lane)

    async def _led(self, epoch: int) -> None:
        """Check that a leader of a later *epoch* has what was read before."""
        if epoch <= self.epoch:
            return
        if self.epoch >= 0 and (kept_to := await self._bounds.kept(self._number, self.epoch)) < self._behind:
            raise CutError(self._topic, self._number, kept_to, self._behind)
        self.epoch = epoch

    async def _fetched(self, position: int) -> Fetched:
        """Ask the leader, whichever broker that is, until one answers."""
        while True:
            came: Fetched | KafkaError
            try:
                wait_ms = _WAIT_MS if self._quiet < _QUIET_FETCHES else _WAIT_LONG_MS
                came = await self._fetcher.fetch_one(self._number, position, wait_ms)
            except _DELAYS as error:
                came = error
            if isinstance(came, Fetched):
                self._is_silent = False
                self._quiet = self._quiet + 1 if came.position == position else 0
                return came
            if isinstance(came, OffsetOutOfRangeError):
                position = await self._start_above(position)
                continue
            if not isinstance(came, _DELAYS):
                raise came
            if not self._is_silent:
                self._is_silent = True
                log.warning("%s partition %d: %s; trying again", self._topic, self._number, came)
            await asyncio.sleep(_RETRY_S)
            with suppress(KafkaError):
                await self._fetcher.find_leaders()

    async def _start_above(self, position: int) -> int:
        """Return the log's first offset, if *position* was deleted."""
        start = (await self._bounds.starts([self._number]))[self._number]
        if start <= position:
            with suppress(KafkaError):
                await self._fetcher.find_leaders()
            # A restart from the first record would pass all records on twice, because of a broker that may be cut off.
            raise OffsetOutOfRangeError(
                f"{self._topic} partition {self._number} has been read up to offset {position}, and ends before that: "
                "its leader is cut off from the others, or records were lost. If it stays so, stop the workers and set "
                "the group's offset with kafka-consumer-groups.sh --reset-offsets"
            )
        where = f"{self._topic} partition {self._number}"
        log.warning("%s: offsets %d to %d were deleted before they were read", where, position, start - 1)
        return start


async def read_through(
    source: SourceLog, end: int, take: Callable[[SourceRecord], None], *, limit_s: float | None = None
) -> None:
    """
    Call *take* with the records of *source* until it is at the offset *end*, and close it.

    Raises:
        TimeoutError: nothing came for *limit_s* seconds.
        aiokafka.errors.KafkaError: as `SourceLog.take`.
    """
    try:
        while source.position < end:
            async with asyncio.timeout(limit_s):
                records = await source.take(_STRIDE_RECORDS)
            for record in records:
                take(record)
            # Let ticks and heartbeats have their turn.
            await asyncio.sleep(0)
    finally:
        await source.close()
