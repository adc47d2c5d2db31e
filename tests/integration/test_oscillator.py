"""Oscillators on a real broker: which ticks are in the log, how often and when, through all faults of the processes."""

import asyncio
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise, product
from typing import NamedTuple

import aiohttp
import pytest
from aiokafka import AIOKafkaProducer
from batches import append_batch, batch_of
from brokers import make_topic
from patience import LIMIT_S
from prometheus_client import CollectorRegistry

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.environment import env_name
from kafka_timers.broker.reading import Following, TopicLog
from kafka_timers.clock import HostClock
from kafka_timers.core.wire import number_in
from kafka_timers.dev.broker import free_port
from kafka_timers.errors import TopicsError
from kafka_timers.settings import OscillatorSettings
from kafka_timers_oscillator import tick_log
from kafka_timers_oscillator.connected import ROUND_LIMIT_S
from kafka_timers_oscillator.replica import Replica
from kafka_timers_oscillator.schedule import REPLICA_WAIT_S
from kafka_timers_oscillator.tick_log import TickLog

PARTITIONS = 4

# The longest that a test waits for anything; no assertion is about it.

PROGRAM = """
import sys
from kafka_timers.settings import OscillatorSettings
from kafka_timers_oscillator.main import run
sys.exit(run(OscillatorSettings.from_env()))
"""


class Tick(NamedTuple):
    """A record of the topic."""

    second: int
    append_s: float


class Log:
    """The oscillator topic of one test, as everybody can read it."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap, self.prefix, self.topic = bootstrap, prefix, prefix + "oscillator"
        self.ticks: dict[int, list[Tick]] = defaultdict(list)
        self._more = asyncio.Condition()

    async def create(self, timestamp_type: str = "LogAppendTime") -> None:
        await make_topic(self.bootstrap, self.topic, PARTITIONS, {"message.timestamp.type": timestamp_type})

    async def write(self, last: Iterable[int]) -> None:
        """Give each partition a last tick: that of partition 0 comes first."""
        await self._append((partition, b"%d" % second) for partition, second in enumerate(last))

    async def litter(self, *keys: bytes | None) -> None:
        """Append records with *keys* to each partition, and some whose headers have names that are not text."""
        await self._append(product(range(PARTITIONS), keys))
        for partition in range(PARTITIONS):
            odd = batch_of([(key, b"1") for key in keys], odd=range(len(keys)))
            await append_batch(self.bootstrap, self.topic, partition, odd)

    async def _append(self, records: Iterable[tuple[int, bytes | None]]) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap) as producer:
            for partition, key in records:
                await producer.send_and_wait(self.topic, b"1", key=key, partition=partition)

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        async with (
            TopicLog.open(Kafka(self.bootstrap), self.topic) as (log,),
            log.following(await log.bounds.starts(log.numbers)) as news,
        ):
            following = asyncio.create_task(self._follow(news))
            try:
                yield
            finally:
                following.cancel()
                await asyncio.wait([following])

    async def _follow(self, news: Following) -> None:
        while True:
            for record in await news.poll():
                if (second := number_in(record.key)) is not None:
                    self.ticks[record.partition].append(Tick(second, record.timestamp / 1000))
            async with self._more:
                self._more.notify_all()

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S), self._more:
            await self._more.wait_for(reached)

    async def until_second(self, second: int) -> None:
        """Wait until every partition has *second* or a later one."""
        await self.until(lambda: self.last >= second)

    @property
    def last(self) -> int:
        """The last second that every partition has."""
        counted = [max((counts_as(tick) for tick in self.ticks[number]), default=0) for number in range(PARTITIONS)]
        return min(counted)

    def seconds(self, partition: int) -> list[int]:
        """
        The ticks of *partition*, as a worker counts them.

        Without second 0, by which an oscillator learns the broker's time from an empty topic, and without those that
        landed early: a busy machine may cause one, and it has to be there again.
        """
        return [second for second, append_s in self.ticks[partition] if 0 < second <= append_s]

    def assert_gapless(self, first: int | None = None, may_repeat: Collection[int] = ()) -> None:
        """Each partition has every second once, those in *may_repeat* at least, in order, and from *first* on."""
        for partition in range(PARTITIONS):
            found = self.seconds(partition)
            seconds = [
                second for at, second in enumerate(found) if second not in may_repeat or second not in found[:at]
            ]
            start = seconds[0] if first is None else first
            assert seconds == list(range(start, start + len(seconds))), f"partition {partition}"

    def repeated(self) -> set[int]:
        """The seconds that some partition has more than once."""
        counts = [Counter(self.seconds(partition)) for partition in range(PARTITIONS)]
        return {second for count in counts for second, times in count.items() if times > 1}

    def pause_s(self) -> float:
        """The longest time in which a partition got no tick although seconds were to be caught up."""
        return max(
            later.append_s - earlier.append_s
            for ticks in self.ticks.values()
            for earlier, later in pairwise(ticks[1:])
            if earlier.second + 1 < later.append_s - 1
        )

    def least_late_s(self, after: int) -> float:
        """The least lateness of the three seconds behind *after*: a busy machine does not delay all three."""
        behind = [
            append_s - second
            for ticks in self.ticks.values()
            for second, append_s in ticks
            if after < second <= min(after + 3, append_s)
        ]
        return min(behind)


def counts_as(tick: Tick) -> int:
    return min(tick.second, int(tick.append_s))


@pytest.fixture
async def log(bootstrap: str, prefix: str) -> AsyncIterator[Log]:
    """The topic of this test, created and followed."""
    log = Log(bootstrap, prefix)
    await log.create()
    async with log.followed():
        yield log


class Process:
    """An oscillator replica in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self._process, self._url = process, url

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def end(self, number: int = signal.SIGTERM) -> int:
        """End it; return its exit code."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
        return await asyncio.wait_for(self._process.wait(), LIMIT_S)

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(self._url + path) as answer:
            return answer.status, await answer.text()

    async def until_ready(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while True:
                with suppress(aiohttp.ClientConnectionError):
                    if (await self.get("/readyz"))[0] == 200:
                        return
                await asyncio.sleep(0.05)

    async def metric(self, name: str) -> float:
        _, text = await self.get("/metrics")
        found = [line for line in text.splitlines() if line.startswith(f"kafka_timers_oscillator_{name} ")]
        return float(found[0].split()[1])


@asynccontextmanager
async def oscillator(log: Log, replica: int = 0, **settings: object) -> AsyncIterator[Process]:
    """Run a replica as a process; it is gone at the end."""
    port = free_port()
    given = {"bootstrap": log.bootstrap, "topic_prefix": log.prefix, "replica": replica, "port": port, **settings}
    env = os.environ | {env_name(name): str(value) for name, value in given.items()}
    started = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, env=env)
    process = Process(started, f"http://127.0.0.1:{port}")
    try:
        yield process
    finally:
        await process.end(signal.SIGKILL)


class SteppedClock(HostClock):
    """The host's clock, with its wall time off by `off_s`."""

    def __init__(self, off_s: float = 0.0) -> None:
        self.off_s = off_s

    def wall_s(self) -> float:
        return super().wall_s() + self.off_s


@asynccontextmanager
async def replica_in_here(log: Log, clock: SteppedClock | None = None, number: int = 0) -> AsyncIterator[Replica]:
    """Run a replica as a task."""
    settings = OscillatorSettings(bootstrap=log.bootstrap, topic_prefix=log.prefix, replica=number)
    replica = Replica(settings, CollectorRegistry(), clock)
    running = asyncio.create_task(replica.run())
    try:
        yield replica
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def until(reached: Callable[[], bool]) -> None:
    """Wait for something in this process that gives no signal."""
    async with asyncio.timeout(LIMIT_S):
        while not reached():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.01)


async def test_two_replicas_tick_as_one_and_one_goes_on_when_the_other_is_killed(log: Log) -> None:
    """No second is missing, none comes twice, and those behind the kill wait for nobody."""
    async with oscillator(log, 0) as first:
        await log.until(lambda: log.last > 0)
        async with oscillator(log, 1) as second:
            await second.until_ready()
            await log.until_second(log.last + 4)
            assert await first.get("/readyz") == (200, "ok")
            assert await second.get("/livez") == (200, "ok")
            assert await second.metric("ticks_emitted_total") == 0
            assert await second.metric("ticks_suppressed_total") >= 4 * PARTITIONS
            assert await first.metric("ticks_suppressed_total") == 0
            assert abs(await first.metric("clock_offset_seconds")) < 1
            killed_at = log.last
            await first.end(signal.SIGKILL)
            await log.until_second(killed_at + 4)
            assert await second.metric("ticks_emitted_total") >= 3 * PARTITIONS
            assert await second.get("/readyz") == (200, "ok")
    log.assert_gapless()
    assert log.least_late_s(after=killed_at) < 1.3


async def test_a_replica_that_was_stopped_does_not_repeat_the_ticks_of_the_other(log: Log) -> None:
    """
    All but two: one on its way when it was stopped, as ticks that are not acknowledged go out again, and one that
    both emit when it goes on.
    """
    async with oscillator(log, 0) as first:
        await log.until(lambda: log.last > 0)
        async with oscillator(log, 1) as second:
            await second.until_ready()
            await log.until_second(log.last + 2)
            first.send_signal(signal.SIGSTOP)
            await log.until_second(stopped_until := log.last + 4)
            first.send_signal(signal.SIGCONT)
            await log.until_second(stopped_until + 3)
    # Which ones these are cannot be told from here: ticks are read some time after they were written.
    assert len(log.repeated()) <= 2
    log.assert_gapless(may_repeat=log.repeated())


async def test_a_round_of_ticks_on_its_way_while_the_replica_was_stopped_hides_none_of_the_other_s(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ticks are acknowledged before it has read those that the other emitted meanwhile."""
    append, read = TickLog.append, TickLog.read
    may_stop, stopped_at = asyncio.Event(), asyncio.Future[int]()

    async def late_append(self: TickLog, partition: int, seconds: range) -> float:
        append_s = await append(self, partition, seconds)
        if may_stop.is_set():
            if not stopped_at.done():
                stopped_at.set_result(seconds[-1])
                # Keeps everything in this process from going on, as SIGSTOP does.
                time.sleep(2.5)  # noqa: ASYNC251  # the test is about it
            if stopped_at.result() == seconds[-1]:
                await asyncio.sleep(1.2 * ROUND_LIMIT_S)
        return append_s

    async def later_read(self: TickLog) -> list[tick_log.Tick]:
        if stopped_at.done() and may_stop.is_set():
            may_stop.clear()
            await asyncio.sleep(3 * ROUND_LIMIT_S)
        return await read(self)

    monkeypatch.setattr(TickLog, "append", late_append)
    monkeypatch.setattr(TickLog, "read", later_read)
    async with replica_in_here(log), oscillator(log, 1) as other:
        await other.until_ready()
        may_stop.set()
        await log.until_second(await asyncio.wait_for(stopped_at, LIMIT_S) + 7)
        assert await other.metric("ticks_emitted_total") >= 2 * PARTITIONS
    assert not log.repeated() & {stopped_at.result() + 1, stopped_at.result() + 2}
    log.assert_gapless(may_repeat=log.repeated())


async def test_a_replica_that_is_slow_to_read_repeats_nothing(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slower than it waits for the one before it; all but the seconds due while that one itself is held up."""
    read = TickLog.read

    async def slow_read(self: TickLog) -> list[tick_log.Tick]:
        found = await read(self)
        # Not always: it would take the broker's clock to be as late.
        if any(tick.second % 2 for tick in found):
            await asyncio.sleep(2 * REPLICA_WAIT_S)
        return found

    monkeypatch.setattr(TickLog, "read", slow_read)
    async with oscillator(log, 0):
        # Where a process takes longer to start than the other one waits, both begin.
        await log.until(lambda: log.last > 0)
        async with replica_in_here(log, number=1):
            await log.until_second(log.last + 16)
    assert len(log.repeated()) <= 4
    log.assert_gapless(may_repeat=log.repeated())


async def test_after_both_were_dead_every_missed_second_comes_once(log: Log) -> None:
    """
    A partition that a crash left one tick behind gets that too.

    If the first one pauses, which a busy machine may cause, the second one takes it for gone, and they may overlap.
    """
    away_since = int(HostClock().wall_s()) - 300
    await log.write([away_since, away_since - 1, away_since, away_since])
    async with oscillator(log, 0), oscillator(log, 1):
        await log.until_second(int(HostClock().wall_s()) + 2)
    # The first one learnt the broker's time by repeating the last tick of one partition.
    for ticks in log.ticks.values():
        if ticks[0].second == ticks[1].second:
            del ticks[1]
    log.assert_gapless(may_repeat=log.repeated() if log.pause_s() > REPLICA_WAIT_S else ())
    assert log.seconds(1)[0] == away_since - 1


async def test_seconds_beyond_the_catch_up_limit_are_left_out(log: Log) -> None:
    now = int(HostClock().wall_s())
    await log.write([now - 5000] * PARTITIONS)
    async with oscillator(log, catch_up_s=10) as process:
        await log.until_second(now + 2)
        assert await process.metric("ticks_skipped_total") >= 4980 * PARTITIONS
    for partition in range(PARTITIONS):
        emitted = [second for second in log.seconds(partition) if second > now - 5000]
        assert now - 12 <= emitted[0] <= now - 5
        assert emitted == list(range(emitted[0], emitted[0] + len(emitted)))


async def test_a_clock_an_hour_ahead_keeps_silent_alarms_and_goes_on_when_it_is_right(log: Log) -> None:
    last = int(HostClock().wall_s()) - 5
    await log.write([last] * PARTITIONS)
    clock = SteppedClock(3600.0)
    async with replica_in_here(log, clock) as replica:
        await until(lambda: any("ahead of the brokers'" in reason for reason in replica.health.ready()))
        # More than a second has to pass, to see that nothing comes.
        await asyncio.sleep(1.5)
        assert {tick.second for ticks in log.ticks.values() for tick in ticks} == {last}
        assert "this host's clock is 3600" in replica.health.ready()[0]
        assert replica.health.live() == []
        clock.off_s = 0.0
        await log.until_second(int(clock.wall_s()) + 1)
        # The test may see a tick in the log before the replica has its acknowledgement.
        await until(lambda: replica.health.ready() == [])


async def test_a_tick_an_hour_ahead_by_someone_else_keeps_nobody_from_ticking(log: Log) -> None:
    now = int(HostClock().wall_s())
    await log.write([now + 3600] * PARTITIONS)
    async with replica_in_here(log):
        await log.until_second(now + 3)
    for partition in range(PARTITIONS):
        seconds = log.seconds(partition)
        assert seconds == list(range(seconds[0], seconds[0] + len(seconds)))


async def test_records_that_are_no_ticks_end_no_replica_and_keep_none_from_starting(log: Log) -> None:
    litter = [b"soon", b"", None, b"-5", b"9" * 15, b"9" * 5_000]
    await log.litter(*litter)
    async with replica_in_here(log):
        await log.until_second(int(HostClock().wall_s()) + 1)
        await log.litter(*litter)
        await log.until_second(int(HostClock().wall_s()) + 2)
    log.assert_gapless()


@pytest.mark.parametrize("step_s", [-1.5, 1.5])
async def test_a_small_step_of_the_host_s_clock_does_not_move_ticks(log: Log, step_s: float) -> None:
    clock = SteppedClock()
    async with replica_in_here(log, clock):
        await log.until(lambda: log.last > 0)
        await log.until_second(log.last + 2)
        stepped_at = log.last
        clock.off_s = step_s
        await log.until_second(stepped_at + 4)
    log.assert_gapless()
    # Had ticks moved with the clock, all of them would be late, or early and then missing, by its whole step.
    assert log.least_late_s(after=stepped_at + 1) < 1.3


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
async def test_a_large_step_of_the_host_s_clock_silences_until_it_is_right_again(log: Log, step_s: float) -> None:
    clock = SteppedClock()
    async with replica_in_here(log, clock) as replica:
        await log.until(lambda: log.last > 0)
        clock.off_s = step_s
        stepped_at = log.last
        await asyncio.sleep(1.5)
        assert log.last <= stepped_at + 1
        assert any("brokers'" in reason for reason in replica.health.ready())
        clock.off_s = 0.0
        await log.until_second(stepped_at + 4)
    log.assert_gapless()


async def test_a_topic_without_the_broker_s_time_ends_the_process_with_a_reason(bootstrap: str, prefix: str) -> None:
    log = Log(bootstrap, prefix)
    await log.create("CreateTime")
    replica = Replica(OscillatorSettings(bootstrap=bootstrap, topic_prefix=prefix), CollectorRegistry())
    with pytest.raises(TopicsError, match=r"message\.timestamp\.type=LogAppendTime"):
        await asyncio.wait_for(replica.run(), LIMIT_S)


async def test_a_missing_topic_is_named_waited_for_and_not_made(bootstrap: str, prefix: str) -> None:
    log = Log(bootstrap, prefix)
    async with replica_in_here(log) as replica:
        await until(lambda: any(f"{prefix}oscillator is not there" in reason for reason in replica.health.ready()))
        await log.create()
        async with log.followed():
            await log.until(lambda: log.last > 0)
        await until(lambda: replica.health.ready() == [])


async def test_sigterm_ends_the_process_in_good_order(log: Log) -> None:
    async with oscillator(log) as process:
        await log.until(lambda: log.last > 0)
        assert await process.end(signal.SIGTERM) == 0


async def test_a_broker_that_is_away_at_start_and_goes_away_later_costs_no_second(start_kafka, prefix: str) -> None:
    port = free_port()
    log = Log(f"127.0.0.1:{port}", prefix)
    async with replica_in_here(log) as replica:
        await until(lambda: any(f"no broker at 127.0.0.1:{port}" in reason for reason in replica.health.ready()))
        broker = await start_kafka(port=port)
        await log.create()
        async with log.followed():
            await log.until(lambda: log.last > 0)
            await log.until_second(log.last + 2)
            await broker.kill()
            killed_at = log.last
            await until(lambda: any("no tick was emitted or seen for" in reason for reason in replica.health.ready()))
            await broker.start()
            await log.until_second(killed_at + 5)
            await log.until_second(int(HostClock().wall_s()) + 2)
            await until(lambda: replica.health.ready() == [])
    # Ticks on their way when the broker went may be there twice.
    for partition in range(PARTITIONS):
        seconds = sorted(set(log.seconds(partition)))
        assert seconds == list(range(seconds[0], seconds[0] + len(seconds)))
