"""Gauges that disappear while their value is not known."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class KnownGauge(Collector):
    """A gauge without labels that a scraper does not see while its value is None."""

    def __init__(self, name: str, help: str, registry: CollectorRegistry) -> None:
        self.value: float | None = None
        self._name, self._help = name, help
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Return the one metric, for the registry."""
        return [GaugeMetricFamily(self._name, self._help, value=self.value)]
