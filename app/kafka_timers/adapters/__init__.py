"""
Adapters read topics of other schedulers as timers, so that the producers of those topics need no change.

Users know adapters as doors. Docs, the log, the option `--door`, the metrics `kafka_timers_door_…`, the groups
`….door.…` and the header `timer-rejected-door` use that name.

    commands        values and functions that all adapters share
    etf1, skyuk, countdown, headers, karafka, timebridge
                    one adapter each: `parse` turns a record into a command (pure)
    keeping         rules of schedulers that keep their schedules on a topic, like etf1 and skyuk
    reader          reads a topic through an adapter, into `timer-request`; rejects records in added partitions
    passing         state of an owned partition, and the topics that a reader writes to
    ahead           reads ahead when a topic is taken over
    ending          tombstones for schedules that are refused or over
    source          records of one partition of such a topic
    lag             reads the lag of each adapter
    place           how far a reader has come, where its consumer group does not tell
"""

from collections.abc import Callable

from kafka_timers.adapters import countdown, etf1, headers, karafka, skyuk, timebridge
from kafka_timers.adapters.commands import Parsed, SourceRecord
from kafka_timers.adapters.keeping import Keeping
from kafka_timers.core.callbacks import topics_in
from kafka_timers.core.moments import moment_at, when_of
from kafka_timers.core.wire import Topics
from kafka_timers.errors import SettingsError

__all__ = [
    "ADAPTERS",
    "DOORS",
    "FROM",
    "KEEPINGS",
    "WITH_IDS",
    "adapter_group",
    "added_group",
    "check_doors",
    "check_from",
    "check_history",
    "door_topics",
    "moment_from",
]

ADAPTERS: dict[str, Callable[[SourceRecord], Parsed]] = {
    "etf1": etf1.parse,
    "skyuk": skyuk.parse,
    "countdown": countdown.parse,
    "headers": headers.parse,
    "karafka": karafka.parse,
    "timebridge": timebridge.parse,
}

# Names for `--door`.
DOORS = tuple(ADAPTERS)

# Values for `--door-from`.
FROM = (
    "earliest, for all that the topic has, or latest, for what comes from now on, or the time of the first record to "
    "read, as 2030-01-31T12:00:00Z"
)

# Adapters in which a record may replace or cancel an earlier one.
WITH_IDS = frozenset(("etf1", "skyuk", "headers", "karafka"))

# Rules of the schedulers to whose topics adapters write tombstones.
KEEPINGS: dict[str, Keeping] = {"etf1": etf1.KEEPING, "skyuk": skyuk.KEEPING}


def adapter_group(group: str, name: str) -> str:
    """Return the consumer group of adapter *name*, for workers in *group*."""
    return f"{group}.door.{name}"


def added_group(group: str) -> str:
    """Return the consumer group in which the workers of *group* reject records of added partitions."""
    return f"{group}.added"


def door_topics(text: str) -> list[tuple[str, str]]:
    """
    Return the adapters in a value of `--door`, each with its topic. *text* has pairs NAME=TOPIC, comma separated.

    Raises:
        ValueError: an adapter is unknown, or its topic is missing; the text names it.
    """
    adapters = []
    for pair in filter(None, map(str.strip, text.split(","))):
        name, _, topic = pair.partition("=")
        if name not in ADAPTERS or not topic:
            raise ValueError(f"door {pair!r}: give NAME=TOPIC, the name one of {', '.join(DOORS)}")
        adapters.append((name, topic))
    return adapters


def check_doors(text: str, header_names: str, topic_prefix: str) -> None:
    """
    Check the settings for adapters.

    Args:
        text: pairs for `door_topics`.
        header_names: pairs for `headers.names_of`.

    Raises:
        SettingsError: a setting is wrong, or an adapter would read one of the service's own topics.
    """
    try:
        headers.names_of(header_names)
        doors = door_topics(text)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    for name, topic in doors:
        # The adapter would write its records to the same topic again, for ever.
        if topic in Topics.of(topic_prefix):
            raise SettingsError(f"door {name}={topic}: {topic} is the service's own: give another system's topic")


def check_from(text: str) -> None:
    """
    Check the setting for a door that does not know how far it has read.

    Raises:
        SettingsError: *text* is none of `FROM`, and is not empty.
    """
    if text not in ("", "earliest", "latest"):
        try:
            moment_from(text)
        except ValueError as error:
            raise SettingsError(f"door_from {text}: {error}: give {FROM}") from error


def moment_from(text: str) -> int:
    """
    Return the UNIX millisecond of a time in `FROM`.

    Raises:
        ValueError: *text* is no time.
    """
    return moment_at(when_of(text))


def check_history(topic: str, doors: str, allowed_topics: str, topic_prefix: str) -> None:
    """
    Check the settings for etf1's history.

    Args:
        topic: topic of the history; empty for none.
        doors: pairs for `door_topics`.
        allowed_topics: globs of topics that workers may write to.

    Raises:
        SettingsError: the history cannot be on that topic.
    """
    if not topic:
        return
    named, given = door_topics(doors), f"door_history {topic}"
    if not any(name == "etf1" for name, _ in named):
        raise SettingsError(f"{given} is for the door etf1: give that too, or leave it out")
    if topic in Topics.of(topic_prefix):
        raise SettingsError(f"{given}: it is the service's own: give another topic")
    if any(topic == source for _, source in named):
        # The door would schedule again the timers that have fired.
        raise SettingsError(f"{given}: a door reads it: give another topic")
    if not topics_in(allowed_topics).fullmatch(topic):
        raise SettingsError(f"{given}: allowed_topics {allowed_topics} do not match it: add it there")
