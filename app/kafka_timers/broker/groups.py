"""Consumer groups: who is in one, and taking a member out that cannot do so itself any more."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aiokafka.client import CoordinationType
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import GroupIdNotFound, KafkaError, UnknownMemberIdError, for_code
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.group import LeaveGroupRequest

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka

__all__ = ["Group", "Member", "group_of", "remove_member"]

_LANE = "groups"
_RETRY_S = 0.2


class Member(NamedTuple):
    """A member of a group: its client id and host, the partitions that it has by topic, and what it tells of itself."""

    client_id: str
    host: str
    partitions: Mapping[str, Sequence[int]]
    told: bytes


class Group(NamedTuple):
    """The members of a group, and whether it has shared its partitions out among them."""

    members: Sequence[Member]
    is_settled: bool


async def group_of(cluster: Cluster, group: str, limit_s: float) -> Group:
    """
    Return who is in *group*; nobody, if there is no such group.

    Args:
        cluster: to ask.
        group: name of the group.
        limit_s: for how long to try; meanwhile the coordinator may move.

    Raises:
        TimeoutError: no coordinator told within *limit_s*.
        aiokafka.errors.KafkaError: it refuses, and would do so again.
    """
    async with asyncio.timeout(limit_s):
        while True:
            try:
                return await _group(cluster, group)
            except KafkaError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(_RETRY_S)


async def _group(cluster: Cluster, group: str) -> Group:
    node = await _coordinator(cluster, group)
    answer = await cluster.send(node, DescribeGroupsRequest([group]), lane=_LANE)
    code, _, state, _, _, members, *_ = answer.groups[0]
    if code and for_code(code) is not GroupIdNotFound:
        raise for_code(code)(f"{cluster.name_of(node)} does not tell who is in group {group}")
    return Group([_member(*each) for each in members], is_settled=state == "Stable")


def _member(_: str, client_id: str, host: str, metadata: bytes, assignment: bytes) -> Member:
    assigned = ConsumerProtocolMemberAssignment.decode(assignment).assignment if assignment else []
    told = ConsumerProtocolMemberMetadata.decode(metadata).user_data if metadata else b""
    return Member(client_id, host.lstrip("/"), dict(assigned), told or b"")


async def _coordinator(cluster: Cluster, group: str) -> int:
    found = await cluster.ask_any(FindCoordinatorRequest(group, CoordinationType.GROUP))
    if found.error_code:
        raise for_code(found.error_code)(f"no coordinator is told of for group {group}")
    node: int = found.coordinator_id
    return node


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
    node = await _coordinator(cluster, group)
    answer = await cluster.send(node, LeaveGroupRequest(group, member_id), lane=_LANE)
    error = for_code(answer.error_code)
    if error is UnknownMemberIdError:
        return False
    if answer.error_code:
        raise error(f"{cluster.name_of(node)}, group {group}, member {member_id}")
    return True
