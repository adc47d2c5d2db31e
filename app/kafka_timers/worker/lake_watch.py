"""Shows how far the lake has promoted. An alarm uses it, which also works while no lake job runs."""

import asyncio
import logging
from typing import Never

from aiokafka.errors import KafkaError

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.lake_group import closed_second
from kafka_timers.runtime.gauges import KnownGauge

log = logging.getLogger(__name__)

_EVERY_S = 60.0
# A short horizon needs a shorter interval, because an alarm compares the two.
_TIMES_IN_HORIZON = 20


async def watch_lake(cluster: Cluster, prefix: str, horizon_s: int, shown: KnownGauge) -> Never:
    """
    Keep *shown* at the closed second that the lake has written. It has no value while there is none.

    While no broker answers, it keeps its value. The alarm notices a second that stands still.
    """
    trouble = ""
    while True:
        try:
            shown.value = await closed_second(cluster, prefix)
            trouble = ""
        except KafkaError as error:
            if str(error) != trouble:
                trouble = str(error)
                log.warning("the progress of the lake is not known: %s", trouble)
        await asyncio.sleep(min(_EVERY_S, horizon_s / _TIMES_IN_HORIZON))
