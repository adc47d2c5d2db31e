"""Of tens of thousands of random cron expressions, the runs by the calendar are those by a walk over each second."""

import os
import random
import time
from datetime import date

import pytest
from cron_comparison import Comparison
from cron_expressions import ZONES, expression
from cron_walk import Cron

# Read now, before the variables of the user who runs the tests are removed.
EXPRESSIONS = int(os.environ.get("KAFKA_TIMERS_TEST_EXPRESSIONS", "10000"))
SEED = int(os.environ.get("KAFKA_TIMERS_TEST_SEED", "1"))
FIRST_RUNS = 1_000


@pytest.mark.chaos
@pytest.mark.parametrize("zone", ZONES)
def test_many_random_expressions_run_when_the_table_says(zone: str, capsys: pytest.CaptureFixture[str]) -> None:
    # Each zone has the same expressions.
    drawn, rng = random.Random(SEED), random.Random(f"{SEED} {zone}")
    # Until then first runs are looked for: of rare ones, as long as the calendar looks ahead, and somewhat longer.
    comparison = Comparison(zone, date(2100, 1, 1), rng)
    began_s = time.process_time()
    for _ in range(EXPRESSIONS):
        text = expression(drawn)
        cron = Cron(text)
        comparison.first_runs(text, cron, FIRST_RUNS)
        comparison.around(text, cron, comparison.changes)
        comparison.with_cronsim(text, cron, rng.choice(comparison.changes), 20)
    counts, differences = dict(comparison.counts), comparison.differences
    with capsys.disabled():
        took_s = time.process_time() - began_s
        print(f"\nseed {SEED}, {zone}: {EXPRESSIONS} expressions, {counts}, {len(differences)} differ, {took_s:.0f} s")
    assert not differences, "\n".join(differences[:40])
