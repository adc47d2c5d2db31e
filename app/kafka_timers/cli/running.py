"""
What commands do around their work: set up logging, run an event loop, read arguments, name the extra that is missing.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from kafka_timers.errors import KafkaTimersError

__all__ = ["argument_bytes", "log_to_stderr", "needs", "wait_for"]

_T = TypeVar("_T")


def log_to_stderr(level: str) -> None:
    """Write log messages of *level* and above to the standard error, one line each."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if level != "debug":
        # Their routine messages are of use to their own developers.
        for library in ("aiokafka", "faust", "mode"):
            logging.getLogger(library).setLevel(logging.WARNING)
    # At debug it writes down each request as it goes out, including the one with the password.
    logging.getLogger("aiokafka.conn").setLevel(logging.WARNING)


def wait_for(work: Coroutine[Any, Any, _T]) -> _T:
    """Run *work* in an event loop and return its result."""
    # The client logs each attempt to connect; the error that ends in says the same once.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    return asyncio.run(work)


def argument_bytes(text: str) -> bytes:
    """Return the bytes of an argument; one that is not UTF-8 arrives with surrogates in place of its bytes."""
    return text.encode("utf-8", "surrogateescape")


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Say how to install *extra* when the block imports a library that is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "kafka_timers").partition(".")[0]
        if library.startswith("kafka_timers"):
            raise
        raise KafkaTimersError(f"{library} is not installed: pip install 'kafka-timers[{extra}]'") from error
