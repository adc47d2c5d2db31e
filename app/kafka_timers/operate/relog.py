"""
Look at a `timer-request` beside the seals, and write the seals that say what it is. `kafka-timers log` does it.

Workers leave a partition alone whose seals are of another topic, so nobody else writes seals of it meanwhile.
`core.log_identity` has those seals.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import chain

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.producer import Producer
from kafka_timers.broker.reading import TopicLog
from kafka_timers.broker.seals import SealLog, Tail
from kafka_timers.broker.topics import answering, translating
from kafka_timers.core.log_identity import is_other_log
from kafka_timers.core.sums import hash_of_seal
from kafka_timers.core.verdicts import Ask, judged
from kafka_timers.core.wire import Sealed, Topics, key_of_seal, latest, partitions_in
from kafka_timers.errors import TopicsError
from kafka_timers.runtime.filling import BATCH_BYTES

_LIMIT_S = 10.0


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
    def end_ms(self) -> int:
        """UNIX milliseconds before which all that was due has fired, by the last complete seal; 0 without one."""
        complete = latest(self.tail.seals)
        return complete.end_ms if complete else 0

    @property
    def stands(self) -> bool:
        """Whether workers leave the partition alone, since it is of another topic than its seals."""
        return is_other_log(self.tail.log, self.now)


class LogCheck:
    """
    The partitions of `timer-request`, as they were when this was opened.

    Its methods raise `aiokafka.errors.KafkaError` if a broker does not answer or refuses.
    """

    def __init__(self, cluster: Cluster, topics: Topics, states: list[LogState]) -> None:
        self.states = states
        self._cluster = cluster
        self._topics = topics

    async def content(self, state: LogState, fence: int) -> tuple[int, int, int]:
        """
        Return the numbers of requests in a partition: those due by the last seal below the offset *fence*, others due
        by then, and those due later.
        """
        past = due = waiting = 0
        log = TopicLog(self._cluster, self._topics.requests)
        async for records in log.pages(state.number, state.start, state.end, skips_deleted=True):
            for record in records:
                verdict = judged(record, state.number, len(self.states))
                if isinstance(verdict, Ask):
                    is_due, is_past = verdict.due_ms < state.end_ms, record.offset < fence
                    past, due, waiting = past + (is_due and is_past), due + (is_due > is_past), waiting + (not is_due)
        return past, due, waiting

    async def write(self, decided: Iterable[tuple[LogState, list[Sealed]]]) -> None:
        """Write seals behind the last ones of each partition."""
        producer = Producer(self._cluster, None, _LIMIT_S, BATCH_BYTES, "log")
        await producer.start()
        try:
            for state, seals in decided:
                number, previous = state.number, state.tail.last
                for seal in seals:
                    seal.previous = previous
                    value = seal.SerializeToString()
                    previous = hash_of_seal(value)
                    batch = producer.new_batch()
                    batch.append(timestamp=None, key=key_of_seal(seal), value=value)
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
        numbers, sealed = cluster.partitions(topics.requests), cluster.partitions(topics.sealed)
        for name, found in ((topics.requests, numbers), (topics.sealed, sealed)):
            if not found:
                raise TopicsError(f"topic {name} is missing: create it with kafka-timers topics create")
        log, seals = TopicLog(cluster, topics.requests), SealLog(cluster, topics.sealed)
        tails = dict(zip(sealed, await asyncio.gather(*map(seals.tail, sealed)), strict=True))
        served = partitions_in(chain.from_iterable(tail.seals for tail in tails.values()))
        numbers = numbers[: served or None]
        starts, ends = await log.bounds.starts(numbers), await log.bounds.ends(numbers)
        now, none = cluster.topic_id(topics.requests), Tail([], b"")
        states = [LogState(number, now, starts[number], ends[number], tails.get(number, none)) for number in numbers]
        yield LogCheck(cluster, topics, states)
