"""The closed second of a lake, from promote to the workers, on a real broker."""

from collections.abc import AsyncIterator

import pytest
from aiokafka import AIOKafkaProducer
from brokers import make_topic

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.lake_group import closed_second, lake_progress, tell_closed
from kafka_timers.core.wire import Sealed, Topics
from kafka_timers.errors import BrokerError
from kafka_timers.runtime.metrics import WorkerMetrics
from kafka_timers.testing import ManualClock
from kafka_timers.worker.lake_watch import LakeWatch

PARTITIONS = 2


@pytest.fixture
async def cluster(bootstrap: str, prefix: str) -> AsyncIterator[Cluster]:
    await make_topic(bootstrap, Topics.of(prefix).requests, PARTITIONS)
    async with Cluster.open(Kafka(bootstrap)) as cluster:
        yield cluster


async def test_workers_read_the_latest_progress_of_promote(cluster: Cluster, bootstrap: str, prefix: str) -> None:
    assert await closed_second(cluster, prefix) is None
    for second, landed in ((1_900_000_000, {}), (1_900_003_600, {0: 7, 1: 9})):
        await tell_closed(Kafka(bootstrap), prefix, second, landed)
        assert await closed_second(cluster, prefix) == second
    assert await closed_second(cluster, prefix + "other-") is None


async def test_a_topic_that_is_gone_is_told(bootstrap: str, prefix: str) -> None:
    with pytest.raises(BrokerError, match="keep the progress of the lake"):
        await tell_closed(Kafka(bootstrap), prefix + "none-", 1_900_000_000, {})


async def test_without_a_word_of_promote_the_seals_and_the_first_far_request_tell(
    cluster: Cluster, bootstrap: str, prefix: str
) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        near, far = [await producer.send_and_wait(Topics.of(prefix).requests, b"v", partition=0) for _ in range(2)]
    now_s = far.timestamp / 1000 + 4_000

    async def promoted_s(partition: int, **more: object) -> int | None:
        seals = {0: None, 1: None, partition: Sealed(horizon_s=3_600, fence=2, **more)}
        return (await lake_progress(cluster, prefix, seals, now_s)).promoted_s

    assert await promoted_s(0, horizon_from=near.offset) is None
    # Not before that of the first record that was judged by the horizon.
    assert await promoted_s(0, horizon_from=far.offset, far={"count": 1}) == far.timestamp // 1000 + 3_600
    # It has left the log.
    assert await promoted_s(1, far={"count": 1}) == int(now_s)
    await tell_closed(Kafka(bootstrap), prefix, 1_900_000_000, {})
    assert await promoted_s(0, far={"count": 1}) == 1_900_000_000


async def test_the_gauges_of_a_worker_follow_it_and_its_log_has_each_turn_once(
    cluster: Cluster, bootstrap: str, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    metrics, clock, shown = WorkerMetrics(), ManualClock(1_900_000_000), "kafka_timers_lake_"
    watch = LakeWatch(cluster, prefix, 1_200, metrics, clock)

    def figures() -> tuple[float | None, ...]:
        # Twice as much is told once.
        for _ in range(2):
            watch.tell()
        return tuple(metrics.registry.get_sample_value(shown + name) for name in ("closed_second", "behind_seconds"))

    assert figures() == (None, None)
    await tell_closed(Kafka(bootstrap), prefix, 1_900_000_300, {})
    await watch.look()
    assert figures() == (1_900_000_300, 0)
    # What was told last is compared with the present.
    clock.set(1_900_000_200)
    assert figures() == (1_900_000_300, 200)
    await tell_closed(Kafka(bootstrap), prefix, 1_900_001_400, {})
    await watch.look()
    assert figures() == (1_900_001_400, 0)
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [(level, text.partition(" timers")[0]) for level, text in told] == [
        ("WARNING", "the lake has promoted"),
        ("INFO", "the lake has caught up"),
    ]
