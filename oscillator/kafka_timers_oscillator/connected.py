"""
The work of a replica from connecting to the broker until losing it: passes ticks between the schedule and the topic.

A replica must know the broker's time before its first tick, and only an acknowledgement shows it. So it first emits a
long past second again: the last one of a partition, or second 0 if the partition has none. Every reader knows such a
tick already and drops it. While the replica has to keep silent, it does the same to notice when that may end.

The host's wall clock does not decide when ticks are sent, but it must agree with the brokers'. If they differ by more
than `max_clock_skew_s`, one of them is wrong. Nothing shows which one, and a timer that fired early cannot be taken
back. So the replica keeps silent and raises an alarm. It emits the missed ticks once the clocks agree again.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

from aiokafka.errors import KafkaError

from kafka_timers.clock import Clock
from kafka_timers.errors import BrokerError
from kafka_timers_oscillator.broker_time import BrokersTime
from kafka_timers_oscillator.replica_health import Health, Metrics
from kafka_timers_oscillator.schedule import Schedule
from kafka_timers_oscillator.tick_log import TickLog

log = logging.getLogger(__name__)

# After this long without any tick, the broker's time is learnt again.
RELEARN_AFTER_S = 5.0

# Ticks sent together are awaited together for this long. A slow one does not delay the other partitions after that.
ROUND_LIMIT_S = 0.5

# One Fetch may go unanswered (4 s, and a process that was stopped finds its own expired), and the next one is read.
READ_LIMIT_S = 10.0

# A replica that begins to stand in for another one first reads to the end of the log, for at most this long. If no
# leader answers, there is nothing to read, and the tick is sent anyway.
LOOK_LIMIT_S = 1.0

# The session ends after this long without an answer from the broker. Until then aiokafka finds the broker again by
# itself.
SILENCE_LIMIT_S = 15.0

# The longest sleep, so that a change of the clocks is noticed soon.
NAP_S = 0.5

# If more time than this passes between two turns of the loop, by the broker's time, the process was stalled.
STALL_S = 0.8


class Session:
    """
    One session. Run `follow` and `emit` side by side; they end when the broker is lost.

    Args:
        schedule: a schedule that has not been started.
        broker_time: the estimate from earlier sessions, which is updated.
    """

    def __init__(
        self,
        ticks: TickLog,
        schedule: Schedule,
        broker_time: BrokersTime,
        clock: Clock,
        metrics: Metrics,
        health: Health,
    ) -> None:
        self._ticks, self._schedule, self._broker_time = ticks, schedule, broker_time
        self._clock, self._metrics, self._health = clock, metrics, health
        self._at_end = False
        self._stands_in = False

    async def follow(self) -> NoReturn:
        """Pass every tick in the log to the schedule, from shortly before the log's end."""
        while True:
            found = await self._ticks.read()
            others = [tick for tick in found if not self._schedule.is_own(tick.partition, tick.second)]
            if self._at_end and others:
                self._learn({tick.partition: tick.append_s for tick in reversed(others)})
            for partition, second, append_s in found:
                own = self._schedule.is_own(partition, second)
                advance = self._saw(partition, second, append_s)
                if self._at_end and advance and not own:
                    self._metrics.suppressed.inc(advance)
                    self._stands_in = False

    async def emit(self, tasks: asyncio.TaskGroup, *, listen_s: float) -> NoReturn:
        """
        Emit the due ticks, with *tasks*.

        Args:
            tasks: task group that ends with this session.
            listen_s: how long to wait for ticks of other replicas that show the broker's time, in seconds.

        Raises:
            BrokerError: the broker has not answered for long, or no broker took the records that were to show its time.
            KafkaError: the broker does not tell the end of the log.
            TimeoutError: the same, without an answer in time.
        """
        await self._ticks.reach_end_at_open(READ_LIMIT_S)
        self._at_end = True
        self._health.answered()
        await self._learn_time(listen_s)
        now_s = self._broker_s()
        self._schedule.start(now_s)
        partitions, behind_s = len(self._ticks.partitions), now_s - self._schedule.last
        log.info("start with %d partitions, last tick %d, %.1f s ago", partitions, self._schedule.last, behind_s)
        turned_s = self._broker_s()
        while True:
            self._health.turned()
            if self._clock.elapsed_s() - self._health.answered_elapsed_s > SILENCE_LIMIT_S:
                raise BrokerError(f"the broker has not answered for {SILENCE_LIMIT_S:.0f} s")
            await self._learn_time(0.0)
            if self._broker_s() - turned_s > STALL_S:
                # This process or its host was stopped for so long that another replica may have emitted the ticks that
                # are due here. They may lie unread in the connection, so read to the end of the log first.
                await self._ticks.reach_end(self._schedule.idle(), READ_LIMIT_S)
            turned_s = self._broker_s()
            if self._health.must_keep_silent():
                await asyncio.sleep(NAP_S)
            elif (wait_s := self._schedule.next_s() - turned_s) > 0:
                await asyncio.sleep(min(wait_s, NAP_S))
            else:
                await self._round(tasks, turned_s)

    async def _round(self, tasks: asyncio.TaskGroup, now_s: float) -> None:
        if skipped := self._schedule.skip(now_s):
            log.warning("%d ticks further back than the catch-up limit are left out", skipped)
            self._metrics.skipped.inc(skipped)
        due = self._schedule.due(now_s)
        if not due:
            return
        # Seconds of two partitions may differ, since clocks of two brokers do.
        if missed := [seconds for seconds in due.values() if len(seconds) > 1]:
            log.info("catch up with %d seconds in %d partitions", max(map(len, missed)), len(missed))
        looks = self._schedule.replica > 0 and (bool(missed) or not self._stands_in)
        sent_elapsed_s = self._clock.elapsed_s()
        sendings = {
            tasks.create_task(self._send(partition, seconds, now_s, looks=looks)): partition
            for partition, seconds in due.items()
        }
        done, _ = await asyncio.wait(sendings, timeout=ROUND_LIMIT_S)
        self._learn(
            {sendings[each]: append_s for each in done if (append_s := _outcome(each)) is not None}, sent_elapsed_s
        )

    async def _send(self, partition: int, seconds: range, now_s: float, *, looks: bool) -> float | None:
        """
        Send *seconds*, due at *now_s*, and return their append time; None if they were not acknowledged.

        With *looks* nothing is sent if the log turns out to have ticks of another replica.
        """
        self._schedule.take(partition)
        if looks:
            # If this process reads slowly, as on a busy machine, those ticks may be unread.
            await self._read_up(partition, LOOK_LIMIT_S)
            if self._schedule.last_in(partition) >= seconds[0]:
                self._schedule.landed(partition)
                return None
            if not self._stands_in:
                log.warning("no tick of the replicas before this one: stand in from second %d", seconds[0])
                self._stands_in = True
        self._schedule.sent(partition, seconds)
        append_s: float | None = None
        try:
            append_s = await self._ticks.append(partition, seconds)
            self._saw(partition, seconds[-1], append_s)
        except (KafkaError, TimeoutError) as error:
            self._health.trouble(
                f"partition {partition} does not take ticks: {str(error) or type(error).__name__}", partition
            )
        # Without an answer it is not known whether the ticks are in the log. If the answer came late, another replica
        # may have emitted later ticks meanwhile. After a stall `emit` reads to the end of idle partitions, and this one
        # was not idle.
        if append_s is None or self._broker_s() - now_s > STALL_S:
            await self._read_up(partition, READ_LIMIT_S)
        self._schedule.landed(partition)
        if append_s is None:
            return None
        for second in seconds:
            if append_s < second:
                self._metrics.early.inc()
            else:
                self._metrics.emitted.inc()
                self._metrics.delay.observe(append_s - second)
        return append_s

    async def _read_up(self, partition: int, limit_s: float) -> None:
        """Return once the present contents of *partition* are read, or if its leader does not answer in time."""
        with suppress(KafkaError, TimeoutError):
            await self._ticks.reach_end([partition], limit_s)

    def _saw(self, partition: int, second: int, append_s: float) -> int:
        broker_s = self._broker_time.at(self._clock.elapsed_s())
        before = self._schedule.last
        advance = self._schedule.saw(partition, second, append_s, append_s if broker_s is None else broker_s)
        if self._at_end:
            self._health.answered(partition)
            if self._schedule.last > before:
                self._health.progressed(self._schedule.last)
        return advance

    def _learn(self, stamps: Mapping[int, float], sent_elapsed_s: float | None = None) -> None:
        """Learn the clocks of the brokers that have appended by now, at *stamps* by partition, maybe of our sending."""
        now_elapsed_s, led = self._clock.elapsed_s(), self._ticks.led()
        for broker, numbers in led.items():
            if stamped := [stamps[number] for number in numbers if number in stamps]:
                self._broker_time.of(broker).heard(now_elapsed_s, min(stamped), sent_elapsed_s)
        off_s = self._broker_time.off_s(now_elapsed_s)
        self._schedule.behind_s = {
            number: max(-off_s.get(broker, 0.0), 0.0) for broker, numbers in led.items() for number in numbers
        }

    async def _learn_time(self, listen_s: float) -> None:
        """Return once the brokers' time is known. Listen for *listen_s* seconds first, then ask the brokers."""
        asks_elapsed_s = self._clock.elapsed_s() + listen_s
        while self._broker_time.age_s(now_elapsed_s := self._clock.elapsed_s()) > RELEARN_AFTER_S:
            if now_elapsed_s < asks_elapsed_s:
                await asyncio.sleep(0.05)
                continue
            # Each broker is asked, since one may be wrong, by another partition each time, since one may take nothing.
            asked = [numbers[int(now_elapsed_s) % len(numbers)] for numbers in self._ticks.led().values()]
            failures = await asyncio.gather(*map(self._ask_time, asked or self._ticks.partitions[:1]))
            if all(failures):
                raise BrokerError(f"no broker tells its time: {failures[0]}")
            self._health.answered()

    async def _ask_time(self, partition: int) -> str:
        """Learn the clock of the broker that leads *partition*; return why that failed, or nothing."""
        try:
            self._learn({partition: await self._ticks.append(partition, [self._schedule.last_in(partition)])})
        except (KafkaError, TimeoutError) as error:
            return f"partition {partition}: {str(error) or type(error).__name__}"
        return ""

    def _broker_s(self) -> float:
        broker_s = self._broker_time.at(self._clock.elapsed_s())
        assert broker_s is not None, "asked for before it was learnt"  # noqa: S101  # `emit` learns it first
        return broker_s


def _outcome(sending: asyncio.Task[float | None]) -> float | None:
    return None if sending.cancelled() or sending.exception() else sending.result()
