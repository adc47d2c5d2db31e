"""One running oscillator, through outages of the broker."""

import asyncio
import socket
from typing import NoReturn

from aiokafka.errors import KafkaError
from prometheus_client import CollectorRegistry

from kafka_timers.clock import Clock, HostClock
from kafka_timers.core.wire import Topics
from kafka_timers.errors import BrokerError, TopicsError
from kafka_timers.settings import OscillatorSettings
from kafka_timers_oscillator.broker_time import BrokersTime
from kafka_timers_oscillator.connected import Session
from kafka_timers_oscillator.replica_health import Health, Metrics
from kafka_timers_oscillator.schedule import Schedule
from kafka_timers_oscillator.tick_log import TickLog

# In this time a later replica learns the broker's time from the ticks of an earlier one, if that is running.
LISTEN_S = 1.5

RETRY_S_MIN, RETRY_S_MAX = 0.5, 5.0


class Replica:
    """One oscillator replica."""

    def __init__(self, settings: OscillatorSettings, registry: CollectorRegistry, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or HostClock()
        self._broker_time = BrokersTime()
        self._metrics = Metrics(registry)
        self.health = Health(self._clock, self._broker_time, self._metrics, settings.max_clock_skew_s)

    async def run(self) -> NoReturn:
        """
        Emit ticks until cancelled, also through outages of the broker.

        Raises:
            TopicsError: the broker does not stamp the topic's records with its own time.
        """
        kafka, topic = self._settings.kafka, Topics.of(self._settings.topic_prefix).oscillator
        name = f"{self._settings.replica} on {socket.gethostname()}"
        retry_s = RETRY_S_MIN
        while True:
            self.health.turned()
            answered_before_s = self.health.answered_elapsed_s
            try:
                async with TickLog.open(kafka, topic, name) as ticks:
                    await self._session(ticks)
            except (BrokerError, KafkaError, OSError) as error:
                self.health.trouble(str(error) or f"the broker at {kafka} does not answer in time")
            if self.health.answered_elapsed_s > answered_before_s:
                retry_s = RETRY_S_MIN
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_S_MAX)

    async def _session(self, ticks: TickLog) -> None:
        settings = self._settings
        schedule = Schedule(
            ticks.partitions,
            replica=settings.replica,
            catch_up_s=settings.catch_up_s,
            max_ahead_s=settings.max_clock_skew_s,
        )
        session = Session(ticks, schedule, self._broker_time, self._clock, self._metrics, self.health)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(session.follow())
                tasks.create_task(session.emit(tasks, listen_s=LISTEN_S if settings.replica else 0.0))
        except ExceptionGroup as group:
            # One reason is enough. An error that ends the process comes first.
            raise min(group.exceptions, key=lambda error: not isinstance(error, TopicsError)) from None
