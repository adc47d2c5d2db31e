"""
How far the lake has promoted. Workers read it from the committed offsets of a consumer group.

    group      the prefix and `kafka-timers-lake`; it has no members
    offsets    offsets of `timer-request`: all requests below them were landed when the lake wrote this
    note       stored beside each offset: the closed second, as UNIX time in ASCII digits

So no topic needs another kind of record, and no reader must know one. Brokers delete offsets that were not committed
again for `offsets.retention.minutes`, seven days by default.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka.client import CoordinationType
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.coordinator_calls import CoordinatorLink, gravest
from kafka_timers.broker.topics import answering
from kafka_timers.core.wire import Topics, instance_name, number_in

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
