"""The audit of a live instance: it finds nothing, then each fault that is planted, and names the requests."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiokafka import ConsumerRecord
from brokers import delete_records
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession
from service import Service

from kafka_timers.cli import lake as commands
from kafka_timers.cli.program import program
from kafka_timers.core.wire import EXPIRY_HEADER, REQUEST_HEADER, Future, Sealed
from kafka_timers.lake.land import land_once
from kafka_timers.lake.schema import SEALS
from kafka_timers.lake.tables import name_of, read, root_of
from kafka_timers.settings import LakeSettings

TIMERS = 40


async def audited(service: Service, lake: Path, first: int, last: int, *options: str) -> Result:
    where = ["--bootstrap", service.bootstrap, "--topic-prefix", service.prefix, "--lake", str(lake)]
    until = ["--from", str(first), "--to", str(last)]
    command = ["lake", "audit", *where, *until, "--callbacks", *options]
    return await asyncio.to_thread(CliRunner().invoke, program, command)


def request_of(record: ConsumerRecord) -> str:
    return dict(record.headers)[REQUEST_HEADER].decode()


async def plant(service: Service, request: str, second: int, partition: int = 0) -> None:
    """Publish a record that looks like a callback."""
    headers = [(EXPIRY_HEADER, b"%d" % second), (REQUEST_HEADER, request.encode())]
    await service.producer.send_and_wait(service.callbacks, b"v", partition=partition, headers=headers)


async def drop_first(service: Service, records: Sequence[ConsumerRecord]) -> str:
    """Delete the first record of their partition, and return whose callback it was."""
    first = min(records, key=lambda record: record.offset)
    await delete_records(service.bootstrap, service.callbacks, first.partition, before=first.offset + 1)
    return request_of(first)


def count_one_less(spark: SparkSession, root: str, partition: int) -> None:
    """Have the seal of a partition that counts callbacks say that there was one less."""
    [row] = read(spark, root, SEALS).where(f"partition = {partition} AND fired > 0").collect()
    seal = Sealed.FromString(row["value"])
    seal.due, seal.fired = seal.due - 1, seal.fired - 1
    wrong = f"UPDATE {name_of(root, SEALS)} SET value = X'{seal.SerializeToString().hex()}'"
    spark.sql(f"{wrong} WHERE partition = {partition} AND offset = {row['offset']}")


@pytest.mark.chaos
async def test_an_audit_of_a_live_instance_finds_planted_faults_and_nothing_else(
    service: Service, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "session_of", lambda _settings: spark)
    lake, page = tmp_path / "lake", tmp_path / "audit.html"
    settings = LakeSettings(bootstrap=service.bootstrap, topic_prefix=service.prefix, lake=str(lake))
    await service.worker()
    start_s = int(time.time())
    second = start_s + 5
    await service.until_sealed(start_s)
    await service.requests(second, [f"timer-{number}" for number in range(TIMERS)])
    named = Future(callBackTopic=service.callbacks, callBackKey="a", callBack=b"a", timerId="a")
    taken_back = await service.request(second, named)
    await service.request(0, Future(timerId="a", cancel=True), int(taken_back.split(":")[0]))
    pending = await service.request(second + 1_000, Future(callBackTopic=service.callbacks, callBack=b"p"), 0)
    # The owner of the topic may write to it: a callback that is there before its second.
    later = second + 3
    early = await service.request(later, Future(callBackTopic=service.callbacks, callBack=b"e"), 1)
    await plant(service, early, later)
    while time.time() < second + 1:  # noqa: ASYNC110  # the broker takes no append times from us
        await asyncio.sleep(0.1)
    await service.until_sealed(second + 1)
    await asyncio.to_thread(land_once, spark, settings)
    clean = await audited(service, lake, second, second + 1, "--batches")
    assert (clean.exit_code, "nothing is wrong" in clean.output) == (0, True), clean.output
    assert "batches" not in clean.output
    # A partition in which nothing is due is sealed every five seconds.
    await service.until_sealed(later + 6)
    await asyncio.to_thread(land_once, spark, settings)

    records = [record for record in await service.read(service.callbacks, TIMERS + 2) if record.value != b"v"]
    by_partition = [[record for record in records if record.partition == number] for number in (1, 2)]
    doubled = request_of(by_partition[1][0])
    await plant(service, doubled, second)
    changed = await audited(service, lake, second, second + 1, "--batches", "--json")
    kinds = {(each["kind"], each["partition"]) for each in json.loads(changed.stdout)["findings"]}
    number = int(doubled.split(":")[0])
    assert kinds >= {("doubled", number), ("batches", number)}, changed.output
    dropped = await drop_first(service, by_partition[0])
    await plant(service, taken_back, second)
    await plant(service, pending, second)
    await asyncio.to_thread(count_one_less, spark, root_of(settings), 3)

    told = await audited(service, lake, second, later + 6, "--json", "--report", str(page))
    assert told.exit_code == 3, told.output
    findings = json.loads(told.stdout)["findings"]
    found = Counter((each["kind"], each["partition"], each["offset"]) for each in findings)

    def about(kind: str, request: str) -> tuple[str, int, int]:
        partition, offset = map(int, request.split(":"))
        return kind, partition, offset

    assert found == Counter(
        [
            about("missing", dropped),
            about("doubled", doubled),
            about("content", doubled),
            about("early", early),
            about("doubled", early),
            about("content", early),
            about("stale-version", taken_back),
            about("early", pending),
            ("seal-count", 3, None),
            ("chain", 3, None),
        ]
    )
    assert all(each["kind"] in page.read_text() for each in findings)
