"""`buf` keeps proto/ as it was released: `make lint` runs the same two commands."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import LIMIT_S

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "proto"
RELEASED = PROTO / "released.binpb"


@pytest.fixture(scope="module")
def buf() -> str:
    """The program; pyproject.toml has it installed beside Python."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which("buf", path=path)
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("buf is missing")
        pytest.skip("buf is missing: install the package buf-bin")
    return found


def said(*command: str | Path) -> str:
    """Return the objections of *command*; empty if there are none."""
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (ended.returncode == 0) == (not ended.stdout), ended.stderr
    return ended.stdout


def test_make_lint_checks_the_files_as_they_are(buf: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in ("buf lint proto", "buf breaking proto --against proto/released.binpb"):
        assert f"$(BIN)/{command}\n" in makefile
        assert said(buf, *command.split()[1:]) == ""


def changed(folder: Path, file: str, before: str, after: str) -> Path:
    """Return a copy of proto/ below *folder* in which one piece of one file is another."""
    copy = folder / "proto"
    shutil.copytree(PROTO, copy)
    path = copy / "kafka_timers" / "v1" / file
    text, changes = re.subn(before, after, path.read_text(), count=1, flags=re.DOTALL)
    assert changes == 1
    path.write_text(text)
    return copy


@pytest.mark.parametrize(
    ("file", "before", "after", "objection"),
    [
        ("future.proto", "string token = 5;", "string secret = 5;", "changed name"),
        ("future.proto", "string token = 5;", "string token = 97;", "was deleted"),
        ("future.proto", "string token = 5;", "bytes token = 5;", "changed type"),
        ("future.proto", "string token = 5;", "reserved 5;", "was deleted"),
        ("future.proto", "optional bytes value = 3;", "bytes value = 3;", "cardinality"),
        ("reply.proto", "IGNORED = 6;", "LEFT_ALONE = 6;", "changed name"),
        ("sealed.proto", r"message Unsent \{.*?\n\}", "message Unsent {}", "was deleted"),
        ("sealed.proto", r"package kafka_timers.v1;", "package kafka_timers.v2;", "changed from"),
    ],
)
def test_released_fields_cannot_change(
    buf: str, tmp_path: Path, file: str, before: str, after: str, objection: str
) -> None:
    assert objection in said(buf, "breaking", changed(tmp_path, file, before, after), "--against", RELEASED)


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("future.proto", "string token = 5;", "string token = 5; string added = 99;"),
        # The form of a worker's store, which no topic carries.
        ("run.proto", "bool plain = 3;", "bool ordinary = 3;"),
    ],
)
def test_fields_may_be_added_and_the_store_may_change(
    buf: str, tmp_path: Path, file: str, before: str, after: str
) -> None:
    assert said(buf, "breaking", changed(tmp_path, file, before, after), "--against", RELEASED) == ""


def test_a_name_that_languages_spell_in_their_own_way_is_refused(buf: str, tmp_path: Path) -> None:
    copy = changed(tmp_path, "sealed.proto", "string worker = 18;", "string worker = 18; string workerName = 99;")
    assert "lower_snake_case" in said(buf, "lint", copy)
