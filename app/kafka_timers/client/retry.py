"""
Ask for a record again, after longer and longer delays, and give it up in the end.

Pure. The retry is an ordinary timer, so thousands of waiting records need no topic per delay. Its id follows from the
record, and the timer is created only if that id is not known: a receiver that reads a record twice repeats it once.
"""

import hashlib
import math
import zlib
from dataclasses import dataclass
from datetime import timedelta

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

# Characters of an error in a header: enough for its sentence, but no page of a stack.
_ERROR_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """
    When a failed record comes again, and which topic gets it in the end.

    It comes again after `first`, then after `factor` times the delay before, but never after more than `longest`.

    Attributes:
        dead_letter_topic: gets a record that has failed after `retries` repeats. It must exist, and the operator must
            allow it, as for every callback topic.
        retries: how often a record comes again; 0 gives it up at once.
        first: delay before the first repeat, a timedelta or seconds.
        factor: factor from one delay to the next, 1 or more.
        longest: the longest delay, a timedelta or seconds.
        jitter: 0 to 1: the largest share by which a delay is shortened, so that records that failed together do not
            come back together. The actual share follows from the record alone.
        topic: gets the record when it comes again. None is the topic that it was read from, and all consumer groups of
            that topic read it again; if there are several, give a topic that only yours reads.

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
        Return the seconds to wait before the record comes again for the *attempt*-th time.

        Args:
            attempt: number of the repeat, from 1 on.
            name: name of the record; the jitter follows from it.
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
    The timer that `TimerClient.retry` has asked for.

    Attributes:
        timer: timer that brings the record again, or to the dead-letter topic.
        attempt: number of this repeat; for a record that was given up, the number of repeats that it had.
        gave_up: whether the record goes to the dead-letter topic.
        ignored: whether the service ignores this request, since it knows the timer of an earlier one; None if `retry`
            was not to wait for its answer.
    """

    timer: Timer
    attempt: int
    gave_up: bool
    ignored: bool | None = None


def repeated(
    received: Received, policy: RetryPolicy, error: BaseException | str | None
) -> tuple[CallbackSpec, float, int, bool]:
    """
    Return the repeat of *received* under *policy*: its callback, the seconds from now, and the other fields of `Retry`.

    It keeps the record's own headers. Behind them it has new ones in place of those of the last repeat: the number of
    the repeat, the place and the timer id of the record at first, and the *error*.
    """
    named = received.named
    came = number_in(named.get(RETRY_ATTEMPT_HEADER)) or 0
    gave_up = came >= policy.retries
    attempt = came if gave_up else came + 1
    place = f"{received.topic}/{received.partition}:{received.offset}"
    is_again = RETRY_ATTEMPT_HEADER in named
    first_id = named.get(RETRY_ID_HEADER if is_again else ID_HEADER)
    added: list[tuple[str, bytes | None]] = [
        (RETRY_ATTEMPT_HEADER, b"%d" % attempt),
        (RETRY_FIRST_HEADER, named.get(RETRY_FIRST_HEADER) if is_again else place.encode()),
    ]
    if first_id is not None:
        added.append((RETRY_ID_HEADER, first_id))
    if error is not None:
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        added.append((RETRY_ERROR_HEADER, text[:_ERROR_CHARACTERS].encode(errors="replace")))
    token = named.get(TOKEN_HEADER)
    name = _name_of(received, named.get(REQUEST_HEADER), policy)
    callback = CallbackSpec(
        policy.dead_letter_topic if gave_up else policy.topic or received.topic,
        received.key,
        received.value,
        name,
        token.decode(errors="replace") if token else None,
        [*own_headers(received.headers), *added],
    )
    return callback, 0.0 if gave_up else policy.delay_s(attempt, name), attempt, gave_up


def _name_of(received: Received, request: bytes | None, policy: RetryPolicy) -> str:
    """Return the timer id by which the service knows that *received* was repeated already."""
    # Consumer groups that read one topic have policies of their own, and each must get its record.
    to = f"retry/{policy.topic or received.topic}/{policy.dead_letter_topic}"
    place = f"{received.topic}/{received.partition}:{received.offset}"
    named = place if request is None else request.decode(errors="replace")
    # All copies of a callback name one request. So do records that a receiver has made from it, if it has passed on the
    # headers; they differ in content. So do records of a topic that was made anew, at the places of those before.
    content = hashlib.blake2b(digest_size=8)
    for part in (received.topic.encode(), received.key or b"", received.value or b""):
        content.update(b"%d:" % len(part) + part)
    return f"{to}/{named}/{content.hexdigest()}"


def _seconds(given: timedelta | float) -> float:
    return given.total_seconds() if isinstance(given, timedelta) else given
