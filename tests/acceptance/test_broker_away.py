"""Kafka comes late, goes for a while, or comes back changed; and other faults that keep a worker from starting."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from brokers import administering, make_topic, set_topic
from commands import ended as command_ended
from patience import LIMIT_S
from service import Process, Service

from kafka_timers.core.wire import Future
from kafka_timers.dev.broker import EmbeddedKafka
from kafka_timers.runtime.tasks import cancel


@pytest.fixture(scope="module")
async def other_kafka(needs_java: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedKafka]:
    """A broker for the tests of this file alone."""
    async with EmbeddedKafka(tmp_path_factory.mktemp("other-kafka")) as broker:
        yield broker


@pytest.fixture
async def fragile_kafka(other_kafka: EmbeddedKafka) -> EmbeddedKafka:
    """A broker that the test may stop; it runs at first."""
    await other_kafka.start()
    return other_kafka


@pytest.fixture
async def own_service(fragile_kafka: EmbeddedKafka, prefix: str, tmp_path: Path) -> AsyncIterator[Service]:
    """The service on that broker."""
    async with Service(fragile_kafka.bootstrap, prefix, tmp_path) as opened:
        yield opened


async def ended(process: Process) -> str:
    """Wait until *process* has ended by itself, with exit code 1, and return its output."""
    async with asyncio.timeout(LIMIT_S):
        assert await process.child.wait() == 1, process.child.last_words()
    said = process.child.last_words()
    assert "Traceback" not in said
    return said


# --- Kafka comes and goes --------------------------------------------------------------------------------------------


async def test_processes_started_before_kafka_wait_for_it(own_service: Service, fragile_kafka: EmbeddedKafka) -> None:
    """Both say that they wait for it, and take up work once it is there."""
    service, kafka = own_service, fragile_kafka
    second = int(time.time()) + 4
    await service.requests(second, ["t"])
    await kafka.stop()
    processes = [await service.start("worker"), await service.start("oscillator")]
    for process in processes:
        await process.until("/readyz", lambda status, told: status == 503 and kafka.bootstrap in told)
        assert (await asyncio.to_thread(process.get, "/livez"))[0] == 200
    await kafka.start()
    for process in processes:
        await process.until("/readyz", lambda status, _: status == 200)
    [callback] = await service.read(service.callbacks, 1)
    assert callback.timestamp >= second * 1000
    for process in processes:
        await process.child.stop(LIMIT_S)
        assert process.child.returncode == 0


async def test_worker_that_waits_for_kafka_ends_when_asked_to(service: Service) -> None:
    worker = await service.start("worker", "--bootstrap", "127.0.0.1:1")
    await worker.until("/readyz", lambda status, body: status == 503 and "no broker answers" in body)
    await worker.child.stop(LIMIT_S)
    assert worker.child.returncode == 0


async def stop_in_mid_transaction(service: Service, worker: Process) -> None:
    """
    Stop the worker's process (SIGSTOP) while it has sent hundreds of callbacks that it did not commit yet.

    A broker that dies between the decision to commit and the markers may come back (Kafka 4.3.1, one broker) without
    ever writing them, and readers of committed records wait for ever. A crash before the decision is ours to survive.
    """
    everything, committed = service.reading(service.callbacks, committed=False), service.reading(service.callbacks)
    # Long, since a busy machine gives the worker little of each moment.
    async with everything as written, committed as settled, asyncio.timeout(LIMIT_S):
        where = written.assignment()

        async def uncommitted() -> int:
            end, settled_end = await written.end_offsets(where), await settled.end_offsets(where)
            return sum(end.values()) - sum(settled_end.values())

        async def has_sent() -> bool:
            if (now := await uncommitted()) >= 500:
                # All that it had sent is in the log, and decided, once nothing changes any more.
                before = -1
                while before != now:
                    await asyncio.sleep(0.5)
                    before, now = now, await uncommitted()
            return now >= 500

        await worker.freeze_when(has_sent)


async def test_kafka_that_crashes_in_mid_second_costs_nothing_but_time(
    own_service: Service, fragile_kafka: EmbeddedKafka
) -> None:
    """It is away for some seconds while timers are due: all fire afterwards, each once, none early."""
    service, kafka = own_service, fragile_kafka
    # All in one partition: forty transactions one after the other, so that one of them is surely found open. Nothing
    # fires before the first tick, however long it takes to ask for so many.
    worker = await service.worker("--slice-rows", "1000")
    hot_second = int(time.time())
    hot = [f"hot-{n}" for n in range(40_000)]
    await service.requests(hot_second, hot, partition=0)
    now = int(time.time())
    seconds = {f"t-{n}": now + 2 + n for n in range(8)}
    for name, second in seconds.items():
        await service.requests(second, [name], partition=second % 4)
    oscillators = [await service.start("oscillator", "--replica", str(replica)) for replica in range(2)]
    await stop_in_mid_transaction(service, worker)
    await kafka.kill()
    worker.child.resume()
    told = await worker.until("/readyz", lambda status, _: status == 503)
    assert "partition" in told or "no tick" in told
    await kafka.start()
    for process in (worker, *oscillators):
        await process.until("/readyz", lambda status, _: status == 200)
        assert process.child.returncode is None
    records = await service.read_all(service.callbacks, len(hot) + len(seconds), quiet_s=2)
    counts = Counter(record.value.decode() for record in records)
    assert counts == Counter([*hot, *seconds])
    assert all(r.timestamp >= seconds.get(r.value.decode(), hot_second) * 1000 for r in records)


async def test_worker_ends_when_asked_to_while_kafka_is_away(
    own_service: Service, fragile_kafka: EmbeddedKafka
) -> None:
    worker = await own_service.worker()
    oscillator = await own_service.start("oscillator")
    for process in (worker, oscillator):
        await process.until("/readyz", lambda status, _: status == 200)
    await fragile_kafka.kill()
    for process in (worker, oscillator):
        # Killed after as long as Kubernetes gives by default, and then the exit code is another one.
        await process.child.stop(LIMIT_S)
        assert process.child.returncode == 0, process.child.last_words()


# --- Kafka comes back changed ----------------------------------------------------------------------------------------


@asynccontextmanager
async def ticking(service: Service, second: int) -> AsyncIterator[None]:
    """Tick one second after the other from *second* on."""

    async def tick() -> None:
        for ticked in itertools.count(second):
            await service.tick(ticked)
            await asyncio.sleep(0.2)

    task = asyncio.create_task(tick())
    try:
        yield
    finally:
        await cancel([task])


@pytest.mark.parametrize("runs", [True, False])
async def test_request_topic_made_anew_stands_still_until_people_say_what_it_is(service: Service, runs: bool) -> None:
    """The seals name offsets of another log, however long the new one grows, and only people know what lies there."""
    second = int(time.time()) - 1000
    worker = await service.worker()
    await service.requests(second, [f"old-{n}" for n in range(40)])
    await service.until_sealed(second)
    if not runs:
        await worker.child.stop(LIMIT_S)
    async with administering(service.bootstrap) as admin:
        await admin.delete_topics([service.topics.requests])
    await make_topic(service.bootstrap, service.topics.requests, 4)
    new = [f"new-{n}" for n in range(100)]
    await service.requests(second - 5, new)
    if not runs:
        worker = await service.start("worker", data_dir=worker.data_dir)
    async with ticking(service, second):
        told = await worker.until("/readyz", lambda _, body: body.count("was deleted and made anew") == 4)
    assert "kafka-timers log show" in told
    assert (await asyncio.to_thread(worker.get, "/livez"))[0] == 200
    code, said = await service.status()
    assert code == 1
    assert "See kafka-timers log show" in said
    where = ["--bootstrap", service.bootstrap, "--topic-prefix", service.prefix]
    code, said, _ = await command_ended("log", "show", *where)
    assert (code, said.count("stands still")) == (1, 4)
    code, _, errors = await command_ended("find", "id", *where)
    assert (code, "nobody knows what has fired of it: see kafka-timers log show" in errors) == (1, True)
    assert len(await service.read_all(service.callbacks, 40, quiet_s=1)) == 40
    code, said, errors = await command_ended("log", "another", *where, "--yes")
    assert code == 0, errors
    assert said.count("0 requests count as fired, 25 are due and fire at once, 0 wait") == 4
    await service.until_sealed(second + 900)
    names = [record.value.decode() for record in await service.read_all(service.callbacks, 140, quiet_s=1)]
    assert Counter(names) == Counter([*(f"old-{n}" for n in range(40)), *new])
    assert (await command_ended("log", "show", *where))[0] == 0
    assert "nobody knows" not in (await command_ended("find", "id", *where))[2]
    code, _, errors = await command_ended("log", "same", *where, "--yes")
    assert code == 1
    assert "nothing is to be said" in errors


async def test_seal_topic_made_anew_stands_still_until_people_say_up_to_when_it_has_fired(service: Service) -> None:
    """The log has requests from two hours ago and none of their seals."""
    now = int(time.time()) - 1000
    await set_topic(service.bootstrap, service.topics.requests, {"message.timestamp.type": "CreateTime"})
    for number, second in itertools.product(range(4), (now - 7200, now - 60)):
        value = Future(callBackTopic=service.callbacks, callBack=b"%d" % second).SerializeToString()
        at = {"partition": number, "timestamp_ms": (now - 7200) * 1000}
        await service.producer.send_and_wait(service.topics.requests, value, key=b"%d" % second, **at)
    worker = await service.start("worker")
    async with ticking(service, now):
        told = await worker.until("/readyz", lambda _, body: body.count("has no seals") == 4)
        assert "kafka-timers log show" in told
        assert "its seals are gone" in (await service.status())[1]
    where = ["--bootstrap", service.bootstrap, "--topic-prefix", service.prefix]
    code, said, _ = await command_ended("log", "show", *where)
    assert (code, said.count("it has no seals, and requests that were due")) == (1, 4)
    code, _, errors = await command_ended("log", "same", *where, "--yes")
    assert code == 2
    assert "say with --until" in errors
    code, said, errors = await command_ended("log", "same", *where, "--until", str(now - 3600), "--yes")
    assert code == 0, errors
    assert said.count("1 requests count as fired, 0 are due and fire at once, 1 wait") == 4
    await service.until_sealed(now + 900)
    names = [record.value for record in await service.read_all(service.callbacks, 4, quiet_s=1)]
    assert names == [b"%d" % (now - 60)] * 4
    assert (await command_ended("log", "show", *where))[0] == 0


# --- faults that keep a worker from starting -------------------------------------------------------------------------


async def test_worker_that_cannot_start_says_why_and_ends(service: Service, tmp_path: Path) -> None:
    """One sentence each, with the steps to take; no traceback."""
    (tmp_path / "file").touch()
    names = {count: Service(service.bootstrap, f"{service.prefix}{count}-", tmp_path).topics for count in (2, 3)}
    uneven = [(names[2].requests, 2), (names[2].oscillator, 3), (names[2].sealed, 2)]
    for name, count in [*uneven, (names[2].rejected, 1), (names[2].replies, 1), (names[2].doors, 1)]:
        await make_topic(service.bootstrap, name, count)
    running = await service.worker()
    starts = {
        "data folder": ("--data-dir", str(tmp_path / "file" / "data")),
        "missing": ("--topic-prefix", f"{service.prefix}none-"),
        "uneven": ("--topic-prefix", f"{service.prefix}2-"),
        "port": ("--port", str(running.port)),
        "shared": ("--data-dir", str(running.data_dir)),
        "bootstrap": ("--bootstrap", "kafka:port"),
    }
    started = {why: await service.start("worker", *options) for why, options in starts.items()}
    said = dict(zip(started, await asyncio.gather(*map(ended, started.values())), strict=True))
    assert f"Error: data folder {tmp_path / 'file' / 'data'} cannot be written to" in said["data folder"]
    missing = ", ".join(f"{service.prefix}none-{name}" for name in ("timer-request", "oscillator"))
    assert f"Error: missing: {missing}" in said["missing"]
    assert "kafka-timers topics create" in said["missing"]
    assert f"Error: partition counts differ: {names[2].requests} has 2, {names[2].oscillator} has 3" in said["uneven"]
    assert f"Error: port {running.port} on 127.0.0.1 is taken" in said["port"]
    assert f"Error: data folder {running.data_dir} is used by another worker" in said["shared"]
    assert "Error: bootstrap 'kafka:port' is not a list of Kafka brokers" in said["bootstrap"]


async def test_worker_refuses_another_number_of_partitions_than_it_was_sealed_with(service: Service) -> None:
    """Timer ids are routed by it."""
    second = int(time.time()) - 1000
    worker = await service.worker()
    await service.until_sealed(second)
    await worker.child.stop(LIMIT_S)
    said = await ended(await service.start("worker", "--partitions", "2"))
    assert "Error: the service has run with 4 partitions, and --partitions says 2" in said
