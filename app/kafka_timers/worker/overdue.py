"""
How long the oldest accepted request of a partition has been due without firing, as far as its owner can tell. Pure.

The largest of these counts:

    seen by the owner                                           age
    the store has a row whose second was ticked                 since that second
    records lie behind an open transaction                      since reading stopped there, less one second
    the end of the request log was not proved for over 3 s      since the last proof
    the partition is not served                                 since its last seal; without one, since its start here

A record that cannot be read may be due, and nothing shows whether it is. So it counts. One second is taken off, since
most transactions are short, and the next tick would fire such a request anyway.
"""

from typing import NamedTuple

# Above this limit /readyz turns red, and the alarm TimersOverdue rings. A takeover after a crash takes less.
LIMIT_S = 8.0
# An owner proves each end within some 2 s, so a younger proof is normal.
_PROOF_S = 3.0
_BLOCKED_S = 1.0


class Overdue(NamedTuple):
    """
    The time for which the oldest request has been due.

    Attributes:
        age_s: seconds; 0 if no request is due.
        why: a sentence with the cause and the remedy; empty if another check reports it.
    """

    age_s: float
    why: str


def is_unserved(age_s: float, seal_every_s: float) -> bool:
    """
    Tell whether a partition whose last seal is *age_s* old has no working owner.

    An owner leaves at most *seal_every_s* between two seals, and a takeover takes less than the limit.
    """
    return age_s > seal_every_s + LIMIT_S


def oldest_due(
    topic: str, number: int, *, row_s: float, blocked_s: float, unread_s: float, proof_s: float, unserved_s: float
) -> Overdue:
    """
    Return how long the oldest request of a partition has been due, and why.

    Args:
        row_s: seconds since the second of the store's first row, if that second was ticked; 0 without one.
        blocked_s: seconds since an open transaction began to block reading; 0 without one.
        unread_s: seconds since the oldest tick whose end of the log is not reached yet; 0 if all are reached.
        proof_s: seconds since the last proof of the log's end.
        unserved_s: seconds since the last seal of a partition that is not served; 0 if it is served.
    """
    blocked = Overdue(
        max(blocked_s - _BLOCKED_S, 0.0),
        f"requests wait behind an open transaction for {blocked_s:.0f} s: end the producer that has it open, or wait "
        f"until Kafka does so (kafka-transactions.sh describe-producers --topic {topic} --partition {number} tells)",
    )
    unread = Overdue(
        unread_s,
        f"requests that {topic} has had for {unread_s:.0f} s have not been read, and seconds fire without them: the "
        "worker, its disk or the broker that leads the partition is too slow",
    )
    unproved = Overdue(
        proof_s if proof_s > _PROOF_S else 0.0,
        f"the end of {topic} has not been proved for {proof_s:.0f} s: a broker that has the partition does not answer, "
        "and a second may fire without the requests that this broker has: look at the brokers",
    )
    due = Overdue(
        row_s,
        f"a request has been due for {row_s:.0f} s and has not fired: look at the brokers, and at this worker's log",
    )
    # Of equal ages the first one tells the most.
    return max(blocked, due, unread, unproved, Overdue(unserved_s, ""), key=lambda each: each.age_s)
