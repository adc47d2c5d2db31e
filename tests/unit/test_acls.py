"""The output of `kafka-timers acls`; the tests of the secured service show that these rights are enough and needed."""

import json
import shlex

import pytest
from click.testing import CliRunner

from kafka_timers.cli.program import program
from kafka_timers.errors import SettingsError
from kafka_timers.operate.acls import PROCESSES, acls_of


def acls(*options: str) -> str:
    told = CliRunner().invoke(program, ["acls", *options], catch_exceptions=False)
    assert told.exit_code == 0
    return told.stdout


def test_it_prints_the_calls_of_kafkas_tool_for_each_process() -> None:
    lines = acls("--bootstrap", "k:1", "--topic-prefix", "a-", "--principal", "worker", "User:CN=w x").splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("# ")] == [f"# {name}" for name in PROCESSES]
    calls = [shlex.split(line) for line in lines if not line.startswith("# ")]
    assert all(call[:4] == ["kafka-acls.sh", "--bootstrap-server", "k:1", "--add"] for call in calls)
    assert {call[call.index("--allow-principal") + 1] for call in calls} >= {"User:CN=w x", "User:oscillator"}
    names = [call[call.index("--topic") + 1] for call in calls if "--topic" in call]
    assert [name for name in names if not name.startswith("a-") and name != "*"] == []


def test_callback_topics_are_those_that_workers_allow() -> None:
    found = acls_of("", "g", "orders-*, mails")
    written = [(acl.name, acl.is_prefix) for acl in found if acl.why == "callbacks"]
    assert written == [("orders-", True), ("mails", False)]
    for glob in ("*-orders", "a*b", "order?", "[ab]*"):
        with pytest.raises(SettingsError, match="ACLs name one topic, or all topics with a prefix"):
            acls_of("", "g", glob)


@pytest.mark.parametrize(
    ("door", "operations"), [("etf1", ("Write",)), ("skyuk", ("Write",)), ("headers", ()), ("karafka", ())]
)
def test_doors_are_read_and_some_get_tombstones(door: str, operations: tuple[str, ...]) -> None:
    without, with_door = (json.loads(acls("--json", *more)) for more in ((), ("--door", f"{door}=schedules")))
    more = [acl for acl in with_door if acl not in without]
    assert {(acl["resource"], acl["name"], *acl["operations"]) for acl in more} == {
        ("topic", "timer-door", "Read"),
        ("topic", "schedules", "Read", *operations, "DescribeConfigs"),
        ("group", f"kafka-timers.door.{door}", "Read"),
    }
    assert {acl["principal"] for acl in more} == {"User:worker"}


def test_the_group_and_all_transactional_ids_follow_from_the_topic_prefix() -> None:
    found = [acl for acl in json.loads(acls("--json", "--topic-prefix", "c-")) if acl["process"] == "worker"]
    groups = {acl["name"] for acl in found if acl["resource"] == "group"}
    assert {"c-kafka-timers", "c-kafka-timers.planner", "c-kafka-timers-lake"} <= groups
    assert all(name.startswith("c-") for name in groups)
    for more in ((), ("--group", "g", "--door", "etf1=t")):
        found = json.loads(acls("--json", "--topic-prefix", "c-", *more))
        ids = [acl for acl in found if (acl["resource"], acl["process"]) == ("transactional-id", "worker")]
        assert [(acl["name"], acl["is_prefix"]) for acl in ids] == [("c-kafka-timers.", True)]


def test_each_process_may_only_read_the_records_of_others() -> None:
    """Only workers seal, only oscillators tick."""
    found = acls_of("", "kafka-timers", "orders-*")
    writers = {(acl.name, acl.process) for acl in found if acl.resource == "topic" and "Write" in acl.operations}
    assert writers == {
        ("oscillator", "oscillator"),
        ("timer-request", "worker"),
        ("timer-sealed", "worker"),
        ("timer-rejected", "worker"),
        ("timer-reply", "worker"),
        ("timer-planned", "worker"),
        ("timer-door", "worker"),
        # A barrier.
        ("timer-schedule", "worker"),
        ("orders-", "worker"),
        ("timer-request", "lake"),
        ("timer-request", "client"),
        ("timer-schedule", "client"),
        ("timer-request", "console"),
        ("timer-schedule", "console"),
    }


def test_the_lake_tells_how_far_it_has_promoted_and_others_may_only_look() -> None:
    found = [acl for acl in acls_of("a-", "g", "*") if acl.name == "a-kafka-timers-lake"]
    assert {(acl.process, acl.resource, acl.operations) for acl in found} == {
        ("lake", "group", ("Read",)),
        ("lake", "transactional-id", ("Write",)),
        ("worker", "group", ("Describe",)),
        ("observer", "group", ("Describe",)),
        ("console", "group", ("Describe",)),
    }
