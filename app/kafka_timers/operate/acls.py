"""
The permissions that each process of the service needs on a Kafka with an authorizer, and no more.

Pure. Kafka's operations imply others: Read, Write, Delete and Alter each imply Describe.
"""

import re
from dataclasses import astuple, dataclass

from kafka_timers.adapters import KEEPINGS, adapter_group, added_group, door_topics
from kafka_timers.broker.lake_group import lake_group
from kafka_timers.core.wire import Topics, instance_name
from kafka_timers.errors import SettingsError
from kafka_timers.planner import planner_group

# Process → the commands and programs that run as it.
PROCESSES = {
    "oscillator": "kafka-timers oscillator",
    "worker": "kafka-timers worker",
    "lake": "kafka-timers lake …",
    "topics": "kafka-timers topics create",
    "client": "services that ask for timers, and kafka-timers send, cancel, move",
    "observer": "kafka-timers status, find, list, rejected, topics check",
    "console": "kafka-timers console, redrive, fire-now",
}

_READ, _WRITE, _CREATE, _DELETE, _CONFIGS = "Read", "Write", "Create", "Delete", "DescribeConfigs"


@dataclass(frozen=True, slots=True)
class Acl:
    """
    The operations that a process needs on one resource.

    Attributes:
        process: one of `PROCESSES`.
        operations: names of operations as Kafka spells them, for example Read or DescribeConfigs.
        resource: kind of the resource: topic, group or transactional-id.
        is_prefix: whether the name stands for all names that begin with it.
        why: the reason that the process needs them, in a few words.
    """

    process: str
    operations: tuple[str, ...]
    resource: str
    name: str
    is_prefix: bool
    why: str

    def command(self, principal: str, bootstrap: str) -> list[str]:
        """Return the command line of Kafka's own tool that allows the operations to *principal*."""
        words = ["kafka-acls.sh", "--bootstrap-server", bootstrap, "--add", "--allow-principal", principal]
        for operation in self.operations:
            words += ["--operation", operation]
        words += [f"--{self.resource}", self.name]
        return [*words, "--resource-pattern-type", "prefixed"] if self.is_prefix else words


def acls_of(prefix: str, group: str, callbacks: str, door: str = "") -> list[Acl]:
    """
    Return the permissions that all processes of an instance need.

    Args:
        group: group of the workers, as they have it; empty for the default.
        callbacks: globs of callback topics, comma separated, as workers have them in `allowed_topics`.
        door: adapters and their topics, as workers have them in `door`.

    Raises:
        SettingsError: Kafka's patterns cannot express a glob, because it is neither a name nor the beginning of a
            name and a `*`; or there is no such adapter.
    """
    try:
        adapters = door_topics(door)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    topics, group = Topics.of(prefix), group or instance_name(prefix)
    found: list[Acl] = []

    def allow(process: str, name: str, why: str, *operations: str, of: str = "topic", is_prefix: bool = False) -> None:
        found.append(Acl(process, operations, of, name, is_prefix, why))

    allow("oscillator", topics.oscillator, "ticks", _READ, _WRITE, _CONFIGS)

    allow("worker", topics.requests, "requests, some sent on, and a barrier at each takeover", _READ, _WRITE, _CONFIGS)
    allow("worker", topics.requests, "deleting records that nobody needs; with --keep-s 0 there is no need", _DELETE)
    allow("worker", topics.oscillator, "ticks", _READ, _CONFIGS)
    allow("worker", topics.sealed, "seals", _READ, _WRITE, _CONFIGS)
    allow("worker", topics.rejected, "refused requests", _WRITE, _CONFIGS)
    allow("worker", topics.schedules, "recurring timers, and a barrier at each takeover", _READ, _WRITE, _CONFIGS)
    allow("worker", topics.planned, "progress of their planning", _READ, _WRITE, _CONFIGS)
    # Its first record is written before there is a door.
    allow("worker", topics.doors, "how far doors have read", _WRITE, _CONFIGS)
    allow("worker", planner_group(group), "planning of recurring timers", _READ, of="group")
    allow("worker", topics.replies, "answers to cancels and moves", _WRITE, _CONFIGS)
    for name, is_prefix in map(_pattern, callbacks.split(",")):
        allow("worker", name, "callbacks", _WRITE, _CONFIGS, is_prefix=is_prefix)
    allow("worker", group, "membership of the workers' group", _READ, of="group")
    allow("worker", f"{instance_name(prefix)}.", "transactions", _WRITE, of="transactional-id", is_prefix=True)
    # Nothing is trimmed that the lake has not landed.
    allow("worker", lake_group(prefix), "progress of the lake", "Describe", of="group")
    # Used only where partitions were added to timer-request.
    allow("worker", added_group(group), "requests in added partitions", _READ, of="group")
    if adapters:
        allow("worker", topics.doors, "how far doors had read before", _READ)
    for name, topic in adapters:
        why = f"door {name}"
        # Some doors write tombstones, as the other scheduler does.
        allow("worker", topic, why, _READ, *([_WRITE] if name in KEEPINGS else []), _CONFIGS)
        allow("worker", adapter_group(group, name), why, _READ, of="group")

    allow("lake", topics.requests, "landing and promoting requests", _READ, _WRITE, _CONFIGS)
    for name, why in (
        (topics.sealed, "seals"),
        (topics.rejected, "refused requests"),
        (topics.schedules, "recurring timers"),
        (topics.planned, "progress of their planning"),
        (topics.oscillator, "ticks"),
        (topics.replies, "audit of answers"),
    ):
        allow("lake", name, why, _READ)
    for name, is_prefix in map(_pattern, callbacks.split(",")):
        allow("lake", name, "audit of callbacks", _READ, is_prefix=is_prefix)
    allow("lake", lake_group(prefix), "progress of the lake, for the workers", _READ, of="group")
    allow("lake", lake_group(prefix), "one landing at a time", _WRITE, of="transactional-id")
    # Each reader of Spark has a group of its own and commits nothing in it.
    allow("lake", "spark-kafka-", "Spark's readers", _READ, of="group", is_prefix=True)

    for name in astuple(topics):
        allow("topics", name, "making the topics", _CREATE, "Describe")
        allow("observer", name, "reading", _READ, _CONFIGS)
        allow("console", name, "reading", _READ, _CONFIGS)
    allow("console", topics.requests, "asking for timers", _WRITE)
    allow("console", topics.schedules, "recurring timers", _WRITE)
    for name, is_prefix in map(_pattern, callbacks.split(",")):
        allow("console", name, "list of callback topics, and their callbacks", _READ, is_prefix=is_prefix)
    for process in ("observer", "console"):
        allow(process, group, "doors' lag", "Describe", of="group", is_prefix=True)
        allow(process, lake_group(prefix), "progress of the lake", "Describe", of="group")

    allow("client", topics.requests, "requests", _WRITE)
    allow("client", topics.schedules, "recurring timers", _READ, _WRITE)
    allow("client", topics.planned, "how far recurring timers are planned", _READ)
    allow("client", topics.sealed, "number of partitions in use", _READ)
    allow("client", topics.replies, "answers to cancels and moves", _READ)
    return found


def _pattern(glob: str) -> tuple[str, bool]:
    """Return the name and False; for a prefix glob, return the prefix and True."""
    name = glob.strip()
    if name == "*":
        return name, False
    begin, star, rest = name.partition("*")
    if not name or rest or re.search(r"[?\[\]]", begin):
        raise SettingsError(
            f"allowed topics {glob!r}: Kafka's ACLs name one topic, or all topics with a prefix: give a name, or a "
            "prefix and *"
        )
    return begin, bool(star)
