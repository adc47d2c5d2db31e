"""
The kinds of faults, and how often they happen.

Each kind is drawn at the place where it happens. In a random history a kind has its chance or none; in a told story it
happens when the story says so (`next`). Larger trouble, that of processes and brokers, is in `nemesis`.
"""

import asyncio
import random
from collections import Counter
from typing import NamedTuple

from aiokafka.errors import KafkaConnectionError


class Kind(NamedTuple):
    """A kind of fault: its name, and its chance each time, in the histories that have it."""

    what: str
    chance: float


KINDS = {
    "fetch_fails": Kind("a broker does not answer a fetch of the request log", 0.01),
    "sessions_are_lost": Kind("brokers forget the fetch sessions", 0.02),
    "ends_fail": Kind("the end of the request log is asked for in vain", 0.03),
    "ends_are_slow": Kind("the end of the request log is told long after it was asked for", 0.03),
    "seals_fail": Kind("the end of timer-sealed is asked for in vain", 0.1),
    "look_up_fails": Kind("topics are looked up in vain", 0.05),
    "coordinator_fails": Kind("the coordinator of transactions is not available", 0.05),
    "write_fails": Kind("a batch is not taken", 0.02),
    "replicas_are_missing": Kind("a batch is not taken for now", 0.03),
    "batch_is_not_answered": Kind("a batch is taken, and its producer hears of an error", 0.03),
    "commit_is_lost": Kind("a commit does not get to the coordinator, and its producer hears of an error", 0.03),
    "commit_is_not_answered": Kind("a commit takes place, and its producer hears of an error", 0.03),
    "answer_is_lost": Kind("a connection breaks after the broker has done what it was asked for", 0.01),
    "start_is_slow": Kind("to shut out the owner before takes seconds", 0.1),
    "stop_is_slow": Kind("to disconnect a producer takes longer than a hand-over may", 0.1),
    "commit_is_slow": Kind("a commit takes longer than a hand-over may", 0.03),
    "disk_write_fails": Kind("the disk is full for one write", 0.01),
    "disk_is_behind": Kind("a store is fed faster than its disk takes it", 0.1),
    "killed_while_closing": Kind("a worker is killed when the store that it closes is half on the disk", 0.1),
}

# How long slow things take: around the limit of a hand-over (2 s) and that of stopping a producer (5 s).
_DELAYS_S = (0.5, 2.5, 4.0)


class Faults:
    """
    The faults of one history.

    Args:
        seed: of the draws; None has none but those that are asked for.
        kinds: that may happen by chance.

    Attributes:
        chances: by kind, for now.
        happened: how often each kind has.
    """

    def __init__(self, seed: object = None, kinds: frozenset[str] = frozenset()) -> None:
        self._rng = None if seed is None else random.Random(f"{seed}/faults")
        self.chances: dict[str, float] = {}
        self.happened: Counter[str] = Counter()
        self._next: dict[str, int] = {}
        if self._rng and self._rng.random() < 0.9:
            # Half of the kinds each: with all of them at once a history is one long trouble, and tells little.
            self.chances = {kind: KINDS[kind].chance for kind in KINDS if kind in kinds and self._rng.random() < 0.5}

    def next(self, kind: str, after: int = 0) -> None:
        """Have *kind* happen for certain, once, when it has had *after* chances more to happen."""
        self._next[kind] = after

    def drawn(self, kind: str) -> bool:
        """Tell whether *kind* happens now."""
        assert kind in KINDS
        left = self._next.get(kind)
        if left is not None:
            self._next[kind] = left - 1
            if left:
                return False
            del self._next[kind]
        elif kind not in self.chances or not self._rng or self._rng.random() >= self.chances[kind]:
            return False
        self.happened[kind] += 1
        return True

    def maybe(self, kind: str, error: type[Exception] = KafkaConnectionError) -> None:
        """Raise *error* if *kind* happens now."""
        if self.drawn(kind):
            raise error(KINDS[kind].what)

    async def delay(self, kind: str) -> None:
        """Wait for some seconds if *kind* happens now."""
        if self.drawn(kind):
            await asyncio.sleep(self._rng.choice(_DELAYS_S) if self._rng else _DELAYS_S[-1])

    def end(self) -> None:
        """Let nothing go wrong any more."""
        self.chances.clear()
        self._next.clear()
