"""Sends replies, for all partitions of a process."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence

from aiokafka.errors import KafkaError

from kafka_timers.broker.batches import Batch
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.producer import Producer
from kafka_timers.broker.refusals import RefusedError
from kafka_timers.clock import Clock
from kafka_timers.core.callbacks import Target
from kafka_timers.core.refused import Reason
from kafka_timers.core.routing import hash_of
from kafka_timers.core.versions import Letter, headers_of_reply
from kafka_timers.runtime.filling import BATCH_BYTES, Filling
from kafka_timers.runtime.metrics import WorkerMetrics
from kafka_timers.runtime.targets import KEEP_S, KEEP_UNKNOWN_S, TopicLookup

log = logging.getLogger(__name__)

_START_S = 10.0
# A topic that takes no replies is told of so often.
_TELL_S = 10.0


class _AgainError(KafkaError):  # type: ignore[misc]  # aiokafka has no types
    """The topic has refused what it may take a moment later. The producer is well, and others may wait for it."""


class KafkaReplies:
    """
    Writes to reply topics, for all partitions of a process.

    Args:
        own: the service's topic for replies, which no callback may go to.
        targets: judge all other topics.
        clock: stamps replies.
        is_dated: tells whether *clock* shows the brokers' time, and not only that of this host.
    """

    def __init__(
        self,
        cluster: Cluster,
        own: str,
        targets: TopicLookup,
        metrics: WorkerMetrics,
        clock: Clock,
        is_dated: Callable[[], bool] = lambda: True,
    ) -> None:
        self._is_dated = is_dated
        self._cluster = cluster
        self._own = own
        # Its limits, and until when they count on the monotonic clock.
        self._own_takes: Target | Reason = Reason.TOPIC_UNKNOWN
        self._own_until_s = -math.inf
        self._targets = targets
        self._metrics = metrics
        self._clock = clock
        # Replies that were lost by topic and not told of yet, and until when on the monotonic clock they are not.
        self._lost: Counter[str] = Counter()
        self._told_until_s: dict[str, float] = {}
        self._producer: Producer | None = None
        self._starting = asyncio.Lock()

    async def stop(self) -> None:
        """Disconnect. Replies that were not taken are not sent any more."""
        producer, self._producer = self._producer, None
        if producer:
            await producer.stop()

    async def send(self, topic: str, letters: Sequence[Letter]) -> None:
        """
        Send *letters* to *topic*, and return once the brokers have them.

        Letters that the topic refuses are counted, and lost.

        Raises:
            aiokafka.errors.KafkaError: sending failed; send them again. Some letters may be there already.
        """
        target = await self._target(topic)
        if not isinstance(target, Target):
            self._lose(topic, target, len(letters))
            return
        producer = await self._started()
        filling, now_ms, dated = Filling(producer.new_batch), int(self._clock.wall_s() * 1000), self._is_dated()
        for letter in letters:
            at = hash_of(letter.key) % target.partitions
            filling.add(topic, at, now_ms, letter.key, letter.value, headers_of_reply(letter.value))
        try:
            await asyncio.gather(*(self._deliver(producer, target, *each, dated=dated) for each in filling.all()))
        except KafkaError as error:
            if self._producer is producer and not isinstance(error, _AgainError):
                # The producer cannot be used any more.
                await self.stop()
            raise

    async def _target(self, topic: str, *, anew: bool = False) -> Target | Reason:
        """Return the limits of *topic*, or the reason why it takes nothing; *anew*: as they are now."""
        if topic == self._own:
            if anew or self._clock.elapsed_s() >= self._own_until_s:
                self._own_takes = (await self._targets.look_up([topic]))[topic]
                keep_s = KEEP_S if isinstance(self._own_takes, Target) else KEEP_UNKNOWN_S
                self._own_until_s = self._clock.elapsed_s() + keep_s
            return self._own_takes
        verdicts = self._targets.verdicts
        while anew or topic not in verdicts:
            await self._targets.resolve([topic])
            anew = False
        return verdicts[topic]

    async def _started(self) -> Producer:
        async with self._starting:
            if self._producer is None:
                # Without transactions there is no limit: batches are sent again until they are taken.
                producer = Producer(self._cluster, None, _START_S, BATCH_BYTES, "replies")
                await producer.start()
                self._producer = producer
            return self._producer

    async def _deliver(
        self, producer: Producer, target: Target, batch: Batch, topic: str, partition: int, *, dated: bool
    ) -> None:
        count = batch.record_count()
        try:
            await producer.deliver(batch, topic, partition)
        except RefusedError as error:
            if not dated:
                # The clock of a host may be an hour ahead, and topics refuse that. The first tick tells the time.
                raise _AgainError(f"{topic} refuses, and no tick had told the time: {error}") from error
            if await self._target(topic, anew=True) != target:
                # It was made anew with fewer partitions, for example.
                raise _AgainError(f"{topic} has changed: {error}") from error
            self._lose(topic, str(error), count)
        else:
            self._metrics.replies.labels("sent").inc(count)

    def _lose(self, topic: str, why: Reason | str, count: int) -> None:
        self._metrics.replies.labels(why if isinstance(why, Reason) else "refused").inc(count)
        self._lost[topic] += count
        # The topic may be away for long, with thousands of replies a second.
        if (now_s := self._clock.elapsed_s()) >= self._told_until_s.get(topic, -math.inf):
            told = {name: until_s for name, until_s in self._told_until_s.items() if until_s > now_s}
            self._told_until_s = told | {topic: now_s + _TELL_S}
            log.warning("%d replies are lost, since topic %s does not take them: %s", self._lost.pop(topic), topic, why)
