"""The requests that leave a partition in one transaction, as its seal describes them."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from kafka_timers.core.backlog import chunks_of

# A digest is below this number.
DIGESTS = 1 << 64


@dataclass
class Contents:
    """
    The requests of a scan that leave in one transaction: all that are left up to a key.

    Attributes:
        offsets: offsets of all of them, in the order of sending.
        rejected: those of the offsets that go to `timer-rejected` instead of their callback topic.
        forwarded: those of the rejected offsets that are sent on to the partition of their timer id instead.
        copies: of each copy among them its offset, and the offset under which it counts as pending.
    """

    offsets: list[int] = field(default_factory=list)
    rejected: list[int] = field(default_factory=list)
    forwarded: list[int] = field(default_factory=list)
    named: bool = False
    late: int = 0
    copies: list[tuple[int, int]] = field(default_factory=list)
    through: bytes = b""

    @cached_property
    def chunks(self) -> Counter[int]:
        """Their number in each chunk of offsets. Ask for it only when all are there, since it is computed once."""
        chunks = chunks_of(self.offsets)
        if self.copies:
            chunks.subtract(chunks_of([offset for offset, _ in self.copies]))
            chunks.update(chunks_of([counted for _, counted in self.copies]))
        return +chunks
