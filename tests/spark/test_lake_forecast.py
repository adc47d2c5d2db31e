"""How many timers are ahead, and how fast workers have been."""

from lake_rows import of, part_of, request, seal
from lake_tables import SEAL_COLUMNS
from pyspark.sql import Row, SparkSession
from pyspark.testing import assertDataFrameEqual

from kafka_timers.lake.covering import totals
from kafka_timers.lake.forecast import counts, rate
from kafka_timers.lake.schema import REQUESTS
from kafka_timers.lake.unfired import pending


def test_timers_are_counted_by_second_and_topic_and_those_of_the_lake_apart(spark: SparkSession) -> None:
    requests = [
        request(0, 1, 900),
        request(1, 1, 900),
        request(2, 1, 900, topic="u"),
        request(3, 1, 90_000),  # far
        request(4, 1, 9),  # done
    ]
    waiting = pending(of(spark, requests, REQUESTS.columns), of(spark, [seal(10, 5)], SEAL_COLUMNS))
    wanted = [(900, "t", 2, 0), (900, "u", 1, 0), (90_000, "t", 1, 1)]
    assertDataFrameEqual(
        counts(waiting), spark.createDataFrame(wanted, "second bigint, topic string, timers bigint, far bigint")
    )


def test_the_rate_is_that_of_the_hottest_seconds_until_their_last_callback_left(spark: SparkSession) -> None:
    def hot(last: int, fired: int, took_ms: int, partition: int = 0, first: int | None = None) -> Row:
        known = seal(last, 5, partition=partition, first=first).asDict()
        return Row(**(known | {"fired": fired, "lateness_max_ms": took_ms}))

    seals = [
        hot(10, 2_000, 500),
        hot(10, 2_000, 1_000, partition=1),  # 4,000 in 1 s together
        hot(11, 1_000, 500),  # 2,000 a second
        hot(12, 30_000, 1_000),  # 30,000 a second
        hot(13, 999, 1),  # too few to tell
        hot(15, 50_000, 1, first=14),  # two seconds that were caught up with
    ]
    assert rate(totals(of(spark, seals, SEAL_COLUMNS))).collect()[0][0] == 4_000


def test_of_a_second_that_is_sealed_in_parts_the_rate_is_that_of_all_of_it(spark: SparkSession) -> None:
    seals = [
        part_of(15.001, 16.001, 5, fired=range(4_000), lateness_max_ms=300),
        part_of(16.001, 16.401, 5, fired=range(4_000, 4_500), lateness_max_ms=9),
        part_of(16.401, 16.9, 5, fired=range(4_500, 5_000), lateness_max_ms=99),
    ]
    assert rate(totals(of(spark, seals, SEAL_COLUMNS))).collect()[0][0] == 10_000


def test_there_is_no_rate_while_no_second_was_hot(spark: SparkSession) -> None:
    assert rate(totals(of(spark, [seal(10, 5, [1])], SEAL_COLUMNS))).collect()[0][0] is None
