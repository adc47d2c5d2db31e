"""
Durable timers for services on Kafka: publish a Future, get a callback in its second.

Import `TimerClient` to ask for timers, and `Callback` and `TokenGuard` to receive their callbacks. The package needs
aiokafka, protobuf and xxhash only; the processes of the timer service itself come with extras. Programs without asyncio
take `kafka_timers.sync`, and tests take `kafka_timers.testing`.
"""

from kafka_timers.broker.connection import Kafka
from kafka_timers.client.callback import Callback, request_from, token_from
from kafka_timers.client.request import Answer, CallbackOptions, Headers, Outcome, Pending, Timer
from kafka_timers.client.retry import Retry, RetryPolicy
from kafka_timers.client.timer_client import TimerClient
from kafka_timers.client.times import At, Cron, Every
from kafka_timers.client.token_guard import TokenGuard
from kafka_timers.core.wire import Future, Header
from kafka_timers.errors import (
    AnswerError,
    BrokerError,
    ClientStateError,
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
    "At",
    "BrokerError",
    "Callback",
    "CallbackOptions",
    "ClientStateError",
    "Cron",
    "Every",
    "Future",
    "Header",
    "Headers",
    "Kafka",
    "KafkaTimersError",
    "Outcome",
    "Pending",
    "PublishError",
    "RequestError",
    "Retry",
    "RetryPolicy",
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
