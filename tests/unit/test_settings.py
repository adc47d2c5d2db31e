"""Settings are read from the environment once, and say in words what does not fit."""

import dataclasses

import pytest

from kafka_timers.errors import SettingsError
from kafka_timers.settings import DevSettings, OscillatorSettings, WorkerSettings

Settings = type[DevSettings] | type[OscillatorSettings] | type[WorkerSettings]

EACH = pytest.mark.parametrize("settings", [DevSettings, OscillatorSettings, WorkerSettings])


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


def test_what_is_given_wins_over_the_environment() -> None:
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


@pytest.mark.parametrize(
    ("settings", "given", "sentence"),
    [
        (WorkerSettings, {"guarantee": "maybe"}, "give exactly-once or at-least-once"),
        (WorkerSettings, {"slice_rows": 0}, "slice_rows and slice_bytes: give at least 1"),
        (WorkerSettings, {"slice_bytes": 0}, "slice_rows and slice_bytes: give at least 1"),
        (WorkerSettings, {"stalled_after_s": 5.0}, "must be longer than seal_every_s 5"),
        (WorkerSettings, {"session_timeout_s": 0.5}, "give at least 1 second"),
        (OscillatorSettings, {"replica": 4}, "give 0 to 3"),
        (OscillatorSettings, {"replica": -1}, "give 0 to 3"),
        (OscillatorSettings, {"catch_up_s": 0}, "give at least 1 second"),
        (DevSettings, {"partitions": 0}, "give at least 1"),
    ],
)
def test_a_clash_is_told_in_words(settings: Settings, given: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        settings(**given)  # type: ignore[arg-type]


def test_settings_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        WorkerSettings().port = 1  # type: ignore[misc]
