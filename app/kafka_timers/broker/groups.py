"""Members of consumer groups: as which to join one, who is in one, and how to remove one that cannot leave any more."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from aiokafka.client import CoordinationType
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import GroupIdNotFound, UnknownMemberIdError
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.group import LeaveGroupRequest

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.coordinator_calls import CoordinatorLink
from kafka_timers.broker.internals import Member as Joined

_LANE = "groups"
# Protocol type of consumer groups. Only its members' metadata has the form that is decoded here.
_CONSUMERS = "consumer"
_SETTLE_S = 0.05
_STOP_S = 2.0


class Member(NamedTuple):
    """
    A member of a group: client id, host, assigned partitions by topic, and the user data that it sends when it joins.
    """

    client_id: str
    host: str
    partitions: Mapping[str, Sequence[int]]
    user_data: bytes


class Group(NamedTuple):
    """The members of a group. `is_settled` is True if the group has assigned its partitions."""

    members: Sequence[Member]
    is_settled: bool


@asynccontextmanager
async def joining(kafka: Kafka, group: str, **options: Any) -> AsyncIterator[Joined]:
    """Yield a member of *group* that reads nothing, and stop it at the end, even while the broker is away."""
    member = Joined(**kafka.client_options(), group_id=group, enable_auto_commit=False, **options)
    try:
        await member.start()
        yield member
    finally:
        # Two traps of aiokafka 0.14. If stopped while a failed fetch waits for its retry, it raises that fetch's
        # CancelledError, which looks like our own, and leaves connections open. So we first end its fetches. If stopped
        # while they end, it loses the cancellation and waits for ever. So it gets a moment, and a limit.
        member.unsubscribe()
        try:
            await asyncio.sleep(_SETTLE_S)
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await member.stop()


async def group_of(cluster: Cluster, group: str, limit_s: float) -> Group:
    """
    Return the members of *group*; none if there is no such group. It tries for *limit_s* seconds; meanwhile the
    coordinator may move.
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
    user_data = ConsumerProtocolMemberMetadata.decode(metadata).user_data if metadata else b""
    return Member(client_id, host.lstrip("/"), dict(assigned), user_data or b"")


async def remove_member(kafka: Kafka, group: str, member_id: str, limit_s: float) -> bool:
    """
    Remove the member *member_id* from *group*, so that its partitions go to others at once.

    Args:
        member_id: the id that the group's coordinator gave to the member.
        limit_s: how long to try, in seconds; meanwhile the coordinator may move.

    Returns:
        True if it still was a member.
    """
    async with Cluster.open(kafka) as cluster:
        what, link = f"remove member {member_id}", _link(cluster, group, limit_s)
        answer = await link.ask(LeaveGroupRequest(group, member_id), lambda answer: answer.error_code, to=what)
        if answer.error_code == UnknownMemberIdError.errno:
            return False
        if answer.error_code:
            link.refuse(answer.error_code, what)
        return True
