"""No two instances have a transactional id in common, and ids begin as `kafka-timers acls` grants them."""

from collections.abc import Iterator
from itertools import product

from kafka_timers.adapters import reader
from kafka_timers.worker.sender import transactional_id, transactional_ids


def words(letters: str, shortest: int, longest: int) -> Iterator[str]:
    for length in range(shortest, longest + 1):
        yield from map("".join, product(letters, repeat=length))


def test_an_instance_of_its_own_has_ids_of_its_own() -> None:
    """All short names of groups and prefixes, of the characters that could be taken for something else."""
    instances = product(words("a.0/", 1, 4), words("a.0", 0, 3), (0, 1, 10))
    ids = [name for instance in instances for name in transactional_ids(*instance)]
    assert len(ids) > 40_000
    assert len(ids) == len(set(ids))


def test_a_door_of_an_instance_of_its_own_has_ids_of_its_own() -> None:
    doors = product(words("a.0/", 1, 3), words("a.0", 0, 2), words("a.0", 1, 3), (0, 10))
    ids = [reader.transactional_id(*door) for door in doors]
    assert len(ids) > 40_000
    assert len(ids) == len(set(ids))


def test_ids_begin_with_the_prefix_that_acls_grant() -> None:
    assert transactional_id("timers", "eu.", 3) == "timers.eu.3"
    assert transactional_id("timers.eu", "", 3) == "timers.eu.3/timer-request"
    assert transactional_id("timers", "eu1", 3) == "timers.eu13/eu1timer-request"
    assert transactional_ids("timers", "eu.", 3) == ("timers.eu.3", "timers.eu.3/2")
    assert reader.transactional_id("timers.etf1", "", "schedules", 3) == "timers.etf1.schedules.3"
    assert reader.transactional_id("timers.etf1", "eu.", "their.own", 3).startswith("timers.etf1.")
