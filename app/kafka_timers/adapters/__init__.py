"""
Adapters: read the topics that other schedulers' users write to, as timers. Their producers stay as they are.

Users know adapters as doors: the option `--door`, the metrics `kafka_timers_door_…`, the groups `….door.…` and the
header `timer-rejected-door` have that name, and so have docs/migrate.md and the log.

    commands        the values and functions that all adapters share
    etf1, skyuk, countdown, headers, karafka, timebridge
                    an adapter each: `parse` turns a record into a command (pure)
    keeping         schedulers that keep their schedules on a topic, as etf1 and skyuk do
    reader          reads a topic through an adapter, into `timer-request`
    passing         what a reader has of each partition, and where it passes that on to
    ahead           what lies further on in a topic that is taken over
    ending          tombstones for schedules that are refused, or over
    source          the records of one partition of such a topic
    added           rejects what lies in partitions that were added by mistake
    lag             reads how far each adapter is behind
"""

from collections.abc import Callable

from kafka_timers.adapters import countdown, etf1, headers, karafka, skyuk, timebridge
from kafka_timers.adapters.commands import Parsed, SourceRecord
from kafka_timers.adapters.keeping import Keeping
from kafka_timers.core.callbacks import topics_in
from kafka_timers.core.wire import Topics
from kafka_timers.errors import SettingsError

__all__ = [
    "ADAPTERS",
    "DOORS",
    "KEEPINGS",
    "WITH_IDS",
    "adapter_group",
    "added_group",
    "check_doors",
    "check_history",
    "door_topics",
]

ADAPTERS: dict[str, Callable[[SourceRecord], Parsed]] = {
    "etf1": etf1.parse,
    "skyuk": skyuk.parse,
    "countdown": countdown.parse,
    "headers": headers.parse,
    "karafka": karafka.parse,
    "timebridge": timebridge.parse,
}

# The names that `--door` takes.
DOORS = tuple(ADAPTERS)

# Adapters of which a record may replace or cancel an earlier one.
WITH_IDS = frozenset(("etf1", "skyuk", "headers", "karafka"))

# How schedulers keep their schedules, of the adapters to whose topics tombstones are written.
KEEPINGS: dict[str, Keeping] = {"etf1": etf1.KEEPING, "skyuk": skyuk.KEEPING}


def adapter_group(group: str, name: str) -> str:
    """Return the consumer group of adapter *name* of the workers in *group*; its transactional ids begin with it."""
    return f"{group}.door.{name}"


def added_group(group: str) -> str:
    """Return the consumer group in which the workers of *group* reject what lies in added partitions."""
    return f"{group}.added"


def door_topics(text: str) -> list[tuple[str, str]]:
    """
    Return the adapters that a value of `--door` names, each with its topic.

    Args:
        text: pairs NAME=TOPIC, comma separated.

    Raises:
        ValueError: there is no such adapter, or no topic; the text says which.
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
    Check what the settings say of adapters.

    Args:
        text: as `door_topics` takes it.
        header_names: as `headers.names_of` takes them.
        topic_prefix: of the service's own topics.

    Raises:
        SettingsError: something is wrong with it, or an adapter is to read one of the service's own topics.
    """
    try:
        headers.names_of(header_names)
        doors = door_topics(text)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    for name, topic in doors:
        # What it takes in it would write there again, for ever.
        if topic in Topics.of(topic_prefix):
            raise SettingsError(f"door {name}={topic}: {topic} is the service's own: give another system's topic")


def check_history(topic: str, doors: str, allowed_topics: str, topic_prefix: str) -> None:
    """
    Check what the settings say of etf1's history.

    Args:
        topic: of the history; empty for none.
        doors: as `door_topics` takes them.
        allowed_topics: globs of the topics that workers may write to.
        topic_prefix: of the service's own topics.

    Raises:
        SettingsError: it cannot be that topic.
    """
    if not topic:
        return
    named, told = door_topics(doors), f"door_history {topic}"
    if not any(name == "etf1" for name, _ in named):
        raise SettingsError(f"{told} is for the door etf1: give that too, or leave it out")
    if topic in Topics.of(topic_prefix):
        raise SettingsError(f"{told}: it is the service's own: give another topic")
    if any(topic == source for _, source in named):
        # What has fired would be taken for what is to fire.
        raise SettingsError(f"{told}: a door reads it: give another topic")
    if not topics_in(allowed_topics).fullmatch(topic):
        raise SettingsError(f"{told}: allowed_topics {allowed_topics} do not match it: add it there")
