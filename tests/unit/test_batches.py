"""A batch is built once, and sent again by its producer of that time."""

import struct
from collections import deque
from hashlib import sha256
from typing import Any, cast

import pytest
from aiokafka.record.memory_records import MemoryRecords

from kafka_timers.broker.batches import Batch
from kafka_timers.broker.producer import Producer, _Partition


def filled(values: int, bytes_max: int = 1 << 20) -> Batch:
    batch = Batch(bytes_max, is_transactional=True)
    for number in range(values):
        batch.append(timestamp=1_000 + number, key=b"%d" % number, value=b"value", headers=[("h", b"x")])
    return batch


def test_a_batch_names_its_producer_each_time_that_it_is_sent() -> None:
    batch = filled(5)
    for producer in ((7, 0, 0), (7, 0, 0), (7, 1, 0), (1 << 40, 32_000, 99)):
        encoded = bytes(batch.encoded(*producer))
        assert struct.unpack_from(">qhi", encoded, 43) == producer
        read = MemoryRecords(encoded).next_batch()
        assert read.validate_crc()
        assert [(record.key, record.value, record.timestamp, record.headers) for record in read] == [
            (b"%d" % number, b"value", 1_000 + number, [("h", b"x")]) for number in range(5)
        ]
        # As often as anybody wants to know.
        assert (batch.record_count(), batch.size()) == (5, len(encoded))


@pytest.mark.parametrize("at_ms", [1_004, 1_000, 9_000, 1])
def test_a_batch_is_dated_when_it_leaves_and_keeps_the_times_between_its_records(at_ms: int) -> None:
    batch = filled(5)
    batch.leave(at_ms)
    for producer in ((7, 0, 0), (8, 0, 0)):
        read = MemoryRecords(bytes(batch.encoded(*producer))).next_batch()
        assert read.validate_crc()
        assert [record.timestamp for record in read] == [at_ms - 4 + number for number in range(5)]
        assert read.max_timestamp == at_ms


def test_the_digest_of_a_batch_is_of_its_records_whenever_it_is_asked_for() -> None:
    early, late = filled(5), filled(5)
    early.leave(1_004)
    digest = early.digest()
    assert early.append(timestamp=1, key=None, value=b"late") is None
    assert bytes(early.encoded(7, 1, 9)) == bytes(late.encoded(7, 1, 9))
    assert late.digest() == digest == sha256(late.encoded(8, 0, 0)[61:]).digest() != filled(4).digest()


def test_a_batch_that_is_full_or_sent_takes_no_more() -> None:
    small = Batch(200, is_transactional=False)
    taken = [small.append(timestamp=1, key=None, value=b"x" * size) is not None for size in (500, 100, 1)]
    assert taken == [True, False, False]
    sent = filled(1)
    sent.encoded(1, 0, 0)
    assert sent.append(timestamp=1, key=None, value=b"late") is None


def test_numbers_of_records_begin_anew_after_31_bits() -> None:
    """A producer without transactions, or of the first protocol, has the same epoch for as long as it lives."""
    producer = Producer(cast(Any, None), None, 1.0, 1_000, "lane")
    batch = producer.new_batch()
    for _ in range(3):
        batch.append(timestamp=None, key=b"k", value=b"v")
    to = _Partition(("topic", 0), deque([batch]), sequence=2**31 - 2)
    producer._unsent = 1
    producer._taken(to, 0, 0)
    assert to.sequence == 1
