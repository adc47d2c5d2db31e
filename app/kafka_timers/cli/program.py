"""
The command line: commands that start the service's processes, manage its topics, and show its state.

The options of a process are the fields of its settings. A command is imported when it runs, with its libraries. So help
needs neither Faust nor RocksDB, the other commands work on a machine without them, and a command starts fast. The help
is also docs/cli.md.
"""

from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from kafka_timers import __version__
from kafka_timers.cli.running import advised, instance_in
from kafka_timers.errors import KafkaTimersError

# The commands of each module, in its COMMANDS.
_MODULES = {
    "asking": ("send", "move", "cancel", "fire-now", "ask-again"),
    "instance": ("topics", "find", "watch", "status", "capacity", "acls"),
    "lake_commands": ("lake",),
    "listing": ("list", "next", "ahead"),
    "recurrence": ("schedule",),
    "rejects": ("rejected", "redrive"),
    "relogging": ("log",),
    "starting": ("dev", "serve", "worker", "oscillator", "planner", "console"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


class _Program(click.Group):
    """The group of all commands. A `KafkaTimersError` becomes one line and exit code 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_MODULE_OF)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULE_OF:
            return None
        commands: tuple[click.Command, ...] = import_module(f"kafka_timers.cli.{_MODULE_OF[cmd_name]}").COMMANDS
        return next(command for command in commands if command.name == cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        meant = get_close_matches(args[0], self.list_commands(ctx)) if self.get_command(ctx, args[0]) is None else ()
        if meant and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(meant)}?")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = instance_in(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KafkaTimersError as error:
            click.secho(f"Error: {advised(str(error))}", fg="red", err=True)
            ctx.exit(1)


@click.group(cls=_Program, context_settings={"max_content_width": 80, "help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kafka-timers")
def program() -> None:
    """
    Durable timers on Kafka: publish a Future, get a callback in its second.

    To try it, run `kafka-timers dev`: it starts a Kafka for you. You can also
    set an option by the environment variable that its help names. If you give
    both, the option wins.
    """


def main() -> None:
    """Run the program on the arguments of this process and exit with its code."""
    program(prog_name="kafka-timers")
