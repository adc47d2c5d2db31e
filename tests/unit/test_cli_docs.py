"""
docs/cli.md is the program's own help. After you change the command line, run `python tests/unit/test_cli_docs.py`.
"""

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from kafka_timers.broker.environment import env_name
from kafka_timers.cli.program import program
from kafka_timers.lake.job_settings import RunningSettings
from kafka_timers.serve.dev_settings import DevSettings
from kafka_timers.serve.serve_settings import ServeSettings
from kafka_timers.settings import LakeSettings, OscillatorSettings, WorkerSettings

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"

INTRODUCTION = """\
# Command line

This page has the help of each command, as `kafka-timers COMMAND --help` prints it. `tests/unit/test_cli_docs.py`
generates it from the program.

| exit code | means | of |
|---|---|---|
| 0 | all is well | all commands |
| 1 | the command failed, or found a problem. If it failed, the standard error has one line about it | all commands |
| 2 | wrong usage | all commands |
| 3 | too late: the timer fires or has fired | `cancel`, `move` |
| 3 | the audit has findings | `lake audit` |
| 3 | a replayed second or a published day differs | `lake replay`, `lake publish-chain --check` |
| 3 | far requests came back late, or cannot be promoted | `lake promote --once` |
| 4 | no such timer is known | `cancel`, `move`, `find`, `next`, `fire-now`, `ask-again` |
| 4 | no such schedule is known | `schedule show` |
| 4 | no record matches | `lake cancel`, `lake move`, `lake forget` |
| 5 | a condition did not hold | `send`, `cancel`, `move`, `fire-now`, `ask-again`, `redrive` |

With `--json`, you get JSON and nothing else on the standard output: one document, or for `watch`, `list` and `rejected`
one document per line. Keys and values that are not UTF-8 are in `key_base64` and `value_base64`.
"""


def page() -> str:
    """Return the text that docs/cli.md must have."""
    sections = [f"## {path}\n\n```text\n{text}\n```\n" for path, text in helps(program, "kafka-timers")]
    return "\n".join([INTRODUCTION, *sections])


def helps(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[tuple[str, str]]:
    """Yield path and help of *command* and of its subcommands, 80 columns wide on any terminal."""
    context = click.Context(command, info_name=name, parent=parent, terminal_width=80, **command.context_settings)
    yield context.command_path, command.get_help(context)
    for below in command.list_commands(context) if isinstance(command, click.Group) else ():
        found = command.get_command(context, below)
        assert found is not None
        yield from helps(found, below, context)


def test_the_page_is_the_same_as_the_help_of_the_program() -> None:
    # In a process of its own: click remembers the help option of a command from the first context it was used in.
    printed = subprocess.run([sys.executable, __file__, "--print"], capture_output=True, text=True, check=True).stdout
    assert PAGE.read_text() == printed, "run: python tests/unit/test_cli_docs.py"


def test_the_page_names_every_setting_of_every_process() -> None:
    text = PAGE.read_text()
    for settings in (DevSettings, ServeSettings, WorkerSettings, OscillatorSettings, LakeSettings, RunningSettings):
        for field in dataclasses.fields(settings):
            assert env_name(field.name) in text
            assert f"--{field.name.replace('_', '-')}" in text


if __name__ == "__main__":
    if "--print" in sys.argv:
        sys.stdout.write(page())
    else:
        PAGE.write_text(page())
