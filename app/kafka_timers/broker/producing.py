"""
Shared by all producers: an error that names the wrong setting, and a stop that also ends while the broker is away.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from aiokafka import AIOKafkaProducer
from aiokafka.errors import InvalidTransactionTimeout, KafkaError

from kafka_timers.errors import SettingsError

_STOP_S = 5.0


@contextmanager
def naming_the_timeout(transaction_timeout_s: float) -> Iterator[None]:
    """
    Raise a SettingsError if the broker does not allow transactions of *transaction_timeout_s* seconds.

    Raises:
        SettingsError: the broker allows no transaction to last that long.
    """
    try:
        yield
    except InvalidTransactionTimeout as error:
        # Only the broker knows its limit, and its error names only a setting of the broker.
        raise SettingsError(
            f"transaction_timeout_s {transaction_timeout_s}: the broker takes at most its own "
            "transaction.max.timeout.ms: give less, or raise that one"
        ) from error


async def stop(producer: AIOKafkaProducer) -> None:
    """
    Stop *producer* within some seconds. Pending records are sent if the broker takes them; no transaction is committed.
    """
    # Without a limit it would wait until the broker comes back.
    with suppress(TimeoutError, KafkaError):
        async with asyncio.timeout(_STOP_S):
            await producer.stop()
