"""
All metrics of the worker, with the unit in each name; docs/operate.md explains what to do about each.

There is one registry for each process. The worker makes it and `kafka_timers.runtime.probes` serves it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from kafka_timers.core.callbacks import Lack
from kafka_timers.core.refused import Reason
from kafka_timers.runtime.gauges import KnownGauge

_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)
# Others choose the names of topics and callers, and how many there are.
_SHOWN_MAX = 100


class BulkHistogram(Collector):
    """
    A histogram that takes many equal observations at once, such as all callbacks of a second.

    Args:
        stages: values of the label `stage`, with a histogram each; empty for a single histogram without a label.
    """

    def __init__(self, name: str, help: str, registry: CollectorRegistry, stages: Sequence[str] = ()) -> None:
        self._name, self._help, self._labels = name, help, ["stage"] if stages else []
        self._counts = {stage: [0] * (len(_BUCKETS_S) + 1) for stage in stages or ("",)}
        self._sums_s = dict.fromkeys(self._counts, 0.0)
        registry.register(self)

    def add(self, value_s: float, count: int = 1, stage: str = "") -> None:
        """Observe *value_s* seconds *count* times."""
        self._counts[stage][bisect_left(_BUCKETS_S, value_s)] += count
        self._sums_s[stage] += value_s * count

    def collect(self) -> Iterable[Metric]:
        """Return the metric for the registry."""
        bounds = [*map(floatToGoString, _BUCKETS_S), "+Inf"]
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        for stage, counts in self._counts.items():
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            family.add_metric([stage] if self._labels else [], buckets, self._sums_s[stage])
        return [family]


class WorkerMetrics:
    """The metrics of one worker process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"kafka_timers_{name}", help, labels, registry=registry)

        self._gauges: list[Gauge] = []

        def gauge(name: str, help: str) -> Gauge:
            self._gauges.append(Gauge(f"kafka_timers_{name}", help, ("partition",), registry=registry))
            return self._gauges[-1]

        def single(name: str, help: str, *labels: str) -> Gauge:
            return Gauge(f"kafka_timers_{name}", help, labels, registry=registry)

        def histogram(name: str, help: str, *stages: str) -> BulkHistogram:
            return BulkHistogram(f"kafka_timers_{name}", help, registry, stages)

        self.requests = counter("requests", "requests taken into a store")
        self.far = counter("far", "requests left to the lake")
        self.copies = counter("copies", "copies of far requests that came from the lake, by result", "worth")
        self.copies_lead = counter("copies_lead_seconds", "seconds from the append of copies to their due time, summed")
        # Create labels now: an alarm on an increase would miss the first one otherwise.
        self.copies.labels("late")
        self.rejected = counter("rejected", "requests sent to timer-rejected", "reason")
        for reason in Reason:
            self.rejected.labels(reason)
        self.forwarded = counter("forwarded", "requests and cancels sent on to the partition of their timer id")
        self.taken_back = counter(
            "taken_back", "requests that were cancelled, or replaced by another request of their id", "how"
        )
        self.replies = counter("replies", "answers to cancels and moves, by outcome", "outcome")
        self.fired = counter("fired", "callbacks made visible to receivers", "topic")
        self.late_arrivals = counter("late_arrivals", "requests read after their second was scanned")
        self.ticks_refused = counter("ticks_refused", "ticks that are no seconds or too far ahead of the broker")
        self.fence_timeouts = counter("fence_timeouts", "seconds fired before all requests accepted in time were read")
        self.takeovers = counter("takeovers", "partitions taken over, by state of the local store", "store")
        self.fenced = counter("fenced", "transactions refused because another worker owns the partition")
        self.failures = counter("partition_failures", "faults after which a partition was taken over anew")
        self.failing = gauge(
            "partition_failing_seconds", "time for which the partition has failed again and again; 0 while it is served"
        )
        self.lateness = histogram(
            "lateness_seconds", "time from a callback's second to its commit, without late arrivals"
        )
        self.stages = histogram(
            "stage_seconds",
            "time of each step of a transaction with callbacks",
            *("read", "build", "acknowledge", "commit"),
        )
        self.tick_delay = histogram(
            "tick_delay_seconds", "time from a second to the arrival of its tick in this process"
        )
        self.pending = gauge("pending", "requests that wait")
        self.armed = gauge("armed", "callbacks of the next second that are built")
        self.ingest_lag = gauge("ingest_lag_records", "requests accepted and not read yet, at the last tick")
        self.blocked = gauge(
            "requests_blocked_seconds", "time for which an open transaction has kept requests from being read"
        )
        self.oldest_due = gauge(
            "oldest_due_seconds", "time for which the oldest request that has not fired has been due, as far as known"
        )
        self.pending_until = gauge("pending_until_seconds", "last UNIX second in which a request waits; 0 without one")
        self.seconds_behind = gauge("seconds_behind", "time from the last second looked at to the last tick")
        self.store_bytes = gauge("store_bytes", "table files of the store on disk")
        self.store_free_bytes = single("store_free_bytes", "free space of the disk that the stores are on")
        self.tick_age = single("tick_age_seconds", "time since a tick was read, while one is expected")
        self.partitions = single("partitions", "partitions of timer-request that the service uses, of all workers")
        self.horizon = single("horizon_seconds", "the worker's horizon; 0 without one")
        self.lake_closed = KnownGauge(
            "kafka_timers_lake_closed_second", "UNIX second up to which the lake has promoted far requests", registry
        )
        self.lake_behind = KnownGauge(
            "kafka_timers_lake_behind_seconds",
            "seconds that the lake has promoted too little; 0 if it keeps up",
            registry,
        )
        self.retention = single("request_retention_seconds", "time for which timer-request keeps a request")
        self.swept = counter("swept_requests", "requests that wait and were repeated at the end of timer-request")
        self.trimmed = counter("trimmed_records", "records of timer-request that were deleted, since nobody needs them")
        self.topic_problems = single("topic_problems", "number of problems that kafka-timers topics check finds")
        self.door_records = counter("door_records", "records read by a door", "door")
        self.door_requests = counter("door_requests", "requests that a door made of records", "door")
        self.door_rejected = counter("door_rejected", "records that a door sent to timer-rejected", "door", "reason")
        self.door_unread = counter(
            "door_unread", "times that a door went on with a partition though others cannot be read", "door"
        )
        self.door_failures = counter("door_failures", "faults after which a door started anew", "door")
        self.history_missed = counter(
            "door_history_missed", "callbacks that fired without a record on the history topic"
        )
        self._callers = counter("door_callers", "countdowns, by caller", "caller")
        self._known_callers: set[str] = set()
        self.door_lag = single(
            "door_lag_records", "records on the topic of a door that are not read yet", "door", "topic"
        )
        self._unavailable = single(
            "unavailable_partitions",
            "1 for each partition of a callback topic that lacks a leader or replicas in sync",
            *("topic", "partition", "brokers"),
        )
        self.log_needed = gauge(
            "request_log_needed_seconds", "age of the oldest record of timer-request that is needed"
        )
        self.log_gap = gauge("request_log_gap", "1 when the request log starts above the oldest pending request")
        self.log_other = gauge(
            "request_log_other", "1 while nothing fires, since timer-request is not the log that was fired from"
        )
        self.log_cuts = counter("log_cuts", "times that a log was found to have lost records that it had", "log")
        for name in ("timer-request", "timer-sealed"):
            self.log_cuts.labels(name)

    def count_callers(self, asked: Mapping[str, int]) -> None:
        """Count requests by caller. Senders choose the names, so all names after the first hundred count as one."""
        for caller, count in asked.items():
            if len(self._known_callers) < _SHOWN_MAX:
                self._known_callers.add(caller)
            self._callers.labels(caller if caller in self._known_callers else "other").inc(count)

    def show_unavailable(self, found: Mapping[str, Mapping[int, Lack]]) -> None:
        """Show what the unavailable partitions of callback topics lack, and all after the first hundred as one."""
        every = [
            (topic, number, lack) for topic, lacks in sorted(found.items()) for number, lack in sorted(lacks.items())
        ]
        self._unavailable.clear()
        for topic, number, lack in every[:_SHOWN_MAX]:
            self._unavailable.labels(topic, number, ", ".join(map(str, lack.away))).set(1)
        if left := len(every[_SHOWN_MAX:]):
            self._unavailable.labels("other", "", "").set(left)

    def forget(self, partition: int) -> None:
        """Stop showing *partition*, because it has another owner now."""
        for gauge in self._gauges:
            with suppress(KeyError):
                gauge.remove(str(partition))
