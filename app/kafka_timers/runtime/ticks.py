"""
Reads the ticks of the owned partitions, in the same way as requests.

Faust's consumer is a member of the group only for the assignment. It could read the ticks too, but it waits 30 s for a
silent broker, and stays with a broker that leads no more.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from aiokafka.errors import KafkaError

from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.fetching import Fetcher
from kafka_timers.core.wire import Record
from kafka_timers.runtime.log_reader import LogReader, SimpleFeed
from kafka_timers.runtime.priority import PriorityGate
from kafka_timers.runtime.tasks import cancel, until_one_ends

log = logging.getLogger(__name__)

# Partition, key, append time in UNIX milliseconds, and leader epoch of the broker of a tick.
OnTick = Callable[[int, bytes | None, int, int], None]

_RETRY_S = 0.5
# There is one tick each second.
_SILENT_S = 2.0


class TickReader:
    """
    Reads ticks.

    Args:
        cluster: the cluster to ask. It must have looked the topic up.
        on_tick: called with each tick, beginning with the newest existing one. It must not take long.
    """

    def __init__(self, cluster: Cluster, topic: str, on_tick: OnTick) -> None:
        self._cluster = cluster
        self._topic = topic
        self._bounds = LogBounds(cluster, topic)
        # Nothing goes before ticks.
        self._reader = LogReader(Fetcher(cluster, topic, "ticks"), PriorityGate())
        self._on_tick = on_tick
        self._following: dict[int, asyncio.Task[None]] = {}
        self._feeds: dict[int, SimpleFeed] = {}
        # When each feed has last had ticks, by the loop's clock.
        self._heard_s: dict[int, float] = {}

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            await until_one_ends(self._reader.run(), self._watch())
        finally:
            await cancel(self._following.values())

    async def _watch(self) -> None:
        """
        Look up the leaders of silent partitions: a leader that was cut off answers as usual, but has no new ticks.
        """
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SILENT_S / 2)
            if any(loop.time() - heard_s > _SILENT_S for heard_s in self._heard_s.values()):
                with suppress(KafkaError):
                    await self._cluster.refresh()

    def follow(self, numbers: Iterable[int], pause_s: float = 0.0) -> None:
        """
        Read partitions *numbers* after a pause of *pause_s*, from the newest tick on, which covers all earlier ones.
        """
        for number in numbers:
            self.leave([number])
            self._following[number] = asyncio.create_task(self._follow(number, pause_s))

    def leave(self, numbers: Iterable[int]) -> None:
        """Stop reading partitions *numbers*."""
        for number in numbers:
            if following := self._following.pop(number, None):
                following.cancel()
            if feed := self._feeds.pop(number, None):
                self._reader.remove(feed)
                del self._heard_s[number]

    async def _follow(self, number: int, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        while True:
            try:
                position = max(await self._bounds.end(number) - 1, (await self._bounds.starts([number]))[number])
            except Exception as error:
                log.warning("%s partition %d: no ticks: %s", self._topic, number, str(error) or repr(error))
                await asyncio.sleep(_RETRY_S)
            else:
                break
        self._heard_s[number] = asyncio.get_running_loop().time()
        feed = SimpleFeed(number, position, partial(self._take, number), partial(self._failed, number))
        self._feeds[number] = feed
        self._reader.add(feed)

    def _take(self, number: int, records: Sequence[Record]) -> None:
        leader = self._cluster.leader(self._topic, number)
        for record in records:
            self._on_tick(number, record.key, record.timestamp, leader.epoch if leader else -1)
        self._heard_s[number] = asyncio.get_running_loop().time()

    def _failed(self, number: int, error: Exception) -> None:
        log.warning("%s partition %d: %s", self._topic, number, error)
        self.follow([number], _RETRY_S)
