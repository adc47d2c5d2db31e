"""What all producers need: the name of a setting that is wrong, and an end also while the broker is away."""

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
    Have a broker that lets no transaction last for *transaction_timeout_s* be told of as what it is, a wrong setting.

    Raises:
        SettingsError: the broker allows no transaction to last that long.
    """
    try:
        yield
    except InvalidTransactionTimeout as error:
        # Only the broker knows its own limit, and its refusal names a setting of the broker alone.
        raise SettingsError(
            f"transaction_timeout_s {transaction_timeout_s}: the broker takes at most its own "
            "transaction.max.timeout.ms: give less, or raise that one"
        ) from error


async def stop(producer: AIOKafkaProducer) -> None:
    """Disconnect *producer*; what it has left is sent if the broker takes it soon, a transaction is not committed."""
    # Without a limit it would wait for a broker that is gone for as long as it is gone.
    with suppress(TimeoutError, KafkaError):
        async with asyncio.timeout(_STOP_S):
            await producer.stop()
