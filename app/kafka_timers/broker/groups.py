"""Consumer groups: who is in one, and taking a member out that cannot do so itself any more."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aiokafka.client import CoordinationType
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import GroupIdNotFound, UnknownMemberIdError
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.group import LeaveGroupRequest

from kafka_timers.broker.asking import CoordinatorLink
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka

__all__ = ["Group", "Member", "group_of", "remove_member"]

_LANE = "groups"
# What members of groups of consumers speak; what they tell has a form then.
_CONSUMERS = "consumer"


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
        KafkaTimeoutError: no coordinator told within *limit_s*.
        aiokafka.errors.KafkaError: it refuses.
    """
    what, link = "tell its members", _link(cluster, group, limit_s)
    answer = await link.ask(DescribeGroupsRequest([group]), lambda answer: answer.groups[0][0], to=what)
    code, _, state, kind, _, members, *_ = answer.groups[0]
    if code and code != GroupIdNotFound.errno:
        link.refuse(code, what)
    return Group([_member(*each) for each in members if kind == _CONSUMERS], is_settled=state == "Stable")


def _link(cluster: Cluster, group: str, limit_s: float) -> CoordinatorLink:
    return CoordinatorLink(cluster, CoordinationType.GROUP, group, limit_s, _LANE)


def _member(_: str, client_id: str, host: str, metadata: bytes, assignment: bytes) -> Member:
    assigned = ConsumerProtocolMemberAssignment.decode(assignment).assignment if assignment else []
    told = ConsumerProtocolMemberMetadata.decode(metadata).user_data if metadata else b""
    return Member(client_id, host.lstrip("/"), dict(assigned), told or b"")


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
        KafkaTimeoutError: the coordinator did not do so within *limit_s*.
        aiokafka.errors.KafkaError: it refuses, or no broker answers.
    """
    async with Cluster.open(kafka) as cluster:
        what, link = f"remove member {member_id}", _link(cluster, group, limit_s)
        answer = await link.ask(LeaveGroupRequest(group, member_id), lambda answer: answer.error_code, to=what)
        if answer.error_code == UnknownMemberIdError.errno:
            return False
        if answer.error_code:
            link.refuse(answer.error_code, what)
        return True
