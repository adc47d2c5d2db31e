"""Audit, replay and forecast on real tables: their input, output and tables."""

import hashlib
import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from lake_tables import SEAL_COLUMNS, with_value
from pyspark.sql import Row, SparkSession
from rich.console import Console

from kafka_timers.core.digests import signed
from kafka_timers.core.sums import fired_digest_of
from kafka_timers.errors import LakeError
from kafka_timers.lake.audit import Audit, audit
from kafka_timers.lake.coverage import coverage_of
from kafka_timers.lake.forecast import forecast, plot
from kafka_timers.lake.query import open_views, select
from kafka_timers.lake.replay import replayed, with_fewer_ticks, with_horizon
from kafka_timers.lake.report import document, page_of, printed, printed_forecast, printed_rows
from kafka_timers.lake.schema import AUDIT_FINDINGS, AUDIT_SECONDS, POSITIONS, REQUESTS, SEALS
from kafka_timers.lake.service import Service
from kafka_timers.lake.tables import append, read, root_of
from kafka_timers.settings import LakeSettings

DAY = "1970-01-01"


def asked(
    offset: int, appended_s: int, second: int | None, timer_id: str | None = None, condition: str | None = None
) -> Row:
    is_cancel = second is None
    known = dict.fromkeys(REQUESTS.columns.names) | {
        "partition": 0,
        "offset": offset,
        "appended_ms": appended_s * 1000,
        "kind": "cancel" if is_cancel else "request",
        "second": second,
        "millis": None if is_cancel else 0,
        "topic": None if is_cancel else "<b>t</b>",
        "timer_id": timer_id,
        "condition": condition,
        "delay": "none" if is_cancel else "1h",
        "due": DAY,
    }
    return Row(**known)


def sealed(first: int, last: int, fence: int, fired: list[int], **wrong: object) -> Row:
    known = dict.fromkeys(SEAL_COLUMNS.names, 0) | {
        "offset": last,
        "appended_ms": last * 1000 + 100,
        "first": first,
        "last": last,
        "due": len(fired),
        "fired": len(fired),
        "digest": signed(fired_digest_of(0, fired)),
        "fence": fence,
        "through": None,
        **dict.fromkeys(("read_from", "previous", "value")),
        "first_ms": first * 1000,
        "end_ms": (last + 1) * 1000,
        "worker": "w",
        "day": DAY,
    }
    return with_value(Row(**(known | wrong)))


def chained(seals: list[Row]) -> list[Row]:
    """Return *seals*, each with the hash of the one before it."""
    made: list[Row] = []
    for seal in seals:
        previous = sha256(made[-1]["value"]).digest() if made else None
        made.append(with_value(Row(**(seal.asDict() | {"previous": previous}))))
    return made


def lake(spark: SparkSession, folder: Path, seals: list[Row]) -> LakeSettings:
    settings = LakeSettings(lake=str(folder))
    root = root_of(settings)
    requests = [
        asked(0, 90, 95),  # done before the time range
        asked(1, 90, 101),
        asked(2, 91, 102, "a"),
        asked(3, 92, 102, "b"),
        asked(4, 93, None, "b"),
        asked(5, 103, 101),  # late
        asked(6, 103, 500, "c"),
        asked(7, 103, 500),
    ]
    append(spark.createDataFrame(requests, REQUESTS.columns), root, REQUESTS)
    append(spark.createDataFrame(chained(seals), SEAL_COLUMNS), root, SEALS)
    at = spark.createDataFrame([("timer-request", 0, 8, 1, None)], POSITIONS.columns)
    append(at, root, POSITIONS)
    return settings


SEALED = [sealed(1, 99, 1, [0]), sealed(100, 101, 5, [1]), sealed(102, 102, 5, [2]), sealed(103, 105, 8, [5])]


def shown(what: object) -> str:
    out = StringIO()
    Console(file=out, width=80).print(what)
    return out.getvalue()


@pytest.fixture(scope="module")
def clean(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> LakeSettings:
    """A lake in which nothing is wrong; an audit adds rows of its own second."""
    return lake(spark, tmp_path_factory.mktemp("clean") / "lake", SEALED)


@pytest.fixture(scope="module")
def told(spark: SparkSession, clean: LakeSettings) -> Audit:
    """The audit of the clean lake: it takes half a minute of computing, so one is enough."""
    return audit(spark, clean, 1_007, first=100, last=105)


def test_a_clean_lake_is_judged_replayed_and_told_ahead(
    spark: SparkSession, clean: LakeSettings, told: Audit, tmp_path: Path
) -> None:
    settings = clean
    assert (told.last, told.seals, told.due, told.fired, told.late, told.kinds) == (105, 3, 3, 3, 1, {})
    assert "nothing is wrong" in shown(printed(told))
    assert "the seals against a published chain: give --chain" in told.unchecked
    assert_digest_can_be_computed(document(told))
    seconds = read(spark, root_of(settings), AUDIT_SECONDS).where("audited_s = 1007")
    assert sorted((row.last, row.ok) for row in seconds.collect()) == [(101, True), (102, True), (105, True)]
    # Records that are not landed yet are not judged.
    [row] = replayed(spark, settings, 100, None)
    assert (row.fired, row.sealed_fired, row.digest, row.same) == (3, 3, row.sealed_digest, True)
    assert "yes" in shown(printed_rows([row]))
    assert [tuple(row) for row in with_horizon(spark, settings, 100, None, 10)] == [(0, 3, 2)]
    [ticks] = with_fewer_ticks(spark, settings, 100, 110, 5)
    assert (ticks.fired, ticks.most, ticks.late_max_s) == (3, 3, 4.0)
    ahead = forecast(spark, settings, ahead_s=1_000, by="minute", topic="<b>*", known_rate=4.0)
    assert (ahead.timers, [tuple(row) for row in ahead.steps]) == (2, [(480, 2)])
    assert [tuple(row) for row in ahead.hottest] == [(500, 2)]
    assert "0.50" in shown(printed_forecast(ahead))
    plot(ahead, tmp_path / "ahead.svg")
    assert "Timers ahead" in (tmp_path / "ahead.svg").read_text()
    assert forecast(spark, settings, ahead_s=1_000, by="day", topic="other").timers == 0


def test_ignored_requests_do_not_fire(spark: SparkSession, tmp_path: Path) -> None:
    settings = LakeSettings(lake=str(tmp_path / "lake"))
    root = root_of(settings)
    rows = [
        asked(0, 90, 95),
        asked(1, 90, 101),
        asked(2, 91, 103, "a"),
        asked(6, 102, 104, "a", "IF_ABSENT"),  # ignored: #2 waits
        asked(7, 102, 105, "a", "IF_PENDING"),  # moves #2
        asked(8, 102, None, "b", "IF_PENDING"),  # ignored: there is nothing to cancel
        asked(9, 102, 105),
    ]
    seals = [sealed(1, 99, 1, [0]), sealed(100, 101, 5, [1]), sealed(102, 102, 6, []), sealed(103, 105, 10, [7, 9])]
    for made, columns, table in ((rows, REQUESTS.columns, REQUESTS), (chained(seals), SEAL_COLUMNS, SEALS)):
        append(spark.createDataFrame(made, columns), root, table)
    append(spark.createDataFrame([("timer-request", 0, 10, 1, None)], POSITIONS.columns), root, POSITIONS)
    told = audit(spark, settings, 1_007, first=100, last=105)
    assert (told.seals, told.due, told.fired, told.rejected, told.kinds) == (3, 3, 3, 0, {})
    # Also where the timers of the conditions were done before the time range.
    [late] = replayed(spark, settings, 104, None)
    assert (late.fired, late.same) == (2, True)
    open_views(spark, settings)
    shown = {view: select(spark, f"select offset from {view} order by 1").collect() for view in ("ignored", "fired")}
    assert {view: [row[0] for row in rows] for view, rows in shown.items()} == {
        "ignored": [6, 8],
        "fired": [0, 1, 7, 9],
    }


def test_a_wrong_seal_is_told_in_table_and_page(spark: SparkSession, tmp_path: Path) -> None:
    seals = [*SEALED[:2], sealed(102, 102, 5, [2, 3]), SEALED[3]]
    settings = lake(spark, tmp_path / "lake", seals)
    told = audit(spark, settings, 1_008, first=100, last=105)
    assert told.kinds == {"seal-count": 1}
    assert "request 0:3, which should not be in the seal" in told.findings[0].detail
    assert "seal-count" in shown(printed(told))
    assert read(spark, root_of(settings), AUDIT_FINDINGS).count() == 1
    page = page_of(told)
    assert "1 finding<" in page.replace("\n", "")
    for part in page.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + part[: part.index("</svg>") + 6])
    assert not replayed(spark, settings, 100, None)[0].same


def test_without_seals_there_is_nothing_to_judge(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="run `kafka-timers lake land` first"):
        audit(spark, LakeSettings(lake=str(tmp_path / "none")), 9)


def test_unsealed_seconds_are_a_finding_unless_the_landing_is_behind(
    spark: SparkSession, clean: LakeSettings, told: Audit
) -> None:
    # The service stands still for a week.
    still = coverage_of(spark, clean, 700_000, None, None, Service("cluster", {0: 0}))
    assert (still.last, still.first) == (699_400, 699_400 - 86_400)
    [found] = still.findings(spark).collect()
    assert found["kind"] == "unsealed"
    assert "is sealed up to 105, timer-sealed has no more of it, and the time range ends at 699400" in found["detail"]
    # Or there is more of it, and nobody has landed that.
    behind = coverage_of(spark, clean, 90_001, 100, 200, Service("cluster", {0: 9}))
    assert (behind.unsealed, behind.sealed) == ([], {0: (100, 105)})
    assert behind.undecided == ["partition 0 is sealed up to 105 as far as is landed, and the landing is behind"]
    undecided = replace(told, undecided=behind.undecided)
    assert "not all could be judged" in shown(printed(undecided))
    assert "not all could be judged" in page_of(undecided)
    # Or nobody can tell.
    [words] = coverage_of(spark, clean, 90_002, 100, 200, None).undecided
    assert words.endswith("no Kafka answers that may have more")


def test_timers_due_just_now_need_no_seal(spark: SparkSession, clean: LakeSettings) -> None:
    now = coverage_of(spark, clean, 130, 100, 1_000, Service("cluster", {0: 0}))
    assert (now.unsealed, now.undecided, now.last, now.sealed) == ([], [], 130, {0: (100, 105)})


def assert_digest_can_be_computed(result: dict[str, Any]) -> None:
    """Check that anybody can compute the digest that a result has."""
    rest = {name: value for name, value in json.loads(json.dumps(result)).items() if name != "sha256"}
    plain = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert result["sha256"] == hashlib.sha256(plain.encode()).hexdigest()
    assert (rest["partitions"], rest["sealed"], rest["lake"][-5:]) == (1, {"0": [100, 105]}, "/lake")
