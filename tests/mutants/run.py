"""
Breaks the shipped code in one place at a time, and looks whether the tests of `make check` notice.

    make mutants                               all of them; writes docs/mutants.json, a quarter of an hour on two cores
    python tests/mutants/run.py NAME…          some of them

A mutant that survives is named in `EXPLAINED` with the reason, or is a hole in the tests. Each one meets the test first
that has killed it last time, as docs/mutants.json has it. Then come those that are named after the changed file, and
those that fail most often, and at last all others.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mutants import EXPLAINED, MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
LAST = ROOT / "docs" / "mutants.json"
# But for the one of the mutants themselves, which says nothing of the code.
TESTS = ("--ignore=tests/unit/test_mutants.py", "tests/store", "tests/unit", "tests/simulation")
# Those that fail most often, and how many histories they live through at first: the first few tell of most mutants.
_SOON = tuple(f"tests/simulation/test_{name}.py" for name in ("stories", "coordinator", "histories"))
_FEW, _MANY = 40, 400
_LIMIT_S = 600


def survives(mutant: Mutant, killed_by: str) -> tuple[str, str, float]:
    """Return the name of *mutant*, the first test that fails with it or "" if none does, and the seconds it took."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        app = Path(folder) / "app"
        shutil.copytree(ROOT / "app", app, ignore=shutil.ignore_patterns("__pycache__"))
        try:
            broken = mutant.broken(ROOT / "app")
        except ValueError as error:
            raise SystemExit(str(error)) from error
        for path, text in broken.items():
            (app / path.relative_to(ROOT / "app")).write_text(text)
        # It may have another name by now.
        code, found, told = _run([killed_by], app, _MANY) if "::" in killed_by else (0, "", "")
        for tests, histories in (([*_about(broken), *_SOON], _FEW), (TESTS, _MANY)):
            if code != pytest.ExitCode.TESTS_FAILED:
                code, found, told = _run(tests, app, histories)
        if code > pytest.ExitCode.TESTS_FAILED:
            raise SystemExit(f"{mutant.name}: pytest could not run its tests:\n{told}")
    return mutant.name, found, time.monotonic() - started


def _about(changed: Iterable[Path]) -> list[str]:
    """Return the files of tests that are named after the changed files."""
    stems = {path.stem for path in changed}
    files = {path for place in TESTS[1:] for path in (ROOT / place).rglob("test_*.py")}
    return sorted(str(path.relative_to(ROOT)) for path in files if any(stem in path.stem for stem in stems))


def _run(tests: Sequence[str], app: Path, histories: int) -> tuple[int, str, str]:
    """Return pytest's exit code for *tests* of the code in *app*, the first test that fails, and all it has said."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
    command += ["-m", "not chaos", "--histories", str(histories), f"--basetemp={app.parent}/tmp", *tests]
    env = os.environ | {"PYTHONPATH": f"{app}{os.pathsep}{ROOT / 'oscillator'}"}
    try:
        run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return pytest.ExitCode.TESTS_FAILED, f"no end after {_LIMIT_S} s", ""
    failed = (line.split(maxsplit=1)[1] for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR")))
    return run.returncode, next(failed, "").split(" - ")[0], run.stdout + run.stderr


def main() -> None:
    """Run the mutants that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not given.names or mutant.name in given.names]
    last = json.loads(LAST.read_text())["killed_by"] if LAST.exists() else {}
    killed_by: dict[str, str] = {}
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for name, found, took_s in pool.map(survives, chosen, [last.get(mutant.name, "") for mutant in chosen]):
            killed_by[name] = found
            print(f"{took_s:6.1f} s  {name}: {found or 'SURVIVES ' + EXPLAINED.get(name, '')}", flush=True)
    holes = [name for name, found in killed_by.items() if not found and name not in EXPLAINED]
    killed = sum(map(bool, killed_by.values()))
    print(f"{killed} of {len(killed_by)} killed; not explained: {', '.join(holes) or 'none'}")
    if given.json:
        survivors = {name: EXPLAINED.get(name, "not explained") for name, found in killed_by.items() if not found}
        told = {"mutants": len(killed_by), "killed": killed, "survivors": survivors, "killed_by": killed_by}
        given.json.write_text(json.dumps(told, indent=1) + "\n")
    sys.exit(bool(holes))


if __name__ == "__main__":
    main()
