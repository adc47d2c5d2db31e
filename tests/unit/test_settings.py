"""Settings are read from the environment once, and name in words the values that do not fit."""

import dataclasses
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from kafka_timers.broker.environment import env_name
from kafka_timers.cli.program import program
from kafka_timers.console.console_settings import ConsoleSettings
from kafka_timers.errors import SettingsError
from kafka_timers.lake.job_settings import RunningSettings
from kafka_timers.serve.dev_settings import DevSettings
from kafka_timers.serve.serve_settings import ServeSettings
from kafka_timers.settings import (
    GroupSettings,
    LakeSettings,
    OscillatorSettings,
    PlannerSettings,
    WorkerSettings,
    bounds_of,
)

Settings = (
    type[DevSettings]
    | type[ServeSettings]
    | type[LakeSettings]
    | type[OscillatorSettings]
    | type[WorkerSettings]
    | type[ConsoleSettings]
)

# Each class with the command that makes settings of it.
COMMANDS: dict[Settings, list[str]] = {
    DevSettings: ["dev"],
    ServeSettings: ["serve"],
    LakeSettings: ["lake", "optimize"],
    RunningSettings: ["lake", "land"],
    OscillatorSettings: ["oscillator"],
    WorkerSettings: ["worker"],
    ConsoleSettings: ["console"],
}
EACH = pytest.mark.parametrize("settings", COMMANDS)


def numbers() -> Iterator[tuple[Settings, "dataclasses.Field[object]"]]:
    """Yield each field that is a number, with its class."""
    for settings in COMMANDS:
        for field in dataclasses.fields(settings):
            if type(field.default) in (int, float):
                yield settings, field


def outside() -> Iterator[tuple[Settings, str, float]]:
    """Yield values outside of the bounds of each field that is a number: class, name and value."""
    for settings, field in numbers():
        least, above, most = (field.metadata[name] for name in ("least", "above", "most"))
        if type(field.default) is int:
            wrong: list[float] = [-7, -(10**300), least - 1]
            wrong += [] if most is None else [most + 1, 10**300]
        else:
            wrong = [-7.0, -1e300, math.nan, math.inf, -math.inf]
            wrong += [float(above)] if least is None else [math.nextafter(least, -math.inf)]
            wrong += [] if most is None else [math.nextafter(most, math.inf)]
        yield from ((settings, field.name, value) for value in wrong)


EACH_NUMBER = pytest.mark.parametrize(
    ("settings", "field"), [pytest.param(*each, id=f"{each[0].__name__}-{each[1].name}") for each in numbers()]
)
EACH_OUTSIDE = pytest.mark.parametrize(("settings", "name", "value"), list(outside()))


@EACH
def test_an_empty_environment_gives_the_defaults(settings: Settings) -> None:
    assert settings.from_env({}) == settings()


@EACH
def test_every_field_has_a_default_and_a_line_of_help(settings: Settings) -> None:
    for field in dataclasses.fields(settings):
        assert field.default is not dataclasses.MISSING
        assert field.metadata["help"]


@EACH
def test_every_field_can_be_set_by_the_environment(settings: Settings) -> None:
    for field in dataclasses.fields(settings):
        given = settings.from_env({f"KAFKA_TIMERS_{field.name.upper()}": str(field.default)})
        assert given == settings()
        assert type(getattr(given, field.name)) is type(field.default)


def test_settings_take_the_types_of_their_fields() -> None:
    settings = WorkerSettings.from_env(
        {"KAFKA_TIMERS_PORT": "8070", "KAFKA_TIMERS_FENCE_WAIT_S": "2.5", "KAFKA_TIMERS_GROUP": "g", "GROUP": "other"}
    )
    assert (settings.port, settings.fence_wait_s, settings.group) == (8070, 2.5, "g")


def test_arguments_win_over_the_environment() -> None:
    assert WorkerSettings.from_env({"KAFKA_TIMERS_PORT": "not even a number"}, port=2).port == 2


@pytest.mark.parametrize(("text", "fresh"), [("1", True), ("true", True), ("0", False), ("False", False)])
def test_a_switch_is_read_as_a_word(text: str, fresh: bool) -> None:
    assert DevSettings.from_env({"KAFKA_TIMERS_FRESH": text}).fresh is fresh


@pytest.mark.parametrize(
    ("settings", "name", "text"),
    [
        (WorkerSettings, "KAFKA_TIMERS_PORT", "many"),
        (WorkerSettings, "KAFKA_TIMERS_PORT", "80.5"),
        (WorkerSettings, "KAFKA_TIMERS_PORT", ""),
        (WorkerSettings, "KAFKA_TIMERS_FENCE_WAIT_S", "5s"),
        (DevSettings, "KAFKA_TIMERS_FRESH", "maybe"),
    ],
)
def test_a_value_of_another_type_is_named_with_its_variable(settings: Settings, name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}='{text}' is not of type"):
        settings.from_env({name: text})


@EACH_NUMBER
def test_every_number_has_a_lower_bound_and_takes_its_bounds(
    settings: Settings, field: "dataclasses.Field[object]"
) -> None:
    least, above, most = (field.metadata[name] for name in ("least", "above", "most"))
    assert (least is None) != (above is None)
    assert bounds_of(field)
    kind = type(field.default)
    for bound in (least, most):
        if bound is not None:
            assert getattr(settings(**{field.name: kind(bound)}), field.name) == bound  # type: ignore[arg-type]


@EACH_OUTSIDE
def test_a_number_outside_of_its_bounds_is_refused_from_python(settings: Settings, name: str, value: float) -> None:
    with pytest.raises(SettingsError, match=f"^{name} {re.escape(repr(value))}: give "):
        settings(**{name: value})  # type: ignore[arg-type]


@EACH_OUTSIDE
def test_a_number_outside_of_its_bounds_is_refused_from_the_environment(
    settings: Settings, name: str, value: float
) -> None:
    with pytest.raises(SettingsError, match=f"^{name} {re.escape(repr(value))}: give "):
        settings.from_env({env_name(name): repr(value)})


@EACH_OUTSIDE
def test_a_number_outside_of_its_bounds_is_refused_on_the_command_line(
    settings: Settings, name: str, value: float
) -> None:
    option = "--" + name.replace("_", "-")
    result = CliRunner().invoke(program, [*COMMANDS[settings], f"{option}={value!r}"])
    assert result.exit_code == 2
    assert re.search(rf"{option}'.*: {re.escape(repr(value))}: give ", result.stderr)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "-1", "", "many", "0x10"])
@EACH_NUMBER
def test_a_senseless_number_in_the_environment_is_refused(
    settings: Settings, field: "dataclasses.Field[object]", text: str
) -> None:
    if field.metadata["least"] == -1 and text == "-1":
        return
    with pytest.raises(SettingsError, match=f"(?i)^(KAFKA_TIMERS_)?{field.name}[ =]") as refusal:
        settings.from_env({env_name(field.name): text})
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "given",
    [
        {"transaction_timeout_s": 0},
        {"transaction_timeout_s": -3},
        {"fence_wait_s": -1},
        {"max_clock_skew_s": -5},
        {"seal_every_s": -1},
        {"arm_bytes": -1},
        {"session_timeout_s": math.nan},
        {"log_level": "loud"},
        {"port": 99_999},
        {"door_grace_s": -7},
        {"door_caller_limit": -1},
        {"allowed_topics": ""},
    ],
    ids=str,
)
def test_nonsense_is_refused_at_start(given: dict[str, object]) -> None:
    """A process that takes one of these goes wrong later, far from the setting."""
    [name] = given
    with pytest.raises(SettingsError, match=f"^{name} .*: give "):
        WorkerSettings(**given)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=f"^{name} .*: give "):
        WorkerSettings.from_env({env_name(name): str(given[name])})
    option = f"--{name.replace('_', '-')}={given[name]}"
    assert CliRunner().invoke(program, ["worker", option]).exit_code == 2


@EACH
def test_python_must_give_values_of_the_types_of_the_fields(settings: Settings) -> None:
    wrong: dict[type, list[object]] = {
        bool: [0, 1, "true", None],
        int: [True, 5.0, "5", None],
        float: [False, "5", None, b"5"],
        str: [5, None, b"text", True],
    }
    for field in dataclasses.fields(settings):
        for value in wrong[type(field.default)]:
            with pytest.raises(SettingsError, match=f"^{field.name} {re.escape(repr(value))}: give "):
                settings(**{field.name: value})  # type: ignore[arg-type]


def test_a_whole_number_will_do_for_any_number() -> None:
    assert WorkerSettings(fence_wait_s=3).fence_wait_s == 3


@EACH
def test_a_text_that_is_none_of_the_choices_is_refused(settings: Settings) -> None:
    for field in dataclasses.fields(settings):
        for choice in field.metadata["choices"]:
            assert getattr(settings.from_env({env_name(field.name): choice}), field.name) == choice
            sentence = f"^{field.name} '{choice.upper()}': give {bounds_of(field)}"
            with pytest.raises(SettingsError, match=sentence):
                settings(**{field.name: choice.upper()})
            with pytest.raises(SettingsError, match=sentence):
                settings.from_env({env_name(field.name): choice.upper()})


@pytest.mark.parametrize("text", ["", " ", ",", " , "])
@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (WorkerSettings, "allowed_topics"),
        (WorkerSettings, "data_dir"),
        (WorkerSettings, "host"),
        (OscillatorSettings, "host"),
        (LakeSettings, "lake"),
        (DevSettings, "folder"),
    ],
)
def test_a_text_that_has_to_be_there_is_refused_when_it_is_empty(settings: Settings, name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name} '{text}': give "):
        settings(**{name: text})  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [WorkerSettings, PlannerSettings, ConsoleSettings])
def test_the_group_follows_from_the_topic_prefix_unless_it_is_given(settings: type[GroupSettings]) -> None:
    assert settings().group == "kafka-timers"
    assert settings(topic_prefix="c-").group == "c-kafka-timers"
    assert settings(topic_prefix="c-", group="  ").group == "c-kafka-timers"
    assert settings(topic_prefix="c-", group="g").group == "g"
    assert settings.from_env({"KAFKA_TIMERS_TOPIC_PREFIX": "c-", "KAFKA_TIMERS_GROUP": ""}).group == "c-kafka-timers"


def test_commands_that_take_single_settings_refuse_the_same_values_as_the_processes() -> None:
    for arguments in (["acls", "--allowed-topics", ""], ["topics", "check", "--horizon-s", "-1"]):
        result = CliRunner().invoke(program, arguments)
        assert result.exit_code == 2
        assert ": give " in result.stderr


@pytest.mark.parametrize(
    ("settings", "given", "sentence"),
    [
        (WorkerSettings, {"guarantee": "maybe"}, "give exactly-once or at-least-once"),
        (WorkerSettings, {"log_level": "loud"}, "give debug, info, warning or error"),
        (WorkerSettings, {"slice_rows": 0}, "slice_rows 0: give at least 1"),
        (WorkerSettings, {"slice_bytes": 0}, "slice_bytes 0: give at least 1"),
        (WorkerSettings, {"stalled_after_s": 5.0}, "must be longer than seal_every_s 5"),
        (WorkerSettings, {"session_timeout_s": 0.5}, "give 1 to 1800"),
        (WorkerSettings, {"transaction_timeout_s": 901}, "give 1 to 900; .*transaction.max.timeout.ms"),
        (WorkerSettings, {"port": 65_535, "processes": 2}, "no port for each of 2 processes: give 65534 at most"),
        (WorkerSettings, {"door": "headers=p-timer-request", "topic_prefix": "p-"}, "is the service's own"),
        (WorkerSettings, {"door": "nothing=t"}, "give NAME=TOPIC"),
        (WorkerSettings, {"door_from": "yesterday"}, "door_from yesterday: 'yesterday' is neither ISO 8601"),
        (WorkerSettings, {"door_history": "h", "door": "headers=t"}, "door_history h is for the door etf1"),
        (WorkerSettings, {"door_history": "t", "door": "headers=t,etf1=s"}, "door_history t: a door reads it"),
        (WorkerSettings, {"door_history": "oscillator", "door": "etf1=s"}, "is the service's own"),
        (
            WorkerSettings,
            {"door_history": "h", "door": "etf1=s", "allowed_topics": "s,calls-*"},
            "allowed_topics s,calls-. do not match it",
        ),
        (OscillatorSettings, {"replica": 4}, "give 0 to 3"),
        (OscillatorSettings, {"replica": -1}, "give 0 to 3"),
        (OscillatorSettings, {"catch_up_s": 0}, "give at least 1"),
        (
            WorkerSettings,
            {"horizon_s": 179},
            "horizon_s 179 may leave all recurring timers to the lake, .*: give 180 or more, or no_planner",
        ),
        (LakeSettings, {"horizon_s": 0}, "give 1 to .*; no more than the workers have"),
        (DevSettings, {"partitions": 0}, "give at least 1"),
        (DevSettings, {"metrics_port": 65_534}, "give 1 to 65533; the processes have the next two"),
        (ServeSettings, {"port": 65_534}, "give 1 to 65533; the processes have the next two"),
        (ServeSettings, {"query_port": 8_072}, "two of these ports are the same: .*port . 2 8072, query_port 8072"),
        (ServeSettings, {"console_host": "0.0.0.0"}, "console: host 0.0.0.0 can be reached from other hosts"),
        (ServeSettings, {"query_host": "0.0.0.0"}, "worker: query_host 0.0.0.0 can be reached from other hosts"),
        (ServeSettings, {"allowed_topics": ""}, "give globs of callback topics"),
    ],
)
def test_settings_that_do_not_fit_are_named_in_words(
    settings: Settings, given: dict[str, object], sentence: str
) -> None:
    with pytest.raises(SettingsError, match=sentence):
        settings(**given)  # type: ignore[arg-type]


def test_a_horizon_may_be_short_only_where_no_recurring_timers_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WorkerSettings(horizon_s=180).horizon_s == 180
    assert WorkerSettings(horizon_s=1, no_planner=True).horizon_s == 1
    # `serve` runs a worker by the environment.
    monkeypatch.setenv("KAFKA_TIMERS_HORIZON_S", "60")
    with pytest.raises(SettingsError, match="worker: horizon_s 60 may leave all recurring timers to the lake"):
        ServeSettings()
    monkeypatch.setenv("KAFKA_TIMERS_NO_PLANNER", "true")
    assert ServeSettings().worker.horizon_s == 60


def test_settings_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        WorkerSettings().port = 1  # type: ignore[misc]


def test_each_process_has_a_client_id_of_its_own_so_that_it_can_have_a_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By role, replica and instance; the operator's own wins."""
    assert WorkerSettings().kafka.client_id == "kafka-timers.worker"
    assert OscillatorSettings(replica=1, topic_prefix="a-").kafka.client_id == "a-kafka-timers.oscillator-1"
    assert PlannerSettings(topic_prefix="a-").kafka.client_id == "a-kafka-timers.planner"
    config = tmp_path / "kafka.properties"
    config.write_text("client.id = mine")
    assert WorkerSettings(kafka_config=str(config)).kafka.client_id == "mine"
