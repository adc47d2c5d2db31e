"""What an owner deletes of `timer-request`, on a real broker."""

import asyncio
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from brokers import administering, make_topic
from patience import LIMIT_S

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.lake_group import tell_closed
from kafka_timers.broker.reading import TopicLog
from kafka_timers.core.wire import Topics
from kafka_timers.runtime.metrics import WorkerMetrics
from kafka_timers.settings import WorkerSettings
from kafka_timers.testing import ManualClock
from kafka_timers.worker.trim import Trimmer

HOUR_S, DAY_S = 3_600, 86_400


class Trimmed:
    """Two partitions with ten records each, which are appended now; the worker's clock is moved by hand."""

    def __init__(self, kafka: Kafka, prefix: str, cluster: Cluster) -> None:
        self.kafka, self.prefix, self.cluster = kafka, prefix, cluster
        self.owners: dict[int, Any] = {}
        self.swept: list[tuple[int, int]] = []
        self.clock = ManualClock(0.0)
        self.log = TopicLog(cluster, Topics.of(prefix).requests)
        self.metrics = WorkerMetrics()

    def trimmer(self, keep_s: int = DAY_S, horizon_s: int = 0) -> Trimmer:
        ports: Any = SimpleNamespace(
            settings=WorkerSettings(topic_prefix=self.prefix, horizon_s=horizon_s),
            names=Topics.of(self.prefix),
            bounds=self.log.bounds,
            log=self.log,
            clock=self.clock,
            metrics=self.metrics,
        )
        return Trimmer(ports, self.cluster, lambda: self.owners, keep_s)

    def seal(self, number: int, restore_from: int) -> None:
        """Have the owner of a partition seal that nothing waits below an offset; 0 is a takeover."""
        sealed = (self.log.bounds.log_id, restore_from) if restore_from else None
        self.owners[number] = SimpleNamespace(sealed=sealed, sweep=lambda below: self.swept.append((number, below)))

    async def starts(self) -> list[int]:
        return list((await self.log.bounds.starts([0, 1])).values())


@pytest.fixture
async def trimmed(bootstrap: str, prefix: str) -> AsyncIterator[Trimmed]:
    topic = Topics.of(prefix).requests
    await make_topic(bootstrap, topic, 2, {"message.timestamp.type": "LogAppendTime"})
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in (0, 1):
            for _ in range(10):
                last = await producer.send_and_wait(topic, b"v", b"1", partition=number)
    async with Cluster.open(Kafka(bootstrap)) as cluster:
        await cluster.look_up([topic])
        now = Trimmed(Kafka(bootstrap), prefix, cluster)
        now.clock.set(last.timestamp / 1000)
        now.seal(0, 7)
        now.seal(1, 10)
        yield now


async def test_what_lies_below_an_old_seal_goes_once_it_is_as_old_as_it_is_to_be_kept(trimmed: Trimmed) -> None:
    trimmer = trimmed.trimmer()
    await trimmer.trim()
    trimmed.seal(0, 9)
    # The seals are old enough, the records are not.
    await trimmed.clock.advance(HOUR_S)
    await trimmer.trim()
    assert await trimmed.starts() == [0, 0]
    await trimmed.clock.advance(DAY_S)
    await trimmer.trim()
    assert await trimmed.starts() == [9, 10]
    assert trimmed.metrics.registry.get_sample_value("kafka_timers_trimmed_records_total") == 19


async def test_a_seal_counts_once_it_is_an_hour_old(trimmed: Trimmed) -> None:
    trimmer = trimmed.trimmer()
    await trimmed.clock.advance(DAY_S)
    await trimmer.trim()
    await trimmed.clock.advance(HOUR_S - 1)
    trimmed.seal(0, 9)
    await trimmer.trim()
    assert await trimmed.starts() == [0, 0]
    await trimmed.clock.advance(1)
    await trimmer.trim()
    assert await trimmed.starts() == [7, 10]


@pytest.mark.parametrize("sealed_next", [0, 3])
async def test_nothing_goes_by_what_was_sealed_before_another_takeover(trimmed: Trimmed, sealed_next: int) -> None:
    """It may be another log by now, in which the same offsets are other records; and a seal may have come already."""
    trimmer = trimmed.trimmer()
    await trimmer.trim()
    await trimmed.clock.advance(2 * DAY_S)
    trimmed.seal(0, sealed_next)
    del trimmed.owners[1]
    await trimmer.trim()
    trimmed.seal(0, 7)
    await trimmer.trim()
    assert await trimmed.starts() == [0, 0]
    await trimmed.clock.advance(HOUR_S)
    await trimmer.trim()
    assert await trimmed.starts() == [7, 0]


async def test_nothing_goes_of_a_log_that_was_made_anew(trimmed: Trimmed, bootstrap: str) -> None:
    """As where somebody restores it: old requests that wait, under other offsets."""
    trimmer, topic = trimmed.trimmer(), trimmed.log.topic
    await trimmer.trim()
    async with administering(bootstrap) as admin:
        await admin.delete_topics([topic])
    await make_topic(bootstrap, topic, 2)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in (0, 1):
            for _ in range(10):
                await producer.send_and_wait(topic, b"v", b"1", partition=number)
    await trimmed.clock.advance(2 * DAY_S)
    await trimmer.trim()
    assert await trimmed.starts() == [0, 0]


@pytest.mark.parametrize("horizon_s", [0, 3_600])
async def test_what_a_lake_has_not_landed_stays(trimmed: Trimmed, horizon_s: int) -> None:
    trimmer = trimmed.trimmer(horizon_s=horizon_s)
    if horizon_s:
        # With a horizon there is a lake, even if it has told nothing yet.
        await trimmer.trim()
        await trimmed.clock.advance(2 * DAY_S)
        await trimmer.trim()
        assert await trimmed.starts() == [0, 0]
    await tell_closed(trimmed.kafka, trimmed.prefix, 1_700_000_000, {0: 3, 1: 10})
    await trimmer.trim()
    await trimmed.clock.advance(2 * DAY_S)
    await trimmer.trim()
    assert await trimmed.starts() == [3, 10]


async def test_what_waits_in_the_older_half_of_what_is_kept_is_to_be_repeated(trimmed: Trimmed) -> None:
    trimmer = trimmed.trimmer()
    await trimmer.sweep()
    assert trimmed.swept == [(0, 0), (1, 0)]
    await trimmed.clock.advance(DAY_S / 2 + 1)
    await trimmer.sweep()
    assert trimmed.swept[2:] == [(0, 10), (1, 10)]


async def test_what_has_left_the_log_is_to_be_repeated_at_once(trimmed: Trimmed) -> None:
    await trimmed.log.bounds.delete_below(0, 6)
    await trimmed.trimmer().sweep()
    assert trimmed.swept == [(0, 6), (1, 0)]


async def test_where_a_lake_has_what_waits_long_nothing_is_to_be_repeated(trimmed: Trimmed) -> None:
    await trimmed.log.bounds.delete_below(0, 6)
    await trimmed.trimmer(horizon_s=3_600).sweep()
    assert trimmed.swept == []


async def test_partitions_may_come_and_go_while_brokers_answer(
    trimmed: Trimmed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = trimmed.log.bounds
    end, since = bounds.end, bounds.since

    async def moved(number: int) -> int:
        trimmed.owners.pop(1, None)
        return await end(number)

    async def moved_back(number: int, moment_ms: int) -> int | None:
        trimmed.seal(1, 10)
        return await since(number, moment_ms)

    monkeypatch.setattr(bounds, "end", moved)
    monkeypatch.setattr(bounds, "since", moved_back)
    trimmer = trimmed.trimmer()
    await trimmer.look()
    value = trimmed.metrics.registry.get_sample_value
    needed = [value("kafka_timers_request_log_needed_seconds", {"partition": str(number)}) for number in (0, 1)]
    assert [each is not None for each in needed] == [True, False]
    await trimmer.sweep()
    assert [number for number, _ in trimmed.swept] == [0]


async def test_the_age_of_what_is_needed_is_shown(trimmed: Trimmed) -> None:
    await trimmed.clock.advance(100)
    await trimmed.trimmer().look()
    ages = [trimmed.metrics.log_needed.labels(number)._value.get() for number in (0, 1)]
    assert ages[0] == pytest.approx(100, abs=5)
    assert ages[1] == 0


async def test_a_broker_that_lets_nobody_delete_is_told_of_once(
    trimmed: Trimmed, bootstrap: str, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As a topic that is compacted, or a user without the right."""
    topic = prefix + "compacted-timer-request"
    await make_topic(bootstrap, topic, 1, {"cleanup.policy": "compact"})
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(topic, b"v", b"1", partition=0)
    await trimmed.cluster.look_up([topic])
    trimmed.prefix, trimmed.log = prefix + "compacted-", TopicLog(trimmed.cluster, topic)
    del trimmed.owners[1]
    trimmed.seal(0, 1)
    await trimmed.clock.advance(DAY_S)
    trimmer = trimmed.trimmer(keep_s=1)
    await trimmer.trim()
    await trimmed.clock.advance(1)
    with caplog.at_level(logging.INFO):
        running = asyncio.create_task(trimmer.run())
        async with asyncio.timeout(LIMIT_S):
            while not caplog.records:  # noqa: ASYNC110  # there is no other sign
                await asyncio.sleep(0.05)
        # Some attempts later: a part of a worker that ended would end the worker.
        await asyncio.wait([running], timeout=1)
        assert not running.done()
        running.cancel()
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "keeps what nothing waits in" in caplog.text
