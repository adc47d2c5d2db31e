"""Helpers of all commands: set up logging, run an event loop, read arguments, and name a missing extra."""

import asyncio
import logging
import re
import shlex
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TypeVar

import click

from kafka_timers.errors import KafkaTimersError

_INSTANCE = ("--bootstrap", "--kafka-config", "--topic-prefix")
# Commands in messages that take these options.
_advised = re.compile(r"kafka-timers (?:topics (?:create|check)|status|find|rejected|redrive)\b")

# A first start waits so long for the topics of Kafka's own groups.
_LASTING_S = 10.0

_T = TypeVar("_T")


def log_to_stderr(level: str) -> None:
    """Write log messages of *level* and above to the standard error, one line each."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if level != "debug":
        # Their routine messages help only their own developers.
        for library in ("aiokafka", "faust", "mode"):
            logging.getLogger(library).setLevel(logging.WARNING)
    # At debug, aiokafka.conn logs every request that it sends, and one of them has the password. The others log the
    # signatures and answers that tokens are made of.
    for library in ("aiokafka.conn", "boto3", "botocore", "google", "urllib3"):
        logging.getLogger(library).setLevel(logging.WARNING)
    logging.getLogger("aiokafka.consumer.group_coordinator").addFilter(_Lasting())


class _Lasting(logging.Filter):
    """Lets a member's search for its coordinator pass once it has lasted: one that ends within seconds is no fault."""

    _first_s = _last_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.msg.startswith(("Group Coordinator Request failed", "Marking the coordinator dead")):
            return True
        if record.created > self._last_s + _LASTING_S:
            self._first_s = record.created
        self._last_s = record.created
        return record.created > self._first_s + _LASTING_S


def wait_for(work: Coroutine[Any, Any, _T]) -> _T:
    """Run *work* in an event loop and return its result."""
    # The client logs each failed attempt to connect. The final error says the same once.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    return asyncio.run(work)


def argument_bytes(text: str) -> bytes:
    """Return the bytes of an argument. Python puts surrogates in place of bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def instance_in(args: Sequence[str]) -> str:
    """Return the options in *args* that name the instance, as text to add to another command line."""
    found = []
    for at, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name in _INSTANCE and (equals or at + 1 < len(args)):
            found += [name, value if equals else args[at + 1]]
    return shlex.join(found)


def with_instance(text: str, instance: str) -> str:
    """Return *text* with *instance*, from `instance_in`, added to each command in it, so that you can copy it."""
    return _advised.sub(lambda command: f"{command[0]} {instance}", text) if instance else text


def advised(text: str) -> str:
    """Return *text*, with the options that name the instance of this command added to each command in it."""
    return with_instance(text, click.get_current_context().find_root().obj)


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Raise an error that says how to install *extra* if the block imports a missing library."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "kafka_timers").partition(".")[0]
        if library.startswith("kafka_timers"):
            raise
        raise _missing(library, extra) from error


def check_installed(extra: str, *libraries: str) -> None:
    """
    Check that *libraries*, which child processes need, are installed.

    Raises:
        KafkaTimersError: a library is missing; the message says how to install *extra*.
    """
    for library in libraries:
        if find_spec(library) is None:
            raise _missing(library, extra)


def _missing(library: str, extra: str) -> KafkaTimersError:
    return KafkaTimersError(f"{library} is not installed: pip install 'kafka-timers[{extra}]'")
