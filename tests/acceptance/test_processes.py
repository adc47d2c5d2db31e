"""Several workers as one command: others take the partitions of one that dies."""

import asyncio
import math
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from patience import LIMIT_S
from service import Process, Service

from kafka_timers.core.wire import Sealed, last_second_of

# Long enough that nobody waits for it.
SESSION_S = 120
# Well below that, and well above the usual time.


async def two_workers(service: Service) -> Process:
    """Start two workers as one command, and wait until both have partitions."""
    await service.start("oscillator")
    options = ("--processes", "2", "--port", "0", "--session-timeout-s", str(SESSION_S), "--seal-every-s", "1")
    parent = await service.start("worker", *options)
    await until_sealed_by(service, [parent.data_dir / f"process-{number}" for number in range(2)])
    return parent


async def until_sealed_by(service: Service, folders: Sequence[Path]) -> None:
    """Wait until all partitions have new seals, and the workers of *folders*, and no others, have written them."""
    asked_s = int(time.time())

    def is_new(seals: Sequence[Sealed]) -> bool:
        return bool(seals) and last_second_of(seals[-1]) > asked_s

    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        seals = await service.seals()
        owners = {tail[-1].worker.split(":", 1)[1] for tail in seals.values() if is_new(tail)}
        if all(map(is_new, seals.values())) and owners == {str(folder) for folder in folders}:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{folders} have not sealed all partitions after {LIMIT_S:g} s: {seals}")


async def test_partitions_of_a_worker_that_is_killed_fire_long_before_its_session_ends(service: Service) -> None:
    parent = await two_workers(service)
    folders = [parent.data_dir / f"process-{number}" for number in range(2)]
    children = {
        child.environ()["KAFKA_TIMERS_DATA_DIR"]: child for child in psutil.Process(parent.child.pid).children()
    }
    names: list[str] = []

    async def fires_all() -> None:
        here = [f"{len(names) + number}" for number in range(service.partitions)]
        names.extend(here)
        await service.requests(int(time.time()) + 1, here)
        assert sorted(await service.callback_names(names, LIMIT_S)) == sorted(names)

    await fires_all()
    children[str(folders[0])].kill()
    await fires_all()
    # It is started again, and gets its share.
    await until_sealed_by(service, folders)
    await parent.child.stop(LIMIT_S)
    assert parent.child.returncode == 0
    assert "is out of group" in parent.child.log.read_text()


async def test_a_worker_holds_no_more_connections_than_operators_are_told(service: Service) -> None:
    port, partitions = int(service.bootstrap.rpartition(":")[2]), service.partitions

    def connections(process: Process) -> int:
        made = psutil.Process(process.child.pid).net_connections("tcp")
        return sum(each.status == psutil.CONN_ESTABLISHED and each.raddr.port == port for each in made)

    oscillator, worker = await service.start("oscillator"), await service.firing()
    await service.requests(int(time.time()), map(str, range(partitions)))
    assert len(await service.callback_names([*map(str, range(partitions))])) == partitions
    most = 15 + partitions + 2 * min(partitions, max(4, math.ceil(partitions / 4)))
    page = " ".join((Path(__file__).parents[2] / "docs/operate.md").read_text().split())
    assert f"{most} with four, 39 with sixteen. An oscillator holds four." in page
    # Whatever was opened in addition, since the machine was busy, is closed after a minute.
    async with asyncio.timeout(LIMIT_S + 60):
        while connections(oscillator) > 4 or connections(worker) > most:  # noqa: ASYNC110  # it has to be asked
            await asyncio.sleep(0.2)
