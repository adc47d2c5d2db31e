"""
No task ends in silence: each that nobody awaits is ended once by an error, and the process tells it and goes on, or
ends.

The owner of a partition is in tests/simulation/test_mended.py.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from brokers import make_topic
from patience import LIMIT_S
from prometheus_client import CollectorRegistry

import kafka_timers
import kafka_timers_oscillator
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.topics import create
from kafka_timers.client.batching import GivenSender, PartitionAccumulator
from kafka_timers.dev.broker import EmbeddedKafka
from kafka_timers.errors import PublishError, WorkerError
from kafka_timers.planner.planner import SchedulePlanner
from kafka_timers.processes import planner_process
from kafka_timers.processes.worker import Worker
from kafka_timers.runtime.log_reader import LogReader
from kafka_timers.runtime.shared_topic import SharedTopic
from kafka_timers.runtime.tasks import cancel
from kafka_timers.runtime.ticks import TickReader
from kafka_timers.settings import OscillatorSettings, PlannerSettings, WorkerSettings
from kafka_timers_oscillator.replica import Replica

# How many tasks each module starts by itself. Somebody awaits each of them, or its end has a callback of its own.
STARTED = {
    "adapters/source.py": 1,
    "broker/cluster.py": 4,
    "broker/dialing.py": 1,
    "broker/internals.py": 1,
    "broker/producer.py": 2,
    "broker/reading.py": 2,
    "client/answers.py": 1,
    "client/batching.py": 1,
    "console/actions.py": 2,
    "console/sharing.py": 1,
    "dev/broker.py": 2,
    "dev/three_brokers.py": 2,
    "kafka_timers_oscillator/main.py": 1,
    "planner/schedule_log.py": 4,
    "processes/supervisor.py": 5,
    "processes/worker.py": 3,
    "runtime/log_reader.py": 1,
    "runtime/shared_topic.py": 2,
    "runtime/tasks.py": 3,
    "runtime/ticks.py": 1,
    "serve/dev.py": 4,
    "serve/serve.py": 1,
    "sync.py": 1,
    "worker/end_offsets.py": 1,
    "worker/outbox.py": 1,
    "worker/sender.py": 1,
    "worker/stores.py": 1,
}
WORDS = "nobody has thought of this"


class UnthoughtError(Exception):
    """Stands for any error that no code expects."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__(WORDS)


async def fails(*_: object, **__: object) -> Any:
    raise UnthoughtError


def fails_once(monkeypatch: pytest.MonkeyPatch, of: type, name: str) -> None:
    """Let the method *name* fail the first time, and work from then on."""
    works = getattr(of, name)

    async def failing(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(of, name, works)
        raise UnthoughtError

    monkeypatch.setattr(of, name, failing)


def test_each_task_that_is_started_is_known() -> None:
    """Start a new one with `watched` or `until_one_ends`; or see to its end, and count it above."""
    started: dict[str, int] = {}
    for package in (kafka_timers, kafka_timers_oscillator):
        [root] = map(Path, package.__path__)
        for file in root.rglob("*.py"):
            # A TaskGroup raises what its tasks raise.
            if count := len(re.findall(r"(?<!tasks)\.(?:create_task|ensure_future)\(", file.read_text())):
                started[str(file.relative_to(root.parent)).removeprefix("kafka_timers/")] = count
    assert started == STARTED


async def told(words: str, caplog: pytest.LogCaptureFixture) -> None:
    """Return once *words* are in the log."""
    async with asyncio.timeout(LIMIT_S):
        while words not in caplog.text:  # noqa: ASYNC110  # the log has to be asked
            await asyncio.sleep(0.02)


@asynccontextmanager
async def running(work: Any) -> AsyncIterator[asyncio.Task[Any]]:
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        await cancel([task])


# --- oscillator, planner, worker -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("of", "name"), [(LogReader, "run"), (LogBounds, "starts")])
async def test_an_oscillator_that_cannot_read_ticks_any_more_tells_so_and_begins_anew(
    of: type, name: str, kafka: EmbeddedKafka, prefix: str, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    await make_topic(kafka.bootstrap, f"{prefix}oscillator", 1, {"message.timestamp.type": "LogAppendTime"})
    fails_once(monkeypatch, of, name)
    replica = Replica(OscillatorSettings(bootstrap=kafka.bootstrap, topic_prefix=prefix), CollectorRegistry())
    with caplog.at_level(logging.INFO):
        async with running(replica.run()):
            await told(f"{prefix}oscillator cannot be read: {WORDS}", caplog)
            await told("the broker answers again", caplog)


async def test_ticks_are_read_although_the_first_look_for_their_end_fails(
    kafka: EmbeddedKafka, prefix: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"{prefix}oscillator"
    await make_topic(kafka.bootstrap, topic, 1, {"message.timestamp.type": "LogAppendTime"})
    came = asyncio.Event()
    async with Cluster.open(Kafka(kafka.bootstrap)) as cluster, asyncio.timeout(LIMIT_S):
        await cluster.look_up([topic])
        ticks = TickReader(cluster, topic, lambda *_: came.set())
        fails_once(monkeypatch, LogBounds, "end")
        async with running(ticks.run()), AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
            ticks.follow([0])
            await told(f"{topic} partition 0: no ticks: {WORDS}", caplog)
            await producer.send_and_wait(topic, key=b"1")
            await came.wait()


@pytest.mark.parametrize("fails_in", ["serving", "looking up"])
async def test_a_topic_that_is_shared_fails_with_each_of_its_tasks(
    fails_in: str, kafka: EmbeddedKafka, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planner and doors begin anew with it, and tell why."""
    topic = f"{prefix}shared"
    await make_topic(kafka.bootstrap, topic)

    async def serve(_: Cluster, at: TopicPartition) -> None:
        if fails_in == "serving":
            await fails()
        await asyncio.Event().wait()

    sharing = SharedTopic(Kafka(kafka.bootstrap), topic, f"{prefix}group", 6.0, serve, lambda _: True)
    async with asyncio.timeout(LIMIT_S):
        async with Cluster.open(Kafka(kafka.bootstrap)) as cluster:
            if fails_in == "looking up":
                monkeypatch.setattr("kafka_timers.runtime.shared_topic._REFRESH_S", 0.1)
                monkeypatch.setattr(cluster, "refresh", fails)
            with pytest.raises(UnthoughtError):
                await sharing.run(cluster)


async def test_a_planner_process_ends_with_the_error_that_ends_its_planning(
    kafka: EmbeddedKafka, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def outlet(_: object) -> Any:
        return object()

    monkeypatch.setattr(planner_process, "_outlet", outlet)
    monkeypatch.setattr(SchedulePlanner, "__init__", lambda *_: None)
    monkeypatch.setattr(SchedulePlanner, "run", fails)
    with pytest.raises(UnthoughtError):
        await planner_process._run(PlannerSettings(bootstrap=kafka.bootstrap, port=0))


@pytest.mark.parametrize("chore", ["_belong", "_watch_logs"])
async def test_a_worker_does_not_end_well_because_a_part_of_it_has_ended(
    chore: str, prefix: str, kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ends(worker: Worker, *_: object) -> None:
        # Faust's app leaves its consumer open if it is stopped while it starts.
        while chore != "_belong" and not worker._joined:  # noqa: ASYNC110  # nothing else tells of it
            await asyncio.sleep(0.02)

    async def fails_later(*given: Any) -> None:
        await ends(*given)
        raise UnthoughtError

    await create(Kafka(kafka.bootstrap), prefix, 1)
    settings = WorkerSettings(bootstrap=kafka.bootstrap, topic_prefix=prefix, data_dir=str(tmp_path), port=0)
    for end, told_by in ((ends, WorkerError), (fails_later, UnthoughtError)):
        monkeypatch.setattr(Worker, chore, end)
        with pytest.raises(told_by):
            async with asyncio.timeout(LIMIT_S):
                await Worker(settings).run(asyncio.Event())


# --- client ----------------------------------------------------------------------------------------------------------


async def test_a_record_that_a_producers_serializer_refuses_fails_alone() -> None:
    """The caller would wait for ever, and so would all that come after it."""

    def serialized(value: bytes) -> bytes:
        if value == b"bad":
            raise UnthoughtError
        return value

    producer = AIOKafkaProducer(value_serializer=serialized)
    sender = GivenSender(producer)
    delivered: list[int] = []

    async def deliver(batch: Any, *_: object) -> int:
        delivered.append(batch.record_count())
        return 7

    sender.deliver = deliver  # type: ignore[method-assign]
    accumulator = PartitionAccumulator(sender, "timer-request", 0, LIMIT_S)
    good, bad, other = (accumulator.append(b"1", value) for value in (b"good", b"bad", b"other"))
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(PublishError, match=WORDS):
            await bad
        assert (await good, await other) == (7, 8)
    assert delivered == [2]
    await producer.stop()
