"""
One partition of another system's topic, read in its order, committed records only.

A leader that is silent, moves or is cut off costs this partition seconds, and no other anything: each is read by
fetches of its own, on a connection of its own.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    StaleMetadata,
)

from kafka_timers.adapters.commands import SourceHeaders, SourceRecord
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.fetching import Fetched, Fetcher
from kafka_timers.worker.tasks import cancel

__all__ = ["SourceLog"]

log = logging.getLogger(__name__)

# How long the broker waits for a first record.
_WAIT_MS = 1_000
_RETRY_S = 0.1
# Another leader may answer, or the same one later.
_DELAYS = (KafkaConnectionError, RequestTimedOutError, StaleMetadata)


class _Read(NamedTuple):
    """A record; the fields are those of `SourceRecord`."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: SourceHeaders


class SourceLog:
    """
    The records of a partition.

    Args:
        cluster: to ask; has looked the topic up.
        topic: name.
        number: of the partition.
        position: offset of the first record that is wanted.
        lane: of the fetches, which nothing else has.

    Attributes:
        position: the offset behind all that was taken, and behind markers and aborted records.
        stable: the offset up to which records can be read, as the last fetch told; no transaction is open below it.
    """

    def __init__(self, cluster: Cluster, topic: str, number: int, position: int, lane: str) -> None:
        self.position = self.stable = position
        self._cluster = cluster
        self._topic = topic
        self._number = number
        self._lane = lane
        self._fetcher = Fetcher(cluster, topic, lane)
        self._bounds = LogBounds(cluster, topic)
        # What has come and was not taken, and the offset behind it.
        self._left: Iterator[Any] | None = None
        self._behind = position
        self._coming: asyncio.Task[Fetched] | None = None
        self._is_silent = False

    @property
    def has_more(self) -> bool:
        """Whether `take` need not wait for a broker."""
        return self._left is not None or (self._coming is not None and self._coming.done())

    async def take(self, count_max: int) -> list[SourceRecord]:
        """
        Return the next records, *count_max* at most, offsets ascending; none if none has come within a second or so.

        Raises:
            OffsetOutOfRangeError: the log ends before the position.
            CorruptRecordException: a batch is damaged.
            aiokafka.errors.KafkaError: the leader refuses. A leader that does not answer is waited for.
        """
        if self._left is None:
            coming, self._coming = self._coming, None
            fetched = await (coming or self._fetched(self._behind))
            self._left, self._behind, self.stable = fetched.records, fetched.position, fetched.stable
            if fetched.is_large:
                # More of the same is on its way while these are worked on.
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
        """Read nothing more."""
        if self._coming is not None:
            await cancel([self._coming])
        await self._cluster.close_lane(self._lane)

    async def _fetched(self, position: int) -> Fetched:
        """Ask the leader until there is one that answers."""
        while True:
            came: Fetched | KafkaError
            try:
                came = await self._fetcher.fetch_one(self._number, position, _WAIT_MS)
            except _DELAYS as error:
                came = error
            if isinstance(came, Fetched):
                self._is_silent = False
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
        """Return where the log begins, if *position* was deleted."""
        start = (await self._bounds.starts([self._number]))[self._number]
        if start <= position:
            with suppress(KafkaError):
                await self._fetcher.find_leaders()
            # To begin anew with the first record would pass all on twice, on the word of a broker that may be cut off.
            raise OffsetOutOfRangeError(
                f"{self._topic} partition {self._number} has been read up to offset {position}, and ends before that: "
                "its leader is cut off from the others, or records were lost. If it stays so, stop the workers and set "
                "the group's offset with kafka-consumer-groups.sh --reset-offsets"
            )
        where = f"{self._topic} partition {self._number}"
        log.warning("%s: offsets %d to %d were deleted before they were read", where, position, start - 1)
        return start
