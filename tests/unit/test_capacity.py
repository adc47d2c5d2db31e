"""The needs of a load."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from kafka_timers.cli.program import program
from kafka_timers.operate.capacity import needs_of

DAY_S = 86_400


def amounts(**load: Any) -> dict[str, float]:
    return {need.name: need.amount for need in needs_of(**load)}


def test_a_small_load_needs_two_workers_and_room_to_grow() -> None:
    found = amounts(rate=1, delay_s=60, payload_bytes=100)
    assert (found["workers"], found["partitions"], found["pending"]) == (2, 8, 60)


@pytest.mark.parametrize(("rate", "workers"), [(40_000, 2), (80_000, 3), (400_000, 9)])
def test_workers_have_half_a_core_to_spare_and_one_may_be_away(rate: float, workers: int) -> None:
    found = amounts(rate=rate, delay_s=60, payload_bytes=100)
    assert found["workers"] == workers
    assert found["partitions"] >= 4 * workers


def test_disk_bandwidth_and_log_grow_with_the_load_and_its_payload() -> None:
    one = amounts(rate=1_000, delay_s=DAY_S, payload_bytes=100)
    for other in ({"rate": 2_000}, {"payload_bytes": 500}):
        found = amounts(**{"rate": 1_000, "delay_s": DAY_S, "payload_bytes": 100} | other)
        assert all(found[name] > one[name] for name in ("worker_disk", "log_disk", "produced", "replicated"))
    assert one["log_disk_total"] == 3 * one["log_disk"]


def test_a_log_that_nobody_trims_grows_for_ever_by_so_much_a_day() -> None:
    needs = needs_of(rate=200, delay_s=1_800, payload_bytes=150, keep_s=0)
    assert not {need.name for need in needs} & {"retention", "log_disk", "log_disk_total"}
    [growth] = [need for need in needs if need.name == "log_growth"]
    assert (growth.unit, growth.amount) == ("bytes/day", 200 * 86_400 * (150 + 45))
    assert "for ever" in growth.why
    shown = CliRunner().invoke(
        program, ["capacity", "--rate", "200", "--delay", "30m", "--payload", "150", "--keep", "0s"]
    )
    assert "3.4 GB/day" in shown.output


@pytest.mark.parametrize(
    ("delay_s", "keep_s", "share", "restore_s"),
    # Timers that wait for less than half of what is kept are read from the log alone, and others also where they are
    # repeated.
    [
        (60, 7 * DAY_S, "0%", 1),
        (4 * DAY_S, 7 * DAY_S, "114%", 6_284),
        (30 * DAY_S, 90 * DAY_S, "67%", 23_564),
        (30 * DAY_S, 7 * DAY_S, "857%", 23_564 + 5_498),
    ],
)
def test_a_trimmed_log_holds_what_is_kept_and_twice_what_waits(
    delay_s: int, keep_s: int, share: str, restore_s: int
) -> None:
    needs = {need.name: need for need in needs_of(rate=1_000, delay_s=delay_s, payload_bytes=118, keep_s=keep_s)}
    assert needs["log_disk"].amount == pytest.approx(1_000 * 163 * (keep_s + 2 * delay_s))
    assert needs["repeated"].amount == pytest.approx(1_000 * 163 * 2 * delay_s / keep_s)
    assert f"up to {share} of what is asked for" in needs["repeated"].why
    assert needs["restore"].amount == pytest.approx(restore_s, abs=1)
    # Four times what is kept.
    assert ("a longer --keep-s" in needs["repeated"].why) == (share == "857%")


def test_the_time_to_restore_is_also_told_for_a_load_in_which_some_wait_far_longer() -> None:
    """An owner may have to read all that is kept for a few timers; the average wait does not tell."""
    command = ["capacity", "--rate", "1000", "--delay", "60s", "--payload", "118"]
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(program, command)
    assert "restore            0:00:01  to read the log again after a lost disk; 1:31:39 if some" in shown.output


def test_a_lake_takes_pending_timers_from_workers_and_log() -> None:
    month = 30 * DAY_S
    without = amounts(rate=1_000, delay_s=month, payload_bytes=118, keep_s=0)
    found = amounts(rate=1_000, delay_s=month, payload_bytes=118, horizon_s=DAY_S)
    assert found["pending"] == without["pending"] / 30
    assert found["retention"] == 8 * DAY_S
    # A copy of each comes back; the kept requests are bounded.
    assert found["log_disk"] == 2 * 8 * without["log_growth"]
    assert found["log_disk_total"] == 3 * found["log_disk"]
    # As docs/lake.md says of the same load.
    assert 325e9 < found["lake_disk"] < 335e9
    assert "lake_disk" not in amounts(rate=1_000, delay_s=3_600, payload_bytes=118, horizon_s=DAY_S)


def test_the_command_tells_it_as_a_table_and_as_json() -> None:
    command = ["capacity", "--rate", "1000", "--delay", "30d", "--payload", "118", "--horizon", "1d"]
    shown = CliRunner().invoke(program, command)
    assert shown.exit_code == 0
    assert "86,400,000  timers in the workers' stores" in shown.output
    assert "8 days" in shown.output
    told = json.loads(CliRunner().invoke(program, [*command, "--json"]).stdout)
    assert told == amounts(rate=1_000, delay_s=30 * DAY_S, payload_bytes=118, horizon_s=DAY_S)
    assert CliRunner().invoke(program, [*command[:2], "0", *command[3:]]).exit_code == 2
