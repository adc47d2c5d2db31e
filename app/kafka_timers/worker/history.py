"""
etf1's history: a topic to which fired callbacks are written again.

The request shows whether a callback belongs to the history, since every schedule of etf1 asks for a tombstone on its
own topic. So no field is needed, and the history is part of firing: cancelled, moved or refused requests have none, and
requests from before the history was set up have one.
"""

from dataclasses import dataclass
from typing import Self

from kafka_timers.adapters import door_topics
from kafka_timers.settings import WorkerSettings

__all__ = ["History"]


@dataclass(frozen=True, slots=True)
class History:
    """The topic of the history, and the schedule topics whose callbacks it gets."""

    topic: bytes
    sources: frozenset[bytes]

    @classmethod
    def of(cls, settings: WorkerSettings) -> Self | None:
        """Return the history that *settings* ask for; None if they ask for none."""
        sources = [topic.encode() for name, topic in door_topics(settings.door) if name == "etf1"]
        return cls(settings.door_history.encode(), frozenset(sources)) if settings.door_history else None
