"""A service per test or per file, and three brokers for those that break them."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from brokers import make_topic, until_in_sync
from consoles import console as console
from forks import Forks
from partable import PartableCluster
from service import Service
from service import service as service

from kafka_timers.dev.broker import EmbeddedKafka


@pytest.fixture(scope="session", autouse=True)
def forks() -> None:
    """Have processes start at once."""
    Service.forks = Forks()


@pytest.fixture(scope="session")
async def shared_cluster(needs_java: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PartableCluster]:
    """The three brokers behind `cluster`; all tests that use it are in one file, so that one process starts them."""
    brokers = PartableCluster(tmp_path_factory.mktemp("cluster"), client_relay=True)
    try:
        await brokers.start()
        yield brokers
    finally:
        await brokers.kill()


@pytest.fixture
async def cluster(shared_cluster: PartableCluster) -> AsyncIterator[PartableCluster]:
    """Three brokers that the test may stop, freeze and part; they are made whole before the next one."""
    yield shared_cluster
    await shared_cluster.mend()
    for node in shared_cluster.nodes.values():
        node.resume()
    await asyncio.gather(*(node.start() for node in shared_cluster.nodes.values()))
    await until_in_sync(shared_cluster)


@pytest.fixture(scope="module")
async def plain_service(needs_java: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """
    A service whose topics have the names that docs and examples have, on a broker of its own; it ticks and fires.

    As with `kafka-timers dev`, plain records on the topic `timers` ask for timers.
    """
    folder = tmp_path_factory.mktemp("plain")
    async with EmbeddedKafka(folder / "kafka") as kafka, Service(kafka.bootstrap, "", folder) as opened:
        await make_topic(kafka.bootstrap, "callbacks-dead")
        await make_topic(kafka.bootstrap, "timers", opened.partitions, {"message.timestamp.type": "LogAppendTime"})
        await opened.start("oscillator")
        await opened.firing("--door", "headers=timers")
        yield opened
