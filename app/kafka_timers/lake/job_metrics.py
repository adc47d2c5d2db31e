"""
Metrics of `lake land` and `lake promote`, with the unit in each name; docs/operate.md has the step to take for each.

One registry per process, served by `kafka_timers.runtime.probes`.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge

from kafka_timers.lake.progress import Batch
from kafka_timers.runtime.gauges import KnownGauge


class LakeMetrics:
    """The metrics of one process that lands, promotes, or does both."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"kafka_timers_lake_{name}", help, labels, registry=registry)

        def by_topic(name: str, help: str) -> Gauge:
            return Gauge(f"kafka_timers_lake_{name}", help, ("topic",), registry=registry)

        self.landed = counter("landed", "records landed", "topic")
        self.batch = by_topic("batch_seconds", "duration of the last batch that had records")
        self.lag = by_topic("landing_lag_records", "records of the topic that were not landed at the last look")
        self.position = by_topic("position_seconds", "UNIX second of the last look for records to land")
        self.closed = KnownGauge(
            "kafka_timers_lake_closed_second", "UNIX second up to which far requests are with the workers", registry
        )
        self.promoted = counter("promoted", "requests of closed buckets whose copies workers have")
        self.late = counter("promoted_late", "requests that were due before their copies were published")
        self.too_large = counter("too_large", "requests that do not fire, since they are too large for a copy")
        self.look = Gauge("kafka_timers_lake_look_seconds", "duration of the last look for buckets", registry=registry)
        self.failures = counter("look_failures", "looks for buckets that ended with an error")

    def count(self, topic: str, batch: Batch) -> None:
        """Count a batch of *topic* that has landed."""
        self.landed.labels(topic).inc(batch.records)
        self.batch.labels(topic).set(batch.took_s)

    def show(self, topic: str, batch: Batch) -> None:
        """Show the state of the landing of *topic* after *batch*, its last one."""
        self.lag.labels(topic).set(batch.behind)
        self.position.labels(topic).set(batch.at_s)
