"""Ask once more for a timer that waits no more, unless another one has taken its id."""

from kafka_timers.client.request import only_if_absent
from kafka_timers.core.wire import Future
from kafka_timers.operate.find import Found

# What belongs to the record that asked, and not to the timer that it asked for.
_OF_THE_RECORD = ("copy", "forwarded", "insteadOf", "kept", "condition", "ifRequest")


def callback_again(found: Found) -> Future | None:
    """Return a new request for the callback of the timer that stands; None if there is no timer."""
    if found.stands is None:
        return None
    future = found.request_of(found.stands)
    for field in _OF_THE_RECORD:
        future.ClearField(field)
    return future


def only_after(future: Future, found: Found, request: str, now_ms: int) -> bool:
    """
    Make the request *future* stand only if the timer of *request*, which waits no more, still is the last of its id.

    Workers check that, but for a timer that was cancelled before its due: of that one they check nothing, because they
    know its id for an hour. Then *found* alone tells.

    Args:
        now_ms: UNIX milliseconds.

    Returns:
        False if it is not the last one by what was *found*, or waits. Then do not send *future*.
    """
    last = found.stands
    if last is None or found.waiting or found.place_of(last) != request:
        return False
    if last.due_ms is None or last.due_ms <= now_ms:
        only_if_absent(future, request)
    return True
