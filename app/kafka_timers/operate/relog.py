"""
Decide what a `timer-request` is whose id is not the one in the seals. `kafka-timers log` does it.

Workers leave such partitions alone, so nobody else writes seals of them. `core.log_identity` has the seals.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.producer import Producer
from kafka_timers.broker.reading import TopicLog
from kafka_timers.broker.seals import SealLog, Tail
from kafka_timers.broker.topics import answering, translating
from kafka_timers.core.log_identity import begun_anew, gone_on, is_other_log
from kafka_timers.core.sums import hash_of_seal
from kafka_timers.core.verdicts import Ask, judged
from kafka_timers.core.wire import Sealed, Topics, is_complete, latest
from kafka_timers.errors import TopicsError

_LIMIT_S = 10.0
_BATCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Content:
    """
    What lies in a partition: numbers of requests.

    Attributes:
        past: due by the last seal, at offsets below the fence in question.
        due: due by the last seal, at other offsets.
        waiting: due later.
    """

    past: int = 0
    due: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class LogState:
    """
    A partition of `timer-request` beside its last seals.

    Attributes:
        now: Kafka's id of the topic.
        start: its first offset.
        end: the offset behind its last record.
        tail: the last seals.
    """

    number: int
    now: bytes
    start: int
    end: int
    tail: Tail

    @property
    def was(self) -> bytes:
        """Kafka's id of the topic that the last seal is of; empty if none is told."""
        return self.tail.seals[-1].log if self.tail.seals else b""

    @property
    def fence(self) -> int:
        """The offset below which the last seals say what has fired."""
        return max((seal.fence for seal in self.tail.seals), default=0)

    @property
    def end_ms(self) -> int:
        """UNIX milliseconds before which all that was due has fired, by the last complete seal; 0 without one."""
        complete = latest(self.tail.seals)
        return complete.end_ms if complete else 0

    @property
    def stands(self) -> bool:
        """Whether workers leave the partition alone, since it is of another topic than its seals."""
        return is_other_log(self.was, self.now)


class LogCheck:
    """
    The partitions of `timer-request`, when this was opened.

    Its methods raise `aiokafka.errors.KafkaError` if a broker does not answer or refuses.
    """

    def __init__(self, cluster: Cluster, topics: Topics, log: TopicLog, states: list[LogState]) -> None:
        self.states = states
        self._cluster = cluster
        self._topics = topics
        self._log = log

    async def content(self, state: LogState, fence: int) -> Content:
        """Read a partition, and count what lies in it."""
        past = due = waiting = 0
        async for records in self._log.pages(state.number, state.start, state.end, skips_deleted=True):
            for record in records:
                verdict = judged(record, state.number, len(self.states))
                if not isinstance(verdict, Ask):
                    continue
                if verdict.due_ms >= state.end_ms:
                    waiting += 1
                elif record.offset < fence:
                    past += 1
                else:
                    due += 1
        return Content(past, due, waiting)

    async def is_another(self, states: Sequence[LogState]) -> None:
        """Note that nothing of these partitions has fired."""
        await self._write({state.number: (state, begun_anew(state.tail.seals, state.now)) for state in states})

    async def is_same(self, states: Sequence[LogState], fences: Mapping[int, int]) -> None:
        """Note that these partitions have the records that they had, with other offsets where *fences* has one."""
        await self._write(
            {
                state.number: (
                    state,
                    gone_on(state.tail.seals, state.now, fences.get(state.number), state.start),
                )
                for state in states
            }
        )

    async def _write(self, decided: Mapping[int, tuple[LogState, list[Sealed]]]) -> None:
        producer = Producer(self._cluster, None, _LIMIT_S, _BATCH_BYTES, "log")
        await producer.start()
        try:
            for number, (state, seals) in decided.items():
                previous = state.tail.last
                for seal in seals:
                    seal.previous = previous
                    value = seal.SerializeToString()
                    previous = hash_of_seal(value)
                    key = b"%d" % number if is_complete(seal) else b"%d slice" % number
                    batch = producer.new_batch()
                    batch.append(timestamp=None, key=key, value=value)
                    await producer.deliver(batch, self._topics.sealed, number)
        finally:
            await producer.stop()


@asynccontextmanager
async def checking_log(kafka: Kafka, prefix: str) -> AsyncIterator[LogCheck]:
    """
    Look at `timer-request` and its last seals.

    Raises:
        TopicsError: one of the topics does not exist.
        BrokerError: no broker answers within some 10 s, or a broker refuses; also inside the block.
    """
    topics = Topics.of(prefix)
    async with AsyncExitStack() as opened:
        async with answering(kafka):
            cluster = await opened.enter_async_context(Cluster.open(kafka))
            await cluster.look_up([topics.requests, topics.sealed])
        opened.enter_context(translating(kafka))
        log, seals = TopicLog(cluster, topics.requests), SealLog(cluster, topics.sealed)
        sealed = cluster.partitions(topics.sealed)
        for name, numbers in ((topics.requests, log.numbers), (topics.sealed, sealed)):
            if not numbers:
                raise TopicsError(f"topic {name} is missing: create it with kafka-timers topics create")
        tails = {number: await seals.tail(number) for number in sealed}
        served = next((tail.seals[-1].partitions for tail in tails.values() if tail.seals), len(log.numbers))
        numbers = [number for number in log.numbers if number < served]
        starts, ends = await log.bounds.starts(numbers), await log.bounds.ends(numbers)
        now, none = cluster.topic_id(topics.requests), Tail([], b"")
        states = [LogState(n, now, starts[n], ends[n], tails.get(n, none)) for n in numbers]
        yield LogCheck(cluster, topics, log, states)
