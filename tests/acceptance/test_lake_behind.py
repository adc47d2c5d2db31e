"""A lake that does not promote: everything that a user asks says so, until it does again."""

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

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
TIMERS = [f"far-{number}" for number in range(200)]


@pytest.fixture
async def service(bootstrap: str, prefix: str, tmp_path: Path):
    """A service whose requests have the append times that their senders give them."""
    service = Service(bootstrap, prefix, tmp_path)
    configs = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
    await make_topic(bootstrap, service.topics.requests, service.partitions, configs)
    async with service:
        yield service


def overdue_s(said: str) -> int:
    """Return the seconds by which a parked timer is overdue, as *said*; 0 if it is not."""
    found = re.search(r"is parked, and overdue by ([\d,]+) s: ", said)
    return int(found[1].replace(",", "")) if found else 0


async def test_it_is_told_while_promote_is_away_and_all_is_well_once_it_is_back(
    service: Service, tmp_path: Path, spark: SparkSession
) -> None:
    where = ["--bootstrap", service.bootstrap, "--topic-prefix", service.prefix]

    async def asked(*command: str) -> tuple[int, str]:
        code, said, errors = await ended(*command, *where)
        return code, " ".join((said + errors).split())

    await service.start("oscillator")
    worker = await service.firing("--horizon-s", str(HORIZON_S), "--query-port", str(free_port()))
    console = await service.start("console", "--group", service.prefix + "workers")
    await console.until("/livez", lambda status, _: status == 200)

    async def shown(path: str) -> dict[str, Any]:
        # It gives up after 3 s, on a machine with other work too.
        return json.loads(await console.until(path, lambda status, _: status == 200))

    now_s = int(time.time())
    await service.until_sealed(now_s)
    assert "all is well" in (await service.status())[1]
    assert (await asked("list"))[0] == 0
    assert (await shown("/v1/timers"))["lake"] == ""

    # Far when they were asked for, five horizons ago.
    for timer_id in TIMERS:
        future = Future(callBackTopic=service.callbacks, callBack=timer_id.encode(), timerId=timer_id)
        await service.producer.send_and_wait(
            service.topics.requests,
            future.SerializeToString(),
            key=b"%d" % (now_s - OVERDUE_S),
            partition=partition_of(timer_id, service.partitions),
            timestamp_ms=(now_s - 5 * HORIZON_S) * 1000,
        )
    behind = "the lake has promoted nothing yet, "
    assert (await worker.until("/readyz", lambda status, body: status == 200 and behind in body)).startswith("ok\n")
    assert worker.metric("kafka_timers_lake_behind_seconds") >= HORIZON_S
    assert "the lake has promoted nothing yet" in worker.child.last_words()
    code, said = await service.status()
    assert (code, behind in said, f"how many of {len(TIMERS)} ever left to it" in said) == (1, True, True)
    code, said = await asked("find", TIMERS[0])
    assert (code, overdue_s(said) >= OVERDUE_S, behind in said) == (1, True, True)
    for command in ("list", "next", "ahead"):
        code, said = await asked(command)
        assert (code, behind in said) == (1, True)
    for path in ("/v1/timers", "/v1/ahead", "/v1/topics"):
        assert behind in (await shown(path))["lake"]
    assert overdue_s((await shown(f"/v1/timers/{TIMERS[0]}"))["problem"]) >= OVERDUE_S

    settings = LakeSettings(
        bootstrap=service.bootstrap, topic_prefix=service.prefix, lake=str(tmp_path / "lake"), horizon_s=HORIZON_S
    )
    land = lambda: land_once(spark, settings)  # noqa: E731
    promoter = Promoter(spark, settings, HostClock(), bucket_s=10, wait_s=60, land=land)
    # All of them are late.
    assert await asyncio.to_thread(promoter.catch_up) == len(TIMERS)
    assert sorted(await service.callback_names(TIMERS)) == sorted(TIMERS)
    await worker.until("/readyz", lambda status, body: (status, body) == (200, "ok"))
    assert worker.metric("kafka_timers_lake_behind_seconds") == 0
    assert "all is well" in (await service.status())[1]
    code, said = await asked("find", TIMERS[0])
    assert (code, "fired" in said) == (0, True)
    assert (await asked("list"))[0] == 0


async def test_a_lake_that_has_stood_still_is_told_with_the_second_that_it_has_come_to(service: Service) -> None:
    await service.start("oscillator")
    now_s = int(time.time())
    await tell_closed(Kafka(service.bootstrap), service.prefix, now_s - 60, {})
    worker = await service.firing("--horizon-s", str(HORIZON_S))
    await worker.until("/readyz", lambda status, body: status == 200 and "those due in the last " in body)
    await service.until_sealed(now_s)
    code, said = await service.status()
    assert (code, "the lake has promoted timers up to" in said) == (1, True)
    await tell_closed(Kafka(service.bootstrap), service.prefix, int(time.time()) + HORIZON_S, {})
    assert "all is well" in (await service.status())[1]
