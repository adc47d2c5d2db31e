"""
Read the topics that get callbacks next, and find those that lack something. The console's screen *Topics* shows them.

To look at all pending timers would take long. So only the timers that fire next and the latest refused requests count.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.topics import answering, counted
from kafka_timers.core.callbacks import Shown
from kafka_timers.core.text import bytes_in
from kafka_timers.operate.redrive import Which, last_refused
from kafka_timers.operate.waiting import Page, Workers

# Maximum of pending timers, and of refused requests, that are looked at.
_LOOKED_AT = 1_000
# Maximum length of a topic name in Kafka. Kafka is not asked about longer names.
_NAME_LENGTH = 249


@dataclass(slots=True)
class CallbackTopic:
    """
    A topic that timers ask for.

    Attributes:
        is_allowed: whether workers may write to it, as far as the caller knows.
        partitions: None if the topic does not exist, is hidden from this Kafka user, or is not allowed.
        coming: timers among those that fire next.
        next_second: UNIX second of the first of them.
        refused: requests for the topic among the latest refused ones.
    """

    name: str
    is_allowed: bool
    partitions: int | None = None
    coming: int = 0
    next_second: int | None = None
    refused: int = 0


async def read_callback_topics(
    kafka: Kafka, prefix: str, workers: Workers, is_allowed: Callable[[str], bool], since_ms: int
) -> tuple[list[CallbackTopic], Page]:
    """
    Return the callback topics of the 1,000 timers that fire next and of the last 1,000 refused requests, by name, and
    the page of these timers. Refusals before *since_ms*, UNIX milliseconds, do not count.

    Raises:
        QueryError: a worker refuses the query.
        TopicsError: `timer-rejected` does not exist.
    """
    page, (refused, _) = await asyncio.gather(
        workers.page(_LOOKED_AT), last_refused(kafka, prefix, Which(), since_ms, _LOOKED_AT)
    )
    found: dict[str, CallbackTopic] = {}

    def of(name: str) -> CallbackTopic:
        return found.setdefault(name, CallbackTopic(name, is_allowed(name)))

    for timer in page.timers:
        topic = of((bytes_in(timer, "topic") or b"").decode(errors="replace"))
        topic.coming += 1
        topic.next_second = timer["second"] if topic.next_second is None else topic.next_second
    for each in refused:
        if each.future is not None and (name := Shown.of(each.future).topic):
            of(name).refused += 1
    asked = [name for name, topic in found.items() if topic.is_allowed and len(name) <= _NAME_LENGTH]
    async with answering(kafka), Cluster.open(kafka) as cluster:
        for name, count in (await counted(cluster, asked)).items():
            found[name].partitions = count
    return sorted(found.values(), key=attrgetter("name")), page
