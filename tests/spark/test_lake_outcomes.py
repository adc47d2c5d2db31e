"""The fired requests and their seconds follow from requests and the fences of seals."""

from lake_rows import REJECTED, cancel, copy, digest_of, of, once, part_of, refused, request, seal, told
from lake_tables import SEAL_COLUMNS
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from kafka_timers.lake.covering import figures, fires, intervals_of, outcomes_of, totals
from kafka_timers.lake.replay import synthetic_intervals
from kafka_timers.lake.schema import REQUESTS
from kafka_timers.lake.unfired import pending


def test_a_request_fires_in_the_first_seal_that_reached_its_second_and_passed_its_offset(spark: SparkSession) -> None:
    requests = [
        request(35, 5, 10),
        request(39, 9, 11),
        request(40, 9, 11),  # read after its second was scanned
        request(41, 5, 8),  # long past when it was read
        request(54, 11, 13),
        request(55, 11, 14),
        refused(36, 5, "key-missing"),
        refused(41, 5, "key-missing", partition=1),
        request(90, 15, 16),  # not sealed yet
        request(91, 15, 13),  # nor is this
        request(35, 5, 10, partition=1),
        request(35, 5, 10, partition=2),  # without any seal
    ]
    seals = [
        seal(9, 30),
        seal(11, 40, through=b"x", first=10),
        seal(11, 40, first=10),
        seal(11, 40, first=10),  # again, as at-least-once may have it
        seal(12, 55),
        seal(12, 12),  # by an owner that was paused
        seal(13, 55),
        seal(15, 80, first=14),
        seal(20, 40, partition=1),
        seal(21, 50, partition=1),
    ]
    outcomes = outcomes_of(
        of(spark, requests, REQUESTS.columns),
        intervals_of(of(spark, seals, SEAL_COLUMNS)),
        of(spark, [(0, 54, "topic-unknown"), (0, 36, "key-missing")], REJECTED),
    )
    wanted = [
        (0, 35, 11, 40, False, None),
        (0, 36, 11, 40, False, "key-missing"),
        (0, 39, 11, 40, False, None),
        (0, 40, 12, 55, True, None),
        (0, 41, 12, 55, True, None),
        (0, 54, 13, 55, False, "topic-unknown"),
        (0, 55, 15, 80, False, None),
        (1, 35, 20, 40, False, None),
        (1, 41, 21, 50, False, "key-missing"),
    ]
    fired = once(fires(outcomes))
    assert told(fired, "partition", "offset", "sealed_in", "fence", "late", "reason") == wanted
    assert told(outcomes.where("fence is null"), "partition", "offset", "sealed_in") == [
        (0, 90, None),
        (0, 91, None),
        (2, 35, None),
    ]
    assertDataFrameEqual(
        figures(fired, "partition"),
        spark.createDataFrame(
            [(0, 7, 5, 2, 0, digest_of([35, 39, 40, 41, 55]), 2), (1, 2, 1, 1, 0, digest_of([35], 1), 0)],
            "partition int, due bigint, fired bigint, rejected bigint, forwarded bigint, digest bigint, late bigint",
        ),
    )


def test_of_a_second_that_is_sealed_in_parts_each_request_fires_in_the_part_of_its_moment(spark: SparkSession) -> None:
    requests = [
        request(30, 5, 11),
        request(31, 5, 11.249),
        request(32, 5, 11.25),
        request(33, 5, 11.4),
        request(40, 11.1, 11.2),  # read after its moment was scanned
        request(41, 11.1, 11.999),
        refused(42, 11.1, "key-missing"),
        request(43, 11.1, 12.5),  # not sealed yet
    ]
    seals = [
        seal(10, 30),
        # Nothing was read meanwhile.
        part_of(11, 11.25, 40),
        part_of(11.25, 11.251, 40),
        part_of(11.251, 11.9, 40),
        part_of(11.9, 12.5, 44),
    ]
    frames = of(spark, requests, REQUESTS.columns), intervals_of(of(spark, seals, SEAL_COLUMNS))
    outcomes = outcomes_of(*frames, of(spark, [], REJECTED)).persist()
    assert told(fires(outcomes), "offset", "sealed_ms", "sealed_in", "fence", "late") == [
        (30, 11_250, 11, 40, False),
        (31, 11_250, 11, 40, False),
        (32, 11_251, 11, 40, False),
        (33, 11_900, 11, 40, False),
        (40, 12_500, 12, 44, True),
        (41, 12_500, 12, 44, False),
        (42, 12_500, 12, 44, False),
    ]
    assert told(pending(frames[0], of(spark, seals, SEAL_COLUMNS)), "offset") == [(43,)]
    outcomes.unpersist()


def test_after_an_outage_everything_that_was_due_in_it_fires_in_the_next_seal(spark: SparkSession) -> None:
    hours, far = 100_000, {"horizon_s": 200_000}
    requests = [
        request(30, 5, 10),
        request(31, 5, 11),
        request(32, 5, hours),
        request(33, 5, hours + 1),  # behind the seal
        # Read after their second, one in an interval of very many records.
        request(40, 9, 10),
        request(9_000_000, 9, 10),
        request(9_000_001, 9, 10),
        request(9_500_000, 9, 10),  # not sealed yet
    ]
    seals = [
        seal(10, 40, **far),
        # Stretches with several seals, and seals over several stretches.
        seal(hours, 9_000_001, first=11, **far),
        seal(hours + 60, 9_000_002, first=hours + 1, **far),
        seal(hours + 61, 9_000_002, **far),
        seal(hours + 90, 9_004_500, first=hours + 62, **far),
    ]
    frames = of(spark, requests, REQUESTS.columns), intervals_of(of(spark, seals, SEAL_COLUMNS))
    assert told(fires(outcomes_of(*frames, of(spark, [], REJECTED))), "offset", "sealed_in", "late") == [
        (30, 10, False),
        (31, hours, False),
        (32, hours, False),
        (33, hours + 60, False),
        (40, hours, True),
        (9_000_000, hours, True),
        (9_000_001, hours + 60, True),
    ]


def test_a_withdrawn_request_does_not_fire_unless_its_scan_began_before_the_cancel_was_read(
    spark: SparkSession,
) -> None:
    requests = [
        request(0, 1, 10, "a"),
        cancel(1, 2, "a"),
        request(2, 1, 10, "b"),
        cancel(3, 10, "b"),  # too late
        request(4, 1, 10, "c"),
        request(5, 2, 12, "c"),  # moved
        request(6, 1, 10, "d"),
        request(8, 1, 10, "e"),
        cancel(20, 9, "d"),  # in time, but the scan of 10 did not wait for it
        request(21, 9, 12, "e"),  # so is this
        request(22, 11, 30, "f"),
        cancel(23, 12, "f"),
    ]
    seals = [seal(10, 20), seal(12, 30, first=11)]
    outcomes = outcomes_of(
        of(spark, requests, REQUESTS.columns),
        intervals_of(of(spark, seals, SEAL_COLUMNS)),
        of(spark, [], REJECTED),
    )
    assert told(fires(outcomes), "offset", "sealed_in") == [(2, 10), (5, 12), (6, 10), (8, 10), (21, 12)]
    # It is known of unsealed requests, too.
    assert told(outcomes.where("taken_by is not null"), "offset", "taken_by") == [(0, 1), (4, 5), (22, 23)]


def test_a_far_request_fires_by_its_first_valid_copy(spark: SparkSession) -> None:
    far = [
        request(offset, 10, 5000, timer_id) for offset, timer_id in enumerate([None, "b", "c", None, "e", None, "g"])
    ]
    near = request(7, 3000, 5000)
    requests = [
        *far,
        near,
        copy(20, 4500, far[0], 10),
        copy(21, 4501, far[0], 10),  # again
        copy(22, 4502, far[1], 10, 1),  # stale
        copy(23, 4503, far[2], 10),
        copy(24, 4500, near, 10),  # workers have the original
        cancel(25, 4510, "c"),
        copy(31, 5000.5, far[3], 10),  # promoted late
        cancel(26, 4510, "e"),
        copy(27, 4511, far[4], 26),  # the cancel was not known
        copy(28, 4511, far[6], 26),
    ]
    seals = of(spark, [seal(5000, 30, horizon_from=3), seal(5001, 40, horizon_from=3)], SEAL_COLUMNS)
    frames = (of(spark, requests, REQUESTS.columns), intervals_of(seals), of(spark, [], REJECTED))
    outcomes = outcomes_of(*frames)
    assert told(fires(outcomes), "offset", "sealed_in", "late", "far") == [
        (0, 5000, False, True),
        # Below horizon_from and without a copy: workers with an earlier horizon had it.
        (1, 5000, False, False),
        (3, 5001, True, True),
        (6, 5000, False, True),
        (7, 5000, False, False),
    ]
    assert told(outcomes.where("fence is null"), "offset", "sealed_in", "taken_by") == [
        (4, 5000, 26),
        (5, 5000, None),  # nobody has promoted it
    ]
    # As if there had been none, or a shorter one.
    assert told(fires(outcomes_of(*frames, 0)), "offset", "sealed_in", "far")[:2] == [
        (0, 5000, False),
        (1, 5000, False),
    ]
    assert (7, 5000, True) in told(fires(outcomes_of(*frames, 1999)), "offset", "sealed_in", "far")


def test_slices_add_up_and_a_repeated_record_counts_once(spark: SparkSession) -> None:
    seals = [
        seal(10, 20, [0, 1], through=b"1", lateness_max_ms=7),
        seal(10, 20, [2], 1, through=b"2", lateness_max_ms=9),
        seal(10, 20, [2**21], lateness_max_ms=8),
        seal(10, 20, [2**21], lateness_max_ms=8, offset=99),
        seal(11, 20, [5], through=b"3"),  # its second goes on
    ]
    assertDataFrameEqual(
        totals(of(spark, seals, SEAL_COLUMNS)),
        spark.createDataFrame(
            [(0, 11_000, 20, 10_000, 5, 4, 1, 0, digest_of([0, 1, 2, 2**21]), 0, 9, 10_100, 10, 10)],
            "partition int, end_ms bigint, fence bigint, first_ms bigint, due bigint, fired bigint, rejected bigint, "
            "forwarded bigint, digest bigint, lateness_p99_ms int, lateness_max_ms int, appended_ms bigint, "
            "first bigint, last bigint",
        ),
    )


def test_with_fewer_ticks_all_fires_at_the_next_of_them(spark: SparkSession) -> None:
    requests = of(
        spark,
        [request(0, 1, 10), request(1, 1, 11), request(2, 19.9, 15), request(3, 20, 15), request(4, 25, 26)],
        REQUESTS.columns,
    )
    intervals = synthetic_intervals(requests.select("partition", "offset", "appended_ms"), 10, 35, 10)
    assertDataFrameEqual(
        intervals,
        spark.createDataFrame(
            [(0, end_ms, fence, *[0] * 2, end_ms) for end_ms, fence in ((11_000, 2), (21_000, 3), (31_000, 5))],
            "partition int, end_ms bigint, fence bigint, horizon_s bigint, horizon_from bigint, appended_ms bigint",
        ),
    )
    fired = fires(outcomes_of(requests, intervals, of(spark, [], REJECTED)))
    assert told(fired, "offset", "sealed_in") == [(0, 10), (1, 20), (2, 20), (3, 30), (4, 30)]
