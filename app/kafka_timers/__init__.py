"""
Durable timers for services on Kafka: publish a Future, get a callback in its second.

What a service imports that asks for timers (`TimerClient`) or receives their callbacks (`TokenGuard`). Needs aiokafka
and protobuf only; the processes of the timer service itself come with extras. For tests see `kafka_timers.testing`.
"""

from kafka_timers.broker.connection import Kafka
from kafka_timers.client.request import Answer, Outcome, Timer
from kafka_timers.client.timer_client import TimerClient
from kafka_timers.client.token_guard import TokenGuard, request_from, token_from
from kafka_timers.core.wire import Future, Header
from kafka_timers.errors import (
    AnswerError,
    BrokerError,
    KafkaTimersError,
    PublishError,
    RequestError,
    SettingsError,
    TopicsError,
    WhenError,
    WireError,
)

__all__ = [
    "Answer",
    "AnswerError",
    "BrokerError",
    "Future",
    "Header",
    "Kafka",
    "KafkaTimersError",
    "Outcome",
    "PublishError",
    "RequestError",
    "SettingsError",
    "Timer",
    "TimerClient",
    "TokenGuard",
    "TopicsError",
    "WhenError",
    "WireError",
    "request_from",
    "token_from",
]

__version__ = "0.1.0"
