"""
How far the lake has promoted. Workers read it from the committed offsets of a consumer group.

    group      the prefix and `kafka-timers-lake`; it has no members
    offsets    offsets of `timer-request`: all requests below them were landed when the lake wrote this
    note       stored beside each offset: the closed second, as UNIX time in ASCII digits

So no topic needs another kind of record, and no reader must know one. Brokers delete offsets that were not committed
again for `offsets.retention.minutes`, seven days by default.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka.client import CoordinationType
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.coordinator_calls import CoordinatorLink, gravest
from kafka_timers.broker.reading import TopicLog
from kafka_timers.broker.topics import answering
from kafka_timers.core.lake_progress import LakeProgress
from kafka_timers.core.wire import Sealed, Topics, instance_name, number_in

_LANE = "lake"
_LIMIT_S = 8.0
# Values for a client outside the group. The broker keeps the offsets for its own default time.
_NO_GENERATION, _NO_MEMBER, _AS_BROKER_SAYS = -1, "", -1


def lake_group(prefix: str) -> str:
    """Return the name of the group for the instance with *prefix*."""
    return f"{instance_name(prefix)}-lake"


async def tell_closed(kafka: Kafka, prefix: str, second: int, landed: Mapping[int, int]) -> None:
    """
    Tell the workers that they have all far requests up to *second*. All requests below the offsets *landed*, by
    partition of `timer-request`, are landed.
    """
    # Readers ask for partition 0.
    offsets = [(number, offset, str(second)) for number, offset in sorted(({0: 0} | dict(landed)).items())]
    request = OffsetCommitRequest(
        lake_group(prefix), _NO_GENERATION, _NO_MEMBER, _AS_BROKER_SAYS, [(Topics.of(prefix).requests, offsets)]
    )

    def code_of(answer: Any) -> int:
        return gravest(code for _, numbers in answer.topics for _, code in numbers if code)

    async with answering(kafka), Cluster.open(kafka) as cluster:
        await _link(cluster, prefix).obeyed(request, code_of, "keep the progress of the lake")


async def closed_second(cluster: Cluster, prefix: str) -> int | None:
    """Return the UNIX second up to which workers have all far requests; None if no lake has written it."""
    notes = [note for _, _, note in await _told(cluster, prefix, [0])]
    return number_in(notes[0].encode()) if notes and notes[0] else None


async def lake_progress(
    cluster: Cluster, prefix: str, seals: Mapping[int, Sealed | None], now_s: float
) -> LakeProgress:
    """
    Return how far the lake has promoted.

    Args:
        cluster: the cluster to ask. It must have looked `timer-request` up.
        seals: the last complete seal of each partition; None where nothing is sealed.
        now_s: the present, in UNIX seconds.

    Raises:
        BrokerError: no broker tells the progress, or one refuses.
        KafkaError: no leader tells the first far request.
    """
    known = {number: seal for number, seal in seals.items() if seal}
    horizon_s = max((seal.horizon_s for seal in known.values()), default=0)
    if not horizon_s:
        return LakeProgress(int(now_s), 0)
    far = {number: seal for number, seal in known.items() if seal.far.count}
    told_s, far_from_s = await closed_second(cluster, prefix), None
    if told_s is None and far:
        log = TopicLog(cluster, Topics.of(prefix).requests, _LIMIT_S)
        appended = await asyncio.gather(*(_appended_s(log, number, seal) for number, seal in far.items()))
        # What has left the log was appended long ago, and may be due by now.
        far_from_s = min(int(now_s) - horizon_s if second is None else second for second in appended)
    return LakeProgress(int(now_s), horizon_s, told_s, sum(seal.far.count for seal in far.values()), far_from_s)


async def _appended_s(log: TopicLog, number: int, seal: Sealed) -> int | None:
    """Return a UNIX second before which no far request was appended, by *seal*; None if the log has none any more."""
    first = max(seal.horizon_from, (await log.bounds.starts([number]))[number])
    # A log that was made anew ends below what the seal has of the one before.
    end = min(seal.fence, await log.bounds.end(number))
    async for records in log.pages(number, first, end, skips_deleted=True):
        if records:
            return records[0].timestamp // 1000
    return None


async def landed_offsets(cluster: Cluster, prefix: str, numbers: Iterable[int]) -> dict[int, int]:
    """Return the offsets below which the lake has landed all requests, of those partitions *numbers* that have one."""
    return {number: offset for number, offset, _ in await _told(cluster, prefix, numbers) if offset >= 0}


async def _told(cluster: Cluster, prefix: str, numbers: Iterable[int]) -> list[tuple[int, int, str]]:
    """Return number, offset and note of each partition of *numbers*, as the lake wrote them last."""
    request = OffsetFetchRequest(lake_group(prefix), [(Topics.of(prefix).requests, [*numbers])])

    def code_of(answer: Any) -> int:
        of_partitions = [code for _, numbers in answer.topics for *_, code in numbers]
        return gravest(filter(None, (answer.error_code, *of_partitions)))

    answer = await _link(cluster, prefix).obeyed(request, code_of, "tell the progress of the lake")
    return [tuple(told) for _, partitions in answer.topics for *told, _ in partitions]


def _link(cluster: Cluster, prefix: str) -> CoordinatorLink:
    return CoordinatorLink(cluster, CoordinationType.GROUP, lake_group(prefix), _LIMIT_S, _LANE)
