"""A lake that does not promote: everything that a user asks says so, until it does again."""

import asyncio
import time
from pathlib import Path

import pytest
from brokers import make_topic
from commands import ended
from pyspark.sql import SparkSession
from service import Service

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.lake_group import tell_closed
from kafka_timers.clock import HostClock
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Future
from kafka_timers.dev.broker import free_port
from kafka_timers.lake.land import land_once
from kafka_timers.lake.promote import Promoter
from kafka_timers.settings import LakeSettings

# The worker asks for the progress each 12 s.
HORIZON_S = 240
OVERDUE_S = 300
TIMER_ID = "far"


@pytest.fixture
async def service(bootstrap: str, prefix: str, tmp_path: Path):
    """A service whose requests have the append times that their senders give them."""
    service = Service(bootstrap, prefix, tmp_path)
    configs = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
    await make_topic(bootstrap, service.topics.requests, service.partitions, configs)
    async with service:
        yield service


async def test_it_is_told_while_promote_is_away_and_all_is_well_once_it_is_back(
    service: Service, tmp_path: Path, spark: SparkSession
) -> None:
    where = ["--bootstrap", service.bootstrap, "--topic-prefix", service.prefix]

    async def asked(*command: str) -> tuple[int, str]:
        code, said, errors = await ended(*command, *where)
        return code, " ".join((said + errors).split())

    await service.start("oscillator")
    worker = await service.firing("--horizon-s", str(HORIZON_S), "--query-port", str(free_port()))
    assert "all is well" in (await service.status())[1]
    assert (await asked("list"))[0] == 0

    # Far when it was asked for, twenty minutes ago.
    now_s = int(time.time())
    future = Future(callBackTopic=service.callbacks, callBack=b"v", timerId=TIMER_ID)
    await service.producer.send_and_wait(
        service.topics.requests,
        future.SerializeToString(),
        key=b"%d" % (now_s - OVERDUE_S),
        partition=partition_of(TIMER_ID, service.partitions),
        timestamp_ms=(now_s - 5 * HORIZON_S) * 1000,
    )
    behind = "the lake has promoted nothing yet, "
    assert (await worker.until("/readyz", lambda status, body: status == 200 and behind in body)).startswith("ok\n")
    assert worker.metric("kafka_timers_lake_behind_seconds") >= HORIZON_S
    assert "the lake has promoted nothing yet" in worker.child.last_words()
    code, said = await service.status()
    assert (code, behind in said, "how many of 1 ever left to it" in said) == (1, True, True)
    code, said = await asked("find", TIMER_ID)
    assert (code, "is parked, and overdue by 3" in said, behind in said) == (1, True, True)
    for command in ("list", "next", "ahead"):
        code, said = await asked(command)
        assert (code, behind in said) == (1, True)

    settings = LakeSettings(
        bootstrap=service.bootstrap, topic_prefix=service.prefix, lake=str(tmp_path / "lake"), horizon_s=HORIZON_S
    )
    land = lambda: land_once(spark, settings)  # noqa: E731
    promoter = Promoter(spark, settings, HostClock(), bucket_s=60, wait_s=60, land=land)
    # The one timer is late.
    assert await asyncio.to_thread(promoter.catch_up) == 1
    assert await service.callback_names(["v"]) == ["v"]
    await worker.until("/readyz", lambda status, body: (status, body) == (200, "ok"))
    assert worker.metric("kafka_timers_lake_behind_seconds") == 0
    assert "all is well" in (await service.status())[1]
    code, said = await asked("find", TIMER_ID)
    assert (code, "fired" in said) == (0, True)
    assert (await asked("list"))[0] == 0


async def test_a_lake_that_has_stood_still_is_told_with_the_second_that_it_has_come_to(service: Service) -> None:
    await service.start("oscillator")
    now_s = int(time.time())
    await tell_closed(Kafka(service.bootstrap), service.prefix, now_s - 60, {})
    worker = await service.firing("--horizon-s", str(HORIZON_S))
    await worker.until("/readyz", lambda status, body: status == 200 and "those due in the last 6" in body)
    await service.until_sealed(now_s)
    code, said = await service.status()
    assert (code, "the lake has promoted timers up to" in said) == (1, True)
    await tell_closed(Kafka(service.bootstrap), service.prefix, now_s + HORIZON_S, {})
    assert "all is well" in (await service.status())[1]
