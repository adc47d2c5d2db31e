"""
Which worker gets which partitions: as many each, and to whoever has their store.

Pure. A worker without the store of a partition reads its requests from the log, which takes seconds for each hundred
thousand that wait; with a store it reads what came since. So a worker that comes back after a restart gets what it had,
and the others give up what it has rather than what only they have.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Member", "spread"]


@dataclass(frozen=True, slots=True)
class Member:
    """
    What a worker has.

    Attributes:
        owns: partitions that it owns up to now.
        stores: partitions of which a store lies on its disk, and the UNIX second in which it was last written to.
    """

    owns: frozenset[int] = frozenset()
    stores: Mapping[int, float] = field(default_factory=dict)


def spread(partitions: int, members: Mapping[str, Member]) -> dict[str, list[int]]:
    """
    Return the partitions of each member, ascending; no member has two more than another.

    Args:
        partitions: how many there are.
        members: by name; at least one.
    """
    least, larger = divmod(partitions, len(members))
    found: dict[str, list[int]] = {name: [] for name in sorted(members)}

    def has_room(name: str) -> bool:
        more = sum(len(own) > least for own in found.values())
        return len(found[name]) < least or (len(found[name]) == least and more < larger)

    def worth(name: str, partition: int) -> tuple[bool, float]:
        return partition in members[name].owns, members[name].stores.get(partition, 0)

    holders = {
        number: sorted(
            (name for name, member in members.items() if number in member.owns or number in member.stores),
            key=lambda name: (*worth(name, number), name),
            reverse=True,
        )
        for number in range(partitions)
    }

    def second_best(number: int) -> tuple[bool, float]:
        return worth(holders[number][1], number) if len(holders[number]) > 1 else (False, 0)

    left = []
    # First what would lose most by going to its second best: the best one's room must not be taken by what others have
    # nearly as well.
    for number in sorted(holders, key=lambda number: (second_best(number), number)):
        able = next(filter(has_room, holders[number]), None)
        if able:
            found[able].append(number)
        else:
            left.append(number)
    for partition in left:
        found[min(filter(has_room, found), key=lambda name: len(found[name]))].append(partition)
    return {name: sorted(own) for name, own in found.items()}
