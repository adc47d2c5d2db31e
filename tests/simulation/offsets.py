"""
The committed offsets of consumer groups, as the broker tells them that coordinates the groups.

A commit counts when the transaction is complete that it is part of; until then a reader that wants stable offsets has
to ask again. A coordinator that was cut off tells the offsets that counted then, and takes nothing, since no replica
has it.
"""

from dataclasses import dataclass, field

from simulation.log import Phase, Transaction

Place = tuple[str, str, int]


@dataclass(slots=True)
class Offsets:
    """
    The offsets of all groups; a place is a group, a topic and a partition.

    Attributes:
        coordinator: the broker that knows of them.
        former: one that was cut off from the others and believes that it still is.
        told_by_former: the places that this one was asked for, with its answers.
    """

    coordinator: int
    former: int = 0
    told_by_former: list[tuple[Place, int]] = field(default_factory=list)
    _before: dict[Place, int] = field(default_factory=dict)
    _written: list[tuple[Transaction, Place, int]] = field(default_factory=list)

    def cut_off(self, successor: int) -> None:
        """Cut the coordinator off from the others; *successor* takes its place."""
        self._before = {place: self.committed(place) for _, place, _ in self._written}
        self.former, self.coordinator = self.coordinator, successor

    def write(self, transaction: Transaction, place: Place, offset: int) -> None:
        """Commit *offset* with *transaction*."""
        self._written.append((transaction, place, offset))

    def is_stable(self, place: Place) -> bool:
        """Tell whether no transaction that commits for *place* is open or incomplete."""
        open_ones = (Phase.OPEN, Phase.PREPARED)
        return not any(at == place and transaction.phase in open_ones for transaction, at, _ in self._written)

    def committed(self, place: Place) -> int:
        """Return the committed offset; -1 for none."""
        counted = [offset for each, at, offset in self._written if at == place and each.phase is Phase.COMMITTED]
        return counted[-1] if counted else -1

    def as_former_tells(self, place: Place) -> int:
        """Return the offset that counts as committed for the one that was cut off."""
        offset = self._before.get(place, -1)
        self.told_by_former.append((place, offset))
        return offset
