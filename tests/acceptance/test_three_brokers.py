"""Three brokers that a test can break: the promises of `PartableCluster`, and the service on them."""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.client import CoordinationType
from aiokafka.conn import create_conn
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.api import Request
from aiokafka.protocol.coordination import FindCoordinatorRequest
from brokers import (
    Told,
    consuming,
    end_of,
    make_topic,
    make_topics,
    partitions_as_told_by,
    until_in_sync,
    until_replaced,
)
from campaign.faults import FAULTS
from campaign.run import run
from commands import ended as command_ended
from partable import PartableCluster
from patience import LIMIT_S
from service import Service

from kafka_timers import Outcome, TimerClient
from kafka_timers.adapters import adapter_group
from kafka_timers.adapters.reader import AdapterReader
from kafka_timers.broker import topics
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.producer import Producer
from kafka_timers.broker.transaction_requests import CommittedOffsets, EndTransaction
from kafka_timers.clock import HostClock
from kafka_timers.core.callbacks import Target
from kafka_timers.core.wire import Future, Topics
from kafka_timers.processes.worker import door_settings
from kafka_timers.runtime.metrics import WorkerMetrics
from kafka_timers.runtime.outlet import Outlet
from kafka_timers.runtime.priority import PriorityGate
from kafka_timers.settings import WorkerSettings


def address(cluster: PartableCluster, node: int) -> str:
    """Return where clients reach one of the brokers."""
    return cluster.bootstrap.split(",")[node - 1]


async def write(bootstrap: str, topic: str, partition: int) -> None:
    """Write a record that all replicas in sync have acknowledged."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        await producer.send_and_wait(topic, b"x", partition=partition)


@pytest.mark.parametrize("how", ["hold", pytest.param("cut", marks=pytest.mark.chaos)])
async def test_a_broker_parted_from_the_others_is_reached_by_clients_and_knows_nothing(
    cluster: PartableCluster, prefix: str, how: str
) -> None:
    """It goes on telling that it leads, when the others have long replaced it."""
    topic = prefix + "x"
    # A broker that has just come leads nothing of a topic that is made without it.
    await until_in_sync(cluster)
    await make_topic(cluster.bootstrap, topic, 3, replicas=3)
    await until_in_sync(cluster)
    led = [
        number
        for (_, number), told in (await partitions_as_told_by(address(cluster, 2), topic)).items()
        if told.leader == 1
    ]
    assert led
    await getattr(cluster, how)(1)
    await until_replaced(cluster, 1, topic)
    told = await partitions_as_told_by(address(cluster, 1), topic)
    assert {told[topic, number].leader for number in led} == {1}
    told = await partitions_as_told_by(address(cluster, 2), topic)
    assert not any(1 in told[topic, number].in_sync for number in led)
    await cluster.mend()
    await until_in_sync(cluster)


async def test_a_broker_that_clients_do_not_reach_stays_in_the_cluster(cluster: PartableCluster, prefix: str) -> None:
    """The partitions of others are still replicated to it, and it is asked in vain."""
    topic = prefix + "x"
    await make_topic(cluster.bootstrap, topic, 3, replicas=3)
    await until_in_sync(cluster)
    told = await partitions_as_told_by(address(cluster, 2), topic)
    other = next(number for (_, number), partition in told.items() if partition.leader != 1)
    await cluster.cut_clients(1)
    host, port = address(cluster, 1).split(":")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))
    await cluster.hold_clients(1)
    reader, writer = await asyncio.open_connection(host, int(port))
    # ApiVersions 0, which any broker answers at once.
    writer.write(bytes.fromhex("0000000a 0012 0000 00000001 ffff"))
    answer = asyncio.create_task(reader.read(1))
    await write(address(cluster, 2), topic, other)
    assert 1 in (await partitions_as_told_by(address(cluster, 2), topic))[topic, other].in_sync
    assert not answer.done()
    await cluster.mend()
    async with asyncio.timeout(LIMIT_S):
        assert await answer
    writer.close()


# --- a producer on them -----------------------------------------------------------------------------------------------


class FatalAnswers(Cluster):
    """
    Brokers of which one dies with its answer: it has done what it was asked for, and nobody hears of it.

    Attributes:
        killing: the brokers, of which one dies with its answer to the next end of a transaction; None: nobody dies.
    """

    killing: PartableCluster | None = None

    async def send(self, node: int, request: Any, **more: Any) -> Any:
        answer = await super().send(node, request, **more)
        if isinstance(request, EndTransaction) and not answer.error_code and self.killing:
            cluster, self.killing = self.killing, None
            await cluster.nodes[node].kill()
            raise KafkaConnectionError("the broker was killed")
        return answer


@pytest.mark.parametrize("asks", ["to commit", "who it is"])
async def test_a_producer_goes_on_when_its_coordinator_dies_with_an_answer(
    cluster: PartableCluster, prefix: str, asks: str
) -> None:
    """The next coordinator knows that what it is asked to write is written. A takeover would cost a second or more."""
    topic = prefix + "callbacks"
    await make_topic(cluster.bootstrap, topic, 1, replicas=3)
    await until_in_sync(cluster)
    async with FatalAnswers.open(Kafka(cluster.bootstrap)) as asked, consuming(Kafka(cluster.bootstrap)) as consumer:
        producer = Producer(asked, prefix, 60.0, 4_096, "a")
        await producer.start()
        for value in (b"0", b"1"):
            producer.begin()
            batch = producer.new_batch()
            batch.append(timestamp=None, key=None, value=value)
            producer.send(batch, topic, 0)
            await producer.flush()
            if value == b"0" and asks == "to commit":
                asked.killing = cluster
            await producer.commit()
            if value == b"0" and asks == "who it is":
                asked.killing = cluster
            assert await producer.is_held()
        assert asked.killing is None
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        assert [(await consumer.getone()).value for _ in range(2)] == [b"0", b"1"]
        await producer.stop()


# --- a door on them ---------------------------------------------------------------------------------------------------


async def ask(cluster: PartableCluster, node: int, request: Request[Any]) -> Any:
    """Return the answer of this one broker."""
    host, port = address(cluster, node).split(":")
    connection = await create_conn(host, int(port), request_timeout_ms=10_000)
    try:
        return await connection.send(request)
    finally:
        connection.close()


async def coordinator_of(cluster: PartableCluster, group: str, node: int) -> int:
    """Return the broker that coordinates *group*, as broker *node* tells."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            answer = await ask(cluster, node, FindCoordinatorRequest(group, CoordinationType.GROUP))
            if not answer.error_code:
                return int(answer.coordinator_id)
            await asyncio.sleep(0.2)


async def made_for_a_door(cluster: PartableCluster, prefix: str) -> tuple[Topics, str, str]:
    """Make the topics that a door reads and writes; return the service's, the one it reads, and the door's group."""
    topics, theirs = Topics.of(prefix), prefix + "theirs"
    for name in (topics.requests, topics.rejected, topics.doors, theirs):
        await make_topic(cluster.bootstrap, name, 3, replicas=3)
    return topics, theirs, adapter_group(prefix, "headers")


@asynccontextmanager
async def door(bootstrap: str, prefix: str) -> AsyncIterator[None]:
    """Have a door running, as part of no worker."""
    topics, takes = Topics.of(prefix), Target(3, 1_048_588)
    settings = WorkerSettings(bootstrap=bootstrap, topic_prefix=prefix, group=prefix, session_timeout_s=6.0)
    outlet = Outlet(topics.requests, takes, topics.rejected, takes)
    reader = AdapterReader(
        door_settings(settings), "headers", prefix + "theirs", outlet, PriorityGate(), WorkerMetrics(), HostClock()
    )
    task = asyncio.create_task(reader.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def write_schedules(bootstrap: str, topic: str, numbers: Iterable[int]) -> None:
    """Write records for the door, all replicas in sync having them."""
    second = b"%d" % (time.time() + 100_000)
    headers = [("timer-expiry", second), ("timer-callback-topic", b"t")]
    # Idempotent: else a record that a frozen broker has taken and not answered is there and passed on twice.
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        for number in numbers:
            await producer.send_and_wait(topic, b"%d" % number, b"%d" % number, partition=0, headers=headers)


async def passed_on(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """Return the callbacks of all requests of *topic*, once *count* are there and nothing more comes for a moment."""
    values: list[bytes] = []
    async with consuming(Kafka(bootstrap)) as consumer, asyncio.timeout(LIMIT_S):
        where = [TopicPartition(topic, number) for number in range(3)]
        consumer.assign(where)
        await consumer.seek_to_beginning(*where)
        while (came := await consumer.getmany(timeout_ms=1_000)) or len(values) < count:
            values += [Future.FromString(record.value).callBack for records in came.values() for record in records]
    return values


async def sum_of_ends(bootstrap: str, topic: str) -> int:
    """Return how many offsets the three partitions of *topic* have."""
    return sum([await end_of(bootstrap, topic, number) for number in range(3)])


async def test_a_door_believes_no_coordinator_that_is_cut_off(
    cluster: PartableCluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells an offset of before, from which on all was passed on already; here each door asks it first."""
    topics, theirs, group = await made_for_a_door(cluster, prefix)
    await until_in_sync(cluster)

    async def committed(node: int) -> list[int]:
        answer = await ask(cluster, node, CommittedOffsets(group, theirs, 0))
        return [offset for _, partitions, _ in answer.topics for _, offset, *_ in partitions]

    async with door(cluster.bootstrap, prefix):
        await write_schedules(cluster.bootstrap, theirs, range(10))
        assert len(await passed_on(cluster.bootstrap, topics.requests, 10)) == 10

    async with asyncio.timeout(LIMIT_S):
        # Another one may have become it meanwhile, on a busy machine; a broker has to be asked.
        while await committed(liar := await coordinator_of(cluster, group, 1)) != [10]:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    others = [node for node in cluster.nodes if node != liar]
    reached = ",".join(address(cluster, node) for node in others)
    await cluster.hold(liar)
    for name in (topics.requests, topics.rejected, topics.doors, theirs):
        await until_replaced(cluster, liar, name)
    async with asyncio.timeout(LIMIT_S):
        while await coordinator_of(cluster, group, others[0]) == liar:  # noqa: ASYNC110  # a broker has to be asked
            await asyncio.sleep(0.2)
    # A door that joins its group at the broker that is cut off ends the lie: that one then waits for its replicas, and
    # tells offsets no more. So the doors from here on begin at the others, which do not name it.
    async with door(reached, prefix):
        await write_schedules(reached, theirs, range(10, 20))
        assert len(await passed_on(reached, topics.requests, 20)) == 20

    assert await committed(liar) == [10]
    ask_any, misled = Cluster.ask_any, Counter[Cluster]()

    async def ask_the_liar_first(self: Cluster, request: Request[Any]) -> Any:
        is_of_group = isinstance(request, FindCoordinatorRequest) and vars(request)["_coordinator_key"] == group
        # Once for each partition.
        if not is_of_group or misled[self] == 3:
            return await ask_any(self, request)
        misled[self] += 1
        answer = await ask(cluster, liar, request)
        assert answer.coordinator_id == liar
        return answer

    monkeypatch.setattr(Cluster, "ask_any", ask_the_liar_first)
    async with door(reached, prefix):
        await write_schedules(reached, theirs, range(20, 30))
        passed = await passed_on(reached, topics.requests, 30)
        assert [*misled.values()] == [3]
        assert Counter(passed) == {b"%d" % number: 1 for number in range(30)}


async def test_a_door_passes_each_record_on_once_while_the_coordinator_of_its_group_freezes(
    cluster: PartableCluster, prefix: str
) -> None:
    """And when it wakes up and goes on with earlier requests."""
    topics, theirs, group = await made_for_a_door(cluster, prefix)
    frozen = await coordinator_of(cluster, group, 1)
    await until_in_sync(cluster)
    others = ",".join(address(cluster, node) for node in cluster.nodes if node != frozen)
    async with door(cluster.bootstrap, prefix):
        await write_schedules(cluster.bootstrap, theirs, range(10))
        assert len(await passed_on(cluster.bootstrap, topics.requests, 10)) == 10
        before = await sum_of_ends(cluster.bootstrap, topics.requests)
        writing = asyncio.create_task(write_schedules(cluster.bootstrap, theirs, range(10, 300)))
        async with asyncio.timeout(LIMIT_S):
            while await sum_of_ends(cluster.bootstrap, topics.requests) == before:  # noqa: ASYNC110  # a broker has to be asked
                await asyncio.sleep(0.01)
        # In the middle of it.
        cluster.nodes[frozen].pause()
        await writing
        assert len(await passed_on(others, topics.requests, 300)) == 300
        cluster.nodes[frozen].resume()
        await until_in_sync(cluster)
        await write_schedules(cluster.bootstrap, theirs, range(300, 310))
        passed = await passed_on(cluster.bootstrap, topics.requests, 310)
    assert Counter(passed) == {b"%d" % number: 1 for number in range(310)}


# --- the service on them ----------------------------------------------------------------------------------------------

# Shortened runs of faults of `make faults`. Each takes the better part of a minute, so `make test` has one of them.
_FAULTS = [
    "kill-leaders",
    *(
        pytest.param(n, marks=pytest.mark.chaos)
        for n in ("restart-brokers", "lose-topic", "lose-one-of-two", "freeze-60", "part")
    ),
]


@pytest.mark.parametrize("name", _FAULTS)
async def test_a_fault_of_one_of_three_brokers_neither_loses_nor_doubles(
    name: str, cluster: PartableCluster, prefix: str, tmp_path: Path
) -> None:
    """An oracle that knows nothing but the log of requests judges it: see tests/campaign."""
    outcome = await run(FAULTS[name], cluster, prefix, tmp_path, rate=300, seed=1, short=True)
    assert outcome.problems() == []


def wants_ticks_alone(body: str) -> bool:
    """Tell from /readyz whether nothing is missing but ticks; partitions tell so once they have waited for long."""
    return body.startswith("no tick") or (
        bool(body) and all("waits for a tick" in line or line.startswith("no tick") for line in body.splitlines())
    )


async def test_a_worker_starts_while_a_broker_is_frozen(cluster: PartableCluster, prefix: str, tmp_path: Path) -> None:
    """The first one of those that it is given, and before the others know that it is away."""
    async with Service(cluster.bootstrap, prefix, tmp_path) as service:
        await until_in_sync(cluster)
        cluster.nodes[1].pause()
        # A client draws the broker that it asks first: with another name for it, every second one draws the frozen one.
        service.bootstrap = f"{cluster.bootstrap},localhost:{address(cluster, 1).split(':')[1]}"
        try:
            worker = await service.start("worker")
            # On a busy machine it takes the others a minute to lead in its place.
            await worker.until("/readyz", lambda _, body: wants_ticks_alone(body))
        finally:
            cluster.nodes[1].resume()
    await until_in_sync(cluster)


async def test_a_worker_that_waits_for_its_group_heeds_sigterm(
    cluster: PartableCluster, prefix: str, tmp_path: Path
) -> None:
    async with Service(cluster.bootstrap, prefix, tmp_path) as service:
        await until_in_sync(cluster)
        cluster.nodes[1].pause()
        try:
            worker = await service.start("worker")
            await worker.until("/readyz", lambda _, body: body.startswith("has not joined"))
            await worker.child.stop(LIMIT_S)
        finally:
            cluster.nodes[1].resume()
        assert worker.child.returncode == 0, worker.child.last_words()
    await until_in_sync(cluster)


async def test_a_client_publishes_and_is_answered_while_a_broker_is_frozen(
    cluster: PartableCluster, prefix: str, tmp_path: Path
) -> None:
    """One that knows the broker, which leads part of `timer-request` and of `timer-reply`, and one that starts then."""
    # On a busy machine it takes the others a minute to lead in its place.
    limit_s = LIMIT_S
    async with (
        Service(cluster.bootstrap, prefix, tmp_path) as service,
        TimerClient(cluster.bootstrap, topic_prefix=prefix, timeout_s=limit_s) as client,
    ):
        await until_in_sync(cluster)
        for name in ("oscillator", "worker"):
            await service.start(name)
        in_an_hour, names = time.time() + 3600, [str(number) for number in range(40)]
        create = partial(client.create, when=in_an_hour, topic=service.callbacks, timeout_s=limit_s)
        assert {(await each).outcome for each in asyncio.as_completed(map(create, names))} == {Outcome.ACCEPTED}
        cluster.nodes[1].pause()
        try:
            answers = await asyncio.gather(*(client.cancel(name, timeout_s=limit_s) for name in names))
            async with TimerClient(cluster.bootstrap, topic_prefix=prefix, timeout_s=limit_s) as other:
                timers = [other.at(in_an_hour, topic=service.callbacks, timer_id=name) for name in names]
                published = await asyncio.gather(*timers)
        finally:
            cluster.nodes[1].resume()
        assert {answer.outcome for answer in answers} == {Outcome.CANCELLED}
        assert {timer.partition for timer in published} == set(range(service.partitions))
    await until_in_sync(cluster)


async def test_status_tells_how_all_partitions_stand_while_a_broker_is_frozen(
    cluster: PartableCluster, prefix: str
) -> None:
    await topics.create(Kafka(cluster.bootstrap), prefix, 6)
    await until_in_sync(cluster)
    node = cluster.nodes[2]
    node.pause()
    try:
        await until_replaced(cluster, 2, prefix + "timer-sealed")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kafka_timers", "status", "--json"),
            *("--bootstrap", cluster.bootstrap, "--topic-prefix", prefix, "--group", prefix + "workers"),
            *("--allowed-topics", f"{prefix}*"),
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(LIMIT_S):
            output, _ = await process.communicate()
    finally:
        node.resume()
    told = json.loads(output)
    assert [row["partition"] for row in told["partitions"]] == list(range(6))
    assert [problem[:11] for problem in told["problems"]] == ["no tick yet", "no worker i"]
    await until_in_sync(cluster)


# --- an unclean election ----------------------------------------------------------------------------------------------


@pytest.mark.chaos
async def test_requests_behind_those_that_an_unclean_election_has_lost_fire_once_people_have_said_so(
    cluster: PartableCluster, prefix: str, tmp_path: Path
) -> None:
    """They have the offsets of the lost ones, which had fired in part, and are far more than these."""
    requests = prefix + "timer-request"
    # A replica may lead that was not in sync.
    cuttable = {
        "unclean.leader.election.enable": "true",
        "min.insync.replicas": "1",
        "message.timestamp.type": "LogAppendTime",
    }
    await make_topics(cluster.bootstrap, NewTopic(requests, -1, -1, {0: [1, 2]}, topic_configs=cuttable))
    async with Service(cluster.bootstrap, prefix, tmp_path, partitions=1) as service:
        # One that takes callbacks also while one of the brokers is away.
        service.callbacks = prefix + "taken"
        await make_topic(cluster.bootstrap, service.callbacks, 1, {"message.timestamp.type": "LogAppendTime"}, 3)
        await until_in_sync(cluster)
        for name in ("oscillator", "worker"):
            worker = await service.start(name)
        kept, lost, new = ([f"{what}-{number}" for number in range(20)] for what in ("kept", "lost", "new"))
        second = int(time.time())
        await service.requests(second, kept)
        assert sorted(await service.callback_names(kept)) == sorted(kept)
        await cluster.nodes[2].kill()
        await until_told(cluster, 3, requests, lambda told: told.in_sync == {1})
        await service.requests(second, lost)
        assert sorted(await service.callback_names(kept + lost)) == sorted(kept + lost)
        await service.until_sealed(int(time.time()))
        await cluster.nodes[1].kill()
        await cluster.nodes[2].start()
        await until_told(cluster, 2, requests, lambda told: told.leader == 2)
        await service.requests(second, new * 3)
        told = await worker.until("/readyz", lambda _, body: "has lost its records from offset" in body)
        assert "kafka-timers log show" in told
        where = ["--bootstrap", address(cluster, 2), "--topic-prefix", prefix]
        code, said, _ = await command_ended("log", "show", *where)
        assert code == 1
        assert "it has lost its records from offset" in said
        assert sorted(await service.callback_names(kept + lost)) == sorted(kept + lost)
        code, said, errors = await command_ended("log", "same", *where, "--yes")
        assert code == 0, errors
        assert "20 requests count as fired, 60 are due and fire at once" in said
        await worker.until("/readyz", lambda status, _: status == 200)
        everything = kept + lost + new * 3
        assert Counter(await service.callback_names(everything)) == Counter(everything)


async def until_told(cluster: PartableCluster, node: int, topic: str, wanted: Callable[[Told], bool]) -> None:
    """Wait until broker *node* tells of partition 0 of *topic* what is *wanted*."""
    async with asyncio.timeout(LIMIT_S):
        while not wanted((await partitions_as_told_by(address(cluster, node), topic))[topic, 0]):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
