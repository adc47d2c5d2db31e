"""How far the lake has promoted, as a worker shows it: an alarm rings by it also while no job of the lake runs."""

import asyncio
import logging
from typing import Never

from aiokafka.errors import KafkaError

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.lake_group import closed_second
from kafka_timers.gauges import KnownGauge

__all__ = ["watch_lake"]

log = logging.getLogger(__name__)

_EVERY_S = 60.0
# Of a horizon that is shorter than others it is asked for more often: an alarm compares the two.
_TIMES_IN_HORIZON = 20


async def watch_lake(cluster: Cluster, prefix: str, horizon_s: int, shown: KnownGauge) -> Never:
    """
    Keep *shown* at the closed second that the lake has told, and without a value while none is told.

    While no broker answers it keeps what it has: a second that stands still is what the alarm is about.

    Args:
        cluster: to ask.
        prefix: put before the topics' names.
        horizon_s: of the worker.
        shown: the gauge.
    """
    told = ""
    while True:
        try:
            shown.value = await closed_second(cluster, prefix)
            told = ""
        except KafkaError as error:
            if str(error) != told:
                told = str(error)
                log.warning("it is not known how far the lake has promoted: %s", told)
        await asyncio.sleep(min(_EVERY_S, horizon_s / _TIMES_IN_HORIZON))
