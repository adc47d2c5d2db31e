"""
cli.json has the commands of the program, with the names of their options and arguments, and their exit codes.

Scripts rely on these. After you change the command line on purpose, run `python tests/unit/test_cli_list.py`.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from test_cli_docs import INTRODUCTION

from kafka_timers.cli.program import program

FILE = Path(__file__).with_name("cli.json")
# Of any command: it succeeded, it failed, it was called in a wrong way.
ALWAYS = {0, 1, 2}


def leaves(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield path and command of *command*, or of all commands below it if it is a group."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for below in command.list_commands(context):
        found = command.get_command(context, below)
        assert found is not None
        yield from leaves(found, f"{name} {below}".strip())


def codes_in_the_table() -> dict[str, set[int]]:
    """Return by command the exit codes that docs/cli.md has in its table."""
    codes: dict[str, set[int]] = {}
    for code, cell in re.findall(r"^\| (\d) \| [^|]+ \| ([^|]+) \|$", INTRODUCTION, re.MULTILINE):
        for text in re.findall(r"`([^`]+)`", cell):
            codes.setdefault(text.partition(" --")[0], set()).add(int(code))
    return codes


def codes_in_the_help(text: str) -> set[int]:
    """Return the exit codes that a help text has below "Exit codes"."""
    parts = re.split(r"\n\s*Exit codes[^\n]*:\n", text)[1:]
    return {int(code) for part in parts for code in re.findall(r"^ {2,}(\d)  ", part, re.MULTILINE)}


def listed() -> dict[str, Any]:
    """Return what cli.json must have."""
    codes = codes_in_the_table()
    return {
        name: {
            "parameters": sorted("/".join([*each.opts, *each.secondary_opts]) for each in command.params),
            "exit_codes": sorted(ALWAYS | codes.get(name, set())),
        }
        for name, command in sorted(leaves(program))
    }


def test_commands_options_and_exit_codes_are_the_ones_that_scripts_know() -> None:
    assert json.loads(FILE.read_text()) == listed(), "if this is meant, run: python tests/unit/test_cli_list.py"


def test_the_table_of_exit_codes_and_the_help_of_each_command_agree() -> None:
    codes, commands = codes_in_the_table(), dict(leaves(program))
    assert codes.keys() <= commands.keys()
    for name, command in commands.items():
        assert codes_in_the_help(command.help or "") - ALWAYS <= codes.get(name, set()), name


if __name__ == "__main__":
    FILE.write_text(json.dumps(listed(), indent=1) + "\n")
