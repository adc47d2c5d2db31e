"""A request log that gives back what nobody needs."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import aiohttp
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from patience import LIMIT_S
from service import Service, take

from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.client.request import Outcome
from kafka_timers.client.timer_client import TimerClient
from kafka_timers.core.backlog import CHUNK_BITS
from kafka_timers.core.outcomes import State
from kafka_timers.core.wire import KEPT_KEY, Future
from kafka_timers.dev.broker import free_port
from kafka_timers.operate.find import find

CHUNK = 1 << CHUNK_BITS


async def test_a_timer_that_waits_long_holds_no_log_back(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    """It fires from what its owner has repeated, by a worker that has neither a store nor the request."""
    async with Service(bootstrap, prefix, tmp_path) as service:
        await service.start("oscillator")
        worker = await service.firing("--keep-s", "4")
        await service.requests(int(time.time()) + 32, ["far"], partition=0)
        names = [str(number) for number in range(2 * CHUNK)]
        await service.requests(1, names, partition=0)
        await worker.until("/metrics", lambda *_: worker.metric("kafka_timers_trimmed_records_total") >= CHUNK)
        assert worker.metric("kafka_timers_swept_requests_total") >= 1
        _, said = await service.status()
        assert re.search(r"^request log   .* records, .*B; [0-9,]{6,} are given back$", said, re.MULTILINE)
        assert "\n              1 timer was repeated\n" in said
        worker.child.kill()
        await worker.child.wait()
        again = await service.firing("--keep-s", "4")
        await again.until("/metrics", lambda *_: again.metric("kafka_timers_pending") == 1)
        assert sorted(await service.callback_names([*names, "far"])) == sorted([*names, "far"])
        code, said = await service.status()
        assert code == 0, said


async def test_a_timer_that_has_left_the_log_is_found_and_moved(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    async with (
        Service(bootstrap, prefix, tmp_path, partitions=1) as service,
        TimerClient(bootstrap, topic_prefix=prefix) as client,
    ):
        await service.start("oscillator")
        worker = await service.firing("--keep-s", "4")
        far = await client.after(3600, topic=service.callbacks, key="k", value=b"v", timer_id="far")
        await service.requests(1, map(str, range(2 * CHUNK)))
        await worker.until("/metrics", lambda *_: worker.metric("kafka_timers_trimmed_records_total") >= CHUNK)
        found = await find(Kafka(bootstrap), prefix, "far")
        [outcome] = found.outcomes
        assert (outcome.offset, outcome.state, outcome.appended_ms) == (far.offset, State.PENDING, None)
        pending = await client.get("far")
        assert pending is not None
        assert (pending.request, pending.value) == (far.request, b"v")
        assert (await client.move("far", after=1)).outcome is Outcome.MOVED
        *_, last = await service.read(service.callbacks, 2 * CHUNK + 1)
        assert (last.key, last.value) == (b"k", b"v")
        assert await client.get("far") is None


async def test_the_console_shows_a_request_that_has_left_the_log_or_says_so(
    bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    async with (
        Service(bootstrap, prefix, tmp_path, partitions=1) as service,
        TimerClient(bootstrap, topic_prefix=prefix) as client,
        aiohttp.ClientSession() as session,
    ):
        await service.start("oscillator")
        worker = await service.firing("--keep-s", "4", "--query-port", str(free_port()))
        console = await service.start("console", "--writable", "--group", prefix + "workers")
        await console.until("/livez", lambda status, _: status == 200)

        async def asked(method: str, path: str, **given: Any) -> tuple[int, Any]:
            async with session.request(method, f"http://127.0.0.1:{console.port}/v1/{path}", **given) as response:
                return response.status, await response.json()

        far = await client.after(3600, topic=service.callbacks, key="k", value=b"v", timer_id="far")
        await service.requests(1, map(str, range(2 * CHUNK)))
        await worker.until("/metrics", lambda *_: worker.metric("kafka_timers_trimmed_records_total") >= CHUNK)
        status, told = await asked("GET", f"requests/{far.request}")
        shown = [told[name] for name in ("request", "timerId", "appended", "dueMs", "waits", "value")]
        assert (status, shown) == (200, [far.request, "far", None, far.due_ms, True, "v"])
        status, told = await asked("GET", "requests/0:7")
        assert status == 404
        assert f"request 0:7 has left {service.topics.requests}: partition 0 begins at offset " in told["detail"]
        status, told = await asked("PATCH", "timers/far", json={"after": 1})
        assert (status, told["outcome"]) == (200, "MOVED")
        *_, last = await service.read(service.callbacks, 2 * CHUNK + 1)
        assert (last.key, last.value) == (b"k", b"v")


async def test_what_an_admin_has_deleted_too_early_is_repeated_from_the_store(
    bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    async with Service(bootstrap, prefix, tmp_path, partitions=1) as service:
        await service.start("oscillator")
        worker = await service.firing("--keep-s", "20")
        await service.requests(int(time.time()) + 45, ["far"])
        await service.requests(1, map(str, range(CHUNK)))
        await service.read(service.callbacks, CHUNK)
        async with Cluster.open(Kafka(bootstrap)) as cluster:
            await cluster.look_up([service.topics.requests])
            bounds = LogBounds(cluster, service.topics.requests)
            end = await bounds.end(0)
            await bounds.delete_below(0, end)
        gap = "kafka_timers_request_log_gap"
        await worker.until("/metrics", lambda *_: worker.metric(gap) == 1)
        await worker.until("/metrics", lambda *_: worker.metric(gap) == 0)
        while (await service.seals())[0][-1].restore_from < end:  # noqa: ASYNC110  # seals tell nobody
            await asyncio.sleep(0.1)
        worker.child.kill()
        await worker.child.wait()
        await service.firing("--keep-s", "20")
        *_, last = await service.read(service.callbacks, CHUNK + 1, 60)
        assert last.value == b"far"


class Sweeps:
    """
    The sweeps of the only partition of a service.

    Attributes:
        begun: the begin of each one of which a record is on the log, committed or not.
    """

    def __init__(self, service: Service, reader: AIOKafkaConsumer, bounds: LogBounds) -> None:
        self.begun = set[int]()
        self._service = service
        self._reader = reader
        self._bounds = bounds

    @classmethod
    @asynccontextmanager
    async def of(cls, service: Service) -> AsyncIterator[Self]:
        topic = service.topics.requests
        async with Cluster.open(Kafka(service.bootstrap)) as cluster, service.reading(topic, committed=False) as reader:
            await cluster.look_up([topic])
            yield cls(service, reader, LogBounds(cluster, topic))

    async def has_begun(self, before: Set[int], after_s: int = 0) -> bool:
        """Tell whether one that is not among those *before* has begun, *after_s* seconds ago."""
        for record in await take(self._reader, CHUNK, 0.02):
            if record.key == KEPT_KEY:
                self.begun.add(Future.FromString(record.value).kept.begun)
        return any(time.time() >= at_us / 1e6 + after_s for at_us in self.begun - before)

    async def told(self) -> set[int]:
        """Return the begin of each one that the last seals tell of."""
        return {each.begun for seal in (await self._service.seals())[0] for each in seal.swept}

    async def has_told(self) -> bool:
        return bool(await self.told())

    async def has_trimmed(self) -> bool:
        return (await self._bounds.starts([0]))[0] >= CHUNK


async def test_workers_killed_before_a_sweep_is_told_of_and_before_a_trim_lose_and_double_nothing(
    bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    """A sweep that no seal tells of is worth nothing: the next worker reads the requests, and sweeps anew."""
    options = ("--seal-every-s", "1", "--keep-s", "12")
    async with Service(bootstrap, prefix, tmp_path, partitions=1) as service:
        await service.start("oscillator")
        worker, now_s = await service.worker(*options), int(time.time())
        # In each second some are due, so that at each kill some wait that a sweep leaves out.
        waiting = [*(f"{second}-{number}" for second in range(5, 50) for number in range(3)), "60-0"]
        for name in waiting:
            await service.requests(now_s + int(name.split("-")[0]), [name])
        names = [str(number) for number in range(CHUNK)]
        await service.requests(1, names)
        async with asyncio.timeout(LIMIT_S), Sweeps.of(service) as sweeps:
            # What is due within three seconds is left out, and a seal tells of the sweep once it has fired.
            for after_s in (0, 1, 2):
                await worker.freeze_when(partial(sweeps.has_begun, frozenset(sweeps.begun), after_s))
                assert not await sweeps.has_told()
                worker.child.kill()
                await worker.child.wait()
                worker = await service.worker(*options, data_dir=worker.data_dir if after_s else None)
            for has_come in (sweeps.has_told, sweeps.has_trimmed):
                assert not await sweeps.has_trimmed()
                await worker.freeze_when(has_come)
                worker.child.kill()
                await worker.child.wait()
                # None of those that were broken off.
                assert await sweeps.told() - sweeps.begun
                worker = await service.worker(*options)
        assert sorted(await service.callback_names([*names, *waiting])) == sorted([*names, *waiting])
        code, said = await service.status()
        assert code == 0, said


async def test_neither_a_paused_owner_nor_an_open_transaction_spoils_a_sweep(
    bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    """An owner is paused in its sweep. The next one sweeps behind a transaction that somebody has begun."""
    options = ("--seal-every-s", "1", "--keep-s", "12")
    async with Service(bootstrap, prefix, tmp_path, partitions=1) as service:
        await service.start("oscillator")
        paused, now_s = await service.worker(*options), int(time.time())
        waiting = [f"waiting {number}" for number in range(30)]
        for number, name in enumerate(waiting):
            await service.requests(now_s + 20 + 2 * number, [name])
        names = [str(number) for number in range(CHUNK)]
        await service.requests(1, names)
        async with (
            asyncio.timeout(LIMIT_S),
            Sweeps.of(service) as sweeps,
            AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=prefix + "user") as producer,
        ):
            await paused.freeze_when(partial(sweeps.has_begun, frozenset()))
            broken_off = frozenset(sweeps.begun)
            await service.worker(*options)
            await producer.begin_transaction()
            future = Future(callBackTopic=service.callbacks, callBackKey="open", callBack=b"open")
            await producer.send_and_wait(
                service.topics.requests, future.SerializeToString(), b"%d" % now_s, partition=0
            )
            # What it repeats lies behind the transaction, so it cannot read that back.
            while not await sweeps.has_begun(broken_off, 4):
                pass
            assert not await sweeps.has_told()
            paused.child.resume()
            await producer.commit_transaction()
            while not await sweeps.has_trimmed():  # noqa: ASYNC110  # a broker has to be asked
                await asyncio.sleep(0.1)
            assert not broken_off & await sweeps.told()
        every = [*names, *waiting, "open"]
        assert sorted(await service.callback_names(every)) == sorted(every)
        code, said = await service.status()
        assert code == 0, said


async def test_a_worker_without_a_disk_goes_on_where_the_log_begins_by_now(
    bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    async with Service(bootstrap, prefix, tmp_path) as service:
        await service.start("oscillator")
        worker = await service.firing("--keep-s", "1")
        names = [str(number) for number in range(31)]
        await service.requests(1, names[:30], partition=0)
        await service.read(service.callbacks, 30)
        await worker.until("/metrics", lambda *_: worker.metric("kafka_timers_trimmed_records_total") >= 30)
        async with Cluster.open(Kafka(bootstrap)) as cluster:
            await cluster.look_up([service.topics.requests])
            starts = await LogBounds(cluster, service.topics.requests).starts([0])
        assert starts[0] >= 30
        worker.child.kill()
        await worker.child.wait()
        await service.firing("--keep-s", "1")
        await service.requests(1, names[30:], partition=0)
        assert sorted(await service.callback_names(names), key=int) == names
        code, said = await service.status()
        assert code == 0, said
