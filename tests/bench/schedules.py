"""
Measure a planner with a million schedules: first plan, memory, a start anew, and many runs at one moment.

    PYTHONPATH=tests:tests/acceptance python tests/bench/schedules.py [--schedules N] [--at-once N] [--json FILE]
"""

import argparse
import asyncio
import json
import random
import re
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from aiokafka import AIOKafkaProducer
from service import Process, Service, take

from kafka_timers import TimerClient
from kafka_timers.core.routing import hash_of
from kafka_timers.core.schedules import Schedule
from kafka_timers.dev.broker import EmbeddedKafka

PARTITIONS = 4


def daily(minute: int, hour: int, topic: str, rng: random.Random, second: int = 0) -> bytes:
    schedule = Schedule()
    schedule.cron.expression, schedule.cron.zone = f"{second} {minute} {hour} * * *", "UTC"
    schedule.callback.callBackTopic, schedule.callback.callBackKey = topic, f"customer-{rng.randrange(10**6)}"
    schedule.callback.callBack = rng.randbytes(32)
    return schedule.SerializeToString()


async def put(service: Service, values: dict[bytes, bytes]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=service.bootstrap, linger_ms=20, max_batch_size=1 << 18) as producer:
        for number, (name, value) in enumerate(values.items()):
            at = hash_of(name) % PARTITIONS
            await producer.send(service.topics.schedules, value, key=name, partition=at)
            if number % 5_000 == 0:
                await asyncio.sleep(0)


def rss_mb(process: Process) -> float:
    status = Path(f"/proc/{process.child.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


async def until_planned(planner: Process, count: int, started_s: float) -> float:
    """Return the seconds until *count* schedules are planned and nothing is left to plan."""
    while planner.metric("kafka_timers_schedules") < count or planner.metric("kafka_timers_planner_behind_seconds") > 2:
        if planner.child.returncode is not None:
            raise SystemExit(await planner.child.obituary())
        await asyncio.sleep(0.5)
    return time.monotonic() - started_s


async def beside_live_timers(service: Service, known: int, more: int, rng: random.Random) -> dict[str, float]:
    """
    Return the p99 of lateness of 200 timers a second, alone, and while the worker that fires them plans *more*.

    The runs of those are requested at once, and due when the live timers have fired.
    """
    worker = await service.start("worker", "--seal-every-s", "1")
    await until_planned(worker, known, time.monotonic())
    # Timers that fire at once are over.
    await asyncio.sleep(60)
    told = {"live_p99_ms_alone": await lateness_p99_ms(service)}
    asked = worker.metric("kafka_timers_schedule_runs_total")
    measuring = asyncio.create_task(lateness_p99_ms(service))
    await asyncio.sleep(5)
    due = datetime.fromtimestamp(int(time.time()) + 57, UTC)
    new = {b"new-%d" % n: daily(due.minute, due.hour, "callbacks", rng, due.second) for n in range(more)}
    begun_s = time.monotonic()
    await put(service, new)
    while worker.metric("kafka_timers_schedule_runs_total") < asked + more:  # noqa: ASYNC110  # it has to be asked
        await asyncio.sleep(0.2)
    told["planned_beside_s"] = time.monotonic() - begun_s
    told["live_p99_ms_beside"] = await measuring
    return told


async def lateness_p99_ms(service: Service, seconds: int = 30) -> float:
    """Ask for 200 timers a second, due two seconds later, and return how late their callbacks were appended."""
    async with TimerClient(service.bootstrap) as timers, service.reading("callbacks") as consumer:
        await consumer.seek_to_end()
        for partition in consumer.assignment():
            await consumer.position(partition)
        for _ in range(seconds):
            begun_s, due_s = time.monotonic(), int(time.time()) + 2
            await asyncio.gather(*(timers.at(due_s, topic="callbacks", key=f"live-{n}") for n in range(200)))
            await asyncio.sleep(max(0, 1 - (time.monotonic() - begun_s)))
        records = await take(consumer, 10**9, 10)
    late = sorted(
        record.timestamp - int(dict(record.headers)["timer-expiry"]) * 1000
        for record in records
        if (record.key or b"").startswith(b"live-")
    )
    return late[int(len(late) * 0.99)]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1_000_000)
    parser.add_argument("--at-once", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rng, told = random.Random(1), dict[str, float]()
    with tempfile.TemporaryDirectory(prefix="bench-schedules-") as folder:
        async with (
            EmbeddedKafka(Path(folder) / "kafka") as kafka,
            Service(kafka.bootstrap, "", Path(folder), PARTITIONS) as service,
        ):
            await service.start("oscillator")
            others = {
                b"schedule-%d" % number: daily(rng.randrange(60), (time.gmtime().tm_hour + 3) % 24, "callbacks", rng)
                for number in range(given.schedules - given.at_once)
            }
            await put(service, others)
            planner = await service.start("planner", "--group", "workers")
            told["first_plan_s"] = await until_planned(planner, len(others), time.monotonic())
            print(json.dumps(told), flush=True)
            # Whose planning is due soon after they were read: a minute before they are due.
            due_s = (int(time.time()) // 60 + 4) * 60
            due = datetime.fromtimestamp(due_s, UTC)
            at_once = {
                b"midnight-%d" % number: daily(due.minute, due.hour, "callbacks", rng)
                for number in range(given.at_once)
            }
            await put(service, at_once)
            await until_planned(planner, given.schedules, time.monotonic())
            planner.child.kill()
            await planner.child.wait()
            started_s = time.monotonic()
            planner = await service.start("planner", "--group", "workers", "--session-timeout-s", "6")
            told["start_anew_s"] = await until_planned(planner, given.schedules, started_s)
            told["rss_mb"] = rss_mb(planner)
            print(json.dumps(told), flush=True)
            begun_s = 0.0
            while (asked := planner.metric("kafka_timers_schedule_runs_total")) < given.at_once:
                begun_s = begun_s or (time.monotonic() if asked else 0.0)
                await asyncio.sleep(0.05)
            told["asked_s"] = time.monotonic() - begun_s
            told["runs_per_s"] = given.at_once / told["asked_s"]
            told["seconds_before"] = due_s - time.time()
            told["rss_after_mb"] = rss_mb(planner)
            planner.child.kill()
            await planner.child.wait()
            told |= await beside_live_timers(service, given.schedules, given.at_once, rng)
    print(json.dumps(told))
    if given.json:
        given.json.write_text(json.dumps(told, indent=1) + "\n")


asyncio.run(main())
