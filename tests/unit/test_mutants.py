"""The places that `make mutants` changes are those of the code as it is. The campaign is too long for each change."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def test_each_mutant_finds_its_place_and_changes_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(TESTS / "mutants")
    from mutants import MUTANTS

    stale = []
    for mutant in MUTANTS:
        try:
            # Not the imported package: a mutant's own run has changed that.
            for path, text in mutant.broken(TESTS.parent / "app").items():
                ast.parse(text, path)
        except ValueError as error:
            stale.append(str(error))
    assert not stale
