"""The changes of a kept store when others have sealed meanwhile."""

from stand_ins import DUE_MS, SECOND

from kafka_timers.core.changes import Mark
from kafka_timers.core.keys import row_key
from kafka_timers.core.partition import Partition
from kafka_timers.core.reconcile import reconcile
from kafka_timers.core.versions import Version
from kafka_timers.core.wire import Sealed


def test_whether_a_cancel_was_in_time_for_others_is_open_also_where_requests_before_of_the_id_were_moved() -> None:
    """
    A paused owner has moved offset 0 to an earlier second (offset 1), and read a cancel that others could not read yet.

    They have fired offset 1, so a second cancel must not be answered as if nothing had.
    """
    partition = Partition(0)
    partition.acquire([Sealed(end_ms=(SECOND + 1 + 1) * 1000, fence=2)], None)
    requests = {row_key(DUE_MS, 1): False, row_key(DUE_MS + 1_000, 0): True}
    marks = {key: Mark(b"f", superseded) for key, superseded in requests.items()}
    cancelled = Version(DUE_MS, 1, cancelled=True)
    rows = [(key, b"") for key in requests]
    changes = reconcile(partition, rows, marks, lambda ids: [cancelled for _ in ids], has_ids=True)
    assert changes.versions == {b"f": cancelled._replace(unsure=True)}
    assert changes.marks == dict.fromkeys(requests)
    assert changes.removed == list(requests)
