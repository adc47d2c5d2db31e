"""The head of a store, as bytes."""

from dataclasses import replace

import pytest

from kafka_timers.core.changes import Head, Scan, Swept
from kafka_timers.core.sums import ReadSums, Sum
from kafka_timers.worker.store_head import pack_head, unpack_head

KAFKA = b"a cluster/timer-request"
HEAD = Head(position=7, sealed_ms=151_000, snapshot=5, known_from=1, scan=None)
EARLIER, LATER = Swept(1, 2, 3, 4, 5, 6), Swept(7, 8, 9, 10, 11, 12)
READ = ReadSums(2, 7, Sum(3, 2**64 - 1), Sum(1, 8), Sum(1, 0))


@pytest.mark.parametrize("read", [None, READ])
@pytest.mark.parametrize("scan", [None, Scan(152_000, 6), Scan(152_001, 6)])
@pytest.mark.parametrize("sealed_ms", [151_000, 151_001])
@pytest.mark.parametrize("log", [b"", b"an id of 16 byte"])
def test_a_head_is_read_as_it_was_written(read: ReadSums | None, scan: Scan | None, sealed_ms: int, log: bytes) -> None:
    head = replace(HEAD, read=read, scan=scan, sealed_ms=sealed_ms, log=log)
    assert unpack_head(pack_head(head, KAFKA), KAFKA) == head
    assert unpack_head(pack_head(head, KAFKA), KAFKA + b"s") is None


@pytest.mark.parametrize("lacks_swept", [True, False])
@pytest.mark.parametrize("sweeps", [(), (EARLIER,), (EARLIER, LATER)])
def test_the_sweeps_of_a_head_keep_their_order(sweeps: tuple[Swept, ...], lacks_swept: bool) -> None:
    head = replace(HEAD, read=READ, sweeps=sweeps, lacks_swept=lacks_swept)
    assert unpack_head(pack_head(head, KAFKA), KAFKA) == head


def test_counts_beyond_the_read_offset_are_left_to_the_seals() -> None:
    known = replace(HEAD, read=replace(READ, to=9))
    assert unpack_head(pack_head(known, KAFKA), KAFKA) == HEAD
