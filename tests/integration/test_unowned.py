"""A partition that nobody seals is shown as overdue by workers that own others, until somebody does."""

from aiokafka import AIOKafkaProducer
from brokers import make_topic
from prometheus_client import generate_latest

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.runtime.metrics import WorkerMetrics
from kafka_timers.worker.unowned import Unowned


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def wall_s(self) -> float:
        return self.now_s

    def elapsed_s(self) -> float:
        return self.now_s


async def test_a_partition_is_shown_from_the_time_on_that_no_owner_leaves_between_seals(
    bootstrap: str, prefix: str
) -> None:
    topic, clock, metrics = prefix + "timer-sealed", Clock(), WorkerMetrics()
    await make_topic(bootstrap, topic, 3)

    def shown() -> dict[str, float]:
        begin = "kafka_timers_oldest_due_seconds{"
        lines = [line for line in generate_latest(metrics.registry).decode().splitlines() if line.startswith(begin)]
        return {line.split('"')[1]: float(line.split()[1]) for line in lines}

    async with Cluster.open(Kafka(bootstrap)) as cluster, AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        await cluster.look_up([topic])
        unowned = Unowned(cluster, topic, 5.0, metrics, clock)
        # This worker owns partition 2, and shows it itself.
        await unowned.look([0, 1])
        clock.now_s += 13
        await unowned.look([0, 1])
        assert shown() == {}
        clock.now_s += 1
        await producer.send_and_wait(topic, b"seal", partition=1)
        await unowned.look([0, 1])
        assert shown() == {"0": 14}
        clock.now_s += 20
        await producer.send_and_wait(topic, b"seal", partition=0)
        await unowned.look([0, 1])
        assert shown() == {"1": 20}
        # It is given the partition.
        metrics.oldest_due.labels(1).set(3)
        await unowned.look([0])
        assert shown() == {"1": 3}
