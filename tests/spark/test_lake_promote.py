"""The far requests that come back to the workers, and their copies."""

import itertools
import random
import re
from collections.abc import Iterator

import pytest
from lake_rows import plan_of
from lake_tables import delay_of, due_of
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col, count, spark_partition_id, when
from pyspark.testing import assertDataFrameEqual

from kafka_timers.core.wire import COPY_STALE_S, Copy, Future, is_far
from kafka_timers.lake.buckets import Bucket, far_requests, left_to_the_lake, lies_in
from kafka_timers.lake.conditions import NO_CONDITION_BYTES
from kafka_timers.lake.copies import (
    COPY_BYTES,
    asks_about,
    copies_in,
    copies_of,
    folders_about,
    need_no_copy,
    others_in,
    with_sure,
)

DAY_S = 86_400
# 2030-01-01 00:00:00 UTC.
NEW_YEAR = 1_893_456_000

COLUMNS = (
    "partition int, offset bigint, appended_ms bigint, kind string, second bigint, millis int, topic string, "
    "timer_id string, original bigint, original_s bigint, decided bigint, decided_s bigint, value binary, "
    "condition string, expected bigint"
)


def request(
    offset: int,
    appended_s: float,
    second: int,
    timer_id: str | None = None,
    partition: int = 0,
    value: bytes | None = None,
    condition: str | None = None,
) -> tuple:
    value = b"value %d" % offset if value is None else value
    ids = (timer_id, None, None, None, None)
    return (partition, offset, int(appended_s * 1000), "request", second, 0, "topic", *ids, value, condition, None)


def cancel(offset: int, appended_s: float, timer_id: str, partition: int = 0) -> tuple:
    return (partition, offset, int(appended_s * 1000), "cancel", None, None, None, timer_id, *[None] * 7)


def copy(offset: int, of: tuple, decided: int, *, timer_id: str | None = None, age_s: int = 0) -> tuple:
    partition, original, original_ms, _, second = of[:5]
    ids = (timer_id or of[7], original, original_ms // 1000, decided, 50_000 - age_s)
    return (partition, offset, 50_000_000, "copy", second, 0, "topic", *ids, *[None] * 3)


def table(spark: SparkSession, rows: list[tuple]) -> DataFrame:
    """Return *rows* as `requests` holds them."""
    frame = spark.createDataFrame(rows, COLUMNS)
    delay = (
        when(col("kind") == "request", delay_of(col("second"), col("appended_ms")))
        .when(col("kind") == "copy", "copy")
        .otherwise("none")
    )
    due = when(delay == "none", "2030-01-01").otherwise(due_of(col("second"), delay))
    return frame.withColumn("delay", delay).withColumn("due", due)


def asks_of(requests: DataFrame, far: DataFrame) -> DataFrame:
    """Return what `asks_about` does, as a promotion asks for it, and hold it to a search of all folders."""
    named_in = {row[:2]: row[2] for row in far.groupBy("delay", "due").agg(count("timer_id")).collect()}
    named = sum(named_in.values())
    folders = folders_about(requests, far, 0, named).collect()
    asks = asks_about(requests, far, 0, named, others_in(folders, named_in))
    assertDataFrameEqual(asks, asks_about(requests, far, 0, named))
    return asks


def left_of(spark: SparkSession, stories: list[list[tuple]], bucket: Bucket) -> list[list[int]]:
    """Return the offsets of requests that *bucket* lacks, as a promotion finds them; each story has its partition."""
    rows = [(number, *row[1:]) for number, story in enumerate(stories) for row in story]
    requests = table(spark, rows)
    far = far_requests(requests, bucket)
    done = need_no_copy(asks_of(requests, far), copies_in(requests, bucket))
    left = [(row.partition, row.offset) for row in far.join(done, ["partition", "offset"], "left_anti").collect()]
    return [sorted(offset for number, offset in left if number == story) for story in range(len(stories))]


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("horizon_s", [60, 3_600, 50_000, DAY_S, 40 * DAY_S, 400 * DAY_S])
def test_far_requests_of_a_bucket_are_found_wherever_they_lie(spark: SparkSession, horizon_s: int) -> None:
    chance = random.Random(horizon_s)
    bucket = Bucket(NEW_YEAR - 1_800, NEW_YEAR + 1_800, horizon_s)
    delays_s = [60, 61, 3_600, 3_601, DAY_S, DAY_S + 1, 32 * DAY_S, 33 * DAY_S, 366 * DAY_S, 367 * DAY_S, 3_000 * DAY_S]
    delays_s += [horizon_s, horizon_s + 1]
    rows = []
    for offset, delay_s in enumerate(delays_s * 4):
        second = chance.choice([bucket.first - 1, bucket.first, NEW_YEAR, bucket.last, bucket.last + 1])
        rows.append(request(offset, second - delay_s + chance.choice([0, 0.999]), second))
    wanted = [
        row[1] for row in rows if bucket.first <= row[4] <= bucket.last and is_far(row[4], row[2] // 1000, horizon_s)
    ]
    assert wanted
    assert sorted(row.offset for row in far_requests(table(spark, rows), bucket).collect()) == wanted


def test_only_the_days_months_and_years_of_a_bucket_are_read(spark: SparkSession) -> None:
    partitions = [
        *itertools.product(
            ["1h", "1d", "32d", "copy", "none"], ["2029-12-30", "2029-12-31", "2030-01-01", "2030-01-02"]
        ),
        *itertools.product(["1y"], ["2029-11", "2029-12", "2030-01", "2030-02"]),
        *itertools.product(["more"], ["2028", "2029", "2030", "2031"]),
    ]
    frame = spark.createDataFrame(partitions, "delay string, due string")
    read = frame.where(lies_in(Bucket(NEW_YEAR - 10, NEW_YEAR + 10, DAY_S))).collect()
    assert sorted(map(tuple, read)) == [
        ("1y", "2029-12"),
        ("1y", "2030-01"),
        ("32d", "2029-12-31"),
        ("32d", "2030-01-01"),
        ("more", "2029"),
        ("more", "2030"),
    ]


BUCKET = Bucket(20_001, 30_000, 1_000)


def test_the_lake_promotes_the_far_requests_that_are_left(spark: SparkSession) -> None:
    """One look at all stories, each in a partition of its own: a look takes seconds, however little there is."""
    unnamed, timer = request(0, 1, 21_000), request(1, 1, 21_000, "a")
    stale = copy(5, timer, 4, age_s=COPY_STALE_S + 1)
    too_late = cancel(4, 21_000, "a")
    stories = {
        "nobody's timers": ([unnamed, timer], [0, 1]),
        # H11: workers and lake judge alike, by the due rule.
        "cancelled": ([timer, cancel(2, 10, "a")], []),
        "cancelled too late": ([timer, too_late], [1]),
        "another was cancelled": ([timer, cancel(2, 10, "b")], [1]),
        "moved within the bucket": ([timer, request(2, 2, 29_000, "a")], [2]),
        "moved out of it": ([timer, request(2, 2, 31_000, "a")], []),
        "moved into it": ([request(0, 1, 31_000, "a"), request(2, 2, 29_000, "a")], [2]),
        "moved to a near second": ([timer, request(2, 20_900, 21_500, "a")], []),
        "cancelled and made anew": ([timer, cancel(2, 10, "a"), request(3, 11, 23_000, "a")], [3]),
        # V6: a near request is kept by the workers, by the same rule.
        "near": ([request(0, 20_000, 21_000), request(1, 19_999.999, 21_000)], [1]),
        "of other buckets": ([request(0, 1, 20_000), request(1, 1, 30_001)], []),
        "workers have one": ([unnamed, timer, copy(5, unnamed, 4)], [1]),
        "workers have both": ([unnamed, timer, copy(5, unnamed, 4), copy(6, timer, 4)], []),
        # A job that was killed publishes requests again that it does not know to be published.
        "twice": ([unnamed, timer, *(copy(n, of, 4) for n, of in enumerate((unnamed, timer) * 2, 5))], []),
        # V7: workers drop a copy when its decision is old, or did not know the records before it.
        "a stale copy": ([timer, stale], [1]),
        "a stale copy and another": ([timer, stale, copy(6, timer, 5)], []),
        "overtaken": ([timer, too_late, copy(5, timer, 4)], [1]),
        "overtaken, then anew": ([timer, too_late, copy(5, timer, 4), copy(6, timer, 5)], []),
        "overtaken by what was in time": ([timer, cancel(4, 5, "a"), copy(5, timer, 4)], []),
        "a copy for another second": ([timer, copy(5, request(1, 1, 31_000, "a"), 4)], [1]),
    }
    left = left_of(spark, [rows for rows, _ in stories.values()], BUCKET)
    assert dict(zip(stories, left, strict=True)) == {name: wanted for name, (_, wanted) in stories.items()}


def test_requests_that_workers_had_when_they_got_a_horizon_are_not_promoted(spark: SparkSession) -> None:
    """
    They had read and fired everything up to offset 100 when they got one of 10,000 s; at 200 it was made 2,000 s.
    Below it nothing waited at them, but requests left to the lake may still.
    """
    seals = [(0, 5_000, 0, 0), (0, 5_001, 10_000, 100), (0, 6_000, 2_000, 200), (0, 6_001, 2_000, 200)]
    seals += [(1, 6_000, 2_000, 200), (2, 7_000, 0, 0)]
    waits = {99: 30_000, 100: 30_000, 101: 10_000, 199: 10_001, 200: 2_000, 201: 2_001}
    rows = [request(offset, 0, wait_s, partition=number) for number in range(4) for offset, wait_s in waits.items()]
    told = spark.createDataFrame(seals, "partition int, end_ms bigint, horizon_s bigint, horizon_from bigint")
    far = table(spark, rows)
    left = left_to_the_lake(far, told)
    assert left.columns == far.columns
    # Partition 1 was landed from later on, 2 has workers without a horizon, 3 has had none at all.
    wanted = [(0, 100), (0, 199), (0, 201), (1, 201), *((3, offset) for offset in waits)]
    assert sorted((row.partition, row.offset) for row in left.collect()) == wanted


def test_only_records_about_far_requests_are_looked_at(spark: SparkSession) -> None:
    rows = [
        request(3, 1, 21_000, "a"),
        request(2, 1, 90_000, "a"),
        cancel(4, 2, "a"),
        cancel(5, 2, "b"),
        request(6, 3, 3_000, "a"),
        copy(7, request(3, 1, 21_000, "a"), 4),
        request(8, 4, 21_000),
    ]
    requests = table(spark, rows)
    asks = asks_about(requests, far_requests(requests, BUCKET), since=3, named=2)
    assert sorted(row.offset for row in asks.collect()) == [3, 4, 6]


def test_folders_without_other_records_of_an_id_are_not_searched(spark: SparkSession) -> None:
    # The second of the first two ids is asked for again, in the folder of the first; the third one is cancelled.
    far = [request(0, 1, 21_000, "a"), request(1, 1, 21_000, "b"), request(2, 1, 21_000, "c"), request(3, 1, 21_000)]
    moved, cancelled = request(4, 1, 90_000, "b", condition="IF_PENDING"), cancel(5, 2, "c")
    requests = table(spark, [*far, moved, cancelled, request(6, 1, 400_000, "d"), copy(7, far[0], 7)])
    told = {row[:2]: row[2:] for row in folders_about(requests, far_requests(requests, BUCKET), 0, 3).collect()}
    assert told == {("1d", "1970-01-01"): (3, 0), ("32d", "1970-01-02"): (1, 1), ("none", "2030-01-01"): (1, 0)}
    named_in = {("1d", "1970-01-01"): 3}
    others = [("32d", "1970-01-02"), ("none", "2030-01-01")]
    assert sorted(others_in([Row(delay=d, due=u, records=n[0]) for (d, u), n in told.items()], named_in)) == others
    asks = asks_about(requests, far_requests(requests, BUCKET), 0, 3, others)
    assert sorted(row.offset for row in asks.collect()) == [0, 1, 2, 4, 5]


def test_which_requests_need_no_copy_is_told_with_the_reason(spark: SparkSession) -> None:
    promoted, both, cancelled = request(0, 1, 21_000), request(1, 1, 21_000, "b"), request(2, 1, 21_000, "c")
    rows = [promoted, both, cancelled, copy(5, promoted, 4), copy(6, both, 4), cancel(7, 9, "b"), cancel(8, 9, "c")]
    requests = table(spark, rows)
    asks = asks_of(requests, far_requests(requests, BUCKET))
    done = need_no_copy(asks, copies_in(requests, BUCKET))
    wanted = [(0, 0, True), (0, 1, True), (0, 2, False)]
    assertDataFrameEqual(done, spark.createDataFrame(wanted, "partition int, offset bigint, promoted boolean"))


def test_copies_of_another_bucket_are_of_no_interest(spark: SparkSession) -> None:
    inside, outside = request(0, 1, 21_000), request(1, 1, 31_000)
    rows = [inside, outside, copy(5, inside, 4), copy(6, outside, 4)]
    assert [row.offset for row in copies_in(table(spark, rows), BUCKET).collect()] == [5]


# --- copies -----------------------------------------------------------------------------------------------------------


def numbers() -> Iterator[int]:
    """Yield where the bytes of a varint change."""
    for bits in range(7, 57, 7):
        yield from ((1 << bits) - 1, 1 << bits)


def test_a_copy_is_the_original_with_its_origin(spark: SparkSession) -> None:
    original = Future(callBackTopic="t", callBackKey="k", callBack=b"\0\xff" * 90, timerId="a", token="x", millis=7)
    original.headers.add(key="h")
    value = original.SerializeToString()
    offsets = [0, 1, *[n for n in numbers() if n < (1 << 56) - 1]]
    rows = [request(n, 1_899_999_999.999, 2_000_000_000 + n % 7, partition=1, value=value) for n in offsets]
    requests = spark.createDataFrame(rows, COLUMNS)
    made = copies_of(requests, {0: 5, 1: (1 << 56) - 1}, 1_999_999_999).collect()
    assert [row.partition for row in made] == [1] * len(offsets)
    for row, (second, offset) in zip(made, sorted((2_000_000_000 + o % 7, o) for o in offsets), strict=True):
        wanted = Future(
            copy=Copy(offset=offset, appended=1_899_999_999, decidedOffset=(1 << 56) - 1, decided=1_999_999_999)
        )
        wanted.MergeFrom(original)
        assert Future.FromString(row.value) == wanted
        assert row.value.startswith(value)
        assert row.key == b"%d" % second


def test_a_copy_of_a_request_with_a_condition_has_none(spark: SparkSession) -> None:
    """It was judged when the original was read; a copy with a condition would be refused."""
    original = Future(callBackTopic="t", timerId="a", condition=Future.IF_PENDING, ifRequest="0:1")
    row = request(5, 1, 21_000, "a", value=original.SerializeToString(), condition="IF_PENDING")
    [made] = copies_of(spark.createDataFrame([row], COLUMNS), {0: 7}, 40).collect()
    copied = Copy(offset=5, appended=1, decidedOffset=7, decided=40)
    # The fields are there, and empty.
    wanted = Future(callBackTopic="t", timerId="a", copy=copied)
    assert Future.FromString(made.value) == wanted
    assert len(made.value) == len(row[-3]) + COPY_BYTES + NO_CONDITION_BYTES


def test_a_condition_is_judged_once_a_seal_covers_the_request(spark: SparkSession) -> None:
    rows = [
        request(9, 1, 21_000),
        request(4, 1, 21_000, "a", condition="IF_ABSENT"),
        request(5, 1, 21_000, "b", condition="IF_PENDING"),
        request(0, 1, 21_000, "c", partition=1, condition="IF_ABSENT"),
    ]
    requests = spark.createDataFrame(rows, COLUMNS)

    def sure(fences: dict[int, int]) -> list[tuple]:
        found = with_sure(requests, fences)
        assert found.columns == [*requests.columns, "is_sure"]
        return sorted((row.partition, row.offset) for row in found.where("is_sure").collect())

    assert sure({0: 5}) == [(0, 4), (0, 9)]
    assert sure({}) == [(0, 9)]


def test_each_partition_has_its_own_decision(spark: SparkSession) -> None:
    rows = [request(0, 1, 21_000, partition=number, value=b"") for number in (0, 1)]
    requests = spark.createDataFrame(rows, COLUMNS)
    made = {row.partition: Future.FromString(row.value) for row in copies_of(requests, {0: 7, 1: 9}, 40).collect()}
    assert {partition: future.copy.decidedOffset for partition, future in made.items()} == {0: 7, 1: 9}


def test_requests_landed_since_the_decision_wait_for_the_next_one(spark: SparkSession) -> None:
    """A copy that says to have been decided before its original would be refused."""
    requests = spark.createDataFrame([request(offset, 1, 21_000) for offset in (6, 7, 8)], COLUMNS)
    made = [Future.FromString(row.value.removeprefix(b"value 6")) for row in copies_of(requests, {0: 7}, 40).collect()]
    assert [(future.copy.offset, future.copy.decidedOffset) for future in made] == [(6, 7)]


def test_a_copy_is_larger_by_the_bytes_that_promote_counts(spark: SparkSession) -> None:
    requests = spark.createDataFrame([request(0, 1, 21_000)], COLUMNS)
    [made] = copies_of(requests, {0: 7}, 40).collect()
    assert len(made.value) == len(b"value 0") + COPY_BYTES


# --- of many partitions -----------------------------------------------------------------------------------------------


def test_with_many_partitions_no_row_is_compared_with_each(spark: SparkSession) -> None:
    """A map of them, or a condition that names each, took half a minute for a million rows of 1,000 partitions."""
    requests = spark.createDataFrame([request(0, 1, 21_000, condition="IF_ABSENT")], COLUMNS)
    at = dict.fromkeys(range(1_000), 9)
    plans = [plan_of(frame) for frame in (with_sure(requests, at), copies_of(requests, at, 40))]
    assert all("BroadcastHashJoin" in plan for plan in plans)
    named = re.compile(r"keys: \[|(?<!#)\b999\b")  # Not the number that Spark has given to a column, as in due#999.
    assert not any(named.search(plan) for plan in plans)


@pytest.mark.parametrize("partitions", [1, 4, 50])
def test_each_task_publishes_as_many_partitions(spark: SparkSession, partitions: int) -> None:
    """And each of them in order, which is why one task has all of a partition."""
    tasks = min(8, partitions)
    spark.conf.set("spark.sql.shuffle.partitions", 8)
    try:
        rows = [
            request(offset, 1, 21_000 + chance % 3, partition=number, value=b"")
            for number in range(partitions)
            for offset, chance in enumerate(random.Random(number).sample(range(9), 4))
        ]
        made = copies_of(spark.createDataFrame(rows, COLUMNS), dict.fromkeys(range(partitions), 9), 40)
        found = made.select(spark_partition_id().alias("task"), "partition", "key", "value").collect()
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", 2)
    in_tasks = {task: [row for row in found if row.task == task] for task in range(tasks)}
    counts = {task: len({row.partition for row in rows}) for task, rows in in_tasks.items()}
    assert sum(counts.values()) == partitions
    assert max(counts.values()) - min(counts.values()) <= 1
    for rows in in_tasks.values():
        at = [(row.partition, int(row.key), Future.FromString(row.value).copy.offset) for row in rows]
        assert at == sorted(at)
    assert len(found) == 4 * partitions
