"""The metrics of a planner; docs/operate.md explains them, and the steps to take."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class PlannerMetrics:
    """The metrics of the planner of a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.schedules = Gauge(
            "kafka_timers_schedules", "schedules that this process plans", ("partition",), registry=registry
        )
        self.runs = Counter("kafka_timers_schedule_runs", "runs of schedules, by action", ("what",), registry=registry)
        self.rejected = Counter(
            "kafka_timers_schedules_rejected", "records on timer-schedule that are no schedule", registry=registry
        )
        self.failures = Counter(
            "kafka_timers_planner_failures", "times that planning of a partition began anew", registry=registry
        )
        self.behind = Gauge(
            "kafka_timers_planner_behind_seconds",
            "seconds since all runs to plan were planned, in the partition that waits longest",
            registry=registry,
        )
        # There from the start: an alarm that asks whether it grows does not see the first one otherwise.
        for what in ("asked", "replaced", "cancelled"):
            self.runs.labels(what)
