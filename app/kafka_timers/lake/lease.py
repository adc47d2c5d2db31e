"""
One landing per lake at a time, wherever it runs.

Who lands has the lease: the file root/_land/lease says who that is, and a number that grows every few seconds.

    free           there is no file, or its number has not grown for LEASE_S
    to take it     write it, wait a moment, read it: whoever it names now has it, and all others wait
    to keep it     write it with the next number, as long as it names oneself
    to give it up  delete the file

No file has to be refused because it exists, which S3 through Hadoop's client does not do, only what was written last
has to be what is read. That two write at once is decided by the moment they wait, which is longer than a write takes
(Fischer's algorithm). Should a write take longer, both have it until the next number: then one of them reads another
name, and ends. And no clocks are compared: who waits counts the seconds for which it sees no change. On the owner's
own machine it also sees whether the process is there.
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

# A landing that was killed is waited for so long, unless it was on this machine.
LEASE_S = 60.0
_RENEW_S = 10.0
# A write of a few bytes takes less, or the multiple of it that a first one took.
_SETTLE_S, _SETTLES = 0.3, 4
_POLL_S = 0.5

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Holder:
    """
    Who has the lease.

    Attributes:
        host: the name of its machine.
        space: that counts processes there: containers may have that name too.
        pid: of its process in it.
        name: of this one landing in it.
        number: grows while it lands.
    """

    host: str
    space: str
    pid: int
    name: str
    number: int = 0

    @classmethod
    def new(cls) -> Self:
        """Return a landing of this process."""
        return cls(socket.gethostname(), _space(), os.getpid(), uuid.uuid4().hex)

    def is_dead(self, live: frozenset[str]) -> bool:
        """Tell whether it has ended for sure; *live* are the names of the landings of this process."""
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
        """Return it as people are told."""
        return f"process {self.pid} on {self.host}"


class Lease:
    """The lease of a lake, as one landing sees it."""

    # Names of those that land in this process.
    _live: frozenset[str] = frozenset()

    def __init__(self, file: SmallFile, where: str) -> None:
        self._file, self._where, self.me = file, where, Holder.new()
        self._seen: tuple[str | None, float] = (None, 0.0)

    def take(self, wait_s: float, stop: threading.Event) -> bool:
        """
        Wait for the lease and take it; return whether it was taken, which it is not once *stop* is set.

        Raises:
            LakeError: another landing has it for *wait_s* seconds already.
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
        """Say that this landing goes on; return whether it still has the lease."""
        if (known := _parsed(self._file.read())) is None or known.name != self.me.name:
            return False
        self._write()
        return True

    def give_up(self) -> None:
        """Let others have it."""
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
        """Return who has it; None once that one is known to have ended."""
        text, now_s = self._file.read(), time.monotonic()
        if text is None:
            return None
        if text != self._seen[0]:
            self._seen = (text, now_s)
        holder = _parsed(text)
        if holder and (holder == self.me or not holder.is_dead(Lease._live)) and now_s - self._seen[1] < LEASE_S:
            return holder
        if holder is None and now_s - self._seen[1] < LEASE_S:
            # It is being written.
            return Holder("another machine", "", 0, "")
        return None


@contextmanager
def lease_of(
    spark: SparkSession, root: str, wait_s: float, stop: threading.Event
) -> Iterator[Callable[[], bool] | None]:
    """
    Have the lease of the lake at *root* inside.

    Args:
        spark: session to run on.
        root: the lake's.
        wait_s: seconds to wait for a landing that has it.
        stop: ends the wait, and is set when the lease is lost, which means that another landing goes on.

    Yields:
        What tells whether it was lost; None when *stop* was set before it was had.

    Raises:
        LakeError: another landing has it for *wait_s* seconds already.
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
                # Where this cannot be written, nothing is landed either.
                log.warning("%s: the lease could not be renewed: %s", root, error)

    keeper = threading.Thread(target=keep, name="lease", daemon=True)
    keeper.start()
    try:
        yield lost.is_set
    finally:
        ended.set()
        keeper.join()
        # Of a Spark that was ended too nothing can be deleted; who comes next sees that the process is gone.
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
