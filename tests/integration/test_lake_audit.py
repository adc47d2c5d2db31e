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
from kafka_timers.lake.tables import append, constant, read, root_of
from kafka_timers.settings import LakeSettings

DAY = "1970-01-01"


def asked(
    partition: int,
    offset: int,
    appended_s: int,
    second: int | None,
    timer_id: str | None = None,
    condition: str | None = None,
) -> Row:
    is_cancel = second is None
    known = dict.fromkeys(REQUESTS.columns.names) | {
        "partition": partition,
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


def sealed(partition: int, first: int, last: int, fence: int, fired: list[int]) -> Row:
    known = dict.fromkeys(SEAL_COLUMNS.names, 0) | {
        "partition": partition,
        "offset": last,
        "appended_ms": last * 1000 + 100,
        "first": first,
        "last": last,
        "due": len(fired),
        "fired": len(fired),
        "digest": signed(fired_digest_of(partition, fired)),
        "fence": fence,
        "through": None,
        **dict.fromkeys(("read_from", "previous", "value")),
        "first_ms": first * 1000,
        "end_ms": (last + 1) * 1000,
        "worker": "w",
        "day": DAY,
    }
    return with_value(Row(**known))


def chained(seals: list[Row]) -> list[Row]:
    """Return *seals* of a partition, each with the hash of the one before it."""
    made: list[Row] = []
    for seal in seals:
        previous = sha256(made[-1]["value"]).digest() if made else None
        made.append(with_value(Row(**(seal.asDict() | {"previous": previous}))))
    return made


ASKED = [
    asked(0, 0, 90, 95),  # done before the time range
    asked(0, 1, 90, 101),
    asked(0, 2, 91, 102, "a"),
    asked(0, 3, 92, 102, "b"),
    asked(0, 4, 93, None, "b"),
    asked(0, 5, 103, 101),  # late
    asked(0, 6, 103, 500, "c"),
    asked(0, 7, 103, 500),
    asked(0, 8, 104, 107, "d"),
    asked(0, 9, 104, None, "d"),
    asked(0, 10, 104, 107),
    asked(1, 0, 90, 95),
    asked(1, 1, 90, 101),
    asked(1, 2, 91, 103, "a"),
    asked(1, 6, 102, 104, "a", "IF_ABSENT"),  # ignored: #2 waits
    asked(1, 7, 102, 105, "a", "IF_PENDING"),  # moves #2
    asked(1, 8, 102, None, "b", "IF_PENDING"),  # ignored: there is nothing to cancel
    asked(1, 9, 102, 105),
]
RIGHT = [
    sealed(0, 1, 99, 1, [0]),
    sealed(0, 100, 101, 5, [1]),
    sealed(0, 102, 102, 5, [2]),
    sealed(0, 103, 105, 8, [5]),
]
CONDITIONS = [
    *(
        sealed(1, 1, 99, 1, [0]),
        sealed(1, 100, 101, 5, [1]),
        sealed(1, 102, 102, 6, []),
        sealed(1, 103, 105, 10, [7, 9]),
    ),
    sealed(1, 106, 107, 10, []),
]
WRONG = sealed(0, 106, 107, 11, [8, 10])
SEALED = {0: (100, 107), 1: (100, 107)}


def shown(what: object) -> str:
    out = StringIO()
    Console(file=out, width=80).print(what)
    return out.getvalue()


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> LakeSettings:
    """A lake in which one seal is wrong, the last one of partition 0; partition 1 has conditions."""
    settings = LakeSettings(lake=str(tmp_path_factory.mktemp("lake") / "lake"))
    root = root_of(settings)
    append(
        constant(spark, [[row[name] for name in REQUESTS.columns.names] for row in ASKED], REQUESTS.columns),
        root,
        REQUESTS,
    )
    seals = [*chained([*RIGHT, WRONG]), *chained(CONDITIONS)]
    append(spark.createDataFrame(seals, SEAL_COLUMNS), root, SEALS)
    positions = [("timer-request", 0, 11, 1, None, None), ("timer-request", 1, 10, 1, None, None)]
    append(constant(spark, positions, POSITIONS.columns), root, POSITIONS)
    return settings


@pytest.fixture(scope="module")
def told(spark: SparkSession, lake: LakeSettings) -> Audit:
    """The audit of the lake: it takes half a minute of computing, so one is enough."""
    return audit(spark, lake, 1_007, first=100, last=107)


@pytest.fixture(scope="module")
def right(told: Audit) -> Audit:
    """The same audit without what it has found."""
    return replace(told, kinds={}, findings=[], found=[])


def test_an_audit_tells_what_was_to_fire_and_which_seal_is_wrong(
    spark: SparkSession, lake: LakeSettings, told: Audit
) -> None:
    assert (told.last, told.seals, told.due, told.fired, told.rejected, told.late) == (107, 8, 7, 7, 0, 1)
    assert told.kinds == {"seal-count": 1}
    assert "request 0:8, which should not be in the seal" in told.findings[0].detail
    assert "the seals against a published chain: give --chain" in told.unchecked
    seconds = read(spark, root_of(lake), AUDIT_SECONDS).where("audited_s = 1007")
    assert sorted((row.partition, row.last, row.ok) for row in seconds.collect()) == [
        *((0, 101, True), (0, 102, True), (0, 105, True), (0, 107, False)),
        *((1, 101, True), (1, 102, True), (1, 105, True), (1, 107, True)),
    ]
    assert read(spark, root_of(lake), AUDIT_FINDINGS).count() == 1


def test_an_audit_is_shown_as_table_page_and_document(told: Audit, right: Audit) -> None:
    assert_digest_can_be_computed(document(told))
    assert "seal-count" in shown(printed(told))
    page = page_of(told)
    assert "1 finding<" in page.replace("\n", "")
    for part in page.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + part[: part.index("</svg>") + 6])
    assert "nothing is wrong" in shown(printed(right))


def test_a_replay_fires_again_what_was_to_fire(spark: SparkSession, lake: LakeSettings) -> None:
    # Also where the timers of the conditions were done before the time range.
    rows = replayed(spark, lake, 104, 105)
    assert [(row.partition, row.fired, row.sealed_fired, row.same) for row in rows] == [
        (0, 1, 1, True),
        (1, 2, 2, True),
    ]
    assert all(row.digest == row.sealed_digest for row in rows)
    assert "yes" in shown(printed_rows(rows))
    assert [row.same for row in replayed(spark, lake, 106, None)] == [False, True]
    assert [tuple(row) for row in with_horizon(spark, lake, 100, None, 10)] == [(0, 4, 2), (1, 3, 1)]
    ticks = with_fewer_ticks(spark, lake, 100, 105, 5)
    assert [(row.fired, row.most, row.late_max_s) for row in ticks] == [(3, 3, 4.0)] * 2


def test_a_forecast_tells_the_timers_ahead(spark: SparkSession, lake: LakeSettings, tmp_path: Path) -> None:
    ahead = forecast(spark, lake, ahead_s=1_000, by="minute", topic="<b>*", known_rate=4.0)
    assert (ahead.timers, [tuple(row) for row in ahead.steps]) == (2, [(480, 2)])
    assert [tuple(row) for row in ahead.hottest] == [(500, 2)]
    assert "0.50" in shown(printed_forecast(ahead))
    plot(ahead, tmp_path / "ahead.svg")
    assert "Timers ahead" in (tmp_path / "ahead.svg").read_text()
    assert forecast(spark, lake, ahead_s=1_000, by="day", topic="other").timers == 0


@pytest.mark.parametrize(("view", "offsets"), [("ignored", [6, 8]), ("fired", [0, 1, 7, 9])])
def test_ignored_requests_do_not_fire(spark: SparkSession, lake: LakeSettings, view: str, offsets: list[int]) -> None:
    open_views(spark, lake)
    rows = select(spark, f"select offset from {view} where partition = 1 order by 1").collect()
    assert [row[0] for row in rows] == offsets


def test_without_seals_there_is_nothing_to_judge(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="run `kafka-timers lake land` first"):
        audit(spark, LakeSettings(lake=str(tmp_path / "none")), 9)


def test_unsealed_seconds_are_a_finding_unless_the_landing_is_behind(
    spark: SparkSession, lake: LakeSettings, right: Audit
) -> None:
    # The service stands still for a week.
    still = coverage_of(spark, lake, 700_000, None, None, Service("cluster", {0: 0}))
    assert (still.last, still.first) == (699_400, 699_400 - 86_400)
    found = still.findings(spark).collect()
    assert [(row["kind"], row["partition"]) for row in found] == [("unsealed", 0), ("unsealed", 1)]
    words = "is sealed up to 107, timer-sealed has no more of it, and the time range ends at 699400"
    assert all(words in row["detail"] for row in found)
    # Or there is more of it, and nobody has landed that.
    behind = coverage_of(spark, lake, 90_001, 100, 200, Service("cluster", {0: 9, 1: 9}))
    assert (behind.unsealed, behind.sealed) == ([], SEALED)
    assert behind.undecided == [
        f"partition {number} is sealed up to 107 as far as is landed, and the landing is behind" for number in SEALED
    ]
    undecided = replace(right, undecided=behind.undecided)
    assert "not all could be judged" in shown(printed(undecided))
    assert "not all could be judged" in page_of(undecided)
    # Or nobody can tell.
    unknown = coverage_of(spark, lake, 90_002, 100, 200, None).undecided
    assert [words.partition("; ")[2] for words in unknown] == ["no Kafka answers that may have more"] * 2


def test_timers_due_just_now_need_no_seal(spark: SparkSession, lake: LakeSettings) -> None:
    now = coverage_of(spark, lake, 130, 100, 1_000, Service("cluster", {0: 0}))
    assert (now.unsealed, now.undecided, now.last, now.sealed) == ([], [], 130, SEALED)


def assert_digest_can_be_computed(result: dict[str, Any]) -> None:
    """Check that anybody can compute the digest that a result has."""
    rest = {name: value for name, value in json.loads(json.dumps(result)).items() if name != "sha256"}
    plain = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert result["sha256"] == hashlib.sha256(plain.encode()).hexdigest()
    assert (rest["partitions"], rest["sealed"], rest["lake"][-5:]) == (2, {"0": [100, 107], "1": [100, 107]}, "/lake")
