"""How long the oldest request has been due follows from the state of its partition's owner."""

import pytest

from kafka_timers.worker.overdue import LIMIT_S, Overdue, oldest_due


def seen(**ages: float) -> Overdue:
    """Return the result of *ages*; all others are those of a partition that is well."""
    well = {"row_s": 0.0, "blocked_s": 0.0, "unread_s": 0.0, "proof_s": 0.4, "unserved_s": 0.0}
    return oldest_due("timer-request", 3, **(well | ages))


def test_where_all_is_well_nothing_is_due() -> None:
    assert seen().age_s == 0


def test_a_row_is_as_old_as_its_second() -> None:
    due = seen(row_s=14.2)
    assert due.age_s == 14.2
    assert due.why.startswith("a request has been due for 14 s and has not fired: look at the brokers")


def test_requests_behind_an_open_transaction_count_less_the_first_second() -> None:
    assert seen(blocked_s=0.9).age_s == 0
    due = seen(blocked_s=14.5)
    assert due.age_s == 13.5
    assert due.why.startswith("requests wait behind an open transaction for 14 s: end the producer")
    assert "--topic timer-request --partition 3" in due.why


def test_unread_requests_are_as_old_as_the_tick_that_asked_for_them() -> None:
    due = seen(unread_s=12.4, row_s=3)
    assert due.age_s == 12.4
    assert due.why.startswith("requests that timer-request has had for 12 s have not been read, and seconds fire")


@pytest.mark.parametrize(("proof_s", "age_s"), [(-1.0, 0.0), (3.0, 0.0), (3.1, 3.1), (20.0, 20.0)])
def test_a_proof_counts_once_it_is_older_than_three_seconds(proof_s: float, age_s: float) -> None:
    assert seen(proof_s=proof_s).age_s == age_s


def test_of_several_causes_the_oldest_is_told() -> None:
    assert "has not been proved for 9 s" in seen(row_s=5, blocked_s=7, proof_s=9).why
    assert "open transaction" in seen(row_s=9, blocked_s=10.5, proof_s=9).why


def test_a_partition_that_is_not_served_is_as_old_as_its_last_seal() -> None:
    """Why it is not served is told elsewhere."""
    assert seen(unserved_s=LIMIT_S + 1) == (LIMIT_S + 1, "")
