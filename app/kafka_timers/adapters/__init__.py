"""
Doors: what other schedulers' users write to their topics, taken in as timers, with their producers left alone.

    commands                                            what all doors share
    etf1, countdown, headers, karafka, timebridge       a door each: a pure function from a record to what it asks for
    reader                                              one reader for all of them, from a topic into `timer-request`
    lag                                                 how far it has come

docs/migrate.md tells each in prose.
"""

from collections.abc import Callable

from kafka_timers.adapters import countdown, etf1, headers, karafka, timebridge
from kafka_timers.adapters.commands import Asked, Record

__all__ = ["DOORS", "WITH_IDS", "door_group", "door_topics"]

DOORS: dict[str, Callable[[Record], Asked]] = {
    "etf1": etf1.ask,
    "countdown": countdown.ask,
    "headers": headers.ask,
    "karafka": karafka.ask,
    "timebridge": timebridge.ask,
}

# Where a record may take the place of an earlier one, or take it back.
WITH_IDS = frozenset(("etf1", "headers", "karafka"))


def door_group(group: str, name: str) -> str:
    """Return the consumer group of door *name* of the workers in *group*; its transactional ids begin so too."""
    return f"{group}.door.{name}"


def door_topics(text: str) -> list[tuple[str, str]]:
    """
    Return the doors that *text* names, each with its topic: NAME=TOPIC, comma separated.

    Raises:
        ValueError: there is no such door, or no topic; the text says which.
    """
    doors = []
    for pair in filter(None, map(str.strip, text.split(","))):
        name, _, topic = pair.partition("=")
        if name not in DOORS or not topic:
            raise ValueError(f"door {pair!r}: give NAME=TOPIC, the name one of {', '.join(DOORS)}")
        doors.append((name, topic))
    return doors
