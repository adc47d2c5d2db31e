"""The audit finds all faults, and only faults."""

import pytest
from lake_rows import REJECTED, cancel, copy, digest_of, moved, of, once, part_of, refused, request, seal, told
from lake_tables import SEAL_COLUMNS
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from kafka_timers.core.digests import callback_hash
from kafka_timers.core.routing import hash_of
from kafka_timers.lake.arrivals import callback_findings, lateness, strange, stranger_findings
from kafka_timers.lake.callback_records import CALLBACKS, callbacks_of, hash_of_record
from kafka_timers.lake.comparison import named_by
from kafka_timers.lake.covering import intervals_of, outcomes_of, totals
from kafka_timers.lake.findings import checked, expected, gaps, seal_findings, unpromoted
from kafka_timers.lake.schema import AUDIT_SECONDS, REQUESTS
from kafka_timers.lake.tables import constant

FAR = [request(0, 1, 5010, topic="far"), request(1, 1, 5011), request(2, 1, 5012, "x")]
# One partition's history, and nothing is wrong with it.
REQUESTED = [
    *FAR,
    request(10, 4000, 5010, "a"),
    request(11, 4000, 5010, "b"),
    cancel(12, 4001, "b"),
    request(13, 4001, 5010, "c"),
    request(14, 4002, 5012, "c"),  # moves it
    copy(15, 4900, FAR[0], 15),
    copy(16, 4901, FAR[0], 15),  # a repeated one
    refused(17, 5009, "key-missing"),
    request(18, 5009, 5010),  # to a topic that nobody knows
    request(19, 5009, 5010),
    request(20, 5009, 5011, "d"),
    request(25, 5011, 5009),  # late
    cancel(26, 5010.9, "d"),  # in time, and read behind the scan
    copy(27, 5011.2, FAR[1], 25),  # late
    request(30, 5011.3, 5012),
    cancel(31, 5011.3, "x"),  # requests that were never promoted
    request(32, 5020, 5021),  # not sealed yet
]
REJECTS = [(0, 18, "topic-unknown"), (0, 17, "key-missing")]
FIRED = {5010: [0, 10, 19], 5011: [20], 5012: [25, 1, 30, 14]}
SEALED = [
    seal(5008, 8),
    seal(5010, 25, [0], first=5009, through=b"0"),
    seal(5010, 25, [10, 19], 2, first=5009, lateness_p99_ms=3, lateness_max_ms=5),
    seal(5011, 25, [20]),
    seal(5012, 32, [25, 1], 0, through=b"1", lateness_max_ms=11),
    seal(5012, 32, [30, 14], 0, lateness_max_ms=9),
    seal(5013, 32),
]
SETTLED_MS = 6_000_000


class History:
    """The input of an audit: histories side by side, each in a partition of its own, so that Spark is asked once."""

    def __init__(self, spark: SparkSession, *histories: tuple[list[Row], list[Row]]) -> None:
        requested = [moved(row, partition) for partition, (rows, _) in enumerate(histories) for row in rows]
        sealed = [moved(row, partition) for partition, (_, rows) in enumerate(histories) for row in rows]
        rejects = [(partition, *row[1:]) for partition in range(len(histories)) for row in REJECTS]
        seals = of(spark, sealed, SEAL_COLUMNS)
        self.intervals, self.sealed = once(intervals_of(seals)), once(totals(seals).where("last > 5008"))
        outcomes = outcomes_of(of(spark, requested, REQUESTS.columns), self.intervals, of(spark, rejects, REJECTED))
        self.outcomes = once(outcomes)
        self.requests = of(spark, requested, REQUESTS.columns)
        self.expected = once(expected(self.outcomes))

    def checked(self, settled_ms: int = SETTLED_MS) -> DataFrame:
        return checked(self.sealed, self.expected, settled_ms)

    def findings(self) -> list[tuple]:
        frame = seal_findings(once(self.checked()), self.outcomes).unionByName(gaps(self.sealed))
        return told(frame.unionByName(unpromoted(self.outcomes)), "partition", "kind", "offset", "second", "detail")


@pytest.fixture(scope="module")
def clean(spark: SparkSession) -> History:
    return History(spark, *[(REQUESTED, SEALED)] * len(RECEIVED))


def test_a_clean_history_has_no_findings(spark: SparkSession, clean: History) -> None:
    wanted = [
        _second(5009, 5010, 25, FIRED[5010], rejected=2, p99=3, top=5),
        _second(5011, 5011, 25, FIRED[5011]),
        _second(5012, 5012, 32, FIRED[5012], late=2, top=11),
        _second(5013, 5013, 32, []),
    ]
    columns = [field for field in AUDIT_SECONDS.columns if field.name not in ("audited_s", "day")]
    names = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in columns)
    assertDataFrameEqual(clean.checked().where("partition = 0"), spark.createDataFrame(wanted, names))
    assert clean.findings() == []


def _second(
    first: int, last: int, fence: int, fired: list[int], rejected: int = 0, late: int = 0, p99: int = 0, top: int = 0
) -> tuple:
    counts = (len(fired) + rejected, len(fired), rejected, 0, digest_of(fired))
    return (0, first, last, (last + 1) * 1000, fence, *counts, *counts, late, p99, top, True)


def _wrong(at: int, **wrong: object) -> Row:
    return Row(**(SEALED[at].asDict() | wrong))


def _with(at: int, **wrong: object) -> list[Row]:
    """Return the seals with one of them *wrong*."""
    return [*SEALED[:at], _wrong(at, **wrong), *SEALED[at + 1 :]]


WRONG = [
    (_with(3, due=2, fired=2), "seal-count", 5011, "sealed due 2, fired 2, rejected 0"),
    (_with(3, rejected=1, due=2), "seal-count", 5011, "expected due 1, fired 1, rejected 0"),
    (
        _with(3, digest=digest_of([21])),
        "seal-digest",
        5011,
        f"digest {digest_of([21], 2) % 2**64:016x}; expected due 1",
    ),
    (_with(4, due=1, fired=1, digest=digest_of([25])), "seal-count", 5012, "request 2:1, which is not in the seal"),
    (
        _with(2, due=5, fired=3, digest=digest_of([10, 19, 11])),
        "seal-count",
        5010,
        "request 2:11, which should not be in the seal",
    ),
    ([*SEALED, _wrong(3, due=2, fired=2)], "seal-count", 5011, "sealed due 3, fired 3"),
    (_with(3, first_ms=5_010_000), "gap", 5011, "the seal of 5010 to 5011 follows one that ended at 5010"),
    ([*SEALED[:6], seal(5014, 32)], "gap", 5014, "the seal of 5014 to 5014 follows one that ended at 5012"),
    # A second that is sealed in parts.
    (
        [*SEALED[:3], part_of(5011, 5011.5, 25), part_of(5011.5, 5012, 25), *SEALED[4:]],
        "seal-count",
        5011,
        "request 2:20, which is not in the seal",
    ),
    (
        [*SEALED[:3], part_of(5011, 5011.25, 25, [20]), part_of(5011.5, 5012, 25), *SEALED[4:]],
        "gap",
        5011,
        "the seal of 5011.500 to 5011.999 follows one that ended at 5011.249",
    ),
]


def test_a_wrong_seal_is_found_and_nothing_else(spark: SparkSession) -> None:
    found = History(spark, *((REQUESTED, sealed) for sealed, *_ in WRONG)).findings()
    wanted = [(number, kind, None, second) for number, (_, kind, second, _) in enumerate(WRONG)]
    assert [finding[:4] for finding in found] == wanted
    for (number, *_, detail), (*_, words) in zip(found, WRONG, strict=True):
        assert words.replace("request 2:", f"request {number}:") in detail


def test_a_request_that_the_lake_did_not_promote_is_found(spark: SparkSession) -> None:
    requested = [row for row in REQUESTED if row.offset not in (15, 16, 31)]
    history = History(spark, (requested, _with(1, due=0, fired=0, digest=0)))
    wanted = [(0, "not-promoted", 0, 5010), (0, "not-promoted", 2, 5012)]
    assert [finding[:4] for finding in history.findings()] == wanted
    # If a worker fires it all the same, that is another matter.
    findings = found_in(history, received(), 5009, 5013)
    assert told(findings, "kind", "offset", "detail") == [
        ("unexpected", 0, "callback in far, and no worker had taken a copy of it")
    ]


def test_a_new_seal_whose_rejects_are_not_landed_is_left_to_the_next_audit(spark: SparkSession) -> None:
    history = History(spark, (REQUESTED, _with(3, fired=0, rejected=1, digest=0)))
    assert told(history.checked(5_011_099), "last") == [(5010,), (5012,), (5013,)]
    assert told(history.checked(5_011_100).where("not ok"), "last") == [(5011,)]


def came(rows: list[tuple]) -> list[tuple]:
    """Return *rows* (partition, offset, topic, second, at_ms) with the other fields of a callback."""
    return [(*row, 0, number, None, None, False) for number, row in enumerate(rows)]


def found_in(history: History, callbacks: list[tuple], first: int, last: int) -> DataFrame:
    """Return the findings about *callbacks*."""
    frame = once(constant(history.outcomes.sparkSession, came(callbacks), CALLBACKS))
    strangers = strange(history.outcomes, frame, first, last)
    return callback_findings(history.outcomes, frame, {}, first, last).unionByName(
        stranger_findings(strangers, history.requests, history.intervals, first, last)
    )


def received(*more: tuple, without: int = -1) -> list[tuple]:
    """Return the callbacks of the history, 100 ms late each, but not the one *without*, and *more*."""
    asked = {row.offset: row for row in REQUESTED}
    rows = [(offset, last * 1000 + 100) for last, offsets in FIRED.items() for offset in offsets if offset != without]
    return [*((0, offset, asked[offset].topic, asked[offset].second, at_ms) for offset, at_ms in rows), *more]


RECEIVED = [
    (received(), []),
    (received(without=14), [("missing", 14, 5012, "no callback in t")]),
    (received((0, 1, "t", 5011, 5_900_000)), [("doubled", 1, 5011, "2 callbacks, the first in t")]),
    (
        received((0, 20, "t", 5011, 5_010_999), without=20),
        [("early", 20, 5011, "callback in t 1 ms before it was due")],
    ),
    (
        received((0, 13, "t", 5010, 5_010_100), (0, 2, "t", 5012, 5_012_100)),
        [
            ("stale-version", 2, 5012, "callback in t, and record 31 had withdrawn it"),
            ("stale-version", 13, 5010, "callback in t, and record 14 had withdrawn it"),
        ],
    ),
    (
        received(
            (0, 30, "u", 5013, 5_013_000),
            (0, 18, "t", 5010, 5_010_100),
            (0, 21, "t", 5011, 5_011_100),
            (0, 32, "t", 5021, 5_021_100),  # not sealed yet
            (0, 33, "t", 5012, 5_012_100),  # made behind the last fence, and not landed
            (0, 3, "t", 5000, 5_000_100),  # fired before the time range
            without=30,
        ),
        [
            ("unexpected", 18, 5010, "callback in t, and it was rejected, topic-unknown"),
            ("unexpected", 21, 5011, "callback in t, and timer-request has no such request"),
            ("unexpected", 30, 5012, "callback in u for second 5013; its request names t and second 5012"),
        ],
    ),
]


def test_a_wrong_callback_is_found_and_nothing_else(spark: SparkSession, clean: History) -> None:
    callbacks = [(number, *row[1:]) for number, (rows, _) in enumerate(RECEIVED) for row in rows]
    findings = found_in(clean, callbacks, 5009, 5013)
    wanted = [(kind, number, *rest) for number, (_, found) in enumerate(RECEIVED) for kind, *rest in found]
    finding = "kind string, partition int, offset bigint, second bigint, detail string"
    assertDataFrameEqual(findings, spark.createDataFrame(wanted, finding))


def test_a_callback_is_early_by_its_millisecond_where_a_part_of_a_second_was_sealed(spark: SparkSession) -> None:
    """A worker that fires at ticks alone fires all of a second with its tick."""
    asked = [request(10, 5000, 5009.5), request(11, 5000, 5009.7)]
    in_parts = [seal(5008, 20), part_of(5009, 5009.501, 20, [10]), part_of(5009.501, 5009.701, 20, [11])]
    history = History(spark, (asked, in_parts), (asked, [seal(5008, 20), seal(5009, 20, [10, 11])]))
    received = [
        (partition, offset, "t", 5009, at_ms)
        for partition in (0, 1)
        for offset, at_ms in ((10, 5_009_500), (11, 5_009_699))
    ]
    found = found_in(history, received, 5009, 5009)
    assert told(found, "partition", "kind", "offset", "detail") == [
        (0, "early", 11, "callback in t 1 ms before it was due")
    ]


def test_lateness_is_counted_from_the_second_or_the_append_if_that_was_later(
    spark: SparkSession, clean: History
) -> None:
    callbacks = constant(spark, came(received((0, 1, "t", 5011, 9_000_000))), CALLBACKS)
    wanted = [("far", 1, 100, 100, 100, 100, False), ("t", 7, 100, 1_100, 1_100, 1_100, False)]
    columns = "topic string, callbacks bigint, p50 bigint, p99 bigint, p999 bigint, max bigint, by_worker boolean"
    assertDataFrameEqual(lateness(clean.outcomes, callbacks), spark.createDataFrame(wanted, columns))


def test_callbacks_are_told_by_their_headers(spark: SparkSession) -> None:
    def headers(**values: str) -> list[tuple[str, bytes]]:
        return [(name.replace("_", "-"), value.encode()) for name, value in values.items()]

    both = headers(timer_expiry="17", timer_request="3:41")
    records = [
        ("t", both),
        ("t", [*both, *headers(timer_request="9:9", timer_expiry="9")]),  # the first ones count
        ("t", None),
        ("t", []),
        ("t", headers(timer_expiry="17")),
        ("t", headers(timer_expiry="17", timer_request="3:x")),
        ("t", headers(timer_expiry="", timer_request="3:41")),
        ("t", [("timer-expiry", None), ("timer-request", None)]),
        ("t", [("timer-expiry", b"\xff"), ("timer-request", b"\xff:1")]),
        ("t", headers(timer_expiry="17", timer_request="99999999999:1")),
    ]
    rows = [(topic, told, 5, number, 0, b"k", b"v") for number, (topic, told) in enumerate(records)]
    columns = (
        "topic string, headers array<struct<key string, value binary>>, partition int, offset bigint, "
        "timestampType int, key binary, value binary"
    )
    frame = spark.createDataFrame(rows, columns).withColumn("timestamp", F.timestamp_millis(F.lit(17_250)))
    hashes = [callback_hash(b"k", b"v", named(told)) for told in (both, records[1][1])]
    wanted = [(3, 41, "t", 17, 17_250, 5, number, hashed, hash_of(b"k"), True) for number, hashed in enumerate(hashes)]
    assertDataFrameEqual(callbacks_of(frame), constant(spark, wanted, CALLBACKS))


def named(headers: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Return *headers* as they count, of the callback of request 3:41."""
    return [(name, b"" if (name, value) == ("timer-request", b"3:41") else value) for name, value in headers]


def test_spark_counts_a_callback_as_python_does(spark: SparkSession) -> None:
    """The numbers themselves are held by test_a_callback_counts_as_it_did."""
    headers = [("timer-expiry", b"17"), ("timer-request", b"3:41"), ("ü", b"\xff"), ("none", None), ("empty", b"")]
    records = [
        (b"k", b"v", headers),
        (None, b"v", headers),
        (b"", b"v", headers),
        (b"k", None, headers),
        (b"k", b"", []),
        ("ü".encode(), b"\xff\0", [("timer-request", b"3:42"), *headers]),
    ]
    columns = "key binary, value binary, headers array<struct<key string, value binary>>, partition int, offset bigint"
    frame = spark.createDataFrame([(*record, 3, 41) for record in records], columns)
    found = [row[0] for row in frame.select(hash_of_record()).collect()]
    assert found == [callback_hash(key, value, named(told)) for key, value, told in records]


def test_requests_that_many_findings_name_are_all_found(spark: SparkSession) -> None:
    """Of many partitions they have the same offsets, and more than are looked up one by one."""
    named = spark.range(3_600).selectExpr("int(id % 6) as partition", "floor(id / 6) as offset")
    found = named_by(named.withColumn("value", F.lit(1)), named)
    assert found.count() == 3_600
    assert named_by(named, named.where("offset < 100")).count() == 600
