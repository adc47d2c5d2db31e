"""What must not be in the logs of the service's processes: tracebacks, and lines of the level ERROR."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["KNOWN", "Found", "look"]

# Lines that are known and harmless, each with the reason.
KNOWN: Mapping[str, str] = {
    "Group Coordinator Request failed: [Error 15]": "the broker makes its topic of offsets, as the first group asks",
    "Error sending JoinGroupRequest to node 1 [[Error 7] RequestTimedOutError]": "the group waits for a killed member "
    "for longer than aiokafka waits for its answer; it joins again",
}
# A line begins with its time and its level; see `kafka_timers.cli.running`.
_TIME = re.compile(r"^[\d-]+ [\d:,]+ ")
_BAD, _WARNING = ("ERROR ", "CRITICAL ", "Traceback "), "WARNING "
_ADDRESS = re.compile(r"127\.0\.0\.1:\d+")


@dataclass
class Found:
    """
    Lines of some logs.

    Attributes:
        errors: how many there were of each that is not known, without its time and addresses.
        known: how many there were of each that is known, by its words.
        warnings: how many lines of the level WARNING there were.
    """

    errors: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    warnings: int = 0


def look(logs: Iterable[Path]) -> Found:
    """Return what is in *logs*."""
    found = Found()
    for log in logs:
        for line in log.read_text(errors="replace").splitlines():
            told = _ADDRESS.sub("the broker", _TIME.sub("", line))
            found.warnings += told.startswith(_WARNING)
            if told.startswith(_BAD):
                words = next((words for words in KNOWN if words in told), None)
                if words:
                    found.known[words] += 1
                else:
                    found.errors[told] += 1
    return found
