"""Brokers of another make, which know fewer versions of Kafka's requests and fewer settings."""

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from commands import ended
from limited import ANY, CONFLUENT_CLOUD, MSK_SERVERLESS, REDPANDA_2024, REDPANDA_2025, TOO_OLD, LimitedRelay
from patience import LIMIT_S
from service import Service

from kafka_timers.client.timer_client import TimerClient
from kafka_timers.dev.broker import HOST, EmbeddedKafka, free_port


@asynccontextmanager
async def limited(
    folder: Path, versions: Mapping[int, int], settings: Collection[str] = ()
) -> AsyncIterator[tuple[str, LimitedRelay]]:
    """Yield the address of a broker with these limits, and the relay before it."""
    own, told = free_port(), free_port(inner=True)
    # Among themselves, brokers do not go through it.
    broker = EmbeddedKafka(folder, own)
    relay = LimitedRelay((HOST, told), (HOST, behind := free_port(inner=True)), versions, settings)
    inner = free_port(inner=True)
    broker.properties = {
        "listeners": f"PLAINTEXT://{HOST}:{own},LIMITED://{HOST}:{behind},CONTROLLER://{HOST}:{inner}",
        "controller.quorum.bootstrap.servers": f"{HOST}:{inner}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{own},LIMITED://{HOST}:{told}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LIMITED:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }
    async with broker:
        await relay.flow()
        try:
            yield f"{HOST}:{told}", relay
        finally:
            await relay.cut()


@pytest.mark.parametrize("versions", [REDPANDA_2024, REDPANDA_2025], ids=["without ids", "with ids"])
async def test_timers_fire_once_on_brokers_that_know_older_versions(
    needs_java: None, tmp_path: Path, versions: Mapping[int, int]
) -> None:
    """Exactly once, across a kill, with answers, a question and a schedule."""
    async with (
        limited(tmp_path / "kafka", versions) as (address, relay),
        Service(address, "t-", tmp_path, partitions=2) as service,
        TimerClient(address, topic_prefix="t-") as client,
    ):
        await service.start("oscillator")
        worker = await service.firing()
        due, names = int(time.time()) + 3, [str(number) for number in range(400)]
        await service.requests(due, names)
        far = await client.after(3600, topic=service.callbacks, key="k", value=b"v", timer_id="far")
        worker.child.kill()
        await worker.child.wait()
        again = await service.firing()
        assert (await client.cancel("far")).request == far.request
        came = await service.read_all(service.callbacks, len(names))
        assert sorted(record.value.decode() for record in came) == sorted(names)
        code, said = await service.status()
        assert code == 0, said
        assert (relay.refused, "ERROR" in again.child.last_words()) == ([], False)


async def test_a_broker_that_is_too_old_is_named_with_what_it_lacks(needs_java: None, tmp_path: Path) -> None:
    lacks = "is too old, or lacks a part of Kafka: it knows Metadata in versions 0 to 6 only, and version 8 is needed"
    async with limited(tmp_path / "kafka", TOO_OLD) as (address, _):
        for words in (["status"], ["topics", "create"], ["list"], ["find", "a"], ["schedule", "list"]):
            code, _, said = await ended(*words, "--bootstrap", address)
            assert (code, said.count("\n")) == (1, 1)
            assert said.startswith(f"Error: the broker at {address} {lacks}")
        service = Service(address, "t-", tmp_path)
        try:
            for name in ("oscillator", "worker", "planner"):
                process = await service.start(name)
                async with asyncio.timeout(LIMIT_S):
                    while lacks not in process.child.last_words():  # noqa: ASYNC110  # a file tells nobody
                        await asyncio.sleep(0.05)
                assert "Traceback" not in process.child.last_words()
            console = await service.start("console")
            await console.until("/v1/status", lambda status, said: status == 503 and lacks in said)
        finally:
            await service.__aexit__()


@pytest.mark.parametrize("settings", [MSK_SERVERLESS, CONFLUENT_CLOUD], ids=["MSK Serverless", "Confluent Cloud"])
async def test_topics_are_created_without_advice_that_brokers_refuse(
    needs_java: None, tmp_path: Path, settings: Collection[str]
) -> None:
    """It is said once what that costs, nothing complains of it later, and timers fire."""
    async with limited(tmp_path / "kafka", ANY, settings) as (address, _):
        where = ("--bootstrap", address, "--topic-prefix", "t-")
        code, created, said = await ended("topics", "create", "--partitions", "2", *where)
        assert (code, created.count("created t-")) == (0, 7)
        for line in said.splitlines():
            assert f"because a broker says INVALID_CONFIG {settings[0]} is not supported" in line or len(settings) > 1
            assert " is created without " in line
            assert "So " in line
        assert "t-timer-planned is created without segment.ms=3600000, min.cleanable.dirty.ratio=0.1" in said
        code, told, _ = await ended("topics", "check", *where)
        assert (code, told) == (0, "all topics are as they should be\n")
        async with Service(address, "t-", tmp_path, partitions=2) as service:
            await service.start("oscillator")
            await service.firing()
            await service.requests(int(time.time()) + 1, ["a", "b"])
            assert sorted(await service.callback_names(["a", "b"])) == ["a", "b"]


async def test_a_setting_that_cannot_be_left_out_stops_no_other_topic(needs_java: None, tmp_path: Path) -> None:
    async with limited(tmp_path / "kafka", ANY, ["min.cleanable.dirty.ratio", "retention.bytes"]) as (address, _):
        code, _, said = await ended("topics", "create", "--bootstrap", address)
        refused = "timer-request: INVALID_CONFIG retention.bytes is not supported"
        assert (code, said) == (1, f"Error: topics that cannot be created: {refused}\n")
        code, told, _ = await ended("topics", "check", "--bootstrap", address)
        assert (code, told.startswith("topic timer-request is missing: "), told.count("\n")) == (1, True, 1)
