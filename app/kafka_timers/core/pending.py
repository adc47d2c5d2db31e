"""
Lists of waiting timers: selection, order, and the place to go on from.

Timers come in the order in which they fire; at one moment by partition, then in the order of the log. A place in this
order is text, `<milliseconds>.<partition>.<row>.<offset>`, so going on from it needs no state anywhere.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

from kafka_timers.core import rows as batches
from kafka_timers.core.callbacks import Outgoing, placing_document
from kafka_timers.core.changes import Row
from kafka_timers.core.keys import FIRST_MS, REFUSED_MS, first_key, is_batch, moment_of, parts_of, row_key, row_of
from kafka_timers.core.text import headers_of, json_of
from kafka_timers.core.wire import SECOND_LIMIT, Request

# No timer is due later.
END_MS = SECOND_LIMIT * 1000
# Units by which timers are counted, in seconds.
UNITS_S = {"second": 1, "minute": 60, "hour": 3_600}
# Pattern of the text of a `Place`.
PLACE_PATTERN = r"^[0-9]{1,14}(\.[0-9]{1,19}){3}$"


class Place(NamedTuple):
    """
    The place of a timer among all that wait.

    Attributes:
        moment_ms: UNIX milliseconds from which on it may fire.
        row: offset in the key of its row; for a batch that of its last request.
    """

    moment_ms: int
    partition: int
    row: int
    offset: int

    @classmethod
    def of(cls, text: str) -> Self:
        """
        Return the place in *text*.

        Raises:
            ValueError: *text* is not a place.
        """
        if not re.fullmatch(PLACE_PATTERN, text):
            raise ValueError(f"{text!r} is no place among timers: give the `next` of an answer")
        return cls(*map(int, text.split(".")))

    def __str__(self) -> str:
        return ".".join(map(str, self))


class Pending(NamedTuple):
    """A waiting timer, due at UNIX millisecond `due_ms`. If it came late, `place.moment_ms` is later than that."""

    place: Place
    due_ms: int
    request: Request

    def document(self, *, with_values: bool) -> dict[str, Any]:
        """Return the timer as JSON, with value and headers only if asked for."""
        request, place, outgoing = self.request, self.place, Outgoing.of(self.request)
        document: dict[str, Any] = {
            "place": str(place),
            "request": f"{place.partition}:{place.offset}",
            "second": self.due_ms // 1000,
            "due_ms": self.due_ms,
            **json_of("topic", outgoing.topic),
            **json_of("key", outgoing.key),
            **placing_document(request),
            **json_of("timer_id", request.timerId or None),
            **json_of("token", request.token or None),
            "value_bytes": len(outgoing.value or b""),
        }
        if with_values:
            document |= {**json_of("value", outgoing.value), "headers": headers_of(request.headers)}
        return document


@dataclass(frozen=True)
class Wanted:
    """
    A selection of waiting timers. A timer belongs to it if all of these hold.

    Attributes:
        from_ms: the timer fires at this UNIX millisecond or later.
        to_ms: the timer fires before this UNIX millisecond.
        topic: topic of the callback; empty is any.
        key: key of the callback; None is any.
        timer_id: its timer id; empty is any, also none.
        id_prefix: prefix of its timer id; empty is any, also none.
        containing: its timer id, topic or key contains this; empty is any. A to Z count as a to z.
        after: the timer comes behind this place; None begins with the first one.
    """

    from_ms: int = FIRST_MS
    to_ms: int = END_MS
    topic: bytes = b""
    key: bytes | None = None
    timer_id: bytes = b""
    id_prefix: bytes = b""
    containing: bytes = b""
    after: Place | None = None

    def bounds(self, partition: int) -> tuple[bytes, bytes]:
        """Return the range of keys, the second one excluded, that holds the selected timers of *partition*."""
        start, after = first_key(max(self.from_ms, FIRST_MS)), self.after
        if after is not None:
            if after.partition == partition:
                # The same row may hold more of them.
                start = max(start, row_key(after.moment_ms, after.row))
            else:
                start = max(start, first_key(after.moment_ms + (partition < after.partition)))
        return start, first_key(self.to_ms)

    def takes(self, waiting: Pending) -> bool:
        """Tell whether *waiting* is selected."""
        request, place = waiting.request, waiting.place
        return (
            self.from_ms <= place.moment_ms < self.to_ms
            and self._takes_callback(request)
            and (not self.timer_id or request.timerId == self.timer_id)
            and (not self.id_prefix or request.timerId.startswith(self.id_prefix))
            and (self.after is None or place > self.after)
        )

    def _takes_callback(self, request: Request) -> bool:
        if not self.topic and self.key is None and not self.containing:
            # A scan sees millions of rows, so skip the callback's parts if they are not needed.
            return True
        outgoing = Outgoing.of(request)
        key = outgoing.key or b""
        return (
            (not self.topic or outgoing.topic == self.topic)
            and (self.key is None or key == self.key)
            and (
                not self.containing
                or any(self._part in part.lower() for part in (request.timerId, outgoing.topic, key))
            )
        )

    @cached_property
    def _part(self) -> bytes:
        return self.containing.lower()

    @cached_property
    def words(self) -> tuple[bytes, ...]:
        """Bytes that every row with a selected timer contains."""
        return tuple(filter(None, (self.topic, self.key, self.timer_id, self.id_prefix)))


def place_of_row(partition: int, key: bytes) -> Place:
    """Return the lowest place that a timer in the row under *key* may have."""
    return Place(moment_of(key), partition, row_of(key), 0)


def waiting_in(partition: int, row: Row, wanted: Wanted) -> Iterator[Pending]:
    """Yield the timers in *row* of *partition* that are *wanted*, in their order."""
    key, value = row
    due_ms, last = parts_of(key)
    # A refused request waits for the next tick, and has no callback.
    if due_ms == REFUSED_MS or not all(word in value for word in wanted.words):
        return
    moment_ms, number = moment_of(key), row_of(key)
    if is_batch(key):
        batch = batches.unpack(value)
        found = zip(batch.requests, batch.offsets, strict=True)
    else:
        found = zip(batches.requests_in([value]), [last], strict=True)
    for request, offset in found:
        waiting = Pending(Place(moment_ms, partition, number, offset), due_ms, request)
        if wanted.takes(waiting):
            yield waiting
