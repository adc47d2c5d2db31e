"""
What a callback is made of, and whether its topic takes it.

Pure. What can be told only of the topic is judged in the request's second, not when it is accepted: a topic changes.
"""

import re
from dataclasses import dataclass
from fnmatch import translate

from kafka_timers.core.wire import SECOND_LIMIT, Request, callback_headers

# Of a batch with one record: 61 bytes of batch header, at most 36 of varints and attributes around key and value.
_BATCH_OVERHEAD = 100
_HEADER_OVERHEAD = 10
# What a callback's batch can be larger than its request: the above, and the service's own five headers.
OVERHEAD_BYTES = _BATCH_OVERHEAD + 150


@dataclass(frozen=True, slots=True)
class Target:
    """
    A topic that may be written to.

    Attributes:
        partitions: how many it has.
        batch_bytes_max: the largest batch that it takes.
        needs_key: whether it takes no record without a key, as a compacted topic does not.
    """

    partitions: int
    batch_bytes_max: int
    needs_key: bool = False


def topics_in(globs: str) -> "re.Pattern[str]":
    """Return what matches the names of topics that *globs* mean, which are comma separated."""
    return re.compile("|".join(translate(glob.strip()) for glob in globs.split(",")))


def fits(request: Request, size: int, target: Target) -> bool:
    """Tell whether a callback fits into its topic; *size* is that of the serialised *request*."""
    if size + OVERHEAD_BYTES <= target.batch_bytes_max:
        return True
    headers = callback_headers(request, SECOND_LIMIT, b"0123456789:01234567890123456789")
    header_bytes = sum([len(name) + len(value or b"") + _HEADER_OVERHEAD for name, value in headers])
    body_bytes = len(request.callBackKey) + len(request.callBack)
    return _BATCH_OVERHEAD + body_bytes + header_bytes <= target.batch_bytes_max
