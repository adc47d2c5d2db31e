"""Wrong clocks: libfaketime shifts the time of day of single processes, and leaves their monotonic clocks alone."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Clocks"]

# How long a process may take to notice a step, and a worker to forget the clock before it.
_STEP_S = 5.0


def _library() -> Path:
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    assert found, "install libfaketime, as with `apt-get install libfaketime`"
    return found[0]


@dataclass
class Clocks:
    """
    The clocks of three brokers, two oscillators and two workers.

    Attributes:
        folder: of the files that say what a broker's clock shows.
        brokers: seconds that the clock of each broker is ahead.
        processes: the same of oscillators and workers, by name.
        stepped: the broker whose clock has stepped, its seconds before, and when, by a right clock in UNIX seconds.
    """

    folder: Path
    brokers: dict[int, float] = field(default_factory=lambda: {1: 0.0, 2: 0.025, 3: 0.05})
    processes: Mapping[str, float] = field(default_factory=lambda: {"oscillator-1": 2.0, "worker-0": -3_600.0})
    stepped: tuple[int, float, float] | None = None

    def of_broker(self, node: int) -> dict[str, str]:
        """Return the variables that give broker *node* its clock; `step` can change that while it runs."""
        self._write(node)
        return self._variables() | {"FAKETIME_TIMESTAMP_FILE": str(self._file(node)), "FAKETIME_CACHE_DURATION": "1"}

    def of_process(self, name: str) -> dict[str, str]:
        """Return the variables that give the process *name* its clock; none for a right one."""
        ahead_s = self.processes.get(name)
        return {} if ahead_s is None else self._variables() | {"FAKETIME": f"{ahead_s:+g}"}

    def step(self, node: int, seconds: float) -> None:
        """Set the clock of broker *node* by *seconds*; only once."""
        assert self.stepped is None
        self.stepped = node, self.brokers[node], time.time()
        self.brokers[node] += seconds
        self._write(node)

    def skew_ms(self, ticks: int, callbacks: int, appended_ms: int) -> int:
        """
        Return by how many milliseconds a callback may seem early: those that one broker's clock is ahead of another's.

        Args:
            ticks: the broker that has the ticks of its partition.
            callbacks: the broker that has appended the callback.
            appended_ms: the time of that, by that broker's clock.
        """
        ahead = {node: {ahead_s} for node, ahead_s in self.brokers.items()}
        if self.stepped:
            node, before_s, at_s = self.stepped
            if appended_ms / 1000 < at_s + _STEP_S:
                ahead[node] = {before_s, self.brokers[node]} if appended_ms / 1000 > at_s - _STEP_S else {before_s}
        # No second fires before an oscillator has ticked it, whose clock is right.
        return min(max(0, round((max(ahead[ticks]) - min(ahead[callbacks])) * 1000)), 1_000)

    def _file(self, node: int) -> Path:
        return self.folder / f"clock-{node}"

    def _write(self, node: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # In one go, since the broker may read it at any time.
        new = self.folder / f"clock-{node}.new"
        new.write_text(f"{self.brokers[node]:+g}\n")
        new.replace(self._file(node))

    def _variables(self) -> dict[str, str]:
        # Without the last one, a Java waits for ever.
        return {"LD_PRELOAD": str(_library()), "DONT_FAKE_MONOTONIC": "1", "FAKETIME_FORCE_MONOTONIC_FIX": "0"}
