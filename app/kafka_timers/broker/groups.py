"""Consumer groups: taking a member out that cannot do so itself any more."""

import asyncio

from aiokafka.client import CoordinationType
from aiokafka.errors import KafkaError, UnknownMemberIdError, for_code
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.group import LeaveGroupRequest

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka

__all__ = ["remove_member"]

_LANE = "groups"
_RETRY_S = 0.2


async def remove_member(kafka: Kafka, group: str, member_id: str, limit_s: float) -> bool:
    """
    Take the member *member_id* out of *group*, so that its partitions go to others at once.

    Args:
        kafka: where the group is.
        group: name of the group.
        member_id: that the group's coordinator has given to the member.
        limit_s: for how long to try; meanwhile the coordinator may move.

    Returns:
        Whether it was a member still.

    Raises:
        TimeoutError: the coordinator did not do so within *limit_s*.
        aiokafka.errors.KafkaError: it refuses, and would do so again.
    """
    async with asyncio.timeout(limit_s):
        while True:
            try:
                async with Cluster.open(kafka) as cluster:
                    return await _remove(cluster, group, member_id)
            except KafkaError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(_RETRY_S)


async def _remove(cluster: Cluster, group: str, member_id: str) -> bool:
    found = await cluster.ask_any(FindCoordinatorRequest(group, CoordinationType.GROUP))
    if found.error_code:
        raise for_code(found.error_code)(f"no coordinator is told of for group {group}")
    answer = await cluster.send(found.coordinator_id, LeaveGroupRequest(group, member_id), lane=_LANE)
    error = for_code(answer.error_code)
    if error is UnknownMemberIdError:
        return False
    if answer.error_code:
        raise error(f"{cluster.name_of(found.coordinator_id)}, group {group}, member {member_id}")
    return True
