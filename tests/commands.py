"""Commands of the program, run in this process: Python and its modules take longer to start than a test takes."""

import asyncio
import os

from click.testing import CliRunner

from kafka_timers.cli.program import program


async def ended(*arguments: str | bytes, stdin: bytes = b"") -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of `kafka-timers` *arguments*."""
    words = [os.fsdecode(word) for word in arguments]
    runner = CliRunner(env={"COLUMNS": "200"})
    result = await asyncio.to_thread(runner.invoke, program, words, stdin, prog_name="kafka-timers")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr
