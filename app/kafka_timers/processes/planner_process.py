"""`kafka-timers planner`: a process that plans schedules and does nothing else."""

import asyncio
import dataclasses
from functools import partial

from prometheus_client import CollectorRegistry

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.seals import served_counts
from kafka_timers.broker.topics import answering
from kafka_timers.clock import HostClock
from kafka_timers.core.callbacks import Target
from kafka_timers.core.wire import Topics
from kafka_timers.errors import TopicsError
from kafka_timers.planner.plan_metrics import PlannerMetrics
from kafka_timers.planner.planner import SKEW_S, SchedulePlanner
from kafka_timers.processes.start import tried
from kafka_timers.runtime.collector import collect_seldom
from kafka_timers.runtime.outlet import Outlet
from kafka_timers.runtime.priority import PriorityGate
from kafka_timers.runtime.probes import Probes
from kafka_timers.runtime.targets import TopicLookup
from kafka_timers.runtime.tasks import stop_asked, until_one_ends
from kafka_timers.runtime.ticked_clock import TickedClock
from kafka_timers.settings import PlannerSettings


def run(settings: PlannerSettings) -> None:
    """
    Plan schedules until SIGTERM or SIGINT.

    Raises:
        KafkaTimersError: the planner cannot start; the text says why.
    """
    collect_seldom()
    asyncio.run(_run(settings))


async def _run(settings: PlannerSettings) -> None:
    stop = stop_asked()
    registry, clock, planner = CollectorRegistry(), TickedClock(HostClock(), SKEW_S), None

    def unready() -> list[str]:
        return planner.problems() if planner else [f"no broker answers at {settings.kafka} yet"]

    metrics = PlannerMetrics(registry)
    probes = Probes(settings.host, settings.port, registry, list, unready)
    await probes.start()
    try:
        outlet = await tried(partial(_outlet, settings), stop, gives_up=True)
        if outlet is None:
            return
        planner = SchedulePlanner(settings, outlet, PriorityGate(), metrics, clock)
        await until_one_ends(planner.run(), stop.wait())
    finally:
        await probes.stop()


async def _outlet(settings: PlannerSettings) -> Outlet:
    topics = Topics.of(settings.topic_prefix)
    served = (await served_counts(settings.kafka, settings.topic_prefix)).get(topics.requests, 0)
    async with answering(settings.kafka), Cluster.open(settings.kafka) as cluster:
        found = await TopicLookup(cluster, topics, "*", HostClock()).look_up([topics.requests, topics.rejected])
    requests, rejected = found[topics.requests], found[topics.rejected]
    if not isinstance(requests, Target) or not isinstance(rejected, Target) or not served:
        raise TopicsError(
            f"topic {topics.requests} or {topics.rejected} cannot be written to ({requests}, {rejected}): make the "
            "service's topics with `kafka-timers topics create`, and give planners the rights of workers"
        )
    return Outlet(topics.requests, dataclasses.replace(requests, partitions=served), topics.rejected, rejected)
