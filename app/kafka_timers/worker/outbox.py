"""
Answers to cancels and moves, on the topics that asked for them.

They leave at once, past the transaction of any second. What they say stays true whoever owns the partition later: a
next owner reads the log up to its end before anything fires, so a cancel that an owner has read counts for all that
come after. But an owner that was paused may have read a cancel that its successor could not read yet when it fired (the
transaction of the cancel was committed later). So before anything is said to be taken back, the broker is asked whether
this owner still was one, at a moment after it had read that.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.producer.message_accumulator import BatchBuilder

from kafka_timers.core.callbacks import Target
from kafka_timers.core.routing import hash_of
from kafka_timers.core.versions import Answer
from kafka_timers.core.wire import Reply
from kafka_timers.worker.faults import Fault, FaultError, FencedError
from kafka_timers.worker.metrics import WorkerMetrics
from kafka_timers.worker.ports import CallbackTopics, EpochCheck, ReplySender
from kafka_timers.worker.sender import Filling

log = logging.getLogger(__name__)

_NEED_THE_CHECK = frozenset((Reply.CANCELLED, Reply.MOVED, Reply.ACCEPTED, Reply.IGNORED))


class KafkaReplies:
    """
    The way to reply topics, for all partitions of a process.

    Args:
        producer: started.
        own: the service's topic for replies, and what it takes.
        targets: judge all other topics.
        metrics: count what is sent.
    """

    def __init__(
        self, producer: AIOKafkaProducer, own: tuple[str, Target], targets: CallbackTopics, metrics: WorkerMetrics
    ) -> None:
        self._producer = producer
        self._own = own
        self._targets = targets
        self._metrics = metrics

    async def send(self, number: int, answers: Iterable[Answer]) -> None:
        """
        Send *answers* to records of partition *number*, and return once the broker has them.

        What a topic does not take is counted, and lost: it is not for the one who asks to stop the timers of others.

        Raises:
            aiokafka.errors.KafkaError: no broker tells what topics there are.
        """
        addressed = [(answer.topic.decode(), answer) for answer in answers]
        own, own_target = self._own
        verdicts = self._targets.verdicts
        while unknown := {topic for topic, _ in addressed} - verdicts.keys() - {own}:
            await self._targets.resolve(unknown)
        filling = Filling(self._producer.create_batch)
        for topic, answer in addressed:
            target = own_target if topic == own else verdicts[topic]
            if not isinstance(target, Target):
                self._metrics.replies.labels(target).inc()
                continue
            partition = hash_of(answer.timer_id) % target.partitions
            filling.add(topic, partition, None, answer.timer_id, answer.reply(number).SerializeToString())
        await asyncio.gather(*(self._deliver(*each) for each in filling.all()))

    async def _deliver(self, batch: BatchBuilder, topic: str, partition: int) -> None:
        count = batch.record_count()
        try:
            await (await self._producer.send_batch(batch, topic, partition=partition))
        except KafkaError as error:
            log.warning("%d replies are lost: %s partition %d does not take them: %r", count, topic, partition, error)
            self._metrics.replies.labels("failed").inc(count)
        else:
            self._metrics.replies.labels("sent").inc(count)


class Outbox:
    """
    Answers of one partition that have not left yet.

    Args:
        number: of the partition.
        replies: sends them.
        epoch_check: of the partition's owner; None where nothing shuts out an owner that was paused.
    """

    def __init__(self, number: int, replies: ReplySender, epoch_check: EpochCheck | None) -> None:
        self._number = number
        self._replies = replies
        self._epoch_check = epoch_check
        self._waiting: list[Answer] = []
        self._added = self._sent = 0
        self._some = asyncio.Event()
        self._progress = asyncio.Event()
        self._fault: Fault | None = None

    def add(self, answers: Sequence[Answer]) -> None:
        """Have *answers* sent."""
        self._waiting += answers
        self._added += len(answers)
        if answers:
            self._some.set()

    async def run(self) -> None:
        """
        Send until cancelled.

        Raises:
            FencedError: another worker owns the partition.
            aiokafka.errors.KafkaError: no broker tells who owns it, or what topics there are.
        """
        try:
            while True:
                await self._some.wait()
                self._some.clear()
                answers, self._waiting = self._waiting, []
                await self._send(answers)
                self._sent += len(answers)
                self._progress.set()
        except Exception as error:
            self._fault = Fault.of(error)
            self._progress.set()
            raise

    async def _send(self, answers: list[Answer]) -> None:
        needs_check = any(answer.outcome in _NEED_THE_CHECK for answer in answers)
        if needs_check and self._epoch_check and not await self._epoch_check.is_held():
            raise FencedError
        await self._replies.send(self._number, answers)

    async def sent(self) -> int:
        """
        Return once all that was added by now has been sent: how many answers there were so far.

        Raises:
            FaultError: `run` has ended.
        """
        added = self._added
        while self._sent < added:
            if self._fault:
                raise FaultError(self._fault)
            self._progress.clear()
            await self._progress.wait()
        return added
