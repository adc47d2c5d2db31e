"""How a partition stands follows from its seals and the time."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from kafka_timers.broker.seals import latest
from kafka_timers.cli.render import status_lines
from kafka_timers.cli.terminal import status_table
from kafka_timers.core.wire import Sealed
from kafka_timers.operate.health import PartitionStatus, ServiceStatus
from kafka_timers.operate.status import status_of

NOTHING = PartitionStatus(0)


def shown(rows: list[PartitionStatus]) -> str:
    console = Console(file=StringIO(), width=80)
    console.print(status_table(rows))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_latest_seal_is_the_complete_one_with_the_highest_second_then_fence() -> None:
    seals = [
        Sealed(end_ms=6_000, fence=9),
        Sealed(end_ms=8_000, fence=10),
        Sealed(end_ms=8_000, fence=12),
        Sealed(end_ms=7_000, fence=40),
        Sealed(end_ms=9_000, fence=50, through=b"k"),
        # Present though empty: still a slice.
        Sealed(end_ms=10_000, fence=60, through=b""),
    ]
    assert latest(seals) == seals[2]
    assert latest(seals[4:]) is None
    assert latest([]) is None


def test_a_partition_without_a_seal_has_nothing_to_tell() -> None:
    assert status_of({0: []}, 1_000.0) == [NOTHING]


def test_second_and_lag_are_those_of_the_last_second_sealed_as_a_whole() -> None:
    seals = [Sealed(end_ms=91_000), Sealed(end_ms=96_000), Sealed(end_ms=97_000, through=b"k")]
    (row,) = status_of({0: seals}, 100.9)
    assert (row.second, row.lag_s) == (95, 5)


def test_lag_is_never_negative_when_this_host_is_behind() -> None:
    assert status_of({0: [Sealed(end_ms=103_000)]}, 100.0)[0].lag_s == 0


def test_pending_and_owner_are_those_of_the_last_seal_slices_included() -> None:
    seals = [
        Sealed(end_ms=96_000, pending=9, worker="http://a"),
        Sealed(end_ms=97_000, pending=4, worker="http://b", through=b"k"),
    ]
    (row,) = status_of({0: seals}, 100.0)
    assert (row.pending, row.owner) == (4, "http://b")


def test_lateness_is_that_of_the_last_seal_that_fired() -> None:
    seals = [
        Sealed(end_ms=91_000, fired=1, lateness_p50_ms=1, lateness_p99_ms=1, lateness_max_ms=1),
        Sealed(end_ms=92_000, fired=7, lateness_p50_ms=8, lateness_p99_ms=20, lateness_max_ms=31),
        Sealed(end_ms=96_000),
    ]
    (row,) = status_of({0: seals}, 100.0)
    assert (row.lateness_p50_ms, row.lateness_p99_ms, row.lateness_max_ms) == (8, 20, 31)


def test_the_rate_is_that_of_the_last_ten_seconds_of_the_seals() -> None:
    seals = [Sealed(first_ms=number * 1000, end_ms=(number + 1) * 1000, fired=number) for number in range(80, 96)]
    (row,) = status_of({0: seals}, 100.0)
    assert row.fired_per_s == sum(range(86, 96)) / 10
    # Of those that were read, which may be less.
    (row,) = status_of({0: seals[-2:]}, 100.0)
    assert row.fired_per_s == (94 + 95) / 2


def kept(*rows: PartitionStatus) -> list[str]:
    """Return the lines of `status` about the request log."""
    lines = status_lines(ServiceStatus("workers", "timer-request", rows))
    begin = next(number for number, line in enumerate(lines) if line.startswith("request log"))
    return [line[14:] for line in lines[begin : lines.index("refused       unknown")]]


def test_the_bytes_of_the_log_are_told_if_all_of_them_are_known() -> None:
    rows = [PartitionStatus(0, log_records=10, log_start=7, log_bytes=900), PartitionStatus(1, log_records=1)]
    assert kept(*rows) == ["11 records; 7 are given back"]
    assert kept(rows[0], replace(rows[1], log_bytes=1_100)) == ["11 records, 2.0 kB; 7 are given back"]


def test_the_oldest_record_that_may_be_needed_is_told_with_its_place() -> None:
    rows = [PartitionStatus(number, held_from=9 - number, held_since_s=1_000.5 - number) for number in range(3)]
    assert kept(*rows)[1] == "needed from 1970-01-01 00:16:38 UTC on, request 2:7"


@pytest.mark.parametrize(
    ("repeated", "asked", "told"),
    [
        (1, 100, "1 timer was repeated"),
        (8_000, 1_000, "8,000 timers were repeated"),
        (8_001, 1_000, "8,001 timers were repeated, 8 times what was asked for meanwhile: give workers 1.1 times"),
        (96_000, 8_000, "96,000 timers were repeated, 12 times what was asked for meanwhile: give workers 1.5 times"),
        (
            100_000,
            0,
            "100,000 timers were repeated, 100,000 times what was asked for meanwhile: give workers 12,500 times",
        ),
    ],
)
def test_timers_that_wait_for_more_than_four_times_what_is_kept_are_told_with_a_remedy(
    repeated: int, asked: int, told: str
) -> None:
    """The sweeps of half of that time then write more than eight times what is asked for in it."""
    seal = Sealed(end_ms=6_000)
    seal.swept.add(begun=7, below=50, since=50 + asked, to=99_999, requests=repeated)
    [_, line] = kept(*status_of({0: [seal], 1: []}, 6.0))
    assert line.startswith(told)
    assert ("--keep-s" in line) == (repeated > 8 * asked)


def test_partitions_come_in_the_order_of_their_numbers() -> None:
    assert [row.partition for row in status_of({10: [], 2: [], 0: []}, 0.0)] == [0, 2, 10]


def test_the_table_fits_80_columns_and_shows_every_figure() -> None:
    row = PartitionStatus(63, 1_900_000_000, 12_345, 123_456_789, 999, 9_999, 99_999, "http://timers-7.timers:8070 w")
    text = shown([row, NOTHING])
    assert max(map(len, text.splitlines())) <= 80
    for figure in ("63", "2030-03-17 17:46:40", "12345", "123456789", "999/9999/99999"):
        assert figure in text
    assert "\x1b" not in text


def test_a_seal_cannot_write_to_the_terminal() -> None:
    text = shown(status_of({0: [Sealed(end_ms=6_000, worker="\x1b[1m[bold]\n")]}, 6.0))
    assert "\x1b" not in text
    assert r"\x1b[1m[bold]\n" in text


def test_a_seal_of_a_second_that_no_calendar_has_is_shown_as_a_number() -> None:
    assert str(2**53) in shown(status_of({0: [Sealed(end_ms=(2**53 + 1) * 1000)]}, 0.0))
