"""Three brokers that a test can break: what `EmbeddedCluster` promises, and what the service does on them."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from brokers import make_topic, partitions_as_told_by, until_in_sync
from campaign.faults import FAULTS
from campaign.run import run

from kafka_timers.broker import topics
from kafka_timers.broker.connection import Kafka
from kafka_timers.dev.cluster import EmbeddedCluster

LIMIT_S = 60


def address(cluster: EmbeddedCluster, node: int) -> str:
    """Return where clients reach one of the brokers."""
    return cluster.bootstrap.split(",")[node - 1]


async def until_led_by_others(cluster: EmbeddedCluster, node: int, topic: str) -> None:
    """Wait until another broker tells that *node* leads nothing of *topic*."""
    other = address(cluster, node % 3 + 1)
    async with asyncio.timeout(LIMIT_S):
        # A broker has to be asked.
        while any(told.leader == node for told in (await partitions_as_told_by(other, topic)).values()):  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def write(bootstrap: str, topic: str, partition: int) -> None:
    """Write a record that all replicas in sync have acknowledged."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        await producer.send_and_wait(topic, b"x", partition=partition)


@pytest.mark.parametrize("how", ["hold", "cut"])
async def test_a_broker_parted_from_the_others_is_reached_by_clients_and_knows_nothing(
    cluster: EmbeddedCluster, prefix: str, how: str
) -> None:
    """It goes on telling that it leads, when the others have long replaced it."""
    topic = prefix + "x"
    await make_topic(cluster.bootstrap, topic, 3, replicas=3)
    await until_in_sync(cluster)
    led = [
        number
        for (_, number), told in (await partitions_as_told_by(address(cluster, 2), topic)).items()
        if told.leader == 1
    ]
    assert led
    await getattr(cluster, how)(1)
    await until_led_by_others(cluster, 1, topic)
    told = await partitions_as_told_by(address(cluster, 1), topic)
    assert {told[topic, number].leader for number in led} == {1}
    told = await partitions_as_told_by(address(cluster, 2), topic)
    assert not any(1 in told[topic, number].in_sync for number in led)
    await cluster.mend()
    await until_in_sync(cluster)


async def test_a_broker_that_clients_do_not_reach_stays_in_the_cluster(cluster: EmbeddedCluster, prefix: str) -> None:
    """What another one leads is still replicated to it, and it is asked in vain."""
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


async def test_records_are_taken_while_a_broker_is_killed_and_it_catches_up(
    cluster: EmbeddedCluster, prefix: str
) -> None:
    """Two of three are enough to write."""
    topic = prefix + "x"
    await make_topic(cluster.bootstrap, topic, 3, replicas=3)
    for number in range(3):
        await write(cluster.bootstrap, topic, number)
    await cluster.nodes[1].kill()
    await until_led_by_others(cluster, 1, topic)
    for number in range(3):
        await write(address(cluster, 2), topic, number)
    await cluster.nodes[1].start()
    await until_in_sync(cluster)


# --- the service on them: one shortened run of each fault of `make chaos` that needs three brokers --------------------


# The coordinator of transactions freezes in `make chaos` alone, since each of these takes the better part of a minute.
@pytest.mark.parametrize("name", ["restart-brokers", "kill-leaders", "lose-topic", "freeze-60", "part"])
async def test_a_fault_of_one_of_three_brokers_neither_loses_nor_doubles(
    name: str, cluster: EmbeddedCluster, prefix: str, tmp_path: Path
) -> None:
    """An oracle that knows nothing but the log of requests judges it: see tests/campaign."""
    outcome = await run(FAULTS[name], cluster, prefix, tmp_path, rate=300, seed=1, short=True)
    assert outcome.problems() == []


async def test_status_tells_how_all_partitions_stand_while_a_broker_is_frozen(
    cluster: EmbeddedCluster, prefix: str
) -> None:
    await topics.create(Kafka(cluster.bootstrap), prefix, 6)
    await until_in_sync(cluster)
    node = cluster.nodes[2]
    node.pause()
    try:
        await until_led_by_others(cluster, 2, prefix + "timer-sealed")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kafka_timers", "status", "--json"),
            *("--bootstrap", cluster.bootstrap, "--topic-prefix", prefix, "--group", prefix + "workers"),
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
