"""
The hour for which a timer id is known after the second of its last timer.

Pure. Append times alone decide whether an id is known to a record. An owner may remember an id for longer, and must not
forget it while a record may come that was appended within the hour:
 1. 10.000 fires the timer of `a`     2. 3,609.990: a request on condition that `a` is not known is appended in a
    transaction     3. 3,670: everything before is sealed     4. 3,671: the transaction ends, and the request is read
Step 4 must find `a` known, with a store or without. Held by test_an_id_is_known_to_a_record_that_is_readable_late.

So an id is forgotten once its hour is over by two clocks. One counts what is sealed. The other one counts what is read:
the append time of the last record, or a moment after which a high watermark was asked for that has been reached. The
end of the committed records would not do, since records of an open transaction lie above it.
"""

from kafka_timers.core.wire import ID_MEMORY_MS

# The append times of two leaders differ by less, and a record is below the high watermark in less time, or is lost with
# a leader that was cut off.
SLACK_MS = 60_000


def over_ms(moment_ms: int) -> int:
    """Return the moment at which the hour is over that began with the second of *moment_ms*, in UNIX milliseconds."""
    return moment_ms - moment_ms % 1000 + ID_MEMORY_MS


def forgets_ms(sealed_ms: int, passed_ms: int) -> int:
    """
    Return the moment up to which an hour that is over can be forgotten, in UNIX milliseconds.

    Args:
        sealed_ms: everything before it is sealed.
        passed_ms: as in `Head`.
    """
    # The whole second in which an hour ends must be sealed.
    return max(min(sealed_ms - 1000, passed_ms - SLACK_MS), 0)


def begun_s(forgets_ms: int) -> int:
    """Return the last UNIX second that began an hour which is over at *forgets_ms*."""
    return (forgets_ms - ID_MEMORY_MS) // 1000
