"""The cache of Kafka's jars: its files are complete, and once all are there, no network is used."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from kafka_timers.dev import jars
from kafka_timers.dev.jars import Jar
from kafka_timers.errors import KafkaSetupError

CONTENTS = {"a": b"bytes of a", "b": b"bytes of b"}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path)}


@pytest.fixture
def two_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka consists of a and b."""
    wanted = [Jar("g", name, "1", len(data), hashlib.sha256(data).hexdigest()) for name, data in CONTENTS.items()]
    monkeypatch.setattr(jars, "locked", lambda: wanted)


def serve(monkeypatch: pytest.MonkeyPatch, contents: dict[str, bytes], asked: Callable[[str], object]) -> None:
    """Let downloads give *contents*; a jar that is missing there cannot be fetched."""

    def download(jar: Jar, part: Path, advance: Any) -> Path:
        asked(jar.artifact)
        if jar.artifact not in contents:
            raise KafkaSetupError("cannot fetch")
        fetched = part / jar.name
        fetched.write_bytes(contents[jar.artifact])
        return fetched

    monkeypatch.setattr(jars, "_download", download)


def files(env: dict[str, str]) -> list[str]:
    return sorted(path.name for path in jars.cache_folder(env).iterdir())


def test_the_lock_names_each_artifact_once_and_one_logging_binding() -> None:
    artifacts = Counter(jar.artifact for jar in jars.locked())
    assert set(artifacts.values()) == {1}
    assert {name for name in artifacts if "slf4j" in name or "logback" in name} == {"slf4j-api", "log4j-slf4j-impl"}
    assert len({jar.version for jar in jars.locked() if jar.group == "org.apache.logging.log4j"}) == 1


def test_all_parts_of_kafka_in_the_lock_have_the_version_that_is_promised() -> None:
    assert {jar.version for jar in jars.locked() if jar.group == "org.apache.kafka"} == {jars.KAFKA_VERSION}


def test_the_cache_lies_below_xdg_cache_home_else_in_the_home_folder(tmp_path: Path) -> None:
    below = Path("kafka-timers", f"kafka-{jars.KAFKA_VERSION}")
    assert jars.cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / below
    assert jars.cache_folder({}) == Path.home() / ".cache" / below


def test_jars_in_the_cache_need_no_network(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was used")

    folder = jars.cache_folder(env)
    folder.mkdir(parents=True)
    for jar in jars.locked():
        (folder / jar.name).touch()
        os.truncate(folder / jar.name, jar.size)  # sparse: the 43 MB take no room
    monkeypatch.setattr("socket.socket.connect", refuse)
    classpath = jars.classpath(env).split(os.pathsep)
    assert classpath == [str(folder / jar.name) for jar in jars.locked()]


def test_without_a_network_the_error_says_when_it_is_needed(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    with pytest.raises(KafkaSetupError, match="the network is needed once") as raised:
        jars.classpath(env)
    assert "--bootstrap" in str(raised.value)
    assert files(env) == []


@pytest.mark.usefixtures("two_jars")
def test_jars_that_arrived_before_an_interruption_are_not_fetched_again(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    serve(monkeypatch, {"a": CONTENTS["a"]}, asked.append)
    with pytest.raises(KafkaSetupError):
        jars.classpath(env)
    assert files(env) == ["a-1.jar"]
    serve(monkeypatch, CONTENTS, asked.append)
    jars.classpath(env)
    assert asked == ["a", "b", "b"]
    assert files(env) == ["a-1.jar", "b-1.jar"]


@pytest.mark.usefixtures("two_jars")
def test_a_jar_with_other_bytes_is_refused_and_not_kept(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, {**CONTENTS, "b": b"BYTES OF B"}, lambda _: None)
    with pytest.raises(KafkaSetupError, match=r"b-1\.jar arrived with other bytes"):
        jars.classpath(env)
    assert files(env) == ["a-1.jar"]


@pytest.mark.usefixtures("two_jars")
def test_a_jar_that_was_cut_short_is_fetched_again(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    serve(monkeypatch, CONTENTS, asked.append)
    jars.classpath(env)
    (jars.cache_folder(env) / "b-1.jar").write_bytes(b"byt")
    jars.classpath(env)
    assert asked == ["a", "b", "b"]
    assert (jars.cache_folder(env) / "b-1.jar").read_bytes() == CONTENTS["b"]


@pytest.mark.usefixtures("two_jars")
def test_two_that_fetch_at_once_both_get_all(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    together = Barrier(2, timeout=10)
    serve(monkeypatch, CONTENTS, lambda _: together.wait())
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(jars.classpath, (env, env))
    assert first == second
    assert files(env) == ["a-1.jar", "b-1.jar"]


@pytest.mark.usefixtures("two_jars")
def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(KafkaSetupError, match="cannot be written"):
        jars.classpath({"XDG_CACHE_HOME": str(tmp_path / "file")})
