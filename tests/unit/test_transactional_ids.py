"""No two instances have a transactional id in common, and ids begin as `kafka-timers acls` grants them."""

from collections.abc import Iterator
from itertools import product

from kafka_timers.core.wire import instance_name
from kafka_timers.runtime.outlet import transactional_id
from kafka_timers.worker.sender import transactional_ids

# Prefixes that could be taken for something else.
LONG = [instance_name("") + more for more in ("", ".", ".door.a", ".door.a.", ".door.a.a", ".door.a.kafka-timers")]


def words(letters: str, shortest: int, longest: int) -> Iterator[str]:
    for length in range(shortest, longest + 1):
        yield from map("".join, product(letters, repeat=length))


def test_an_instance_of_its_own_has_ids_of_its_own() -> None:
    """All short prefixes, of the characters that could be taken for something else."""
    instances = product([*words("a.0-", 0, 6), *LONG], (0, 1, 10))
    ids = [name for instance in instances for name in transactional_ids(*instance)]
    assert len(ids) > 30_000
    assert len(ids) == len(set(ids))


def test_a_door_of_an_instance_of_its_own_has_ids_of_its_own() -> None:
    topics = [*words("a.0", 1, 3), *LONG]
    doors = product([*words("a.0", 0, 3), *LONG], ("door.a", "door.0", "planner"), topics, (0, 10))
    ids = [transactional_id(*door) for door in doors]
    owners = [name for prefix in LONG for name in transactional_ids(prefix, 0)]
    assert len(ids) > 10_000
    assert len(ids) + len(owners) == len({*ids, *owners})


def test_ids_begin_with_the_prefix_that_acls_grant() -> None:
    assert transactional_ids("", 3) == ("kafka-timers.3", "kafka-timers.3/2")
    assert transactional_ids("eu.", 3) == ("eu.kafka-timers.3", "eu.kafka-timers.3/2")
    assert transactional_id("", "door.etf1", "schedules", 3) == "kafka-timers.door.etf1/schedules/3"
    assert transactional_id("eu.", "planner", "their.own", 3) == "eu.kafka-timers.planner/their.own/3"
