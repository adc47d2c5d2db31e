"""A fault that keeps timers from firing is reported by /readyz within seconds, and no longer than it lasts."""

import socket
import time

from aiokafka import AIOKafkaProducer
from service import Process, Service

from kafka_timers.core.wire import Future

OLDEST = "kafka_timers_oldest_due_seconds"


async def until_well(worker: Process) -> None:
    """Wait until the worker has nothing to complain of, and nothing is overdue in the partitions that it shows."""
    await worker.until("/readyz", lambda status, _: status == 200)
    # A partition is shown within half a second of its takeover.
    await worker.until("/metrics", lambda _, body: max(oldest(body).values(), default=9) < 1)


def oldest(metrics: str) -> dict[str, float]:
    """Return the gauge of each partition."""
    lines = [line for line in metrics.splitlines() if line.startswith(OLDEST + "{")]
    return {line.split('"')[1]: float(line.split()[1]) for line in lines}


def older_than(seconds: float, metrics: str) -> set[str]:
    """Return the partitions whose oldest request has been due for longer."""
    return {number for number, age_s in oldest(metrics).items() if age_s > seconds}


def no_exception_was_lost(worker: Process) -> bool:
    return "never retrieved" not in worker.child.log.read_text()


async def test_requests_behind_an_open_transaction_are_told_of_while_it_is_open(service: Service) -> None:
    """Requests before it, and in other partitions, fire in time; /readyz names the partition and the steps to take."""
    await service.start("oscillator")
    worker = await service.worker()
    await until_well(worker)
    future = Future(callBackTopic=service.callbacks, callBackKey="k", callBack=b"theirs")
    async with AIOKafkaProducer(
        bootstrap_servers=service.bootstrap, transactional_id=service.prefix + "somebody"
    ) as producer:
        await producer.begin_transaction()
        second = str(int(time.time())).encode()
        await producer.send_and_wait(service.topics.requests, future.SerializeToString(), second, 2)
        await service.requests(int(time.time()) + 1, ["waits"], partition=2)
        await service.requests(int(time.time()) + 1, ["fires"], partition=1)
        behind = "partition 2: requests wait behind an open transaction for "
        told = await worker.until("/readyz", lambda status, body: status == 503 and body.startswith(behind))
        assert f"--topic {service.topics.requests} --partition 2" in told
        assert told.count("\n") == 0
        code, said = await service.status()
        assert code == 1
        assert "1 wrong:\n  - partition 2: requests wait behind an open transaction for " in said
        # The gauge is brought up to date twice a second.
        await worker.until("/metrics", lambda _, body: oldest(body)["2"] > 8 and older_than(3, body) == {"2"})
        assert [r.value for r in await service.read(service.callbacks, 1)] == [b"fires"]
        await producer.commit_transaction()
    await until_well(worker)
    code, said = await service.status()
    assert (code, "wrong" in said) == (0, False), said
    assert f" s ago, by oscillator 0 on {socket.gethostname()}" in said
    assert {r.value for r in await service.read(service.callbacks, 3)} == {b"theirs", b"waits", b"fires"}
    assert no_exception_was_lost(worker)


async def test_without_an_oscillator_the_end_of_the_log_is_proved_by_nobody_and_one_sentence_says_why(
    service: Service,
) -> None:
    worker = await service.worker()
    told = await worker.until("/readyz", lambda status, _: status == 503)
    assert told.startswith("no tick for ")
    await worker.until("/metrics", lambda *_: worker.metric(OLDEST) > 8 * service.partitions)
    assert worker.get("/readyz")[1].count("\n") == 0
    await service.start("oscillator")
    await until_well(worker)
    assert no_exception_was_lost(worker)


async def test_partitions_of_a_worker_that_hangs_are_told_by_the_other_one_and_by_status(service: Service) -> None:
    """The group has not given it up yet, so nobody owns them."""
    await service.start("oscillator")
    # Seals as far apart as by default, which `status` takes for granted.
    options = ("--session-timeout-s", "45")
    hangs, lives = await service.worker(*options), await service.worker(*options)
    await until_well(hangs)
    await until_well(lives)
    theirs = {str(number) for number in range(service.partitions)} - oldest(lives.get("/metrics")[1]).keys()
    assert 0 < len(theirs) < service.partitions
    hangs.child.pause()
    try:
        await lives.until("/metrics", lambda _, body: theirs <= oldest(body).keys())
        await lives.until("/metrics", lambda _, body: older_than(8, body) == theirs)
        code, said = await service.status()
    finally:
        hangs.child.resume()
    assert code == 1
    for number in theirs:
        assert f"  - partition {number} stands still since second " in said
    await lives.until("/metrics", lambda _, body: oldest(body).keys().isdisjoint(theirs))
