"""
Refused requests as records of `timer-rejected`.
"""

from collections.abc import Iterator, Sequence

from kafka_timers.core.callbacks import HEADER_OVERHEAD_BYTES, OVERHEAD_BYTES
from kafka_timers.core.rejected import Refused as Refused
from kafka_timers.core.rejected import as_written
from kafka_timers.core.wire import REJECT_PREFIX, reject_headers

Headers = list[tuple[str, bytes | None]]
# Offset, key and value of a record of `timer-request`.
Rejected = tuple[int, bytes | None, bytes | None]

_CUT_HEADER = REJECT_PREFIX + "cut"
# Limit for the broker's message, which may be long.
_WORDS_BYTES_MAX = 500
_CUT_BYTES = len(_CUT_HEADER) + 2 * HEADER_OVERHEAD_BYTES


def refused_records(
    reason: str, source: str, number: int, records: Sequence[Rejected], words: str = "", again: bytes = b""
) -> Iterator[Refused]:
    """
    Yield each of *records* as a rejected record: unchanged, or as the record from which a door made it.

    Args:
        again: key of the request that takes the place of each; empty if none does.
    """
    said: Headers = [(REJECT_PREFIX + "words", words.encode()[:_WORDS_BYTES_MAX])] if words else []
    said += [(REJECT_PREFIX + "again", again)] if again else []
    all_about = reject_headers(reason, source, number, [offset for offset, _, _ in records])
    for about, (offset, key, value) in zip(all_about, records, strict=True):
        written = as_written(reason, f"{number}:{offset}", key, value)
        refused = written or Refused(about, key, value, [])
        refused.about.extend(said)
        yield refused


def fitted(refused: Refused, room: int) -> tuple[bytes | None, bytes | None, Headers]:
    """
    Return key, value and headers of a *refused* record, cut to *room* bytes.

    The record's own headers are dropped first. Own headers that look like ours are always left out: they may describe
    an earlier refusal.
    """
    about, key, value, own = refused
    own = [header for header in own if not header[0].startswith(REJECT_PREFIX)]
    room -= _bytes_of(about) + _CUT_BYTES
    if (own_bytes := _bytes_of(own)) <= room:
        # The headers hold most of the command.
        room -= own_bytes
    else:
        own = []
    room = max(room, 0)
    kept = key and key[:room], value and value[: max(room - len(key or b""), 0)]
    left_out = sum(len(whole or b"") - len(part or b"") for whole, part in zip((key, value), kept, strict=True))
    cut: Headers = [(_CUT_HEADER, b"%d" % left_out)] if left_out else []
    return *kept, [*about, *own, *cut]


def size_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return an upper limit for the bytes that such a record adds to a batch."""
    return len(key or b"") + len(value or b"") + _bytes_of(headers) + OVERHEAD_BYTES


def _bytes_of(headers: Headers) -> int:
    return sum([len(name.encode()) + len(content or b"") + HEADER_OVERHEAD_BYTES for name, content in headers])
