"""
Requests whose callback topic was unavailable when they were due: each is rejected, and another one takes its place.

    due at      topic                          the request that takes its place is due
    12:00:00    has too few replicas in sync   12:00:06
    12:00:06    the same                       12:00:12
    12:00:12    the same                       12:00:19, and so on: half of the time that it has waited, at most 15 min
    12:00:19    is well                        -, the callback is written

It is an ordinary request with the same id, so it can be cancelled and replaced.
"""

from kafka_timers.core.wire import Condition, future_from

_RETRY_MS_MIN, _RETRY_MS_MAX = 5_000, 900_000
# A timer that was due longer ago than this is rejected for good.
_GIVES_UP_MS = 86_400_000


def instead_of(value: bytes, request: str, second: int, now_ms: int) -> tuple[bytes, bytes] | None:
    """
    Return key and value of the request that takes the place of one that was due in *second*; None after a day.

    A later request of its id stands before it.

    Args:
        request: partition:offset of the request with this *value*.
        now_ms: UNIX millisecond of the brokers.
    """
    future = future_from(value)
    first = future.insteadOf
    if not first.request:
        first.request, first.dueMs = request, second * 1000 + future.millis
    waited_ms = now_ms - first.dueMs
    if waited_ms >= _GIVES_UP_MS:
        return None
    for name in ("copy", "forwarded", "ifRequest", "condition", "replyTopic", "millis"):
        future.ClearField(name)
    if future.timerId:
        # The service knows the request itself by its id for an hour.
        future.condition, future.ifRequest = Condition.IF_ABSENT, request
    again_ms = now_ms + min(max(waited_ms // 2, _RETRY_MS_MIN), _RETRY_MS_MAX)
    return b"%d" % -(-again_ms // 1000), future.SerializeToString()
