"""How long seals name requests whose condition did not hold, so that a worker that reads the log again knows them."""

from collections.abc import Mapping

from kafka_timers.core.changes import Head
from kafka_timers.core.hour import forgets_ms, over_ms

# Each seal names the ignored requests that still wait. Above this number those are forgotten first that are done, which
# can only make an id known, and then the oldest, which would fire if a worker without a store read the log again.
IGNORED_MAX = 10_000


def named_of(ignored: Mapping[int, int], head: Head) -> list[int]:
    """Return the offsets that a seal names, ascending; *ignored* as in `Partition`, *head* as it is before the seal."""
    return sorted(ignored.keys() - _too_many(ignored, head))


def unnamed_of(ignored: Mapping[int, int], head: Head, restore_from: int) -> list[int]:
    """
    Return the offsets of *ignored* requests that seals need not name any more.

    A late request is done with a later scan than its due shows:
     1. 14 is sealed; offset 13 asks for 13 if its id is pending, and is ignored    2. slices of the next scan are
         sealed    3. a next owner without a store reads offset 13 again, and must find it among the ignored ones
    Held by test_a_late_ignored_request_is_named_until_it_is_done. For an hour after its second, an ignored
    request would make its id known to an owner that believes that it stood. Held by
    test_an_ignored_request_makes_no_id_known_after_its_second. If the due is not known, the request is named as long as
    it may be read again.

    Args:
        head: the progress once the seal is durable.
    """
    now_ms = forgets_ms(head.sealed_ms, head.passed_ms)
    gone = [
        at
        for at, due_ms in ignored.items()
        if (over_ms(due_ms) <= now_ms and at < head.snapshot if due_ms else at < restore_from)
    ]
    return [*gone, *_too_many(ignored, head)]


def _too_many(ignored: Mapping[int, int], head: Head) -> list[int]:
    excess = max(len(ignored) - IGNORED_MAX, 0)

    def waits(at: int) -> bool:
        return not ignored[at] or ignored[at] >= head.sealed_ms or at >= head.snapshot

    return sorted(ignored, key=lambda at: (waits(at), at))[:excess] if excess else []
