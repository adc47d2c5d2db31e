"""Brokers of another make, which know fewer versions of Kafka's requests and fewer settings."""

import asyncio
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from commands import ended
from kafka_versions import KAFKA_3_9, classpath_of
from limited import ANY, CONFLUENT_CLOUD, MSK_SERVERLESS, REDPANDA_2024, REDPANDA_2025, TOO_OLD, limited
from patience import LIMIT_S
from service import Service

from kafka_timers.client.timer_client import TimerClient
from kafka_timers.dev.broker import EmbeddedKafka
from kafka_timers.errors import KafkaSetupError


async def timers_fire_once(address: str, folder: Path) -> None:
    """Have timers fire exactly once across a kill, and one be cancelled; nothing of ours logs an error."""
    async with (
        Service(address, "t-", folder, partitions=2) as service,
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
        # aiokafka's own lines may tell of a machine that stalls.
        assert "ERROR kafka_timers" not in again.child.last_words()


@pytest.mark.parametrize("versions", [REDPANDA_2024, REDPANDA_2025], ids=["without ids", "with ids"])
async def test_timers_fire_once_on_brokers_that_know_older_versions(
    needs_java: None, tmp_path: Path, versions: Mapping[int, int]
) -> None:
    async with limited(tmp_path / "kafka", versions) as (address, relay, _):
        await timers_fire_once(address, tmp_path)
        assert relay.refused == []


async def test_timers_fire_once_on_an_older_kafka(needs_java: None, tmp_path: Path) -> None:
    """3.9 is the last that knows only the first protocol of transactions; `make brokers` has more versions."""
    try:
        classpath = await classpath_of(KAFKA_3_9)
    except KafkaSetupError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
    async with EmbeddedKafka(tmp_path / "kafka", classpath=classpath) as kafka:
        await timers_fire_once(kafka.bootstrap, tmp_path)


async def test_a_broker_that_is_too_old_is_named_with_what_it_lacks(needs_java: None, tmp_path: Path) -> None:
    lacks = "is too old, or lacks a part of Kafka: it knows Metadata in versions 0 to 6 only, and version 8 is needed"
    async with limited(tmp_path / "kafka", TOO_OLD) as (address, _, _):
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
    async with limited(tmp_path / "kafka", ANY, settings) as (address, _, _):
        where = ("--bootstrap", address, "--topic-prefix", "t-")
        code, created, said = await ended("topics", "create", "--partitions", "2", *where)
        assert (code, created.count("created t-")) == (0, 8)
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
    async with limited(tmp_path / "kafka", ANY, ["min.cleanable.dirty.ratio", "retention.bytes"]) as (address, _, _):
        code, _, said = await ended("topics", "create", "--bootstrap", address)
        refused = "timer-request: INVALID_CONFIG retention.bytes is not supported"
        assert (code, said) == (1, f"Error: topics that cannot be created: {refused}\n")
        code, told, _ = await ended("topics", "check", "--bootstrap", address)
        assert (code, told.startswith("topic timer-request is missing: "), told.count("\n")) == (1, True, 1)
