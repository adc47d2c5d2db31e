"""`kafka-timers lake sql`, `cancel` and `move`, on a real broker and real tables."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from lakes import PARTITIONS, SOON_S, Lake, future
from pyspark.sql import SparkSession

from kafka_timers.cli import lake as commands
from kafka_timers.cli.program import program
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Future
from kafka_timers.lake.land import land_once


@pytest.fixture
async def lake(
    spark: SparkSession, bootstrap: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Lake]:
    monkeypatch.setattr(commands, "session_of", lambda _settings: spark)
    async with Lake.open(spark, bootstrap, prefix, tmp_path) as lake:
        yield lake


async def run(lake: Lake, command: str, *arguments: str, answer: str = "") -> Result:
    """Run a command of the lake on *lake*."""
    settings = lake.settings
    where = ["--bootstrap", settings.bootstrap, "--topic-prefix", settings.topic_prefix, "--lake", settings.lake]
    given = ["lake", command, *where, *arguments]
    return await asyncio.to_thread(CliRunner().invoke, program, given, answer)


async def asked(lake: Lake, query: str) -> list[dict[str, object]]:
    result = await run(lake, "sql", query, "--json")
    assert result.exit_code == 0, result.output
    rows: list[dict[str, object]] = json.loads(result.stdout)
    return rows


async def test_many_timers_are_cancelled_and_moved_by_what_sql_tells_of_them(lake: Lake) -> None:
    soon = lake.now + SOON_S
    sold, kept = Future(callBackTopic="sold"), Future(callBackTopic="kept", timerId="k", callBack=b"\0\xff")
    names = ["a", "b", "ü"]
    for name in names:
        await lake.request(soon, Future(callBackTopic="sold", timerId=name), at_s=lake.now)
    await lake.request(soon, sold, at_s=lake.now)
    await lake.request(soon + 1, kept, at_s=lake.now)
    await lake.request(soon + 1, future(), at_s=lake.now)
    await asyncio.to_thread(land_once, lake.spark, lake.settings)
    before = await lake.records()

    waiting = await asked(
        lake, "select topic, count(*) as n, count(timer_id) as ids from pending group by 1 order by 1"
    )
    assert waiting == [
        {"topic": "callbacks", "n": 1, "ids": 0},
        {"topic": "kept", "n": 1, "ids": 1},
        {"topic": "sold", "n": 4, "ids": 3},
    ]

    none = await run(lake, "cancel", "--where", "topic = 'nothing'")
    assert (none.exit_code, "no pending timer" in none.stdout) == (4, True)
    unsure = await run(lake, "cancel", "--where", "topic = 'sold'", answer="n\n")
    assert unsure.exit_code == 1
    assert "1 cannot be cancelled: it has no timer id" in unsure.stdout
    assert "3 timers due from" in unsure.stdout
    assert len(await lake.records()) == len(before)

    sure = await run(lake, "cancel", "--where", "topic = 'sold'", answer="y\n")
    assert sure.exit_code == 0, sure.output
    moved = await run(lake, "move", "--where", "topic = 'kept'", "--by", "100", "--yes")
    assert moved.exit_code == 0, moved.output
    known = {(record.partition, record.offset) for record in before}
    new = [record for record in await lake.records() if (record.partition, record.offset) not in known]
    by_key = {record.key: record for record in new}
    assert len(new) == len(by_key) == 4
    for name in names:
        record = by_key.pop(name.encode())
        assert record.partition == partition_of(name, PARTITIONS)
        assert Future.FromString(record.value) == Future(timerId=name, cancel=True)
    [(key, record)] = by_key.items()
    assert (key, record.partition) == (b"%d" % (soon + 101), partition_of("k", PARTITIONS))
    assert Future.FromString(record.value) == kept

    await asyncio.to_thread(land_once, lake.spark, lake.settings)
    left = await asked(lake, "select topic, second from pending order by second")
    assert left == [
        {"topic": "sold", "second": soon},
        {"topic": "callbacks", "second": soon + 1},
        {"topic": "kept", "second": soon + 101},
    ]
    taken = await asked(lake, "select timer_id, taken_kind from cancelled order by timer_id")
    assert taken == [
        {"timer_id": "a", "taken_kind": "cancel"},
        {"timer_id": "b", "taken_kind": "cancel"},
        {"timer_id": "k", "taken_kind": "request"},
        {"timer_id": "ü", "taken_kind": "cancel"},
    ]


async def test_a_table_shows_some_rows_and_says_that_there_are_more(lake: Lake) -> None:
    shown = await run(lake, "sql", "select id, '[bold]\x1b' as text from range(5)", "--limit", "2")
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["id", "text"],
        ["0", "[bold]\\x1b"],
        ["1", "[bold]\\x1b"],
    ]
    assert "more than these 2 rows" in shown.stderr


async def test_what_cannot_be_asked_is_one_line(lake: Lake) -> None:
    refused = await run(lake, "sql", "drop table requests")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("Error: this cannot be asked")
    assert len(refused.stderr.splitlines()) == 1
    unclear = await run(lake, "move", "--where", "true", "--by", "1", "--to", "1")
    assert unclear.exit_code == 2
