"""The arguments of the command line, and their effect, without a broker."""

import dataclasses
import json
import logging
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import click
import pytest
from aiokafka import ConsumerRecord
from click.testing import CliRunner, Result

from kafka_timers.broker.environment import env_name
from kafka_timers.cli.options import Seconds, when_of
from kafka_timers.cli.program import program
from kafka_timers.cli.render import callback_lines, printable
from kafka_timers.cli.running import _Lasting
from kafka_timers.core.durations import delay_ms_of
from kafka_timers.operate.documents import callback_document
from kafka_timers.serve.dev_settings import DevSettings
from kafka_timers.settings import OscillatorSettings, WorkerSettings

PROCESSES = {"dev": DevSettings, "worker": WorkerSettings, "oscillator": OscillatorSettings}
EXPIRY_S = 1_900_000_000


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(program, arguments, prog_name="kafka-timers", env=env)


def record(
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    *,
    timestamp_ms: int = EXPIRY_S * 1000 + 12,
    headers: tuple[tuple[str, bytes | None], ...] = (("timer-expiry", b"%d" % EXPIRY_S), ("timer-request", b"3:17")),
) -> ConsumerRecord:
    return ConsumerRecord("calls", 1, 5, timestamp_ms, 0, key, value, None, 1, 1, headers)


@pytest.fixture
def unused_address() -> Iterator[str]:
    """An address at which nothing answers: the port is taken, and not listened to, while the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_help_names_every_command() -> None:
    text = run("--help").output
    for name in (
        "dev",
        "worker",
        "oscillator",
        "topics",
        "send",
        "cancel",
        "move",
        "find",
        "watch",
        "status",
        "list",
        "next",
        "ahead",
    ):
        assert re.search(rf"^  {name} ", text, re.MULTILINE), name


@pytest.mark.parametrize("command", PROCESSES)
def test_help_of_a_process_shows_default_environment_name_and_meaning_of_every_setting(command: str) -> None:
    text = " ".join(run(command, "--help").output.split())
    # Long words are broken at their hyphens at the end of a line.
    text = text.replace("- ", "-")
    for field in dataclasses.fields(PROCESSES[command]):
        assert f"--{field.name.replace('_', '-')} " in text
        assert env_name(field.name) in text
        assert field.metadata["help"].split(",")[0] in text
        if not isinstance(field.default, bool):
            assert f"default: {field.default if field.default != '' else chr(34) * 2}" in text


@pytest.mark.parametrize(
    "command",
    ["topics create", "topics check", "send", "cancel", "move", "find", "status", "watch", "list", "next", "ahead"],
)
def test_help_of_every_other_command_shows_where_its_broker_comes_from(command: str) -> None:
    text = " ".join(run(*command.split(), "--help").output.split())
    assert "env var: KAFKA_TIMERS_BOOTSTRAP; default: 127.0.0.1:9092" in text


def test_help_loads_neither_faust_nor_rocksdb_nor_a_web_server() -> None:
    script = (
        "import sys, click; from kafka_timers.cli.program import program\n"
        "for name in program.list_commands(click.Context(program)): program([name, '--help'], standalone_mode=False)\n"
        "print('loaded', *{name.partition('.')[0] for name in sys.modules})"
    )
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    loaded = output.splitlines()[-1].split()
    assert "click" in loaded
    assert {"faust", "mode", "rocksdict", "aiohttp", "prometheus_client"}.isdisjoint(loaded)


@pytest.mark.parametrize(
    ("module", "command", "extra"),
    [
        ("click", "status", "cli"),
        ("click", "worker", "worker"),
        ("click", "lake", "lake"),
        ("rich", "status", "cli"),
        ("rich", "lake", "lake"),
    ],
)
def test_without_the_libraries_of_the_command_line_it_names_the_extra_to_install(
    module: str, command: str, extra: str
) -> None:
    script = f"import sys; sys.modules['{module}'] = None; from kafka_timers.__main__ import main; main()"
    ended = subprocess.run([sys.executable, "-c", script, command], check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr == f"Error: the command line needs {module}: pip install 'kafka-timers[{extra}]'\n"


@pytest.mark.parametrize(
    ("command", "missing"),
    [("worker", "faust"), ("oscillator", "prometheus_client"), ("dev", "faust"), ("dev", "uvicorn")],
)
def test_without_the_libraries_of_a_process_it_names_the_extra_to_install(command: str, missing: str) -> None:
    script = f"import sys; sys.modules['{missing}'] = None; from kafka_timers.__main__ import main; main()"
    ended = subprocess.run([sys.executable, "-c", script, command], check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr == f"Error: {missing} is not installed: pip install 'kafka-timers[{command}]'\n"


def test_settings_that_clash_are_one_sentence_and_exit_code_1() -> None:
    result = run("worker", "--stalled-after-s", "3")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: stalled_after_s 3.0 must be longer than seal_every_s 5")
    assert result.stderr.count("\n") == 1


def test_settings_come_from_the_environment_and_an_option_wins() -> None:
    env = {"KAFKA_TIMERS_REPLICA": "9"}
    assert "9: give 0 to 3" in run("oscillator", env=env).stderr
    assert "7: give 0 to 3" in run("oscillator", "--replica", "7", env=env).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["worker", "--port", "many"],
        ["worker", "--guarantee", "maybe"],
        ["nothing"],
        ["topics", "create", "--partitions", "0"],
        ["send", "--topic", "calls"],
        ["send", "--topic", "calls", "--in", "3s", "--at", "1900000000"],
        ["send", "--in", "3s"],
        ["send", "--topic", "calls", "--in", "soon"],
        ["send", "--topic", "calls", "--at", "2030-01-31"],
        ["send", "--topic", "calls", "--in", "3s", "--header", "no-equals-sign"],
        ["cancel"],
        ["find"],
        ["move", "id", "--topic", "calls"],
        ["move", "id", "--topic", "calls", "--in", "3s", "--at", "1900000000"],
        ["move", "--topic", "calls", "--in", "3s"],
        ["move", "id"],
        ["send", "--topic", "calls", "--in", "3s", "--key", "k", "--key-base64", "aw=="],
        ["send", "--topic", "calls", "--in", "3s", "--key-base64", "not base64"],
        ["send", "--topic", "calls", "--in", "3s", "--value", "v", "--tombstone"],
        ["send", "--topic", "calls", "--in", "3s", "--partition", "-1"],
        ["move", "id", "--topic", "calls", "--in", "3s", "--request", "0:17"],
        ["send", "--topic", "calls", "--in", "3s", "--if-absent"],
        ["cancel", "id", "--request", "0:17"],
        ["cancel", "id", "other", "--if-pending", "--request", "0:17"],
        ["watch"],
        ["watch", "calls", "--count", "0"],
    ],
)
def test_wrong_usage_is_exit_code_2_and_no_traceback(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "command",
    [
        ["topics", "check"],
        ["topics", "create"],
        ["status"],
        ["watch", "calls"],
        ["cancel", "id"],
        ["find", "id"],
        ["move", "id", "--topic", "calls", "--in", "3s"],
    ],
)
def test_a_broker_that_is_away_is_one_sentence_and_exit_code_1(command: list[str], unused_address: str) -> None:
    ended = CliRunner().invoke(program, [*command, "--bootstrap", unused_address])
    assert ended.exit_code == 1
    assert ended.stderr.startswith(f"Error: no Kafka answers at {unused_address}, or not in plain text: start it")
    assert ended.stderr.count("\n") == 1


def test_an_address_that_is_none_is_said_plainly() -> None:
    ended = CliRunner().invoke(program, ["status", "--bootstrap", "localhost:kafka"])
    assert ended.exit_code == 1
    assert ended.stderr == (
        "Error: bootstrap 'localhost:kafka' is not a list of Kafka brokers: give host:port, comma separated\n"
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3s", 3),
        ("5m", 300),
        ("2h", 7_200),
        ("1d", 86_400),
        ("1h30m", 5_400),
        ("1d2h3m4s", 93_784),
        ("0s", 0),
        ("250ms", 0.25),
        ("1m1ms", 60.001),
        ("1m1s5ms", 61.005),
        ("1w", 604_800),
        ("1.5h", 5_400),
        ("30", 30),
        ("0", 0),
        ("0.25", 0.25),
        ("0.0001s", 0.001),
    ],
)
def test_durations_are_weeks_days_hours_minutes_seconds_and_milliseconds(text: str, seconds: float) -> None:
    assert delay_ms_of(text) == round(seconds * 1000)


def test_a_duration_of_whole_seconds_has_no_milliseconds() -> None:
    assert Seconds().convert("1m30s", None, None) == 90
    assert Seconds().convert("1000ms", None, None) == 1
    with pytest.raises(click.BadParameter, match="give whole seconds"):
        Seconds().convert("250ms", None, None)


@pytest.mark.parametrize(
    "text",
    ["", "s", "-3s", "-3", "3 s", "3ms3s", "1.h", ".5h", "30m1h", "1d1w", "3s3s", "3S", "٣s", "9999999999s"],
)
def test_a_duration_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration: give weeks, days, hours, minutes, seconds"):
        delay_ms_of(text)


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("2030-01-31T12:00:00Z", datetime(2030, 1, 31, 12, tzinfo=UTC)),
        ("2030-01-31T12:00:00+02:00", datetime(2030, 1, 31, 12, tzinfo=timezone(timedelta(hours=2)))),
        ("2030-01-31 12:00:00.25+00:00", datetime(2030, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)),
        ("1900000000", 1_900_000_000),
        ("1900000000.345", 1_900_000_000.345),
        ("0", 0),
    ],
)
def test_times_are_iso_8601_with_a_zone_or_unix_seconds(text: str, when: datetime | float) -> None:
    assert when_of(text) == when


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2030-01-31T12:00:00", "has no zone: add Z for UTC"),
        ("2030-01-31", "has no zone"),
        ("1900000000000", "are these milliseconds"),
        ("9" * 5_000, "are these milliseconds"),
        ("tomorrow", "neither ISO 8601"),
        ("-5", "neither ISO 8601"),
        ("1900000000.", "neither ISO 8601"),
        (".5", "neither ISO 8601"),
        ("1900000000000.5", "are these milliseconds"),
        ("", "neither ISO 8601"),
        ("2030-02-30T12:00:00Z", "neither ISO 8601"),
        ("20261127", "looks like a date: give ISO 8601"),
        ("20261127.5", "looks like a date: give ISO 8601"),
        ("21991231", "looks like a date: give ISO 8601"),
    ],
)
def test_a_time_of_another_form_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        when_of(text)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        ("grün 日本".encode(), "grün 日本"),
        (b"", ""),
        (None, "null"),
        (b"\x1b[31mred\x1b]0;title\x07", r"\x1b[31mred\x1b]0;title\x07"),
        (b"one\r\ntwo\ttab\x7f", r"one\r\ntwo\ttab\x7f"),
        (b"\xff\xc3(", r"\xff\xc3("),
        ("\u202eevil\u200b\x9b31m".encode(), r"\u202eevil\u200b\x9b31m"),
    ],
)
def test_characters_that_do_not_print_are_spelled_out(data: bytes | None, text: str) -> None:
    assert printable(data) == text


def test_every_character_outside_of_the_printable_ones_is_spelled_out() -> None:
    everything = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)])).encode()
    assert printable(everything).isprintable()


def test_a_line_of_watch_tells_second_lateness_key_and_value() -> None:
    assert callback_lines(record(b"order-7", b"hello"), 0.0, 80)[0].split() == [
        "2030-03-17",
        "17:46:40",
        "12",
        "ms",
        "late",
        "order-7",
        "hello",
    ]


def test_a_line_of_watch_counts_from_the_millisecond() -> None:
    headers = (("timer-expiry", b"%d" % EXPIRY_S), ("timer-millis", b"50"), ("timer-request", b"3:17"))
    late = record(headers=headers, timestamp_ms=EXPIRY_S * 1000 + 62)
    line, told = callback_lines(late, 0.0, 80)
    assert line.startswith("2030-03-17 17:46:40.050")
    assert "12 ms late" in line
    assert told.split() == ["timer-request=3:17"]
    shown = callback_document(late, 0.0)
    assert (shown["second"], shown["due_ms"], shown["lateness_ms"]) == (EXPIRY_S, EXPIRY_S * 1000 + 50, 12)


def test_a_line_of_watch_fits_the_terminal_and_holds_no_control_characters() -> None:
    for value in (b"x" * 500, "日本".encode() * 300, b"\x1b[2J\n" * 100):
        headers = (("timer-expiry", b"%d" % EXPIRY_S), ("trace", value))
        line, told = callback_lines(record(value * 2, value, headers=headers), 0.0, 80)
        assert told.isprintable()
        assert told.strip().startswith("trace=")
        assert len(told.encode("utf-8", "replace")) > 40
        assert sum(2 if char in "日本" else 1 for char in told) <= 80
        assert line.isprintable()
        assert "…" in line
        assert len(line.encode("utf-8", "replace")) > 40
        assert click.unstyle(line) == line
        assert sum(2 if char in "日本" else 1 for char in line) <= 80


def test_a_callback_that_came_early_is_called_early() -> None:
    assert "3 ms early" in callback_lines(record(timestamp_ms=EXPIRY_S * 1000 - 3), 0.0, 80)[0]


@pytest.mark.parametrize(
    ("late_ms", "told"),
    [
        (0, "0 ms late"),
        (999, "999 ms late"),
        (1_000, "1.0 s late"),
        (59_900, "59.9 s late"),
        (61_000, "1 m 1 s late"),
        (3_599_999, "59 m 59 s late"),
        (5 * 3_600_000 + 120_000, "5 h 2 m late"),
        (86_400_000 * 2_518, "2,518 d late"),
        (-90_000, "1 m 30 s early"),
    ],
)
def test_lateness_is_told_in_units_that_people_read(late_ms: int, told: str) -> None:
    assert told in callback_lines(record(timestamp_ms=EXPIRY_S * 1000 + late_ms), 0.0, 80)[0]


def test_headers_are_told_below_the_callback() -> None:
    headers = (("timer-expiry", b"%d" % EXPIRY_S), ("timer-request", b"3:17"), ("trace", None), ("from", b"\x1b\xff"))
    _, told = callback_lines(record(headers=headers), 0.0, 200)
    assert told.split() == ["timer-request=3:17", "trace=", r"from=\x1b\xff"]
    assert len(callback_lines(record(headers=headers[:1]), 0.0, 80)) == 1


def test_lateness_is_counted_to_the_arrival_when_the_record_has_no_time() -> None:
    assert callback_document(record(timestamp_ms=-1), EXPIRY_S + 1.5)["lateness_ms"] == 1_500


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("timer-expiry", None),),
        (("timer-expiry", b"soon"),),
        (("timer-expiry", b"9" * 30),),
        (("timer-expiry", b"5"), ("timer-millis", b"x")),
    ],
)
def test_a_record_that_is_no_callback_is_shown_without_lateness(headers: tuple[tuple[str, bytes | None], ...]) -> None:
    shown = callback_document(record(headers=headers), 0.0)
    assert (shown["second"], shown["lateness_ms"]) == (None, None)
    assert "no timer" in callback_lines(record(headers=headers), 0.0, 80)[0]


def test_a_record_as_json_keeps_bytes_that_are_not_text() -> None:
    shown = callback_document(record(None, b"\xff\x00"), 0.0)
    assert shown == {
        "topic": "calls",
        "partition": 1,
        "offset": 5,
        "second": EXPIRY_S,
        "due_ms": EXPIRY_S * 1000,
        "lateness_ms": 12,
        "request": "3:17",
        "timer_id": None,
        "token": None,
        "key": None,
        "value_base64": "/wA=",
        "headers": [{"name": "timer-expiry", "value": str(EXPIRY_S)}, {"name": "timer-request", "value": "3:17"}],
    }
    assert json.loads(json.dumps(shown)) == shown


def test_a_misspelt_command_is_answered_with_the_right_one() -> None:
    assert "No such command 'snd'. Did you mean send?" in run("snd").stderr
    unlike = run("xyz").stderr
    assert "No such command 'xyz'" in unlike
    assert "Did you mean" not in unlike


def test_a_search_for_the_coordinator_of_a_group_is_told_once_it_lasts() -> None:
    """Each first start has one, and each login that ends: a line of it sends an operator after nothing."""
    seen, log = [], logging.getLogger("aiokafka.consumer.group_coordinator")
    lasting = _Lasting()
    for at_s in (0, 1, 60, *range(120, 140), 200):
        line = logging.makeLogRecord({"name": log.name, "msg": "Group Coordinator Request failed: %s", "created": at_s})
        seen += [at_s] if lasting.filter(line) else []
    assert seen == [*range(131, 140)]
    assert lasting.filter(logging.makeLogRecord({"msg": "Heartbeat failed"}))


def test_a_table_that_goes_to_another_program_has_a_line_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("capacity", "--rate", "5", "--delay", "30d", "--payload", "100")
    wide = run(*command).output
    monkeypatch.setenv("COLUMNS", "20")
    assert run(*command).output == wide
