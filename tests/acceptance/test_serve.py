"""`kafka-timers serve` as a user has it: one command beside a Kafka, and two of them as a redundant instance."""

import asyncio
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from devs import PROGRAM
from patience import LIMIT_S
from service import Process, Service, take

from kafka_timers.dev.broker import free_port
from kafka_timers.runtime.child import Child

NAMES = ("oscillator", "worker", "console")
LIVE_S = 5


class Served(Process):
    """A running `kafka-timers serve`."""

    ports: list[int]

    def children(self) -> dict[str, psutil.Process]:
        """Return its processes by name."""
        return {
            name: child
            for child in psutil.Process(self.child.pid).children()
            for name in NAMES
            if child.cmdline()[-1] == name
        }

    def said(self) -> str:
        """Return all that it and its processes have said."""
        assert self.child.log
        return self.child.log.read_text()


@asynccontextmanager
async def serve(
    bootstrap: str, prefix: str, folder: Path, *more: str, program: Sequence[str] = PROGRAM
) -> AsyncIterator[Served]:
    """Run the command of *program*; what is left of it is killed in the end."""
    queries, console = free_port(), free_port()
    # Three that follow each other, of which the last two may have been returned before.
    while {queries, console} & {port := free_port(), port + 1, port + 2} or not all(map(is_free, (port + 1, port + 2))):
        pass
    command = [*program, "serve", "--bootstrap", bootstrap, "--topic-prefix", prefix]
    command += ["--port", str(port), "--query-port", str(queries), "--console-port", str(console)]
    command += ["--data-dir", str(folder / "data"), *more]
    served = Served(await Child.start("serve", command, folder / "serve.log"), port, folder / "data")
    served.ports = [port, port + 1, port + 2, queries, console]
    try:
        yield served
    finally:
        served.child.kill()
        await served.child.wait()


def is_free(port: int) -> bool:
    """Tell whether nobody listens on *port*."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


async def until_ready(served: Served) -> None:
    """Wait until all its processes do their work."""
    await served.until("/readyz", lambda status, _: status == 200)


async def fire(service: Service, *names: str) -> None:
    """Have the last of *names* fire, after the others have."""
    await service.requests(int(time.time()) + 2, names[-1:])
    assert sorted(await service.callback_names(names, LIMIT_S)) == sorted(names)


async def fires_and_ends(program: Sequence[str], bootstrap: str, prefix: str, folder: Path) -> None:
    """Have *program* serve a broker without topics until a timer has fired, and end."""
    async with serve(bootstrap, prefix, folder, "--create-topics", "--partitions", "4", program=program) as served:
        await until_ready(served)
        async with Service(bootstrap, prefix, folder / "service") as service:
            await fire(service, "a")
        await served.child.stop(LIMIT_S)
        assert served.child.returncode == 0
        assert all(map(is_free, served.ports))


async def test_a_timer_fires_on_a_broker_without_topics_and_sigterm_leaves_nothing(
    bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    async with serve(bootstrap, prefix, tmp_path, "--create-topics", "--partitions", "4") as served:
        await until_ready(served)
        async with Service(bootstrap, prefix, tmp_path / "service") as service:
            for number in range(4):
                await fire(service, *"abcd"[: number + 1])
        assert served.get("/livez") == (200, "ok")
        # Of each process that has some, and of no other at the same time.
        assert served.metric("kafka_timers_fired_total") == 4
        assert served.metric("kafka_timers_oscillator_ready") == 1
        names = [line.split()[2] for line in served.get("/metrics")[1].splitlines() if line.startswith("# TYPE")]
        assert max(Counter(names).values()) == 1
        status, page = Process(served.child, served.ports[4], tmp_path).get("/")
        assert (status, "<title>kafka-timers</title>" in page) == (200, True)

        children = served.children()
        assert [*children] == [*NAMES]
        ends = [asyncio.create_task(ended(name, child)) for name, child in children.items()]
        await served.child.stop(LIMIT_S)
        assert served.child.returncode == 0
        order = sorted([await end for end in ends])
        assert [name for _, name in order] == ["worker", "console", "oscillator"], order
        assert all(map(is_free, served.ports))
        assert [line for line in served.said().splitlines() if " ERROR " in line or "Traceback" in line] == []


async def ended(name: str, child: psutil.Process) -> tuple[float, str]:
    """Return when *child* has ended, and its name."""
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110  # it has to be asked
        await asyncio.sleep(0.002)
    return time.monotonic(), name


async def test_topics_that_are_missing_are_named_with_the_steps_to_take(
    bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    async with serve(bootstrap, prefix, tmp_path) as served:
        async with asyncio.timeout(LIMIT_S):
            assert await served.child.wait() == 1
        assert f"Error: missing: {prefix}timer-request" in served.said()
        assert "--create-topics" in served.said()


async def test_all_ports_that_are_taken_are_told_before_anything_starts(
    bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    async with serve(bootstrap, prefix, tmp_path, "--create-topics") as served:
        with socket.create_server(("127.0.0.1", served.ports[3])), socket.create_server(("127.0.0.1", served.ports[4])):
            async with asyncio.timeout(LIMIT_S):
                assert await served.child.wait() == 1
        told = f"ports that are taken: {served.ports[3]} (--query-port), {served.ports[4]} (--console-port)"
        assert told in served.said()
        assert "oscillator" not in served.said()


async def test_a_record_of_a_shell_fires_with_the_line_of_the_readme(
    bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    door = f"{prefix}timers"
    options = ("--create-topics", "--partitions", "4", "--door", f"headers={door}")
    async with serve(bootstrap, prefix, tmp_path, *options) as served:
        await until_ready(served)
        async with Service(bootstrap, prefix, tmp_path / "service") as service:
            headers = [("timer-delay", b"1s"), ("timer-callback-topic", service.callbacks.encode())]
            await service.producer.send_and_wait(door, b"pay now", key=b"pay-7", headers=headers)
            assert await service.callback_names(["pay now"]) == ["pay now"]


async def test_what_cannot_start_ends_the_command_and_has_said_why(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no folder")
    async with serve(bootstrap, prefix, tmp_path, "--create-topics") as served:
        async with asyncio.timeout(LIMIT_S):
            assert await served.child.wait() == 1
        assert "cannot be written to" in served.said()


@pytest.mark.parametrize("name", NAMES)
async def test_one_process_is_killed_and_the_others_go_on_until_it_is_back(
    service: Service, tmp_path: Path, name: str
) -> None:
    async with serve(service.bootstrap, service.prefix, tmp_path / "serve") as served:
        await until_ready(served)
        before = served.children()
        before[name].kill()
        said = await served.until("/readyz", lambda status, _: status == 503)
        assert said.startswith(name), said
        assert served.get("/livez") == (200, "ok")
        await fire(service, "while it is away")
        await until_ready(served)
        after = served.children()
        assert [each for each in NAMES if before[each].pid != after[each].pid] == [name]
        assert f"{name} ended by signal 9; it is started again after" in served.said()
        await fire(service, "while it is away", "when it is back")
        await served.child.stop(LIMIT_S)
        assert served.child.returncode == 0


async def test_a_process_that_hangs_turns_livez_red_and_is_named(service: Service, tmp_path: Path) -> None:
    async with serve(service.bootstrap, service.prefix, tmp_path / "serve") as served:
        await until_ready(served)
        children = served.children()
        children["worker"].suspend()
        for path in ("/livez", "/readyz"):
            assert served.get(path) == (503, "worker: does not answer within 2.5 s")
        # The metrics of the others are there.
        assert served.metric("kafka_timers_oscillator_last_tick_seconds") > 0
        children["worker"].resume()
        await until_ready(served)


async def test_one_of_two_is_killed_and_no_timer_is_lost_or_comes_twice(service: Service, tmp_path: Path) -> None:
    """Both have the same replica number, as somebody has who gives none."""
    first, second = (serve(service.bootstrap, service.prefix, tmp_path / f"serve-{number}") for number in range(2))
    async with first as victim, second as other, service.reading(service.callbacks) as callbacks:
        await asyncio.gather(until_ready(victim), until_ready(other))
        names = [f"{number}" for number in range(2_000)]
        start_s, orphans = int(time.time()), []
        for second_s, few in enumerate(zip(*[iter(names)] * 100, strict=True)):
            await service.requests(start_s + 2 + second_s, few)
            if second_s == 8:
                orphans = list(victim.children().values())
                os.killpg(victim.child.pid, signal.SIGKILL)
            await asyncio.sleep(max(0.0, start_s + second_s + 1 - time.time()))
        seen = [record.key.decode() for record in await take(callbacks, len(names), LIMIT_S)]
        # Whatever comes twice comes soon.
        seen += [record.key.decode() for record in await take(callbacks, 1, LIVE_S)]
        assert len(seen) == len(names)
        assert sorted(seen) == sorted(names)
        assert [each for each in orphans if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []
        assert len(orphans) == len(NAMES)
        assert all(map(is_free, victim.ports))
        await other.child.stop(LIMIT_S)
        assert other.child.returncode == 0


async def test_two_that_start_at_once_on_a_broker_without_topics_both_serve(
    bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    options = ("--create-topics", "--partitions", "4")
    first, second = (serve(bootstrap, prefix, tmp_path / f"serve-{number}", *options) for number in range(2))
    async with first as one, second as two:
        await asyncio.gather(until_ready(one), until_ready(two))
        assert one.metric("kafka_timers_partitions") == two.metric("kafka_timers_partitions") == 4
