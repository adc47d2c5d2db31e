"""A callback topic is missing only if two brokers say so, since its timers are then rejected for good."""

from types import SimpleNamespace
from typing import Any

import pytest

from kafka_timers.broker import codes
from kafka_timers.core.callbacks import Target
from kafka_timers.core.refused import Reason
from kafka_timers.core.wire import Topics
from kafka_timers.runtime.targets import TopicLookup
from kafka_timers.testing import ManualClock


class Brokers:
    """
    Two brokers, the first of which is asked first, and the knowledge of each.

    Args:
        settings: the topics whose settings each knows.
        partitions: the topics whose partitions each knows.
    """

    def __init__(self, settings: list[set[str]], partitions: list[set[str]]) -> None:
        self._settings, self._partitions = settings, partitions

    async def ask_any(self, request: Any) -> Any:
        return self._told(request, 0)

    async def ask_two(self, request: Any) -> list[Any]:
        return [self._told(request, 0), self._told(request, 1)]

    def _told(self, request: Any, broker: int) -> Any:
        if hasattr(request, "topics"):
            known = self._partitions[broker]
            rows = [(0, topic, b"", False, [()] * 3 if topic in known else []) for topic in request.topics]
            return SimpleNamespace(topics=rows)
        asked = [topic for _, topic, _ in request._resources]
        missing = codes.UNKNOWN_TOPIC_OR_PARTITION
        rows = [(0 if topic in self._settings[broker] else missing, "", 2, topic, []) for topic in asked]
        return SimpleNamespace(resources=rows)


NEW, OLD = {"old", "new"}, {"old"}


@pytest.mark.parametrize(
    ("settings", "partitions"), [([OLD, NEW], [NEW, NEW]), ([NEW, NEW], [OLD, NEW]), ([OLD, NEW], [OLD, NEW])]
)
async def test_a_topic_that_the_first_broker_does_not_know_yet_is_there(
    settings: list[set[str]], partitions: list[set[str]]
) -> None:
    lookup = TopicLookup(Brokers(settings, partitions), Topics(), "*", ManualClock())  # type: ignore[arg-type]
    await lookup.resolve(["old", "new", "missing"])
    there = Target(3, 1_048_588)
    assert lookup.verdicts == {"old": there, "new": there, "missing": Reason.TOPIC_UNKNOWN}
