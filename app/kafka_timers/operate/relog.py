"""
Look at a `timer-request` beside the seals, and write the seals that say what it is. `kafka-timers log` does it.

Workers leave a partition alone whose seals are of another topic, or gone, so nobody else writes seals of it meanwhile.
`core.log_identity` has those seals.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.producer import Producer
from kafka_timers.broker.reading import TopicLog
from kafka_timers.broker.seals import SealLog, Tail
from kafka_timers.broker.topics import knowing
from kafka_timers.clock import Clock
from kafka_timers.core.log_identity import UNSEALED_MS
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
        now: Kafka's id of the topic; empty if no broker tells one.
        start: its first offset.
        end: the offset behind its last record.
        kept_to: the offset below which it has what the last seals were made of.
        is_other: whether it is another log than that of its seals.
        tail: the last seals.
        unsealed_ms: the UNIX millisecond at which its oldest request was due, if its seals are gone; else 0.
    """

    number: int
    now: bytes
    start: int
    end: int
    kept_to: int
    is_other: bool
    tail: Tail
    unsealed_ms: int = 0

    @property
    def end_ms(self) -> int:
        """UNIX milliseconds before which all that was due has fired, by the last complete seal; 0 without one."""
        complete = latest(self.tail.seals)
        return complete.end_ms if complete else 0

    @property
    def stands(self) -> bool:
        """Whether workers leave the partition alone, since it is not the log of its seals, or these are gone."""
        return self.is_other or self.kept_to < self.tail.fence or self.unsealed_ms > 0


class LogCheck:
    """
    The partitions of `timer-request`, as they were when this was opened.

    Its methods raise `aiokafka.errors.KafkaError` if a broker does not answer or refuses.
    """

    def __init__(self, cluster: Cluster, topics: Topics, states: list[LogState]) -> None:
        self.states = states
        self._cluster = cluster
        self._topics = topics

    async def content(self, state: LogState, fence: int, end_ms: int) -> tuple[int, int, int]:
        """
        Return the numbers of requests in a partition: those due before *end_ms* below the offset *fence*, others due by
        then, and those due later.
        """
        past = due = waiting = 0
        log = TopicLog(self._cluster, self._topics.requests)
        async for offset, due_ms in _dues(log, state.number, (state.start, state.end), len(self.states)):
            is_due, is_past = due_ms < end_ms, offset < fence
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


async def _dues(log: TopicLog, number: int, limits: tuple[int, int], partitions: int) -> AsyncIterator[tuple[int, int]]:
    """Yield offset and due millisecond of each request in a partition of `timer-request`."""
    async for records in log.pages(number, *limits, skips_deleted=True):
        for record in records:
            verdict = judged(record, number, partitions)
            if isinstance(verdict, Ask):
                yield record.offset, verdict.due_ms


@asynccontextmanager
async def checking_log(kafka: Kafka, prefix: str, clock: Clock) -> AsyncIterator[LogCheck]:
    """
    Look at `timer-request` and its last seals. *clock* tells how long its requests have been due.

    Raises:
        TopicsError: one of the topics does not exist.
    """
    topics = Topics.of(prefix)
    async with knowing(kafka, [topics.requests, topics.sealed]) as cluster:
        numbers, sealed = cluster.partitions(topics.requests), cluster.partitions(topics.sealed)
        for name, found in ((topics.requests, numbers), (topics.sealed, sealed)):
            if not found:
                raise TopicsError(f"topic {name} is missing: create it with kafka-timers topics create")
        log, seals = TopicLog(cluster, topics.requests), SealLog(cluster, topics.sealed)
        tails = dict(zip(sealed, await asyncio.gather(*map(seals.tail, sealed)), strict=True))
        served = partitions_in(chain.from_iterable(tail.seals for tail in tails.values()))
        numbers = numbers[: served or None]
        starts, ends = await log.bounds.starts(numbers), await log.bounds.ends(numbers)
        now, none = log.bounds.log_id, Tail([], b"")
        past_ms = int(clock.wall_s() * 1000) - UNSEALED_MS

        async def look_at(number: int) -> LogState:
            tail, start, end = tails.get(number, none), starts[number], ends[number]
            kept_to, first_ms = await tail.kept_in(log, number), past_ms
            if not tail.seals and await log.bounds.has_before(number, past_ms):
                async for _, due_ms in _dues(log, number, (start, end), len(numbers)):
                    first_ms = min(first_ms, due_ms)
            unsealed_ms = first_ms if first_ms < past_ms else 0
            is_other, kept_to = kept_to is None, end if kept_to is None else min(kept_to, end)
            return LogState(number, now, start, end, kept_to, is_other, tail, unsealed_ms)

        yield LogCheck(cluster, topics, await asyncio.gather(*map(look_at, numbers)))
