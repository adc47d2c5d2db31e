"""
Commands of `kafka-timers`, each in a process of its own that starts with the program imported: a program for the Python
of an environment that was made for a test, which has no pytest.

    PYTHON forked.py < '[["status"], ["find", "x"]]'  → [[code, standard output, standard error], …]
"""

import json
import os
import sys
import tempfile
from contextlib import suppress
from typing import IO


def outcome(arguments: list[str]) -> tuple[int, str, str]:
    """Return the exit code of `kafka-timers` with *arguments*, and its output."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            _be_the_program(arguments, out, err)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return code, _text(out), _text(err)


def _be_the_program(arguments: list[str], out: IO[bytes], err: IO[bytes]) -> None:
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    sys.argv = ["kafka-timers", *arguments]
    from kafka_timers.__main__ import main

    code: object = 70
    try:
        main()
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code or 0))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


if __name__ == "__main__":
    with suppress(ImportError):  # where a library is missing, each command is to say so
        import kafka_timers.cli.program  # noqa: F401
    print(json.dumps([outcome(arguments) for arguments in json.load(sys.stdin)]))
