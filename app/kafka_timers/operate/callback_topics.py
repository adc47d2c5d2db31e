"""
Read which topics get callbacks next, and which of them lack something. The console's screen *Topics* shows it.

A look at all timers that wait would take long, so it is taken at those that fire next, and at what was refused lately.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.topics import answering, counted
from kafka_timers.core.callbacks import Shown
from kafka_timers.core.text import bytes_in
from kafka_timers.operate.pending import Page, Workers
from kafka_timers.operate.rejected import Which, last_refused

__all__ = ["CallbackTopic", "CallbackTopics", "read_callback_topics"]

# So many timers that fire next, and so many refused requests.
_LOOKED_AT = 1_000
# Of a topic, in Kafka; a longer name is in no question to it.
_NAME_LENGTH = 249


@dataclass(slots=True)
class CallbackTopic:
    """
    A topic that timers ask for.

    Attributes:
        name: of the topic, as requests have it.
        is_allowed: whether workers may write to it, as far as the caller knows.
        partitions: None if it does not exist, this Kafka user may not know of it, or it is not allowed.
        coming: timers among those that fire next.
        next_second: UNIX second of the first of them.
        refused: requests for it among the last that were refused.
    """

    name: str
    is_allowed: bool
    partitions: int | None = None
    coming: int = 0
    next_second: int | None = None
    refused: int = 0


class CallbackTopics(NamedTuple):
    """Topics by name, and the timers that fire next, from which they were taken."""

    topics: list[CallbackTopic]
    page: Page


async def read_callback_topics(
    kafka: Kafka, prefix: str, workers: Workers, is_allowed: Callable[[str], bool], since_ms: int
) -> CallbackTopics:
    """
    Return the callback topics of the 1,000 timers that fire next, and of the last 1,000 requests that were refused.

    Args:
        kafka: to talk to.
        prefix: put before the service's topics' names.
        workers: to be asked which timers wait.
        is_allowed: tells whether workers may write to a topic.
        since_ms: UNIX milliseconds; what was refused before does not count.

    Raises:
        QueryError: a worker does not take the question.
        TopicsError: `timer-rejected` does not exist.
        BrokerError: no broker answers, or it refuses.
    """
    page, (refused, _) = await asyncio.gather(
        workers.page(_LOOKED_AT), last_refused(kafka, prefix, Which(), since_ms, _LOOKED_AT)
    )
    found: dict[str, CallbackTopic] = {}

    def of(name: str) -> CallbackTopic:
        return found.setdefault(name, CallbackTopic(name, is_allowed(name)))

    for told in page.timers:
        topic = of((bytes_in(told, "topic") or b"").decode(errors="replace"))
        topic.coming += 1
        topic.next_second = told["second"] if topic.next_second is None else topic.next_second
    for each in refused:
        if each.future is not None and (name := Shown.of(each.future).topic):
            of(name).refused += 1
    asked = [name for name, topic in found.items() if topic.is_allowed and len(name) <= _NAME_LENGTH]
    async with answering(kafka), Cluster.open(kafka) as cluster:
        for name, count in (await counted(cluster, asked)).items():
            found[name].partitions = count
    return CallbackTopics(sorted(found.values(), key=attrgetter("name")), page)
