"""
Decides which worker gets which partitions: equal numbers, and preferably workers that have the store.

Pure. Without the store of a partition a worker reads all its requests from the log, which takes seconds for each
hundred thousand pending ones. With a store it reads only new requests. So a worker that comes back after a restart gets
its partitions again. The others give up partitions whose stores it has, rather than those whose stores only they have.

Of a partition whose requests have left the log, a store is the only copy. It goes to the worker that has that store,
also where another one then has fewer partitions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Member:
    """
    The partitions and stores of a worker.

    Attributes:
        stores: UNIX second of the last write to each store on its disk, by partition.
        alone: by partition, the offset up to which a store has read that has requests which have left the log.
    """

    owns: frozenset[int] = frozenset()
    stores: Mapping[int, float] = field(default_factory=dict)
    alone: Mapping[int, int] = field(default_factory=dict)


def spread(partitions: int, members: Mapping[str, Member]) -> dict[str, list[int]]:
    """
    Return the partitions of each member, ascending. The numbers of any two members differ by at most one, but for
    members that have a partition since their store alone has it.

    Args:
        members: members by name; at least one.
    """
    found: dict[str, list[int]] = {name: [] for name in sorted(members)}
    others = []
    for number in range(partitions):
        alone = [
            (member.alone[number], number in member.owns, name)
            for name, member in members.items()
            if number in member.alone
        ]
        if alone:
            found[max(alone)[-1]].append(number)
        else:
            others.append(number)
    # Those that have more than an even share get none of the others.
    even = sorted(found, key=lambda name: len(found[name]))
    while (len(found[even[-1]]) - 1) * len(even) >= len(others) + sum(len(found[name]) for name in even):
        even.pop()
    least, larger = divmod(len(others) + sum(len(found[name]) for name in even), len(even))

    def has_room(name: str) -> bool:
        more = sum(len(found[each]) > least for each in even)
        return name in even and (len(found[name]) < least or (len(found[name]) == least and more < larger))

    def worth(name: str, partition: int) -> tuple[bool, float]:
        return partition in members[name].owns, members[name].stores.get(partition, 0)

    holders = {
        number: sorted(
            (name for name, member in members.items() if number in member.owns or number in member.stores),
            key=lambda name: (*worth(name, number), name),
            reverse=True,
        )
        for number in others
    }

    def second_best(number: int) -> tuple[bool, float]:
        return worth(holders[number][1], number) if len(holders[number]) > 1 else (False, 0)

    left = []
    # Begin with partitions that would lose most with their second best member. Otherwise its best member could be full
    # with partitions that others hold nearly as well.
    for number in sorted(holders, key=lambda number: (second_best(number), number)):
        able = next(filter(has_room, holders[number]), None)
        if able:
            found[able].append(number)
        else:
            left.append(number)
    for partition in left:
        found[min(filter(has_room, found), key=lambda name: len(found[name]))].append(partition)
    return {name: sorted(own) for name, own in found.items()}
