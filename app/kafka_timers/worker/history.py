"""
etf1's history: a topic on which what has fired is written once more.

Which callbacks these are follows from the request, since every schedule of etf1 asks for a tombstone on its own topic.
So a request says nothing of it, and its history is a part of its firing: what is cancelled, moved or refused has none,
and what was taken in before there was a history has one as well.
"""

from dataclasses import dataclass
from typing import Self

from kafka_timers.adapters import door_topics
from kafka_timers.settings import WorkerSettings

__all__ = ["History"]


@dataclass(frozen=True, slots=True)
class History:
    """The topic of the history, and the topics of schedules whose callbacks it is to have."""

    topic: bytes
    sources: frozenset[bytes]

    @classmethod
    def of(cls, settings: WorkerSettings) -> Self | None:
        """Return what *settings* say; None if there is to be no history."""
        sources = [topic.encode() for name, topic in door_topics(settings.door) if name == "etf1"]
        return cls(settings.door_history.encode(), frozenset(sources)) if settings.door_history else None
