"""The places that `make mutants` changes are those of the code as it is. The campaign is too long for each change."""

import runpy
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_each_mutant_changes_a_text_that_stands_there_once() -> None:
    # Not the imported package: a mutant's own run has changed that.
    app = TESTS.parent / "app/kafka_timers"
    stale = []
    for mutant in runpy.run_path(str(TESTS / "mutants/mutants.py"))["MUTANTS"]:
        try:
            mutant.broken((app / mutant.file).read_text())
        except ValueError as error:
            stale.append(str(error))
    assert not stale
