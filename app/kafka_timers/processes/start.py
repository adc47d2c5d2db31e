"""
Asks the brokers for everything that a worker needs before it can own a partition.

The worker waits for a silent broker and logs it. If it ended instead, all workers of its command would end.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import TypeVar

from kafka_timers.adapters.place import begin_places
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.seals import SealLog
from kafka_timers.broker.topics import answering, counted
from kafka_timers.core.callbacks import Target
from kafka_timers.core.wire import Topics, partitions_in
from kafka_timers.errors import BrokerError, TopicsError
from kafka_timers.runtime.targets import TopicLookup
from kafka_timers.settings import WorkerSettings

log = logging.getLogger(__name__)

_PAUSE_S = 1.0

_T = TypeVar("_T")


async def tried(ask: Callable[[], Awaitable[_T]], stop: asyncio.Event, *, gives_up: bool) -> _T | None:
    """
    Return the result of *ask*, which is called every second until brokers answer; None if *stop* came first.

    Raises:
        BrokerError: with *gives_up*, if another try cannot help.
    """
    trouble = ""
    while not stop.is_set():
        try:
            return await ask()
        except BrokerError as error:
            if gives_up and not error.retriable:
                raise
            if str(error) != trouble:
                trouble = str(error)
                log.warning("%s; trying again every second", trouble)
            with suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_S):
                    await stop.wait()
    return None


async def connected(kafka: Kafka, stack: AsyncExitStack) -> Cluster:
    """Return a cluster. *stack* will close it."""
    async with answering(kafka):
        return await stack.enter_async_context(Cluster.open(kafka))


async def find_out(settings: WorkerSettings, cluster: Cluster, lookup: TopicLookup) -> tuple[int, dict[str, Target]]:
    """
    Look up the service's topics. *cluster* knows them afterwards.

    Returns:
        The number of partitions, and the limits of the service's own topics that this process may write to, by name.

    Raises:
        TopicsError: topics are missing, cannot be written to, or do not fit each other.
    """
    topics = Topics.of(settings.topic_prefix)
    async with answering(settings.kafka):
        counts = await counted(cluster, dataclasses.astuple(topics))
        await cluster.look_up([topics.requests, topics.sealed, topics.oscillator])
        verdicts = await lookup.look_up(dataclasses.astuple(topics))
    sealed_with = partitions_in(await SealLog(cluster, topics.sealed).seals(0)) if topics.sealed in counts else 0
    partitions = served_partitions(counts, topics, sealed_with, settings.partitions)
    for name in (topics.requests, topics.rejected, topics.replies):
        if not isinstance(verdicts[name], Target):
            raise TopicsError(f"topic {name} cannot be written to: {verdicts[name]}")
    if not sealed_with:
        async with answering(settings.kafka):
            await cluster.look_up([topics.doors])
            await begin_places(cluster, topics.doors)
    return partitions, {name: target for name, target in verdicts.items() if isinstance(target, Target)}


def served_partitions(found: Mapping[str, int], topics: Topics, sealed_with: int, wanted: int) -> int:
    """
    Return the number of served partitions, which are the first ones of each topic.

    Args:
        found: number of partitions of each existing topic of the service.
        sealed_with: the number in the last seals; 0 without seals.
        wanted: the number in the settings; 0 if none.

    Raises:
        TopicsError: a topic is missing or has fewer, the two numbers differ, or the topics differ and no number is
            given.
    """
    if missing := [topic for topic in topics.needed if topic not in found]:
        raise TopicsError(f"missing: {', '.join(missing)}. Create them with kafka-timers topics create")
    aligned = {topic: found[topic] for topic in (topics.requests, topics.oscillator, topics.sealed)}
    if sealed_with and wanted and sealed_with != wanted:
        raise TopicsError(
            f"the service has run with {sealed_with} partitions, and --partitions says {wanted}. The number is fixed "
            f"for life, since timer ids are routed by it: give {sealed_with}, or leave the option out"
        )
    served = sealed_with or wanted
    counts = ", ".join(f"{topic} has {count}" for topic, count in aligned.items())
    if not served and len(set(aligned.values())) > 1:
        raise TopicsError(
            f"partition counts differ: {counts}, and no seal tells with how many the service has run. Add partitions "
            "to those that have fewer; or, if some were added by mistake, give --partitions with the number before"
        )
    if min(aligned.values()) < served:
        raise TopicsError(
            f"the service runs with {served} partitions, and {counts}: add partitions to those that have fewer "
            f"(kafka-topics.sh --alter --topic … --partitions {served})"
        )
    return served or found[topics.requests]
