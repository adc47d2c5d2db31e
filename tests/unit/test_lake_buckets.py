"""When far requests come back to the workers: the next bucket, and the topics that it is for."""

import pytest

from kafka_timers.core.wire import is_far
from kafka_timers.errors import LakeError
from kafka_timers.lake.buckets import SKEW_S, Bucket, Closed, closed_second, next_bucket
from kafka_timers.lake.live import refuse_made_anew

DAY_S = 86_400
HORIZON_S, BUCKET_S = DAY_S, 3_600
# 2030-01-01 00:00:00 UTC.
NEW_YEAR = 1_893_456_000


def closed(last: int, horizon_s: int = HORIZON_S, closed_s: int | None = None) -> Closed:
    return Closed(last - BUCKET_S + 1, last, horizon_s, 0, last - horizon_s + 10 if closed_s is None else closed_s)


def test_the_first_bucket_is_all_that_has_come_within_the_horizon() -> None:
    bucket = next_bucket([], NEW_YEAR, HORIZON_S, BUCKET_S)
    assert bucket == Bucket(1, NEW_YEAR + DAY_S - BUCKET_S, HORIZON_S)


def test_a_bucket_waits_until_its_last_second_is_within_the_horizon_by_any_brokers_clock() -> None:
    last = NEW_YEAR + BUCKET_S
    early, due = (next_bucket([closed(NEW_YEAR)], last - HORIZON_S + SKEW_S + s, HORIZON_S, BUCKET_S) for s in (0, 1))
    assert early is None
    assert due == Bucket(NEW_YEAR + 1, last, HORIZON_S)


def test_nothing_that_is_appended_from_then_on_is_far_and_due_in_the_bucket() -> None:
    for now in range(NEW_YEAR, NEW_YEAR + 3 * BUCKET_S, 7):
        bucket = next_bucket([closed(NEW_YEAR + DAY_S - 2 * BUCKET_S)], now, HORIZON_S, BUCKET_S)
        assert bucket
        assert not is_far(bucket.last, now - SKEW_S, HORIZON_S)


def test_seconds_missed_while_the_job_was_down_are_one_bucket() -> None:
    bucket = next_bucket([closed(NEW_YEAR)], NEW_YEAR + 10 * DAY_S, HORIZON_S, BUCKET_S)
    assert bucket == Bucket(NEW_YEAR + 1, NEW_YEAR + 11 * DAY_S - BUCKET_S, HORIZON_S)


def test_workers_get_the_last_second_that_is_wholly_promoted() -> None:
    """A smaller horizon has left something again, until it has closed a bucket of its own."""
    assert closed_second([], HORIZON_S) == 0
    rows = [closed(NEW_YEAR + DAY_S), closed(NEW_YEAR)]
    assert closed_second(rows, HORIZON_S) == NEW_YEAR + DAY_S
    assert closed_second(rows, 2 * HORIZON_S) == NEW_YEAR + DAY_S
    assert closed_second(rows, 3_600) == NEW_YEAR
    rows.append(closed(NEW_YEAR + 5_000, 3_600, closed_s=NEW_YEAR + 1_900))
    assert closed_second(rows, 3_600) == NEW_YEAR + 5_000


def test_another_length_of_buckets_leaves_no_gap() -> None:
    bucket = next_bucket([closed(NEW_YEAR)], NEW_YEAR, HORIZON_S, 1_000)
    assert bucket == Bucket(NEW_YEAR + 1, NEW_YEAR + 86_000, HORIZON_S)


def test_with_a_smaller_horizon_nothing_is_taken_for_closed_that_was_not_due_when_it_was_closed() -> None:
    """
    1. at second NEW_YEAR seconds up to NEW_YEAR + one day were closed     2. the horizon becomes an hour
    3. a request due in NEW_YEAR + 2 h is far now, and in a closed bucket
    """
    rows = [closed(NEW_YEAR), closed(NEW_YEAR + DAY_S)]
    bucket = next_bucket(rows, NEW_YEAR + 1_800, 3_600, 600)
    assert bucket
    assert bucket.first <= NEW_YEAR + 1
    # Buckets closed anew by the smaller one count from then on, also when the horizon grows again.
    rows.append(closed(bucket.last, 3_600, closed_s=NEW_YEAR + 1_900))
    for horizon_s in (3_600, HORIZON_S):
        again = next_bucket(rows, NEW_YEAR + 10_000, horizon_s, 600)
        assert again
        assert again.first == bucket.last + 1


def test_with_a_larger_horizon_requests_left_to_the_lake_by_the_smaller_one_are_still_far() -> None:
    """
    1. by a horizon of an hour a request due in 2 h is left to the lake     2. workers and lake get one of a day, by
    which it is not far     3. it is promoted all the same, until none like it can be left
    """
    rows = [closed(NEW_YEAR, 3_600, closed_s=NEW_YEAR - 3_600)]
    bucket = next_bucket(rows, NEW_YEAR - 3_000, HORIZON_S, BUCKET_S)
    assert bucket
    assert bucket.far_s == 3_600
    # A request appended until the switch was noticed is due within a day from then on.
    switched_s = NEW_YEAR - 3_000
    rows.append(closed(bucket.last, HORIZON_S, closed_s=switched_s))
    while bucket.first <= switched_s + DAY_S:
        assert bucket.far_s == 3_600
        bucket = next_bucket(rows, bucket.last - HORIZON_S + BUCKET_S + SKEW_S + 1, HORIZON_S, BUCKET_S)
        assert bucket
        rows.append(closed(bucket.last, HORIZON_S))
    assert bucket.far_s == HORIZON_S


def test_a_topic_of_another_id_is_refused_and_one_that_was_landed_without_an_id_is_not() -> None:
    refuse_made_anew({"timer-request": "a"}, {"timer-request": "a", "timer-sealed": "b"})
    with pytest.raises(LakeError, match="the topic with id a, and this one has id c"):
        refuse_made_anew({"timer-request": "a"}, {"timer-request": "c"})
