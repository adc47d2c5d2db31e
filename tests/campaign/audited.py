"""
The expected callbacks and answers by the law of `promises`, where records have conditions.

Whether a condition holds can depend on what the owner had read when it fired, and so can all later records of the id.
So this goes by the seals too, and checks each of them against the log. `oracle.expected` needs no seals, and knows no
conditions.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from promises import Audit, Terms, Wish

from campaign.oracle import Expected, Request
from kafka_timers.v1.sealed_pb2 import Sealed

__all__ = ["audited"]


def audited(
    requests: Iterable[Request],
    seals: Mapping[int, Sequence[Sealed]],
    repeated: Mapping[int, Mapping[int, Collection[int]]],
    terms: Terms,
    is_judged: Callable[[Request], bool],
) -> Expected:
    """
    Return the expected callbacks and answers of those *requests* that *is_judged* picks.

    Args:
        requests: all of the log, by offset within each partition.
        seals: of each partition, all of them in their order, and no brief ones.
        repeated: by partition and by the begin of a sweep, the offsets of the requests that it repeats.

    Raises:
        PromiseError: a seal contradicts the log.
    """
    told, logs = Expected(), defaultdict[int, list[Request]](list)
    for request in requests:
        logs[request.partition].append(request)
    for number, log in logs.items():
        wishes = {each.offset: wish_of(each) for each in log}
        audit = Audit(wishes, terms, repeated=repeated.get(number, {}), number=number)
        audit.follow(seals.get(number, ()), ())
        for each in filter(is_judged, log):
            # An ignored request is as if nobody had asked for it.
            if stood := audit.requests.get(each.offset):
                told.timers[each.name] = each
                if stood.withdrawn_by is not None:
                    told.withdrawn[each.name] = f"{number}:{stood.withdrawn_by}"
            if each.future.replyTopic:
                told.outcomes[each.name] = audit.true[each.offset]
    return told


def wish_of(request: Request) -> Wish:
    """Return *request* as `promises` knows it."""
    future = request.future
    return Wish(
        second=request.second,
        millis=future.millis,
        appended_ms=request.appended_ms,
        timer_id=future.timerId.encode(),
        is_cancel=future.cancel,
        asks=bool(future.replyTopic),
        condition=future.condition,
        expected=int(future.ifRequest.partition(":")[2]) if future.ifRequest else None,
    )
