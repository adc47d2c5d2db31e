"""An auditor who has kept the published seals sees that a day was changed, by the seals of a real worker."""

import asyncio
import time
from pathlib import Path

from brokers import set_topic
from click.testing import CliRunner
from pyspark.sql import SparkSession
from service import Service

from kafka_timers.cli.program import program
from kafka_timers.core.chain import days_in
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Future
from kafka_timers.lake.land import land_once
from kafka_timers.lake.publish import changed_days, unpublished
from kafka_timers.lake.schema import SEALS
from kafka_timers.lake.tables import name_of, read, root_of
from kafka_timers.settings import LakeSettings

DAY_S = 86_400
# All times are of days gone by: a day is published when the next one has begun.
MIDNIGHT_S = (int(time.time()) // DAY_S - 1) * DAY_S
FIRST, LAST = MIDNIGHT_S - 100, MIDNIGHT_S + 2


async def ask(service: Service, before_s: int, due_s: int | None, name: str, **more: bool) -> None:
    """Ask for a timer, or to be rid of it, that many seconds before midnight; due in seconds behind it."""
    future = Future(callBackTopic=service.callbacks, callBack=name.encode(), timerId=name, **more)
    await service.producer.send_and_wait(
        service.topics.requests,
        future.SerializeToString(),
        key=b"%d" % (MIDNIGHT_S + due_s) if due_s is not None else name.encode(),
        partition=partition_of(name, service.partitions),
        timestamp_ms=(MIDNIGHT_S - before_s) * 1000,
    )


async def live(service: Service) -> None:
    """Have timers fire, be taken back and wait, around midnight."""
    await service.worker("--seal-every-s", "1")
    for name in ("fires", "cancelled", "moved"):
        await ask(service, 60, -5, name)
    await ask(service, 60, 3_600, "waits")
    await ask(service, 50, None, "cancelled", cancel=True)
    await service.until_sealed(MIDNIGHT_S - 40)
    await ask(service, 30, 3_600, "moved")
    for second in (-10, -5, 0, 2):
        await service.until_sealed(MIDNIGHT_S + second)


async def test_a_changed_day_is_found_by_the_published_seals(
    service: Service, spark: SparkSession, tmp_path: Path
) -> None:
    await set_topic(service.bootstrap, service.topics.requests, {"message.timestamp.type": "CreateTime"})
    await live(service)
    settings = LakeSettings(
        bootstrap=service.bootstrap, topic_prefix=service.prefix, lake=str(tmp_path / "lake"), log_level="error"
    )
    await asyncio.to_thread(land_once, spark, settings)
    chain = tmp_path / "chain.jsonl"
    lake = ["--lake", settings.lake, "--bootstrap", service.bootstrap, "--topic-prefix", service.prefix]

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(program, ["lake", *arguments, *lake])
        return done.exit_code, done.output

    assert run("publish-chain", "--to", str(chain)) == (0, f"{service.partitions} days published\n")
    assert run("publish-chain", "--to", str(chain), "--check") == (0, "0 days published\n")
    kept = days_in((chain.name, chain.read_text().splitlines()))
    root = root_of(settings)
    assert changed_days(read(spark, root, SEALS), kept, FIRST, LAST).isEmpty()
    # The day after midnight goes on, so it is not published yet.
    [words] = unpublished(kept, service.partitions, FIRST, LAST)
    assert "of all partitions: the files have no line of them" in words

    spark.sql(f"DELETE FROM {name_of(root, SEALS)} WHERE last = {MIDNIGHT_S - 10} AND partition = 1")
    [found] = changed_days(read(spark, root, SEALS), kept, FIRST, LAST).collect()
    assert (found["kind"], found["partition"], found["second"]) == ("published", 1, MIDNIGHT_S - 1)
    code, output = run("publish-chain", "--to", str(chain), "--check")
    assert (code, "partition 1" in output, "partition 0" in output) == (3, True, False)
