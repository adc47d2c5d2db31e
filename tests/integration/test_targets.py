"""Which callback topics may be written to, as a real broker tells it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from brokers import administering, make_topic
from patience import LIMIT_S

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.core.callbacks import Target
from kafka_timers.core.refused import Reason
from kafka_timers.core.wire import Topics
from kafka_timers.runtime.targets import TopicLookup
from kafka_timers.testing import ManualClock


@pytest.fixture
async def cluster(bootstrap: str) -> AsyncIterator[Cluster]:
    async with Cluster.open(Kafka(bootstrap)) as opened:
        yield opened


async def verdict(known: TopicLookup, name: str) -> Target | Reason:
    """Return the verdict on *name*, looked up if it is unknown."""
    if name not in known.verdicts:
        await known.resolve([name])
    return known.verdicts[name]


async def test_each_topic_has_a_verdict(bootstrap: str, cluster: Cluster, prefix: str) -> None:
    await make_topic(bootstrap, prefix + "callbacks", 3)
    await make_topic(bootstrap, prefix + "small", configs={"max.message.bytes": "5000"})
    await make_topic(bootstrap, "secret-" + prefix)
    own = Topics.of(prefix)
    known = TopicLookup(cluster, own, f"{prefix}*, other.?", ManualClock())
    expected = {
        prefix + "callbacks": Target(3, 1_048_588),
        prefix + "small": Target(1, 5_000),
        prefix + "missing": Reason.TOPIC_UNKNOWN,
        "secret-" + prefix: Reason.TOPIC_FORBIDDEN,
        "other.10": Reason.TOPIC_FORBIDDEN,
        "other.1": Reason.TOPIC_UNKNOWN,
        prefix + "no name": Reason.TOPIC_UNKNOWN,
        prefix + "x" * 250: Reason.TOPIC_UNKNOWN,
        own.requests: Reason.TOPIC_RESERVED,
        own.rejected: Reason.TOPIC_RESERVED,
        "__consumer_offsets": Reason.TOPIC_RESERVED,
    }
    await known.resolve(list(expected))
    assert known.verdicts == expected


@pytest.mark.parametrize("name", [".", ".."])
async def test_names_that_are_none_to_kafka_are_unknown(cluster: Cluster, name: str) -> None:
    assert await verdict(TopicLookup(cluster, Topics(), "*", ManualClock()), name) is Reason.TOPIC_UNKNOWN


async def test_a_topic_that_is_made_later_is_found_within_seconds(
    bootstrap: str, cluster: Cluster, prefix: str
) -> None:
    clock = ManualClock()
    known = TopicLookup(cluster, Topics(), "*", clock)
    assert await verdict(known, prefix + "new") is Reason.TOPIC_UNKNOWN
    await make_topic(bootstrap, prefix + "new", 2)
    await known.refresh()
    assert await verdict(known, prefix + "new") is Reason.TOPIC_UNKNOWN
    await clock.advance(5)
    await known.refresh()
    assert isinstance(await verdict(known, prefix + "new"), Target)


async def test_a_topic_that_goes_or_changes_is_seen_by_the_next_refresh(
    bootstrap: str, cluster: Cluster, prefix: str
) -> None:
    clock = ManualClock()
    known = TopicLookup(cluster, Topics(), "*", clock)
    await make_topic(bootstrap, prefix + "gone")
    assert isinstance(await verdict(known, prefix + "gone"), Target)
    async with administering(bootstrap) as admin, asyncio.timeout(LIMIT_S):
        await admin.delete_topics([prefix + "gone"])
        while prefix + "gone" in await admin.list_topics():  # noqa: ASYNC110  # a broker has to be asked
            await asyncio.sleep(0.05)
    assert isinstance(await verdict(known, prefix + "gone"), Target)
    await clock.advance(30)
    await known.refresh()
    assert known.verdicts[prefix + "gone"] is Reason.TOPIC_UNKNOWN


async def test_a_wanted_topic_is_known_after_the_next_refresh(bootstrap: str, cluster: Cluster, prefix: str) -> None:
    known = TopicLookup(cluster, Topics(), "*", ManualClock())
    await make_topic(bootstrap, prefix + "a")
    known.want([prefix + "a", prefix + "missing"])
    assert not known.verdicts
    await known.refresh()
    assert known.verdicts == {prefix + "a": Target(1, 1_048_588), prefix + "missing": Reason.TOPIC_UNKNOWN}


async def test_doubted_topics_are_looked_up_again_and_refused_ones_are_not(
    bootstrap: str, cluster: Cluster, prefix: str
) -> None:
    clock = ManualClock()
    known = TopicLookup(cluster, Topics(), "*", clock)
    await make_topic(bootstrap, prefix + "a")
    await make_topic(bootstrap, prefix + "b")
    await known.resolve([prefix + "a", prefix + "b"])
    known.refuse(prefix + "b", Reason.TOPIC_REFUSED, "POLICY_VIOLATION")
    known.doubt()
    assert known.verdicts == {prefix + "b": Reason.TOPIC_REFUSED}
    await clock.advance(59)
    await known.refresh()
    assert await verdict(known, prefix + "b") is Reason.TOPIC_REFUSED
    await clock.advance(1)
    await known.refresh()
    assert isinstance(await verdict(known, prefix + "b"), Target)
