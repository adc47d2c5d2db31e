"""
Refused requests as they lie on `timer-rejected`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kafka_timers.core.callbacks import HEADER_OVERHEAD_BYTES, OVERHEAD_BYTES, Target
from kafka_timers.core.rejected import as_written
from kafka_timers.core.wire import REJECT_PREFIX, reject_headers

__all__ = ["Headers", "Refused", "Rejects", "fitted", "refused_records", "size_of"]

Headers = list[tuple[str, bytes | None]]

_CUT_HEADER = REJECT_PREFIX + "cut"
_CUT_BYTES = len(_CUT_HEADER) + 2 * HEADER_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class Rejects:
    """
    Where refused requests go.

    Attributes:
        topic: that they go to.
        target: what that takes.
        source: the topic that they came from, on which others are sent on to the partition of their timer id.
        home: what that takes, and how many partitions of it are served.
    """

    topic: str
    target: Target
    source: str
    home: Target


class Refused(NamedTuple):
    """A refused record: what is told of it, its key and value, and headers of its own."""

    told: Headers
    key: bytes | None
    value: bytes | None
    own: Headers


def refused_records(
    reason: str, source: str, number: int, records: Sequence[tuple[int, bytes | None, bytes | None]]
) -> Iterator[Refused]:
    """
    Yield each of *records* as it is rejected: as it was, or as the one that a door has made it of.

    Args:
        reason: for which they are refused.
        source: name of `timer-request`.
        number: of its partition.
        records: offset, key and value of each.
    """
    all_told = reject_headers(reason, source, number, [offset for offset, _, _ in records])
    for told, (offset, key, value) in zip(all_told, records, strict=True):
        written = as_written(reason, f"{number}:{offset}", key, value)
        yield Refused(told, key, value, []) if written is None else Refused(*written)


def fitted(refused: Refused, room: int) -> tuple[bytes | None, bytes | None, Headers]:
    """
    Return key, value and headers of what fits of a *refused* record into *room* bytes.

    Its own headers are left out first. They may have been told of it before, and would be taken for what is told now.
    """
    told, key, value, own = refused
    own = [header for header in own if not header[0].startswith(REJECT_PREFIX)]
    room -= _bytes_of(told) + _CUT_BYTES
    if (own_bytes := _bytes_of(own)) <= room:
        # The headers hold most of the command.
        room -= own_bytes
    else:
        own = []
    room = max(room, 0)
    kept = key and key[:room], value and value[: max(room - len(key or b""), 0)]
    left_out = sum(len(whole or b"") - len(part or b"") for whole, part in zip((key, value), kept, strict=True))
    cut: Headers = [(_CUT_HEADER, b"%d" % left_out)] if left_out else []
    return *kept, [*told, *own, *cut]


def size_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the most bytes that a batch is larger by with such a record."""
    return len(key or b"") + len(value or b"") + _bytes_of(headers) + OVERHEAD_BYTES


def _bytes_of(headers: Headers) -> int:
    return sum([len(name.encode()) + len(content or b"") + HEADER_OVERHEAD_BYTES for name, content in headers])
