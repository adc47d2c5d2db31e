"""The messages of members of the group to each other, and their assignments, by Faust's own reading."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import faust
import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata

from kafka_timers.core.wire import FORMAT
from kafka_timers.worker.assignor import StoreAssignor

CLUSTER = SimpleNamespace(partitions_for_topic=lambda topic: {"oscillator": set(range(4))}.get(topic))


@pytest.fixture
def members(tmp_path: Path) -> dict[str, StoreAssignor]:
    """Two members; b has the stores of partitions 0 and 2, and has used the latter last."""
    made = {}
    for name in "ab":
        app = faust.App("group", datadir=tmp_path / name, store="memory://", web_host=name)
        made[name] = StoreAssignor(app)
        Path(app.conf.datadir).mkdir(parents=True)
    for used_s, number in enumerate(("process-0", "0", "2")):
        (folder := Path(made["b"].app.conf.datadir) / number).mkdir()
        os.utime(folder, (used_s, used_s))
    return made


def rebalance(members: dict[str, StoreAssignor], *, leader: str) -> dict[str, list[int]]:
    """Have *leader* assign, as the broker's coordinator has it; return the partitions that each has then."""
    told = {name: member.metadata({"oscillator"}) for name, member in members.items()}
    assigned = members[leader].assign(CLUSTER, told)
    for name, member in members.items():
        # Raises when its input contradicts itself.
        member.on_assignment(assigned[name])
    return {name: sorted(at.partition for at in member.assigned_actives()) for name, member in members.items()}


def test_a_member_gets_the_partitions_whose_stores_it_has(members: dict[str, StoreAssignor]) -> None:
    assert rebalance(members, leader="a") == {"a": [1, 3], "b": [0, 2]}


def test_a_member_keeps_its_partitions_under_any_leader(members: dict[str, StoreAssignor]) -> None:
    assert rebalance({"a": members["a"]}, leader="a") == {"a": [0, 1, 2, 3]}
    both = rebalance(members, leader="b")
    assert both == {"a": [1, 3], "b": [0, 2]}
    assert rebalance(members, leader="a") == both


def test_a_member_tells_which_of_its_stores_are_the_only_ones_and_keeps_them(members: dict[str, StoreAssignor]) -> None:
    members["a"].alone = {0: 15, 1: 15, 2: 15}
    assert rebalance({"a": members["a"]}, leader="a") == {"a": [0, 1, 2, 3]}
    both = {"a": [0, 1, 2], "b": [3]}
    assert rebalance(members, leader="b") == both
    assert rebalance(members, leader="a") == both
    members["a"].alone = {}
    assert rebalance(members, leader="a") == {"a": [0, 1], "b": [2, 3]}


def test_partitions_that_were_added_are_nobodys(members: dict[str, StoreAssignor]) -> None:
    members["a"].app.conf.topic_partitions = 3
    assert rebalance(members, leader="a") == {"a": [1], "b": [0, 2]}


def test_a_topic_that_does_not_exist_gives_nobody_anything(members: dict[str, StoreAssignor]) -> None:
    told = {name: member.metadata({"missing"}) for name, member in members.items()}
    assigned = members["a"].assign(CLUSTER, told)
    assert [partitions for _, partitions in assigned["a"].assignment + assigned["b"].assignment] == [[], []]


def test_a_member_that_subscribes_something_else_is_assigned_nothing(members: dict[str, StoreAssignor]) -> None:
    """Whoever leads, and though the newcomer has stores. The group is that of the member that owns partitions."""
    rebalance({"a": members["a"]}, leader="a")
    told = {"a": members["a"].metadata({"oscillator"}), "b": members["b"].metadata({"c-oscillator"})}
    for leader in members.values():
        assigned = leader.assign(CLUSTER, told)
        assert assigned["a"].assignment == [("oscillator", [0, 1, 2, 3])]
        assert assigned["b"].assignment == []
        for name, member in members.items():
            member.on_assignment(assigned[name])
            assert member.topic == "oscillator"


def test_of_two_that_join_at_once_one_is_assigned_nothing(members: dict[str, StoreAssignor]) -> None:
    told = {"a": members["a"].metadata({"oscillator"}), "b": members["b"].metadata({"z-oscillator"})}
    assert members["a"].topic == ""
    for leader in members.values():
        assert leader.assign(CLUSTER, told)["b"].assignment == []


def test_a_member_learns_the_format_that_all_members_know(members: dict[str, StoreAssignor]) -> None:
    rebalance(members, leader="a")
    assert members["b"].format == FORMAT
    told = {name: member.metadata({"oscillator"}) for name, member in members.items()}
    # As a member of an earlier version tells of itself.
    older = json.loads(told["b"].user_data) | {"format": FORMAT - 1}
    told["b"] = ConsumerProtocolMemberMetadata(told["b"].version, told["b"].subscription, json.dumps(older).encode())
    members["a"].on_assignment(members["a"].assign(CLUSTER, told)["a"])
    assert members["a"].format == FORMAT - 1
