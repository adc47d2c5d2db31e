"""Partitions that somebody adds by mistake cost no timer, and requests sent there are reported."""

import time
from collections import Counter
from collections.abc import Iterable

from aiokafka import ConsumerRecord
from aiokafka.admin import NewPartitions
from brokers import administering
from confluent_kafka import Producer
from patience import LIMIT_S
from service import Process, Service

from kafka_timers import Every, TimerClient
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.seals import partitions_served
from kafka_timers.broker.topics import check
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Future

ADDED = 8
# All within a partition that was added, as Kafka's own partitioner counts them now.
IDS = [each for each in map("stray-{}".format, range(100)) if partition_of(each, ADDED) >= 4][:10]


async def add_partitions(service: Service, names: Iterable[str], count: int = ADDED) -> None:
    """Enlarge topics of the service, and wait until the broker tells of it."""
    async with administering(service.bootstrap) as admin:
        await admin.create_partitions({name: NewPartitions(count) for name in names})
        for name in names:
            while len((await admin.describe_topics([name]))[0]["partitions"]) < count:
                pass


def stray(service: Service, second: int, names: Iterable[str]) -> None:
    """Ask for timers as a client in another language does: with the id as the key that its partitioner hashes."""
    producer = Producer({"bootstrap.servers": service.bootstrap})
    for name in names:
        value = Future(callBackTopic=service.callbacks, callBack=name.encode(), timerId=name).SerializeToString()
        producer.produce(service.topics.requests, value, b"%d" % second, partition_of(name, ADDED))
    assert producer.flush(LIMIT_S) == 0


def places(records: Iterable[ConsumerRecord]) -> Counter[tuple[str, int]]:
    """Return reason and partition of rejected records; each is told once."""
    found: Counter[tuple[str, int]] = Counter()
    seen = set()
    for record in records:
        told = {name.removeprefix("timer-rejected-"): value.decode() for name, value in record.headers}
        assert (told["partition"], told["offset"]) not in seen
        seen.add((told["partition"], told["offset"]))
        found[told["reason"], int(told["partition"])] += 1
    return found


async def test_a_running_worker_reports_added_partitions_and_rejects_requests_in_them(service: Service) -> None:
    second = int(time.time()) - 1000
    worker = await service.worker()
    await service.requests(second + 100, ["waits"])
    await service.until_sealed(second)
    await add_partitions(service, [service.topics.requests])
    stray(service, second + 20, IDS)
    expected = Counter(("partition-added", partition_of(name, ADDED)) for name in IDS)
    assert places(await service.read_all(service.topics.rejected, len(IDS))) == expected
    assert worker.metric("kafka_timers_topic_problems") == 1
    assert "timer-request must not be deleted" in worker.child.last_words()
    # Another worker tells nothing twice, and finds the number in the seals.
    await service.worker()
    worker.child.kill()
    stray(service, second + 20, IDS[:2])
    assert sum(places(await service.read_all(service.topics.rejected, len(IDS) + 2)).values()) == len(IDS) + 2
    async with TimerClient(service.bootstrap, topic_prefix=service.prefix) as client:
        for name in IDS:
            await client.at(second + 100, topic=service.callbacks, value=name.encode(), timer_id=name)
    await service.until_sealed(second + 100)
    names = ["waits", *IDS]
    assert sorted(await service.callback_names(names)) == sorted(names)


async def test_a_worker_starts_with_the_sealed_partitions_and_fires_pending_timers(service: Service) -> None:
    """Here all topics that must have as many partitions were enlarged alike."""
    second, topics = int(time.time()) - 1000, service.topics
    first = await service.worker()
    names = [f"waits-{n}" for n in range(40)]
    await service.requests(second + 100, names)
    await service.until_sealed(second)
    await first.child.stop(LIMIT_S)
    await add_partitions(service, [topics.requests, topics.oscillator, topics.sealed])
    stray(service, second + 100, IDS)
    kafka = Kafka(service.bootstrap)
    assert await partitions_served(kafka, service.prefix) == 4
    found = await check(kafka, service.prefix, served=4)
    assert ["has 8 partitions and the service runs with 4" in problem for problem in found] == [True] * 3
    worker = await service.worker()
    assert sum(places(await service.read_all(topics.rejected, len(IDS))).values()) == len(IDS)
    await service.until_sealed(second + 100)
    assert sorted(await service.callback_names(names)) == sorted(names)
    assert partitions_of(worker) == 4


def partitions_of(worker: Process) -> float:
    return worker.metric("kafka_timers_partitions")


async def test_where_nothing_is_sealed_the_option_says_how_many_are_served(service: Service) -> None:
    second = int(time.time()) - 1000
    await add_partitions(service, [service.topics.requests])
    names = [f"t-{n}" for n in range(20)]
    await service.requests(second, names)
    worker = await service.worker("--partitions", "4")
    await service.until_sealed(second)
    assert sorted(await service.callback_names(names)) == sorted(names)
    assert partitions_of(worker) == 4


async def test_schedules_stay_in_their_partitions_when_some_are_added(service: Service) -> None:
    """In another partition, nobody would plan, see or stop them."""
    await service.start("oscillator")
    await service.firing()
    names, prefix = [f"s{number}" for number in range(12)], service.prefix
    async with TimerClient(service.bootstrap, topic_prefix=prefix) as client:
        for name in names:
            await client.schedules.put(name, Every(3600), topic=service.callbacks)
    await add_partitions(service, [service.topics.schedules])
    async with TimerClient(service.bootstrap, topic_prefix=prefix) as client:
        assert [each.schedule_id for each in await client.schedules.list()] == sorted(names)
        for name in names:
            await client.schedules.put(name, Every(1), topic=service.callbacks, value=name.encode())
        # Each runs by its new record alone.
        came = {record.value for record in await service.read_all(service.callbacks, 4 * len(names))}
        assert came == {name.encode() for name in names}
        for name in names:
            assert (await client.schedules.pause(name)).paused
            await client.schedules.delete(name)
        assert await client.schedules.list() == []
    told = [problem for problem in await check(Kafka(service.bootstrap), prefix) if "schedules in those" in problem]
    assert len(told) == 2
