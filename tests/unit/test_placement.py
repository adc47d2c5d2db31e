"""The members that get the partitions."""

import random

import pytest

from kafka_timers.worker.placement import Member, spread


def with_stores(*numbers: int, at: float = 1.0) -> Member:
    return Member(stores=dict.fromkeys(numbers, at))


def owner(*numbers: int) -> Member:
    return Member(frozenset(numbers), dict.fromkeys(numbers, 1.0))


def test_new_workers_get_as_many_each() -> None:
    assert spread(5, {"a": Member(), "b": Member()}) == {"a": [0, 2, 4], "b": [1, 3]}
    assert spread(1, {"a": Member(), "b": Member()}) == {"a": [0], "b": []}
    assert spread(3, {"a": Member()}) == {"a": [0, 1, 2]}


def test_a_member_that_comes_back_gets_its_partitions() -> None:
    """The other one has all, and gives up those whose stores the first has too."""
    assert spread(4, {"a": owner(0, 1, 2, 3), "b": with_stores(2, 0)}) == {"a": [1, 3], "b": [0, 2]}


def test_a_member_that_comes_back_gets_the_partitions_that_it_had_last() -> None:
    """Older stores of earlier partitions are worth less."""
    back = Member(stores={0: 5.0, 1: 4.0, 2: 9.0, 3: 9.0})
    assert spread(4, {"a": owner(0, 1, 2, 3), "b": back}) == {"a": [0, 1], "b": [2, 3]}


def test_nothing_moves_without_a_reason() -> None:
    members = {"a": owner(0, 3, 4), "b": owner(1, 5), "c": owner(2, 6)}
    assert spread(7, members) == {"a": [0, 3, 4], "b": [1, 5], "c": [2, 6]}
    left = {"a": Member(frozenset({0, 1}), {0: 1.0, 1: 1.0, 2: 9.0, 3: 9.0}), "b": owner(2, 3)}
    assert spread(4, left) == {"a": [0, 1], "b": [2, 3]}


def test_a_new_worker_takes_no_more_than_its_share() -> None:
    found = spread(8, {"a": owner(0, 1, 2, 3), "b": owner(4, 5, 6, 7), "c": Member()})
    assert {name: len(own) for name, own in found.items()} == {"a": 3, "b": 3, "c": 2}
    assert set(found["a"]) < {0, 1, 2, 3}
    assert set(found["b"]) < {4, 5, 6, 7}


def test_of_two_that_have_a_store_the_one_with_the_newer_gets_it() -> None:
    assert spread(2, {"a": with_stores(0, 1, at=5.0), "b": with_stores(0, at=7.0)}) == {"a": [1], "b": [0]}


def test_a_partition_that_has_left_the_log_stays_with_the_store_that_has_it() -> None:
    alone = Member(frozenset({0, 1, 2, 3}), alone=dict.fromkeys(range(4), 15))
    assert spread(4, {"a": alone, "b": with_stores(0, 1, at=9.0)}) == {"a": [0, 1, 2, 3], "b": []}
    # The member that comes with the store gets it from one that has none.
    assert spread(4, {"a": owner(0, 1, 2, 3), "b": Member(alone={1: 15})}) == {"a": [0, 2], "b": [1, 3]}


def test_the_others_get_fewer_of_the_rest_than_a_member_whose_stores_are_the_only_ones() -> None:
    members = {"a": Member(alone=dict.fromkeys(range(4), 15)), "b": Member(), "c": Member()}
    assert spread(7, members) == {"a": [0, 1, 2, 3], "b": [4, 6], "c": [5]}


def test_of_two_stores_that_have_what_left_the_log_the_one_that_has_read_further_gets_it() -> None:
    members = {"a": Member(frozenset({0}), alone={0: 15}), "b": Member(alone={0: 16}), "c": Member(alone={0: 9})}
    assert spread(1, members) == {"a": [], "b": [0], "c": []}
    assert spread(1, {"a": Member(frozenset({0}), alone={0: 15}), "b": Member(alone={0: 15})}) == {"a": [0], "b": []}


@pytest.mark.parametrize("seed", range(200))
def test_shares_are_as_even_as_stores_that_are_the_only_ones_allow(seed: int) -> None:
    chance = random.Random(seed)
    partitions, names = chance.randint(1, 20), [f"m{number}" for number in range(chance.randint(1, 7))]
    alone = {
        number: chance.choice(names[: 1 + len(names) // 2]) for number in range(partitions) if chance.random() < 0.6
    }
    members = {name: Member(alone={number: 7 for number, its in alone.items() if its == name}) for name in names}
    found = spread(partitions, members)
    assert sorted(number for own in found.values() for number in own) == list(range(partitions))
    for name, member in members.items():
        assert set(member.alone) <= set(found[name])
        # Whoever has others, has at most one partition more than anybody.
        if len(found[name]) > len(member.alone):
            assert len(found[name]) - 1 <= min(map(len, found.values()))


@pytest.mark.parametrize("seed", range(200))
def test_each_partition_has_one_owner_and_the_shares_are_even(seed: int) -> None:
    chance = random.Random(seed)
    partitions = chance.randint(1, 20)

    def some() -> list[int]:
        return [number for number in range(partitions) if chance.random() < 0.4]

    members = {f"m{n}": Member(frozenset(some()), dict.fromkeys(some(), chance.random())) for n in range(1 + seed % 7)}
    found = spread(partitions, members)
    assert sorted(number for own in found.values() for number in own) == list(range(partitions))
    sizes = [len(own) for own in found.values()]
    assert max(sizes) - min(sizes) <= 1
