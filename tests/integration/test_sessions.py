"""A broker ends the session of a login (KIP-368); who is connected logs in again before, on the same connection."""

import asyncio
import logging
from collections.abc import AsyncIterator

import psutil
import pytest
from brokers import make_topic, short_sessions

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.fetching import Fetcher
from kafka_timers.broker.internals import Member
from kafka_timers.broker.requests import Metadata

# Brokers take a login once a second at most.
_SESSION_S = 2.0


@pytest.fixture(scope="module")
async def kafka(needs_java: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Kafka]:
    """A broker with short sessions, which has the topic `t`."""
    async with short_sessions(tmp_path_factory.mktemp("kafka"), int(_SESSION_S * 1000)) as (broker, address, login):
        await make_topic(broker.bootstrap, "t")
        yield Kafka(address, login)


def ports_to(kafka: Kafka) -> set[int]:
    """Return the own ports of this process's connections to the broker."""
    port = int(kafka.bootstrap.rpartition(":")[2])
    made = [each for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_ESTABLISHED]
    return {each.laddr.port for each in made if each.raddr.port == port}


async def test_questions_are_answered_on_the_same_connections_for_longer_than_a_session(kafka: Kafka) -> None:
    """Those one after the other, those that wait at the broker, and several at once."""

    async def ask(count: int) -> None:
        for _ in range(count):
            await asyncio.gather(*(cluster.ask_any(Metadata(["t"])) for _ in range(3)))
            await asyncio.sleep(_SESSION_S / 50)

    async def read(count: int) -> None:
        fetcher = Fetcher(cluster, "t", "reading")
        for _ in range(count):
            assert set(await fetcher.fetch(node, {0: 0}, int(_SESSION_S * 200))) == {0}

    async with Cluster.open(kafka) as cluster:
        await cluster.look_up(["t"])
        node = cluster.any_node()
        await read(1)
        before = ports_to(kafka)
        await asyncio.gather(ask(70), read(9))
        assert ports_to(kafka) == before


async def test_a_connection_that_nobody_used_while_its_session_ended_is_good_for_the_next_question(
    kafka: Kafka,
) -> None:
    async with Cluster.open(kafka) as cluster:
        before = ports_to(kafka)
        await asyncio.sleep(_SESSION_S * 1.2)
        await cluster.refresh()
        assert ports_to(kafka) == before


async def test_a_member_stays_in_its_group_and_logs_nothing_for_longer_than_a_session(
    kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    options = kafka.client_options() | {"heartbeat_interval_ms": 100, "metadata_max_age_ms": 100}
    member = Member("t", group_id="g", enable_auto_commit=True, auto_commit_interval_ms=100, **options)
    await member.start()
    try:
        caplog.clear()
        before = ports_to(kafka)
        await asyncio.sleep(_SESSION_S * 2)
        assert [record for record in caplog.records if record.levelno > logging.INFO] == []
        assert member.assignment()
        assert ports_to(kafka) == before
    finally:
        await member.stop()
