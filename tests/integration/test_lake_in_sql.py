"""`kafka-timers lake sql`, `cancel` and `move`, on a real broker and real tables."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from io import StringIO
from pathlib import Path

import pytest
from brokers import administering, make_topic
from click.testing import CliRunner, Result
from lakes import PARTITIONS, Lake, future
from pyspark.sql import SparkSession
from rich.console import Console

from kafka_timers.cli import lake as commands
from kafka_timers.cli.lake_rows import print_rows
from kafka_timers.cli.program import program
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Future
from kafka_timers.errors import LakeError
from kafka_timers.lake.altered import altered_records
from kafka_timers.lake.land import land_once
from kafka_timers.lake.schema import REQUESTS
from kafka_timers.lake.session import quiet
from kafka_timers.lake.tables import read, root_of

# Nothing of it comes due however slow the machine is.
SOON_S = 86_400


@pytest.fixture
async def lake(
    spark: SparkSession, bootstrap: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Lake]:
    quiet()
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


async def test_many_timers_are_cancelled_and_moved_by_a_condition_in_sql(lake: Lake) -> None:
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


async def test_the_payloads_of_one_person_leave_the_lake(lake: Lake) -> None:
    """No version of the table has a byte of it in the end; files of a landing under way stay, and so do the rows."""
    secret, other = b"the secret of seven", b"what eight has"
    # In the partition that is sealed.
    eighth = next(name for name in "bcdefgh" if partition_of(name, PARTITIONS) == 0)
    soon, past = lake.now + SOON_S, lake.now - 100
    where, fired_at = await lake.request(past, _of("seven", secret), at_s=past - 100)
    await lake.request(soon, _of("seven", secret, "a"), at_s=past)
    await lake.request(past, _of("eight", other, eighth), at_s=past - 100)
    await lake.seal(fence=fired_at + 1_000)
    await asyncio.to_thread(land_once, lake.spark, lake.settings)

    waits = await run(lake, "forget", "--key", "seven", "--yes")
    assert (waits.exit_code, "1 of these timers wait" in waits.output) == (1, True), waits.output
    assert "--where \"callback_key = 'seven'\"" in waits.output
    await lake.cancel("a", lake.now)
    await asyncio.to_thread(land_once, lake.spark, lake.settings)
    folder = Path(lake.settings.lake) / "requests"
    young, old = folder / "young.parquet", folder / "old.parquet"
    for file in (young, old):
        shutil.copy(next(folder.rglob("part-*.parquet")), file)
    os.utime(old, (lake.now - 200_000, lake.now - 200_000))

    unsure = await run(lake, "forget", "--key", "seven", answer="n\n")
    assert unsure.exit_code == 1
    assert "3 records are to be forgotten, 2 of them requests, due from" in unsure.stdout
    done = await run(lake, "forget", "--key", "seven", "--yes")
    assert done.exit_code == 0, done.output
    assert "forgotten 3 records" in done.stdout
    assert f"Kafka still has the requests in partition {where} at offsets {fired_at}" in done.stdout
    assert "callbacks: topic sold is gone" in done.stdout

    assert young.exists()
    assert not old.exists()
    young.unlink()
    kept = lake.spark.read.option("recursiveFileLookup", "true").parquet(str(folder)).where("value is not null")
    assert [other in bytes(row.value) for row in kept.where("kind = 'request'").collect()] == [True]
    rows = await asked(lake, "select kind, value is null as bare, key is null as keyless from requests order by 1, 2")
    assert rows == [
        {"kind": "cancel", "bare": True, "keyless": True},
        {"kind": "request", "bare": False, "keyless": False},
        {"kind": "request", "bare": True, "keyless": True},
        {"kind": "request", "bare": True, "keyless": True},
    ]
    assert altered_records(read(lake.spark, root_of(lake.settings), REQUESTS)).isEmpty()
    assert await asked(lake, "select text from fired order by offset") == [
        {"text": None},
        {"text": other.decode()},
    ]
    for code, said in ((0, "forgotten 1 records"), (4, "nothing of it")):
        by_id = await run(lake, "forget", "--id", eighth, "--yes")
        assert (by_id.exit_code, said in by_id.stdout) == (code, True), by_id.output


async def test_nothing_is_published_or_forgotten_for_a_topic_that_was_made_anew(lake: Lake) -> None:
    await lake.request(lake.now + SOON_S, future("a"), at_s=lake.now)
    await asyncio.to_thread(land_once, lake.spark, lake.settings)
    name = lake.topics.requests
    async with administering(lake.settings.bootstrap) as admin:
        await admin.delete_topics([name])
    cancel, where = ["cancel", "--where", "true", "--yes"], "is this the cluster that the lake was made from?"
    gone = await run(lake, *cancel)
    assert (gone.exit_code, f"topic {name} is missing: {where}" in gone.output) == (1, True), gone.output

    await make_topic(lake.settings.bootstrap, name, PARTITIONS)
    for command in (cancel, ["forget", "--id", "a", "--yes"]):
        refused = await run(lake, *command)
        assert (refused.exit_code, f"{name} was deleted and made anew" in refused.output) == (1, True), refused.output
    with pytest.raises(LakeError, match=f"{name} was deleted and made anew"):
        await asyncio.to_thread(lake.promoter(lands=False).catch_up)
    assert (await lake.records(), lake.closed()) == ([], [])
    assert await asked(lake, "select timer_id, value is null as bare from requests") == [
        {"timer_id": "a", "bare": False}
    ]


def _of(key: str, value: bytes, timer_id: str = "") -> Future:
    return Future(callBackTopic="sold", callBackKey=key, callBack=value, timerId=timer_id)


async def test_a_table_shows_some_rows_and_says_that_there_are_more(lake: Lake) -> None:
    shown = await run(lake, "sql", "select id, '[bold]\x1b' as text from range(5)", "--limit", "2")
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["id", "text"],
        ["0", "[bold]\\x1b"],
        ["1", "[bold]\\x1b"],
    ]
    assert "more than these 2 rows" in shown.stderr
    query = "select id, if(id = 0, null, repeat('x', 72)) as wide, '' as none from range(2)"
    # What is no terminal gets a line for each row, of any width.
    wide = await run(lake, "sql", query)
    assert [line.split() for line in wide.stdout.splitlines()] == [
        ["id", "wide", "none"],
        ["0", "null"],
        ["1", "x" * 72],
    ]
    narrow = StringIO()
    print_rows(
        Console(file=narrow, width=80), [{"id": 0, "wide": None, "none": ""}, {"id": 1, "wide": "x" * 72, "none": ""}]
    )
    assert [line.split() for line in narrow.getvalue().splitlines() if "row" not in line] == [
        *(["id", "0"], ["wide", "null"], ["none"]),
        *(["id", "1"], ["wide", "x" * 72], ["none"]),
    ]
    assert (await run(lake, "sql", query, "--csv")).stdout_bytes == (
        b'id,wide,none\r\n0,,""\r\n1,' + b"x" * 72 + b',""\r\n'
    )
    odd = "values (X'ff', 'a,\"b\"', true, map('k', X'76')), (X'31', 'c', false, null) as t(b, `c,d`, e, f)"
    assert (await run(lake, "sql", odd, "--csv")).stdout_bytes == (
        b'b_base64,"c,d",e,f\r\n/w==,"a,""b""",true,"{""k"": ""v""}"\r\nMQ==,c,false,\r\n'
    )


async def test_an_invalid_query_prints_one_line(lake: Lake) -> None:
    refused = await run(lake, "sql", "drop table requests")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("Error: this cannot be asked")
    assert len(refused.stderr.splitlines()) == 1
    mistyped = await run(lake, "sql", "select timerid from pending")
    assert mistyped.exit_code == 1
    assert len(mistyped.stderr.splitlines()) == 1
    unclear = await run(lake, "move", "--where", "true", "--by", "1", "--to", "1")
    assert unclear.exit_code == 2
