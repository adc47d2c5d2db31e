"""From the real etf1/kafka-message-scheduler to the door and back: each schedule fires once, or not at all."""

import asyncio
import json
import os
import shutil
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from patience import LIMIT_S
from programs import running
from service import Service

from kafka_timers.dev.broker import free_port
from kafka_timers.runtime.child import Child

SOURCE = Path(__file__).parent / "etf1"
# It compiles librdkafka's binding, once.
BUILD_LIMIT_S = 900
# The last schedule is due two minutes after the first was written.
LATE_S = 120 + LIMIT_S
# A schedule that is due while one of the two is being stopped may be told of by neither.
CALM_S = 3
DAY_S = 86_400


@pytest.fixture(scope="session")
async def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program etf1, as its last version is published."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip("there is no Go")
    program = tmp_path_factory.mktemp("etf1") / "etf1"
    async with running(go, "build", "-o", program, ".", cwd=SOURCE) as building:
        said, _ = await asyncio.wait_for(building.communicate(), BUILD_LIMIT_S)
    if building.returncode and (b"dial tcp" in said or b"C compiler" in said):
        pytest.skip("etf1 cannot be built here: " + said.decode())
    assert building.returncode == 0, said.decode()
    return program


def noon() -> str:
    """Return a time zone in which it is about noon: etf1 looks at the schedules of its own day alone."""
    ahead = 12 - time.gmtime().tm_hour
    # The signs of these names are turned round.
    return f"Etc/GMT{-ahead:+d}" if ahead else "Etc/GMT"


class Schedules:
    """
    The topic of schedules, and the service that fires them.

    Attributes:
        wanted: values of the schedules that are to fire, once each.
    """

    def __init__(self, service: Service, program: Path, folder: Path) -> None:
        self.wanted: set[str] = set()
        self.topic, self.history = service.prefix + "schedules", service.prefix + "history"
        self._service = service
        self._program = program
        self._log = folder / "etf1.log"
        self._port = free_port()
        self._producer = Producer({"bootstrap.servers": service.bootstrap})
        self._dues: set[int] = set()

    def write(self, name: str, partition: int, second: int, *, fires: bool = True, version: str = "v1") -> None:
        """Write a schedule, and say whether it is to fire."""
        headers = [
            ("scheduler-epoch", b"%d" % second),
            ("scheduler-target-topic", self._service.callbacks.encode()),
            ("scheduler-target-key", name.encode()),
        ]
        value = f"{name} {version}"
        self._producer.produce(self.topic, value, name, partition=partition, headers=headers)
        if fires:
            self.wanted.add(value)
        self._dues.add(second)

    def cancel(self, name: str, partition: int) -> None:
        self._producer.produce(self.topic, None, name, partition=partition)

    def flush(self) -> None:
        assert self._producer.flush(LIMIT_S) == 0

    async def etf1(self) -> Child:
        """Start etf1 and return at once."""
        service = self._service
        variables = {
            "BOOTSTRAP_SERVERS": service.bootstrap,
            "GROUP_ID": service.prefix + "etf1",
            "HISTORY_TOPIC": self.history,
            "SCHEDULES_TOPICS": self.topic,
            "METRICS_ADDR": f"127.0.0.1:{free_port()}",
            "SERVER_ADDR": f"127.0.0.1:{self._port}",
            "TZ": noon(),
        }
        return await Child.start("etf1", [str(self._program)], self._log, os.environ | variables)

    async def planned(self, *names: str) -> None:
        """Return once etf1 is to fire *names* and no others of them."""

        def ids() -> set[str]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/schedules", timeout=5) as answer:
                    return {each["id"] for each in json.load(answer)}
            except OSError:
                return set()

        await until(lambda: set(names) <= ids())

    async def calm(self) -> None:
        """Return when nothing is due for a while."""
        await until(lambda: not any(abs(second - time.time()) < CALM_S for second in self._dues))

    async def past(self) -> None:
        """Return when all that was written is due."""
        await until(lambda: time.time() > max(self._dues) + CALM_S)

    async def due_by(self, second: int) -> None:
        """Return when *second* is past, and its schedules are too old for etf1, which drops them."""
        await until(lambda: time.time() > second + CALM_S)

    async def stop(self, etf1: Child) -> None:
        """Stop etf1, which looks up from its topic when something comes."""
        await self.calm()
        stopping = asyncio.create_task(etf1.stop(LIMIT_S))
        while not stopping.done():
            self.cancel("nobody's", 0)
            self.flush()
            await asyncio.wait([stopping], timeout=0.5)
        assert etf1.returncode == 0, etf1.last_words()

    async def fired(self, *values: str) -> None:
        """Return once *values* are among the callbacks."""
        await self.on(self._service.callbacks, lambda records: {each.value.decode() for each in records} >= set(values))

    async def on(self, topic: str, wanted: Callable[[list[Any]], bool]) -> list[Any]:
        """Return the records of a topic once *wanted* is true of them."""
        end_s, records = time.monotonic() + LATE_S, list[Any]()
        async with self._service.reading(topic) as consumer:
            while not wanted(records):
                assert time.monotonic() < end_s, [(each.partition, each.key, each.value) for each in records]
                for found in (await consumer.getmany(timeout_ms=200)).values():
                    records += found
        return records


async def until(is_so: Callable[[], bool]) -> None:
    """Return once *is_so*, which is asked in a thread."""
    end_s = time.monotonic() + LATE_S
    while not await asyncio.to_thread(is_so):
        assert time.monotonic() < end_s
        await asyncio.sleep(0.1)


@pytest.mark.chaos
async def test_there_and_back_each_schedule_fires_once_or_not_at_all(
    service: Service, scheduler: Path, tmp_path: Path
) -> None:
    """
    Schedules lie in every partition, and their tombstones where etf1's partitioner puts them.

    A schedule due later than in some seconds is fired by the service that runs by then; on a slow machine that may be
    the next one. A schedule that etf1 reads over a second late may fire though it is cancelled, so such a schedule is
    due when etf1 is gone.
    """
    all_ = Schedules(service, scheduler, tmp_path)
    await service.create_topic(all_.topic, cleanup_policy="compact")
    await service.create_topic(all_.history)
    past, now = int(time.time()) - 2 * DAY_S, int(time.time())
    all_.write("for etf1 again", 0, now + 120)
    all_.write("past", 1, past, fires=False)
    all_.flush()
    etf1 = await all_.etf1()
    await all_.planned("for etf1 again")

    now = int(time.time())
    for number in range(10):
        all_.write(f"early {number}", number % 4, now + 10)
    all_.write("early and again", 3, now + 10)
    all_.write("for the door", 2, now + 50)
    for number, name in enumerate(
        ["moved", "moved into the past", "cancelled", "cancelled in the gap", "moved into the past in the gap"]
    ):
        all_.write(name, number % 4, now + 70, fires=False)
    all_.write("moved at the door", 3, now + 90, fires=False)
    all_.write("cancelled at the door", 1, now + 90, fires=False)
    all_.write("cancelled in the second gap", 3, now + 110, fires=False)
    all_.flush()
    await all_.planned("moved", "moved into the past", "cancelled")
    all_.write("moved", 0, now + 50, version="v2")
    all_.write("moved into the past", 1, past, fires=False, version="v2")
    all_.cancel("cancelled", 3)
    all_.flush()
    early = [f"early {number} v1" for number in range(10)] + ["early and again v1"]
    await all_.fired(*early)
    # Its tombstones are written, in partitions of its own choice.
    names = {value.removesuffix(" v1").encode() for value in early}
    schedules = await all_.on(
        all_.topic, lambda records: names <= {each.key for each in records if each.headers and each.value is None}
    )
    at = {each.key: each.partition for each in schedules if each.value is not None}
    assert any(at[each.key] != each.partition for each in schedules if each.value is None and each.key in names)
    await all_.stop(etf1)

    now = int(time.time())
    all_.write("in the gap", 1, now + 2)
    all_.write("early and again", 3, now + 10, version="v2")
    all_.cancel("cancelled in the gap", 0)
    all_.write("moved into the past in the gap", 0, past, fires=False, version="v2")
    all_.flush()
    await all_.due_by(now + 2)
    await service.start("oscillator")
    options = ("--door", f"etf1={all_.topic}", "--door-grace-s", str(DAY_S // 2), "--door-history", all_.history)
    worker = await service.firing(*options)
    await all_.fired("in the gap v1", "early and again v2")
    now = int(time.time())
    all_.write("live at the door", 2, now + 2)
    all_.write("moved at the door", 3, now + 20, version="v2")
    all_.cancel("cancelled at the door", 1)
    all_.write("past at the door", 0, past, fires=False)
    all_.flush()
    await all_.fired("live at the door v1", "moved v2", "for the door v1")
    await all_.calm()
    await worker.child.stop(LIMIT_S)

    now = int(time.time())
    all_.write("in the second gap", 2, now + 2)
    all_.cancel("cancelled in the second gap", 3)
    all_.flush()
    await all_.due_by(now + 2)
    etf1 = await all_.etf1()
    await all_.fired(*all_.wanted)
    await all_.past()
    await all_.stop(etf1)

    callbacks = await service.read_all(service.callbacks, len(all_.wanted))
    assert Counter(each.value.decode() for each in callbacks) == Counter(all_.wanted)
    by_door = {each.value.decode() for each in callbacks if "timer-request" in dict(each.headers)}
    assert {"in the gap v1", "early and again v2", "live at the door v1"} <= by_door
    assert not {"in the second gap v1", *early} & by_door
    copies = await service.read_all(all_.history, len(all_.wanted))
    assert sorted((each.key, each.value, each.headers) for each in copies) == sorted(
        (each.key, each.value, each.headers) for each in callbacks
    )
