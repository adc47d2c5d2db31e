"""Health of a replica: the answers of /livez and /readyz, the gauges, and a log line at each change."""

import logging

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kafka_timers.clock import Clock
from kafka_timers_oscillator.broker_time import BrokersTime

log = logging.getLogger(__name__)

NOT_READY_AFTER_S = 3.0

# Longer than any wait of a replica. Each of its waits has a limit.
STUCK_AFTER_S = 60.0

PREFIX = "kafka_timers_oscillator"


class Metrics:
    """The metrics of one replica, in *registry*. A tick is one second in one partition."""

    def __init__(self, registry: CollectorRegistry) -> None:

        def gauge(name: str, what: str) -> Gauge:
            return Gauge(f"{PREFIX}_{name}", what, registry=registry)

        def counter(name: str, what: str) -> Counter:
            return Counter(f"{PREFIX}_{name}", what, registry=registry)

        self.last_tick = gauge("last_tick_seconds", "last second that every partition has, in UNIX seconds")
        self.clock_offset = gauge("clock_offset_seconds", "this host's clock less the brokers' time")
        self.broker_clock = Gauge(
            f"{PREFIX}_broker_clock_offset_seconds",
            "the clock of each broker that has ticks less the brokers' time",
            ("broker",),
            registry=registry,
        )
        self.delay = Histogram(
            f"{PREFIX}_tick_delay_seconds",
            "append time less second of each tick that this replica emitted",
            buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600),
            registry=registry,
        )
        self.behind = gauge("behind_seconds", "the brokers' time less the last second that every partition has")
        self.ready = gauge("ready", "1 while this replica ticks, or would if no other did")
        self.emitted = counter("ticks_emitted", "ticks that this replica emitted")
        self.suppressed = counter("ticks_suppressed", "ticks not emitted since another replica had done so")
        self.early = counter(
            "ticks_early", "ticks that landed before their second by the broker's clock and were emitted again"
        )
        self.skipped = counter("ticks_skipped", "missed ticks left out by the catch-up limit")


class Health:
    """
    The state of one replica, reported by the parts that do the work. The two clocks may differ by *max_clock_skew_s*
    seconds.
    """

    def __init__(self, clock: Clock, broker_time: BrokersTime, metrics: Metrics, max_clock_skew_s: float) -> None:
        self._clock, self._broker_time = clock, broker_time
        self._max_clock_skew_s = max_clock_skew_s
        self._last_tick, self._broker_clock = metrics.last_tick, metrics.broker_clock
        self._troubles: dict[int | None, str] = {}
        self._held = False
        self._wrong = frozenset[int]()
        self._last_second: int | None = None
        self.answered_elapsed_s = self._turned_elapsed_s = self._progress_elapsed_s = clock.elapsed_s()
        metrics.clock_offset.set_function(lambda: self.clock_offset_s() or 0.0)
        metrics.behind.set_function(self._behind_s)
        metrics.ready.set_function(lambda: float(not self.ready()))

    def turned(self) -> None:
        """Note that the replica's loop is running."""
        self._turned_elapsed_s = self._clock.elapsed_s()

    def answered(self, partition: int | None = None) -> None:
        """Note that the broker answered, with a tick of *partition* if that is given."""
        self.answered_elapsed_s = self._clock.elapsed_s()
        if self._troubles:
            self._troubles.pop(None, None)
            self._troubles.pop(partition, None)
            if not self._troubles:
                log.info("the broker answers again")

    def trouble(self, reason: str, partition: int | None = None) -> None:
        """Note that the broker fails, for all partitions or for *partition*, until `answered` is called."""
        if not self._troubles:
            log.error("%s; trying again", reason)
        self._troubles[partition] = reason

    def progressed(self, second: int) -> None:
        """Note that every partition has the tick of *second*."""
        self._progress_elapsed_s = self._clock.elapsed_s()
        self._last_second = second
        self._last_tick.set(second)

    def clock_offset_s(self) -> float | None:
        """Return the seconds by which the host's clock is ahead of the broker's; None while unknown."""
        broker_s = self._broker_time.at(self._clock.elapsed_s())
        return None if broker_s is None else self._clock.wall_s() - broker_s

    def must_keep_silent(self) -> bool:
        """Tell whether the clocks of host and brokers differ by more than they may."""
        off_s = self._broker_time.off_s(self._clock.elapsed_s())
        # Brokers come and go.
        self._broker_clock.clear()
        for broker, each_s in off_s.items():
            self._broker_clock.labels(broker).set(each_s)
        wrong = frozenset(broker for broker, each_s in off_s.items() if abs(each_s) > self._max_clock_skew_s)
        for broker in wrong - self._wrong:
            log.error("the clock of broker %d differs from the brokers' time by %.1f s", broker, off_s[broker])
        self._wrong = wrong
        reason = self._skew()
        if bool(reason) != self._held:
            self._held = bool(reason)
            if self._held:
                log.error("%s", reason)
            else:
                log.info("the clocks of host and broker agree again")
        return self._held

    def live(self) -> list[str]:
        """Return the reasons for restarting this process; empty if it is alive."""
        stuck_s = self._clock.elapsed_s() - self._turned_elapsed_s
        return [f"the loop has been stuck for {stuck_s:.0f} s"] if stuck_s > STUCK_AFTER_S else []

    def ready(self) -> list[str]:
        """Return the reasons why ticks are missing, or would be without the other replicas; empty if all is well."""
        reasons = [reason for reason in (*self._troubles.values(), self._skew()) if reason]
        silent_s = self._clock.elapsed_s() - self._progress_elapsed_s
        if self._last_second is None:
            reasons.append("no tick was emitted or seen yet")
        elif silent_s > NOT_READY_AFTER_S:
            reasons.append(f"no tick was emitted or seen for {silent_s:.0f} s")
        return reasons

    def _skew(self) -> str:
        offset_s = self.clock_offset_s()
        if offset_s is None or abs(offset_s) <= self._max_clock_skew_s:
            return ""
        return (
            f"this host's clock is {abs(offset_s):.1f} s {'ahead of' if offset_s > 0 else 'behind'} the brokers'; "
            f"no tick is emitted until they differ by at most {self._max_clock_skew_s:g} s"
        )

    def _behind_s(self) -> float:
        broker_s = self._broker_time.at(self._clock.elapsed_s())
        return 0.0 if broker_s is None or self._last_second is None else broker_s - self._last_second
