"""
Run a command that ends with the process that started it, even if that process is killed.

    die_with_parent.py PARENT COMMAND…

This runs as a script, by path and with -IS, so that it starts quickly. It asks the kernel to send SIGKILL when the
parent ends, then becomes the command under the same process id. Only Linux has this (prctl); elsewhere the command
outlives a killed parent. The kernel watches the parent's thread that started this process, so start it from a thread
that lives as long as the program.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_us(*command: str) -> list[str]:
    """Return the command line that runs *command* in a process that ends with this one."""
    return [sys.executable, "-IS", __file__, str(os.getpid()), *command]


def main() -> None:
    """Become the command in `sys.argv`."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):
            return  # the parent had ended before the kernel was asked
    os.execvp(command[0], command)  # noqa: S606  # the caller's command, without a shell


if __name__ == "__main__":
    main()
