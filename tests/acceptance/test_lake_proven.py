"""The outcome of a timer, proven from the lake: by the seals of a real worker, and not when the lake was changed."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from brokers import set_topic
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # the usual name
from service import Service

from kafka_timers.cli.program import program
from kafka_timers.core.chain import PublishedDay
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Future
from kafka_timers.lake.audit import audit
from kafka_timers.lake.land import land_once
from kafka_timers.lake.prove import proof_of
from kafka_timers.lake.publish import published_days
from kafka_timers.lake.schema import REQUESTS, SEALS
from kafka_timers.lake.tables import name_of, read, root_of
from kafka_timers.settings import LakeSettings

DAY_S = 86_400
# All times are of days gone by: a day is published when the next one has begun.
MIDNIGHT_S = (int(time.time()) // DAY_S - 1) * DAY_S
NAMES = ("fires", "cancelled", "moved", "waits")


async def ask(service: Service, before_s: int, due_s: int | None, name: str, **more: Any) -> None:
    """Ask for a timer, or to be rid of it, that many seconds before midnight; due in seconds behind it."""
    future = Future(callBackTopic=service.callbacks, callBack=name.encode(), timerId=name, **more)
    key = b"%d" % (MIDNIGHT_S + due_s) if due_s is not None else name.encode()
    headers = [("timer-asked-by", b"a test")] if more else []
    await service.producer.send_and_wait(
        service.topics.requests,
        future.SerializeToString(),
        key=key,
        partition=partition_of(name, service.partitions),
        timestamp_ms=(MIDNIGHT_S - before_s) * 1000,
        headers=headers,
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


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(program, list(arguments))
    return done.exit_code, done.output


async def test_the_outcome_of_a_timer_is_proven_unless_the_lake_was_changed(
    service: Service, spark: SparkSession, tmp_path: Path
) -> None:
    await set_topic(service.bootstrap, service.topics.requests, {"message.timestamp.type": "CreateTime"})
    await live(service)
    settings = LakeSettings(
        bootstrap=service.bootstrap, topic_prefix=service.prefix, lake=str(tmp_path / "lake"), log_level="error"
    )
    await asyncio.to_thread(land_once, spark, settings)
    chain, file = tmp_path / "chain.jsonl", tmp_path / "proof.json"
    days = list(published_days(spark, settings, ()))
    assert {day.partition for day in days} == set(range(service.partitions))
    chain.write_text("".join(day.line() + "\n" for day in days))
    says = {"fires": "It fired once", "cancelled": "It was cancelled by", "moved": "It was replaced by"}
    for name, text in says.items():
        # Of the timer that was moved the first request; its last one waits.
        offset = _first_of(spark, settings, name)
        file.write_text(json.dumps(proof_of(spark, settings, name, offset)))
        code, output = run("verify", str(file), "--published", str(chain))
        assert (code, text in output) == (0, True), output
    file.write_text(json.dumps(proof_of(spark, settings, "moved")))
    # That the last seal is one of a day that goes on, and is not published yet.
    assert run("verify", str(file), "--published", str(chain))[0] == 3
    code, output = run("verify", str(file))
    assert (code, "No seal up to" in output, "give --published" in output) == (0, True, True)

    root = root_of(settings)
    for statement in (
        f"DELETE FROM {name_of(root, REQUESTS)} WHERE timer_id = 'waits'",
        f"UPDATE {name_of(root, REQUESTS)} SET value = X'00' WHERE timer_id = 'fires'",
        f"UPDATE {name_of(root, SEALS)} SET fired = fired + 1 WHERE last = {MIDNIGHT_S - 5}",
        f"DELETE FROM {name_of(root, SEALS)} WHERE last = {MIDNIGHT_S - 10} AND partition = 1",
    ):
        spark.sql(statement)
    found = audit(spark, settings, int(time.time()), first=MIDNIGHT_S - 100, last=MIDNIGHT_S + 2).kinds
    assert {"unread", "altered", "altered-seal", "chain", "gap", "seal-count"} <= found.keys()
    # The rest of the day differs from the published one.
    again = {(day.partition, day.date): day for day in published_days(spark, settings, ())}
    assert {day for day in days if again[day.partition, day.date] != day} == set(_of(days, 1))
    with pytest.raises(Exception, match="had another record than this"):
        proof_of(spark, settings, "fires")


def _first_of(spark: SparkSession, settings: LakeSettings, name: str) -> int:
    rows = read(spark, root_of(settings), REQUESTS).where(F.col("timer_id") == name)
    return int(rows.agg(F.min("offset")).collect()[0][0])


def _of(days: list[PublishedDay], partition: int) -> list[PublishedDay]:
    return [day for day in days if day.partition == partition]
