"""
The request log → the stores of the owned partitions, whole fetches at a time.

One consumer with manual assignment: which partitions are read follows from who owns them, and from where from their
stores. It reads committed records only, since a producer may schedule timers inside a transaction of its own.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from kafka_timers.service.partition import Partition
from kafka_timers.service.requests import Record

# How long an idle fetch is waited for: also the longest time until a change of partitions is seen.
_POLL_MS = 50
# At most some 10 ms of work between two looks at the event loop.
_RECORDS_MAX = 4_000


class Feed(Protocol):
    """Who takes the records of one partition."""

    partition: Partition
    # The offset that somebody waits for the store to reach.
    awaited: int

    def ingest(self, records: Sequence[Record], position: int) -> None:
        """Take *records*, after which the log has been read up to *position*."""

    def fail(self, error: Exception) -> None:
        """Take note that the partition cannot be read; nothing more is fed."""


class RequestReader:
    """
    Reads the partitions of `timer-request` that it is given feeds for.

    Args:
        consumer: started, without a group, `read_committed`, no automatic reset of offsets.
        topic: the request topic.
    """

    def __init__(self, consumer: AIOKafkaConsumer, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic
        self._feeds: dict[int, Feed] = {}
        self._changed = asyncio.Event()

    @property
    def numbers(self) -> list[int]:
        """The partitions that are read."""
        return list(self._feeds)

    def add(self, feed: Feed) -> None:
        """Read the partition of *feed* from its position on."""
        self._feeds[feed.partition.number] = feed
        self._changed.set()

    def remove(self, feed: Feed) -> None:
        """Read nothing more for *feed*."""
        if self._feeds.get(feed.partition.number) is feed:
            del self._feeds[feed.partition.number]
            self._changed.set()

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            if self._changed.is_set():
                self._changed.clear()
                self._assign()
            if not self._feeds:
                await self._changed.wait()
                continue
            try:
                await self._read()
            except OffsetOutOfRangeError as error:
                for partition in error.args[0]:
                    if feed := self._feeds.get(partition.partition):
                        self._drop(feed, error)
            except KafkaError as error:
                # What the client does not repeat by itself, such as a missing right: every owner starts anew.
                for feed in list(self._feeds.values()):
                    self._drop(feed, error)

    def _assign(self) -> None:
        self._consumer.assign([TopicPartition(self._topic, number) for number in self._feeds])
        for number, feed in self._feeds.items():
            self._consumer.seek(TopicPartition(self._topic, number), feed.partition.position)

    async def _read(self) -> None:
        fetched = await self._consumer.getmany(timeout_ms=_POLL_MS, max_records=_RECORDS_MAX)
        if self._changed.is_set():
            # Feeds came or went meanwhile, and this may be of one that has begun anew elsewhere. It is fetched again.
            return
        for number, feed in list(self._feeds.items()):
            at = TopicPartition(self._topic, number)
            records = fetched.get(at, ())
            # Control records and aborted ones yield nothing to ingest but move the position: it is the consumer's and
            # never "last record + 1". Without records it is asked for only where somebody waits for it.
            if records or feed.partition.position < feed.awaited:
                position = await self._consumer.position(at)
                if self._changed.is_set():
                    return
                if records or position > feed.partition.position:
                    try:
                        feed.ingest(records, position)
                    except Exception as error:
                        self._drop(feed, error)

    def _drop(self, feed: Feed, error: Exception) -> None:
        self.remove(feed)
        feed.fail(error)
