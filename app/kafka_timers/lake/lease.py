"""
Allow one landing per lake at a time, on any machine.

A landing holds the lease. The file root/_land/lease names its holder, and has a number that grows every few seconds.

    free           there is no file, or its number has not grown for LEASE_S
    to take it     write it, wait a moment, read it: the holder that it now names has it, and all others wait
    to keep it     write it with the next number, as long as it names oneself
    to give it up  delete the file

The storage need not refuse to overwrite a file, which S3 through Hadoop's client cannot do. A read only has to return
the last write. If two write at once, the wait decides, because it is longer than a write takes (Fischer's algorithm).
If a write takes longer, both hold the lease until the next number. Then one of them reads the other's name, and ends.
No clocks are compared: a waiting landing counts the seconds without a change. On the holder's own machine, it also sees
whether the process is running.
"""

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from kafka_timers.errors import LakeError
from kafka_timers.lake.small_file import SmallFile

__all__ = ["LEASE_S", "Holder", "Lease", "lease_of"]

# Time to wait for a landing that was killed, unless it ran on this machine.
LEASE_S = 60.0
_RENEW_S = 10.0
# A write of a few bytes takes less time than this, or than this multiple of the first write.
_SETTLE_S, _SETTLES = 0.3, 4
_POLL_S = 0.5

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Holder:
    """
    The holder of the lease.

    Attributes:
        host: name of its machine.
        space: process id namespace of the machine; containers may share the host's name.
        pid: id of its process in that namespace.
        name: name of this landing in the process.
        number: number that grows while it lands.
    """

    host: str
    space: str
    pid: int
    name: str
    number: int = 0

    @classmethod
    def new(cls) -> Self:
        """Return a holder for a new landing of this process."""
        return cls(socket.gethostname(), _space(), os.getpid(), uuid.uuid4().hex)

    def is_dead(self, live: frozenset[str]) -> bool:
        """Tell whether the holder has ended for sure; *live* are the names of the landings of this process."""
        if (self.host, self.space) != (socket.gethostname(), _space()):
            return False
        if self.pid == os.getpid():
            return self.name not in live
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False

    def __str__(self) -> str:
        """Return the holder as text for messages."""
        return f"process {self.pid} on {self.host}"


class Lease:
    """The lease of a lake, as one landing sees it."""

    # Names of the landings in this process.
    _live: frozenset[str] = frozenset()

    def __init__(self, file: SmallFile, where: str) -> None:
        self._file, self._where, self.me = file, where, Holder.new()
        self._seen: tuple[str | None, float] = (None, 0.0)

    def take(self, wait_s: float, stop: threading.Event) -> bool:
        """
        Wait for the lease and take it. Return whether it was taken; it is not taken once *stop* is set.

        Raises:
            LakeError: another landing has held it for *wait_s* seconds.
        """
        end_s, is_told = time.monotonic() + wait_s, False
        Lease._live |= {self.me.name}
        while not stop.is_set():
            if (holder := self._holder()) is None:
                began_s = time.monotonic()
                self._write()
                stop.wait(max(_SETTLE_S, _SETTLES * (time.monotonic() - began_s)))
                if (holder := self._holder()) == self.me:
                    return True
            if time.monotonic() >= end_s:
                self._forget()
                raise LakeError(
                    f"{self._where} is being landed into by {holder or 'another process'}: one at a time can. Let that "
                    "one do it, or wait longer with --wait-s"
                )
            if not is_told:
                log.info("%s is being landed into by %s: waiting", self._where, holder or "another process")
                is_told = True
            stop.wait(_POLL_S)
        self._forget()
        return False

    def renew(self) -> bool:
        """Announce that this landing goes on; return whether it still has the lease."""
        if (known := _parsed(self._file.read())) is None or known.name != self.me.name:
            return False
        self._write()
        return True

    def give_up(self) -> None:
        """Release the lease."""
        try:
            if (known := _parsed(self._file.read())) is not None and known.name == self.me.name:
                self._file.delete()
        finally:
            self._forget()

    def _write(self) -> None:
        self.me = replace(self.me, number=self.me.number + 1)
        self._file.write(json.dumps(asdict(self.me)))

    def _forget(self) -> None:
        Lease._live -= {self.me.name}

    def _holder(self) -> Holder | None:
        """Return the holder of the lease; None if there is none, or if it has ended."""
        text, now_s = self._file.read(), time.monotonic()
        if text is None:
            return None
        if text != self._seen[0]:
            self._seen = (text, now_s)
        holder = _parsed(text)
        if holder and (holder == self.me or not holder.is_dead(Lease._live)) and now_s - self._seen[1] < LEASE_S:
            return holder
        if holder is None and now_s - self._seen[1] < LEASE_S:
            # The file is being written.
            return Holder("another machine", "", 0, "")
        return None


@contextmanager
def lease_of(
    spark: SparkSession, root: str, wait_s: float, stop: threading.Event
) -> Iterator[Callable[[], bool] | None]:
    """
    Hold the lease of the lake at *root* inside the block.

    Args:
        spark: session to run on.
        root: root of the lake.
        wait_s: most seconds to wait for another landing to release it.
        stop: ends the wait; it is set when the lease is lost, because another landing then goes on.

    Yields:
        A function that tells whether the lease was lost; None if *stop* was set before the lease was taken.

    Raises:
        LakeError: another landing has held it for *wait_s* seconds.
    """
    lease, ended, lost = Lease(SmallFile(spark, f"{root}/_land/lease"), root), threading.Event(), threading.Event()
    if not lease.take(wait_s, stop):
        yield None
        return

    def keep() -> None:
        while not ended.wait(_RENEW_S):
            try:
                if not lease.renew():
                    lost.set()
                    return stop.set()
            except Py4JError as error:
                # Where the lease cannot be written, nothing is landed either.
                log.warning("%s: the lease could not be renewed: %s", root, error)

    keeper = threading.Thread(target=keep, name="lease", daemon=True)
    keeper.start()
    try:
        yield lost.is_set
    finally:
        ended.set()
        keeper.join()
        # If Spark has ended, nothing can be deleted. The next landing sees that the process is gone.
        try:
            lease.give_up()
        except Py4JError as error:
            log.debug("the lease was left: %s", error)


def _space() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _parsed(text: str | None) -> Holder | None:
    try:
        return Holder(**json.loads(text or ""))
    except (ValueError, TypeError):
        return None
