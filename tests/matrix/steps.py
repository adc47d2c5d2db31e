"""Twenty-one steps in which a user would try the service, on a stage whose processes run."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from brokers import administering
from campaign import topics
from campaign.stage import Process, Stage
from confluent_kafka import Producer

from kafka_timers.dev.broker import free_port

__all__ = ["STEPS", "Walk"]

STEPS = (
    *("topics create", "topics check", "oscillators ready", "workers ready", "planner ready", "console ready"),
    *("send", "send with an id", "list", "move", "cancel", "find", "schedule put"),
    *("fires", "door", "schedule runs", "cancelled stays away"),
    *("status", "console status", "console POST", "still ready"),
)
_LIMIT_S = 60.0
# How far ahead the timer is that is cancelled, and how long it could be late.
_CANCELLED_IN_S, _LATE_S = 12, 3


class Walk:
    """
    The steps on one stage. Make it before the stage is entered: it has processes of its own.

    Attributes:
        failed: the steps that did not go well, each with the reason.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._topic, self._door = stage.prefix + "steps", stage.prefix + "countdowns"
        for worker in (0, 1):
            options = ("--no-planner", "--query-port", str(free_port()), "--door", f"countdown={self._door}")
            assert len(stage.workers) == worker, "the workers are those of the walk"
            stage.add_worker(*options)
        self._planner = stage.add_other("planner")
        self._console = stage.add_other("console", "--writable")
        self._tried: list[str] = []
        self.failed: dict[str, str] = {}

    async def prepare(self) -> None:
        """Make the topics that have to be there before the workers start."""
        for name in (self._topic, self._door):
            await asyncio.to_thread(topics.make_topic, self._stage.kafka.bootstrap, name, self._stage.partitions)

    async def go(self) -> None:
        """Take all steps but the last one; after one that fails, the next."""
        stage, topic = self._stage, self._topic
        with self._step("topics create"):
            async with administering(stage.kafka.bootstrap) as admin:
                assert stage.prefix + "timer-request" in await admin.list_topics()
        await self._command("topics check", "topics", "check")
        for name, processes in (
            ("oscillators ready", stage.oscillators),
            ("workers ready", stage.workers),
            ("planner ready", [self._planner]),
        ):
            with self._step(name):
                for process in processes:
                    await process.until_ready(_LIMIT_S)
        with self._step("console ready"):
            await _until(lambda: _answers(self._console, "/v1/status"))
        sending = ("send", "--topic", topic)
        await self._command("send", *sending, "--in", "2s", "--key", "sent", "--value", "hello")
        await self._command("send with an id", *sending, "--in", "1h", "--key", "moved", "--timer-id", "moved")
        with self._step("list"):
            await self._until_said("moved", "list", "--json")
        await self._command("move", "move", "moved", "--in", "4s")
        due_s = time.time() + _CANCELLED_IN_S
        with self._step("cancel"):
            asked = ("--key", "gone", "--timer-id", "gone", "--in", f"{_CANCELLED_IN_S}s")
            code, said = await stage.command(*sending, *asked)
            assert code == 0, said
            code, said = await stage.command("cancel", "gone")
            assert code == 0, said
        with self._step("find"):
            await self._until_said("cancelled", "find", "gone")
        every = ("--every", "2s", "--topic", topic, "--key", "beat")
        await self._command("schedule put", "schedule", "put", "beat", *every)
        record = json.dumps({"topic": topic, "message": "of the door", "countdown": 2})
        await asyncio.to_thread(_produce, stage.kafka.bootstrap, self._door, record)
        with self._step("fires"):
            await self._until_came({"sent": 1, "moved": 1})
        with self._step("door"):
            await self._until_came({"of the door": 1})
        with self._step("schedule runs"):
            await self._until_came({"beat": 2})
        with self._step("console status"):
            status, said = await asyncio.to_thread(self._console.get, "/v1/status")
            assert status == 200, f"{status} {said}"
        with self._step("console POST"):
            asked = {"after": 1, "topic": topic, "key": "posted", "value": "hello"}
            code, said = await asyncio.to_thread(_post, f"http://127.0.0.1:{self._console.port}/v1/timers", asked)
            assert code == 201, f"{code} {said}"
            await self._until_came({"posted": 1})
        with self._step("cancelled stays away"):
            await asyncio.sleep(max(due_s + _LATE_S - time.time(), 0))
            came = await self._came()
            assert came["gone"] == 0, "it came"
            twice = [name for name in ("sent", "moved", "of the door", "posted") if came[name] > 1]
            assert not twice, f"{twice} came more than once"
        await self._command("status", "status")

    async def end(self) -> None:
        """Take the last step, when all else is done."""
        with self._step("still ready"):
            for process in self._stage.processes:
                if process is not self._console:
                    await process.until_ready(_LIMIT_S)
            assert await asyncio.to_thread(_answers, self._console, "/v1/status"), "console"
        assert sorted(self._tried) == sorted(STEPS)

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        self._tried.append(name)
        try:
            yield
        except (AssertionError, OSError, ValueError) as error:
            self.failed[name] = str(error)

    async def _command(self, step: str, *words: str) -> None:
        with self._step(step):
            code, said = await self._stage.command(*words)
            assert code == 0, said

    async def _until_said(self, wanted: str, *words: str) -> None:
        end_s = time.monotonic() + _LIMIT_S
        while True:
            code, said = await self._stage.command(*words)
            if code == 0 and wanted in said:
                return
            assert time.monotonic() < end_s, said

    async def _came(self) -> Counter[str]:
        """Return how many callbacks came so far, by their key, or by their value if they have none."""

        def read() -> Counter[str]:
            with topics.reading(self._stage.kafka.bootstrap, self._topic) as reader:
                return Counter(each.key or each.value.decode() for each in reader.more(topics.callback_of))

        return await asyncio.to_thread(read)

    async def _until_came(self, wanted: Mapping[str, int]) -> None:
        came, end_s = await self._came(), time.monotonic() + _LIMIT_S
        while any(came[name] < count for name, count in wanted.items()):
            assert time.monotonic() < end_s, f"came: {dict(came)}"
            await asyncio.sleep(0.5)
            came = await self._came()


def _answers(process: Process, path: str) -> bool:
    return process.get(path)[0] == 200


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(_LIMIT_S):
        while not await asyncio.to_thread(is_so):  # noqa: ASYNC110  # another process has to be asked
            await asyncio.sleep(0.2)


def _produce(bootstrap: str, topic: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    producer.produce(topic, value)
    assert not producer.flush(_LIMIT_S), f"nothing could be written to {topic}"


def _post(url: str, body: Mapping[str, object]) -> tuple[int, str]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with suppress(OSError):
            return error.code, error.read().decode()
        return error.code, ""
