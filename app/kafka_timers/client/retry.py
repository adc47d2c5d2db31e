"""
Ask for a record again, later and later, and give it up in the end.

Pure. What is asked for is an ordinary timer, so thousands of records that wait cost no topic per delay. Its id follows
from the record, and it is asked for only if that id is not known: a receiver that reads a record twice repeats it once.
"""

import hashlib
import math
import zlib
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from kafka_timers.client.callback import own_headers
from kafka_timers.client.received import Received
from kafka_timers.client.request import CallbackSpec, Timer
from kafka_timers.core.wire import (
    ID_HEADER,
    REQUEST_HEADER,
    RETRY_ATTEMPT_HEADER,
    RETRY_ERROR_HEADER,
    RETRY_FIRST_HEADER,
    RETRY_ID_HEADER,
    TOKEN_HEADER,
    number_in,
)
from kafka_timers.errors import RequestError

__all__ = ["Retry", "RetryPolicy", "repeated"]

# What a header tells of an error: enough for its sentence, and no page of a stack.
_ERROR_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """
    When a record that could not be handled comes again, and where it goes in the end.

    The first time after `first`, then each time `factor` times as long, and never longer than `longest`.

    Attributes:
        dead_letter_topic: gets what has come again `retries` times in vain. It must exist, and the operator must allow
            it, as every callback topic.
        retries: how often a record comes again; 0 gives it up at once.
        first: delay before the first time, a timedelta or seconds.
        factor: 1 or more.
        longest: the longest delay, a timedelta or seconds.
        jitter: 0 to 1: by up to this share a delay is shortened, so that what failed together does not come back
            together. It follows from the record alone.
        topic: gets the record when it comes again. None is the topic that it was read from, where each of its consumer
            groups reads it again; if there are several, give a topic that only yours reads.

    Raises:
        RequestError: a value is out of its bounds.
    """

    dead_letter_topic: str
    retries: int = 5
    first: timedelta | float = 1.0
    factor: float = 2.0
    longest: timedelta | float = 3600.0
    jitter: float = 0.0
    topic: str | None = None

    def __post_init__(self) -> None:
        """Check the bounds."""
        for name, least, most in (
            ("retries", 0, math.inf),
            ("first", 0, math.inf),
            ("factor", 1, math.inf),
            ("longest", 0, math.inf),
            ("jitter", 0, 1),
        ):
            given = getattr(self, name)
            if not least <= _seconds(given) <= most or math.isinf(_seconds(given)):
                bounds = f"between {least} and {most:g}" if most < math.inf else f"{least} or more"
                raise RequestError(f"{name} of a RetryPolicy is {given!r}: give {bounds}")

    def delay_s(self, attempt: int, name: str = "") -> float:
        """
        Return the seconds to wait before the record comes for the *attempt*-th time again.

        Args:
            attempt: from 1 on.
            name: of the record; the jitter follows from it.
        """
        longest_s = _seconds(self.longest)
        try:
            delay_s = min(_seconds(self.first) * self.factor ** (attempt - 1), longest_s)
        except OverflowError:
            delay_s = longest_s
        share = zlib.crc32(f"{name} {attempt}".encode()) / (1 << 32)
        return delay_s * (1 - self.jitter * share)


@dataclass(frozen=True, slots=True)
class Retry:
    """
    What `TimerClient.retry` has asked for.

    Attributes:
        timer: that brings the record again, or brings it to the dead-letter topic.
        attempt: how often the record comes again with this one; for one that was given up how often it came.
        gave_up: whether it goes to the dead-letter topic.
    """

    timer: Timer
    attempt: int
    gave_up: bool


class Repeated(NamedTuple):
    """A record as it is asked for again: what, how many seconds from now, and the rest as `Retry` has it."""

    callback: CallbackSpec
    delay_s: float
    attempt: int
    gave_up: bool


def repeated(received: Received, policy: RetryPolicy, error: BaseException | str | None) -> Repeated:
    """
    Return *received* as it is asked for again.

    Its own headers are kept. Behind them are, in place of those of the time before: how often it came again, where it
    lay at first, the timer id that it had at first, and the *error*.

    Args:
        received: a callback, or any other record.
        policy: tells when, and whether at all.
        error: why it could not be handled.
    """
    named = received.named
    came = number_in(named.get(RETRY_ATTEMPT_HEADER)) or 0
    gave_up = came >= policy.retries
    attempt = came if gave_up else came + 1
    place = f"{received.topic}/{received.partition}:{received.offset}"
    is_again = RETRY_ATTEMPT_HEADER in named
    first_id = named.get(RETRY_ID_HEADER if is_again else ID_HEADER)
    told: list[tuple[str, bytes | None]] = [
        (RETRY_ATTEMPT_HEADER, b"%d" % attempt),
        (RETRY_FIRST_HEADER, named.get(RETRY_FIRST_HEADER) if is_again else place.encode()),
    ]
    if first_id is not None:
        told.append((RETRY_ID_HEADER, first_id))
    if error is not None:
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        told.append((RETRY_ERROR_HEADER, text[:_ERROR_CHARACTERS].encode(errors="replace")))
    token = named.get(TOKEN_HEADER)
    name = _name_of(received, named.get(REQUEST_HEADER), policy)
    callback = CallbackSpec(
        policy.dead_letter_topic if gave_up else policy.topic or received.topic,
        received.key,
        received.value,
        name,
        token.decode(errors="replace") if token else None,
        [*own_headers(received.headers), *told],
    )
    return Repeated(callback, 0.0 if gave_up else policy.delay_s(attempt, name), attempt, gave_up)


def _name_of(received: Received, request: bytes | None, policy: RetryPolicy) -> str:
    """Return the timer id by which the service knows that *received* was repeated already."""
    # Consumer groups that read one topic have policies of their own, and each gets its record.
    to = f"retry/{policy.topic or received.topic}/{policy.dead_letter_topic}"
    if request is None:
        return f"{to}/{received.topic}/{received.partition}:{received.offset}"
    # All copies of a callback tell one request. So do records that a receiver has made of it, if it has passed on the
    # headers; they differ in what they say.
    content = hashlib.blake2b(digest_size=8)
    for part in (received.topic.encode(), received.key or b"", received.value or b""):
        content.update(b"%d:" % len(part) + part)
    return f"{to}/{request.decode(errors='replace')}/{content.hexdigest()}"


def _seconds(given: timedelta | float) -> float:
    return given.total_seconds() if isinstance(given, timedelta) else given
