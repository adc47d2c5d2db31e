"""Types of fixtures. They cannot be imported from `conftest.py`, since each folder may have one of that name."""

from collections.abc import Awaitable, Callable

from kafka_timers.dev.broker import EmbeddedKafka

StartKafka = Callable[..., Awaitable[EmbeddedKafka]]
