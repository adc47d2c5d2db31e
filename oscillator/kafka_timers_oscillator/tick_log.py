"""
The `oscillator` topic as one replica uses it: reads new ticks, finds the end, and appends.

A thin layer on `kafka_timers.broker`. It handles bytes and offsets; `schedule.py` decides which ticks there should be.
A partition whose leader is silent does not delay the others.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import NamedTuple, Self

from aiokafka.errors import KafkaError

from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.fetching import Fetcher
from kafka_timers.broker.producer import Producer
from kafka_timers.broker.requests import settings_of
from kafka_timers.core.wire import OSCILLATOR_HEADER, SECOND_LIMIT, TICK, Record, number_in
from kafka_timers.errors import BrokerError, TopicsError
from kafka_timers.runtime.log_reader import LogReader, SimpleFeed
from kafka_timers.runtime.priority import PriorityGate
from kafka_timers.runtime.tasks import cancel, watched

# A tick without an acknowledgement after this time counts as lost. This bounds how long a late tick can be on its way.
APPEND_LIMIT_S = 4.0

# Number of records read back from the end of each partition. One is enough unless something else writes to the topic,
# such as records that are no ticks, or ticks that do not count.
TAIL = 20

_START_S, _BATCH_BYTES = 5.0, 64 << 10
_READ_WAIT_S, _RETRY_S = 0.5, 0.5


class Tick(NamedTuple):
    """A tick in the log: its second, and the broker's timestamp, both in UNIX seconds."""

    partition: int
    second: int
    append_s: float


class TickLog:
    """The open topic. Use `open` to make one."""

    def __init__(self, topic: str, cluster: Cluster, producer: Producer, name: str) -> None:
        self.partitions = cluster.partitions(topic)
        self._topic, self._cluster, self._producer = topic, cluster, producer
        self._headers: list[tuple[str, bytes | None]] = [(OSCILLATOR_HEADER, name.encode())]
        # Ticks are sent outside transactions, and an open transaction of another client must not hide them.
        self._bounds = LogBounds(cluster, topic, APPEND_LIMIT_S, is_committed=False)
        self._reader = LogReader(Fetcher(cluster, topic, "ticks", is_committed=False), PriorityGate())
        self._following: dict[int, asyncio.Task[None]] = {}
        self._end: dict[int, int] = {}
        self._found: list[Tick] = []
        self._failure: Exception | None = None
        self._news = asyncio.Event()
        # By partition: what has read up to where, and the offset up to which records were returned by `read`, and were
        # processed by its caller.
        self._feeds: dict[int, SimpleFeed] = {}
        self._handed_to: dict[int, int] = {}
        self._taken_to: dict[int, int] = {}
        self._taken = asyncio.Event()

    def led(self) -> dict[int, list[int]]:
        """Return the partitions by the broker that leads them and stamps their ticks, without those that none leads."""
        return self._cluster.led(self._topic, self.partitions)

    @classmethod
    @asynccontextmanager
    async def open(cls, kafka: Kafka, topic: str, name: str) -> AsyncIterator[Self]:
        """
        Connect, and begin to read from just before the end of each partition. Written ticks carry *name* in a header.

        Raises:
            BrokerError: no broker answers, or the topic does not exist.
            TopicsError: the broker does not stamp the topic's records with its own time.
        """
        async with AsyncExitStack() as opened:
            try:
                cluster = await opened.enter_async_context(Cluster.open(kafka))
                await _check(cluster, kafka, topic)
                producer = Producer(cluster, None, _START_S, _BATCH_BYTES, "tick producer")
                opened.push_async_callback(producer.stop)
                await producer.start()
            except (KafkaError, OSError) as error:
                raise BrokerError(f"no broker at {kafka} serves {topic}: {_in_words(error)}") from error
            log = cls(topic, cluster, producer, name)
            reading = watched(log._reader.run(), log._failed)
            opened.push_async_callback(cancel, [reading])
            for number in log.partitions:
                log._following[number] = watched(log._follow(number), log._failed)
            opened.push_async_callback(cancel, log._following.values())
            await asyncio.wait(log._following.values(), timeout=APPEND_LIMIT_S)
            yield log

    async def _follow(self, number: int) -> None:
        """Read partition *number* from just before its end, as soon as a broker tells the end."""
        while True:
            try:
                end = await self._bounds.end(number)
                start = max((await self._bounds.starts([number]))[number], end - TAIL)
            except KafkaError:
                # An append to the partition will report the error.
                await asyncio.sleep(_RETRY_S)
            else:
                break
        self._end.setdefault(number, end)
        self._taken_to.setdefault(number, start)
        self._feeds[number] = feed = SimpleFeed(number, start, partial(self._take, number), self._failed)
        self._reader.add(feed)

    def _failed(self, error: Exception) -> None:
        """Make `read` raise, because a partition cannot be read."""
        self._failure = error
        self._news.set()

    def _take(self, number: int, records: Iterable[Record]) -> None:
        for record in records:
            second = number_in(record.key)
            if second is not None and second < SECOND_LIMIT:
                self._found.append(Tick(number, second, record.timestamp / 1000))
        self._news.set()

    async def read(self) -> list[Tick]:
        """
        Return the ticks appended since the last call, in order for each partition. Waits a moment if there are none.

        Raises:
            BrokerError: a partition cannot be read, for another reason than a silent broker.
        """
        # The caller has processed the result of its last call.
        self._taken_to |= self._handed_to
        self._taken.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(_READ_WAIT_S):
                await self._news.wait()
        self._news.clear()
        if self._failure is not None:
            raise BrokerError(f"{self._topic} cannot be read: {_in_words(self._failure)}") from self._failure
        found, self._found = self._found, []
        self._handed_to = {number: feed.position for number, feed in self._feeds.items()}
        return found

    async def reach_end_at_open(self, limit_s: float) -> None:
        """
        Return once everything that the log had at its opening was returned by `read` and processed by its caller.

        Partitions whose leader was silent at the opening are not waited for.

        Raises:
            TimeoutError: this took longer than *limit_s*.
        """
        async with asyncio.timeout(limit_s):
            await self._reach(self._end)

    async def reach_end(self, partitions: Iterable[int], limit_s: float) -> None:
        """
        Return once everything that *partitions* have now was returned by `read` and processed by its caller.

        Raises:
            TimeoutError: this took longer than *limit_s*.
            KafkaError: the broker does not tell the end.
        """
        async with asyncio.timeout(limit_s):
            await self._reach(await self._bounds.ends(list(partitions)))

    async def _reach(self, end: Mapping[int, int]) -> None:
        for number, offset in end.items():
            while self._taken_to.get(number, -1) < offset:
                self._taken.clear()
                await self._taken.wait()

    async def append(self, partition: int, seconds: Iterable[int]) -> float:
        """
        Write one tick for each of *seconds*. Return the append time that they share, in UNIX seconds.

        Raises:
            KafkaError: the ticks were not acknowledged. They may be in the log all the same.
            TimeoutError: no answer in time. The ticks may be in the log all the same.
            TopicsError: the broker did not stamp the ticks with its own time.
        """
        batch = self._producer.new_batch()
        for second in seconds:
            batch.append(timestamp=None, key=b"%d" % second, value=TICK, headers=self._headers)
        try:
            async with asyncio.timeout(APPEND_LIMIT_S):
                appended_ms = await self._producer.deliver(batch, self._topic, partition)
        except TimeoutError as error:
            raise TimeoutError(self._producer.trouble or f"no answer within {APPEND_LIMIT_S:g} s") from error
        if appended_ms < 0:
            raise _not_append_time(self._topic)
        return appended_ms / 1000


async def _check(cluster: Cluster, kafka: Kafka, topic: str) -> None:
    await cluster.look_up([topic])
    if not cluster.partitions(topic):
        raise BrokerError(f"topic {topic} is not there at {kafka}; create it with `kafka-timers topics create`")
    wanted = settings_of([topic], ["message.timestamp.type"])
    # Without the right to read settings there are no entries. The first acknowledgement shows the setting then.
    for _, _, _, _, entries in (await cluster.ask_any(wanted)).resources:
        for _, value, *_ in entries:
            if value != "LogAppendTime":
                raise _not_append_time(topic)


def _in_words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _not_append_time(topic: str) -> TopicsError:
    return TopicsError(
        f"topic {topic} does not have message.timestamp.type=LogAppendTime, so its ticks do not carry the broker's "
        "time; set it (`kafka-timers topics check` shows other problems) and start again"
    )
