"""The decisions of `kafka-timers dev` before it starts anything, and its output."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import click
import pytest

from kafka_timers.cli.lake_commands import lake
from kafka_timers.cli.program import program
from kafka_timers.errors import SettingsError
from kafka_timers.processes.supervisor import Part
from kafka_timers.serve.dev import claimed, data_folder, hints, parts
from kafka_timers.serve.dev_settings import DevSettings


def command_of(group: click.Group, name: str) -> click.Command:
    found = group.get_command(click.Context(group), name)
    assert found is not None
    return found


def test_a_new_folder_is_made(tmp_path: Path) -> None:
    with claimed(tmp_path / "a" / "b", fresh=False):
        assert (tmp_path / "a" / "b").is_dir()


def test_the_next_run_finds_the_data_of_the_last_one(tmp_path: Path) -> None:
    with claimed(tmp_path, fresh=False):
        (tmp_path / "data").touch()
    with claimed(tmp_path, fresh=False):
        assert (tmp_path / "data").exists()


def test_a_fresh_run_finds_nothing(tmp_path: Path) -> None:
    with claimed(tmp_path, fresh=False):
        (tmp_path / "kafka").mkdir()
        (tmp_path / "kafka" / "data").touch()
        (tmp_path / "file").touch()
    with claimed(tmp_path, fresh=True):
        assert not (tmp_path / "kafka").exists()
        assert not (tmp_path / "file").exists()


def test_a_fresh_run_does_not_follow_links_out_of_the_folder(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "dev", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    with claimed(folder, fresh=False):
        (folder / "link").symlink_to(elsewhere)
    with claimed(folder, fresh=True):
        assert not (folder / "link").is_symlink()
    assert (elsewhere / "precious").exists()


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_with_other_things_is_refused_and_left_alone(fresh: bool, tmp_path: Path) -> None:
    (tmp_path / "thesis").touch()
    with pytest.raises(SettingsError, match="--folder"), claimed(tmp_path, fresh=fresh):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis"]


@pytest.mark.parametrize("fresh", [False, True])
def test_a_second_run_in_the_same_folder_is_refused(fresh: bool, tmp_path: Path) -> None:
    with claimed(tmp_path, fresh=False):
        (tmp_path / "data").touch()
        with pytest.raises(SettingsError, match="already runs"), claimed(tmp_path, fresh=fresh):
            pass
        assert (tmp_path / "data").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="cannot be used"), claimed(tmp_path / "file" / "dev", fresh=False):
        pass


def given_to(started: Sequence[Part]) -> dict[str, dict[str, Any]]:
    """Return what the command line makes of each process's environment, by its name."""
    given = {}
    for part in started:
        command = command_of(program, part.command[-1])
        with mock.patch.dict(os.environ, part.env, clear=True):
            given[part.name] = command.make_context(part.command[-1], []).params
    return given


@pytest.mark.parametrize("prefix", ["", "mine-"])
def test_the_command_line_takes_the_commands_of_all_processes(prefix: str, tmp_path: Path) -> None:
    given = given_to(parts(DevSettings(topic_prefix=prefix), "127.0.0.1:9092", tmp_path))
    assert list(given) == ["oscillator", "worker", "console"]
    assert {of_one["topic_prefix"] for of_one in given.values()} == {prefix}
    assert given["worker"]["data_dir"] == str(tmp_path / "worker")
    assert given["worker"]["group"] == given["console"]["group"] == f"{prefix}kafka-timers"
    assert [of_one["port"] for of_one in given.values()] == [8071, 8072, 8074]
    # Its user may change things, and nobody reaches it from elsewhere.
    assert (given["console"]["host"], given["console"]["writable"]) == ("127.0.0.1", True)


def test_the_lake_gets_a_process_and_a_horizon_that_fit_each_other(tmp_path: Path) -> None:
    *served, promotes = parts(DevSettings(lake=True, topic_prefix="mine-"), "127.0.0.1:9092", tmp_path)
    assert promotes.name == "lake"
    worker = given_to(served)["worker"]
    group, command, *arguments = promotes.command[3:]
    assert (group, command) == ("lake", "promote")
    given = command_of(lake, command).make_context(command, arguments).params
    assert (given["topic_prefix"], given["lake"]) == ("mine-", str(tmp_path / "lake"))
    assert given["lands"]
    assert given["horizon_s"] == worker["horizon_s"] == 300
    assert given["bucket_s"] <= given["horizon_s"] // 2
    assert (given["host"], given["port"]) == ("127.0.0.1", DevSettings.lake_port)


def test_the_printed_query_asks_the_right_lake(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    printed = hints(DevSettings(lake=True, topic_prefix="mine-"), "127.0.0.1:9999", folder)
    [line] = printed["ask the lake"]
    _, group, command, *arguments = shlex.split(line)
    assert (group, command) == ("lake", "sql")
    given = command_of(lake, command).make_context(command, arguments).params
    assert (given["lake"], given["bootstrap"], given["topic_prefix"]) == (
        str(folder / "lake"),
        "127.0.0.1:9999",
        "mine-",
    )


@pytest.mark.parametrize("prefix", ["", "mine-"])
@pytest.mark.parametrize("bootstrap", ["127.0.0.1:9092", "127.0.0.1:9999"])
def test_the_command_line_accepts_the_commands_printed_to_try_next(prefix: str, bootstrap: str, tmp_path: Path) -> None:
    printed = hints(DevSettings(topic_prefix=prefix), bootstrap, tmp_path).values()
    tried = [shlex.split(line)[1:] for lines in printed for line in lines if line.startswith("kafka-timers ")]
    assert [command for command, *_ in tried] == ["watch", "send", "list", "status"]
    for command, *arguments in tried:
        given = command_of(program, command).make_context(command, arguments).params
        assert given["bootstrap"] == bootstrap
        assert given.get("topic_prefix", prefix) == prefix or command == "watch"


def test_two_ports_that_are_the_same_are_refused() -> None:
    with pytest.raises(SettingsError, match="two of these ports are the same"):
        DevSettings(metrics_port=8072)
    with pytest.raises(SettingsError, match="two of these ports are the same"):
        DevSettings(port=8070)
    with pytest.raises(SettingsError, match="lake_port 8074"):
        DevSettings(lake=True, lake_port=8074)
    DevSettings(lake_port=8074)
    DevSettings(port=8070, bootstrap="127.0.0.1:9092")


@pytest.mark.parametrize(("text", "fresh"), [("0", False), ("false", False), ("1", True), ("true", True)])
def test_the_environment_can_say_no_to_a_fresh_start(text: str, fresh: bool) -> None:
    assert DevSettings.from_env({"KAFKA_TIMERS_FRESH": text}).fresh is fresh


def test_the_environment_is_refused_when_it_says_neither_yes_nor_no() -> None:
    with pytest.raises(SettingsError, match="KAFKA_TIMERS_FRESH"):
        DevSettings.from_env({"KAFKA_TIMERS_FRESH": "perhaps"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"brokers": 2}, "give 1 or 3"),
        ({"brokers": 3, "bootstrap": "k:9092"}, "leave bootstrap out"),
        ({"brokers": 3, "port": 8070, "metrics_port": 8072}, "two of these ports are the same"),
        ({"brokers": 3, "port": 65_534}, "give less"),
    ],
)
def test_settings_of_three_brokers_that_do_not_fit_are_told(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        DevSettings(**given)


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_folder_with_data_of_another_number_of_brokers_is_refused(brokers: int, tmp_path: Path) -> None:
    """The stores of its worker hold timers of the other Kafka."""
    settings = DevSettings(brokers=4 - brokers)
    assert not data_folder(settings, tmp_path).exists()
    data_folder(DevSettings(brokers=brokers), tmp_path).mkdir()
    with pytest.raises(SettingsError, match=f"--brokers {brokers}: give the same, or --fresh"):
        data_folder(settings, tmp_path)
