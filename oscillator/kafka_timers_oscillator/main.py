"""Runs one replica as a process, from settings to exit code."""

import asyncio
import logging
import signal

from prometheus_client import CollectorRegistry

from kafka_timers.runtime.probes import Probes
from kafka_timers.settings import OscillatorSettings
from kafka_timers_oscillator.replica import Replica

log = logging.getLogger(__name__)


def run(settings: OscillatorSettings) -> int:
    """
    Run one oscillator replica until SIGTERM or SIGINT; return the exit code, 0.

    It waits for a broker that is away. The caller sets up logging.

    Raises:
        SettingsError: the port for metrics and health is not available.
        TopicsError: the broker does not stamp the topic's records with its own time.
    """
    # With the broker away aiokafka logs some ten lines a second. This process logs the important part itself.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    asyncio.run(_run(settings))
    return 0


async def _run(settings: OscillatorSettings) -> None:
    registry = CollectorRegistry()
    replica = Replica(settings, registry)
    probes = Probes(settings.host, settings.port, registry, replica.health.live, replica.health.ready)
    await probes.start()
    log.info("oscillator replica %d on %s; %s", settings.replica, settings.kafka, probes.url or "no metrics served")
    running = asyncio.create_task(replica.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        log.info("stopped")
    finally:
        await probes.stop()
