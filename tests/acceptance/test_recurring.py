"""Recurring timers: each run fires once, whichever process is killed when; and the use of schedules."""

import asyncio
import random
import time
from collections import Counter
from datetime import UTC, datetime

import pytest
from brokers import set_topic
from patience import LIMIT_S
from service import Process, Service

from kafka_timers import At, Every, TimerClient
from kafka_timers.core.calendar import TZDATA_VERSION
from kafka_timers.core.schedules import Planned, Schedule, instant_text
from kafka_timers.core.wire import REJECT_PREFIX
from kafka_timers.errors import AnswerError


async def planning(service: Service) -> Process:
    """Start a planner, and wait until it has its place in the group."""
    options = ("--group", service.prefix + "workers", "--session-timeout-s", "2")
    planner = await service.start("planner", *options)
    await planner.until("/readyz", lambda status, _: status == 200)
    return planner


async def killed_again_and_again(
    service: Service, kinds: list[str], until_s: float, every_s: float, rng: random.Random
) -> None:
    """Have two processes of each of *kinds* run, and kill one now and then."""

    async def started(kind: str) -> Process:
        if kind == "planner":
            return await planning(service)
        return await service.start("worker", "--seal-every-s", "1", "--no-planner")

    running = [(kind, await started(kind)) for kind in kinds for _ in range(2)]
    while time.time() < until_s:
        await asyncio.sleep(min(every_s, max(until_s - time.time(), 0)))
        place = rng.randrange(len(running))
        kind, process = running[place]
        process.child.kill()
        await process.child.wait()
        running[place] = kind, await started(kind)


async def each_run_fires_once(service: Service, count: int, seconds: int, kill_every_s: float, seed: int) -> None:
    """Have *count* schedules run for *seconds* while processes are killed, and compare the runs that fired."""
    rng, first = random.Random(seed), int(time.time()) + 15
    last = first + seconds
    every = {f"schedule-{number}": rng.randint(1, min(60, seconds)) for number in range(count)}
    await service.start("oscillator")
    living = asyncio.create_task(killed_again_and_again(service, ["worker", "planner"], last, kill_every_s, rng))
    async with TimerClient(service.bootstrap, topic_prefix=service.prefix) as timers:
        puts = [
            timers.schedules.put(name, Every(every_s), start=first, end=last, topic=service.callbacks, catch_up="all")
            for name, every_s in every.items()
        ]
        await asyncio.gather(*puts)
    await living
    wanted = {
        f"{name}@{instant_text(second * 1000)}"
        for name, every_s in every.items()
        for second in range(first, last)
        if second % every_s == 0
    }
    records = await service.read_all(service.callbacks, len(wanted), quiet_s=3)
    fired = Counter((dict(record.headers)["timer-id"] or b"").decode() for record in records)
    missing, doubled = wanted - fired.keys(), [run for run, times in fired.items() if times > 1]
    assert not missing, f"{len(missing)} of {len(wanted)} runs missing: {sorted(missing)[:3]}"
    assert not doubled, f"{len(doubled)} doubled: {doubled[:3]}"
    assert fired.keys() == wanted, sorted(fired.keys() - wanted)[:3]
    numbers = Counter((dict(r.headers)["timer-schedule"], dict(r.headers)["timer-schedule-run"]) for r in records)
    assert max(numbers.values()) == 1


async def test_each_run_fires_once_though_planners_and_workers_are_killed(service: Service) -> None:
    await each_run_fires_once(service, 20, 15, 4, 1)


@pytest.mark.chaos
async def test_a_thousand_schedules_run_for_ten_minutes_though_processes_are_killed(service: Service) -> None:
    await each_run_fires_once(service, 1_000, 600, 20, 2)


async def test_a_planner_that_fails_again_and_again_says_for_how_long_and_why(service: Service) -> None:
    await service.start("oscillator")
    worker = await service.firing("--no-planner")
    planner = await planning(service)
    # The broker takes no record of the planner, and its own, which end transactions.
    await set_topic(service.bootstrap, service.topics.planned, {"cleanup.policy": "compact", "max.message.bytes": "90"})
    async with TimerClient(service.bootstrap, topic_prefix=service.prefix) as timers:
        await timers.schedules.put("s", Every(1), topic=service.callbacks, value=b"x", catch_up="last")
    said = await planner.until("/readyz", lambda _, body: "have not been planned for" in body)
    assert service.topics.planned in said
    assert planner.metric("kafka_timers_planner_behind_seconds") > 15
    assert worker.get("/readyz")[0] == 200
    await set_topic(service.bootstrap, service.topics.planned, {"cleanup.policy": "compact"})
    await planner.until("/readyz", lambda status, _: status == 200)
    await service.read_all(service.callbacks, 3)
    assert planner.metric("kafka_timers_planner_behind_seconds") < 15


async def test_a_run_can_be_cancelled_and_an_invalid_schedule_is_rejected(service: Service) -> None:
    """One worker does it all: its planner asks, and its owners fire and answer."""
    await service.start("oscillator")
    await service.firing()
    second = int(time.time()) + 30
    async with TimerClient(service.bootstrap, topic_prefix=service.prefix) as timers:
        wrong = Schedule(note="has no times")
        wrong.callback.callBackTopic = service.callbacks
        await service.producer.send_and_wait(
            service.topics.schedules, wrong.SerializeToString(), key=b"wrong", partition=0
        )
        at = [second, second + 1, second + 2]
        await timers.schedules.put("three", At(at), topic=service.callbacks, value=b"x")
        [told] = await timers.schedules.list("three")
        run = f"three@{instant_text((second + 1) * 1000)}"
        while True:
            # Until a planner has asked for it.
            try:
                answer = await timers.cancel(run, timeout_s=5)
            except AnswerError:
                continue
            if answer.outcome == "CANCELLED":
                break
            await asyncio.sleep(0.2)
    _, status = await service.status()
    assert f"recurring     1 planner, time zones of tzdata {TZDATA_VERSION}" in status
    records = await service.read_all(service.callbacks, 2)
    assert [
        dict(record.headers)["timer-schedule-instant"] for record in sorted(records, key=lambda r: r.timestamp)
    ] == [instant_text(each * 1000).encode() for each in (second, second + 2)]
    [rejected] = await service.read_all(service.topics.rejected, 1)
    headers = dict(rejected.headers)
    assert (rejected.key, headers[REJECT_PREFIX + "reason"]) == (b"wrong", b"schedule-invalid")
    assert (headers[REJECT_PREFIX + "why"] or b"").startswith(b"when: is missing")
    async with service.reading(service.topics.planned) as consumer, asyncio.timeout(LIMIT_S):
        async for record in consumer:
            if record.key == b"three" and Planned.FromString(record.value).runs == 3:
                break
    assert datetime.fromtimestamp(second, UTC) in [each.instant for each in told.next(3, second - 1)]
