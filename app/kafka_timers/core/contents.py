"""
What leaves a partition in one transaction, as its seal tells it.

Pure.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from kafka_timers.core.backlog import chunks_of

# A digest is a number below this one.
DIGESTS = 1 << 64


def digest_of(offsets: Iterable[int]) -> int:
    """Return the digest of seals in format 1: the sum of (offset + 1)^3 modulo 2^64."""
    return sum([(number := offset + 1) * number * number for offset in offsets]) % DIGESTS


@dataclass
class Contents:
    """
    Requests of a scan that leave in one transaction: all that are left up to a key.

    Attributes:
        offsets: of all of them, as they are sent.
        rejected: those of the offsets that go elsewhere than to their callback topic: to `timer-rejected`.
        forwarded: those of the rejected that are sent on to the partition of their timer id instead.
        named: whether any of them has a timer id.
        late: how many came late.
        copies: of each copy among them the offset, and that under which it counts as pending.
        through: the highest key.
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
        """How many of them lie in each chunk of offsets; to be asked for when all are there."""
        chunks = chunks_of(self.offsets)
        if self.copies:
            chunks.subtract(chunks_of([offset for offset, _ in self.copies]))
            chunks.update(chunks_of([counted for _, counted in self.copies]))
        return +chunks
