"""A batch whose headers are not text is read as any other one."""

import random
import struct
from contextlib import suppress

import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record.memory_records import MemoryRecords
from batches import CODECS, batch_of

from kafka_timers.broker.headerless import batch_at, headerless

RECORDS = [(b"1", b"one"), (None, b""), (b"", None), (b"k" * 200, b"v" * 70_000), (b"last", b"five")]


def parsed(batch: bytes) -> list[tuple]:
    """Return what the compiled parser says of each record."""
    return [(each.offset, each.timestamp, each.key, each.value) for each in MemoryRecords(batch).next_batch()]


@pytest.mark.parametrize("codec", CODECS)
def test_it_says_of_each_record_what_the_compiled_parser_says(codec: int) -> None:
    batch = batch_of(RECORDS, codec=codec, base_offset=2**40)
    assert list(map(tuple, headerless(batch))) == parsed(batch)
    assert [each.key for each in headerless(batch)] == [key for key, _ in RECORDS]


@pytest.mark.parametrize("codec", CODECS)
def test_a_name_that_is_not_text_changes_nothing(codec: int) -> None:
    batch = batch_of(RECORDS, odd=(1, 3), codec=codec)
    with pytest.raises(UnicodeDecodeError):
        parsed(batch)
    assert list(headerless(batch)) == list(headerless(batch_of(RECORDS)))


def test_a_topic_with_the_brokers_times_has_one_for_all_records_of_a_batch() -> None:
    batch = bytearray(batch_of(RECORDS))
    struct.pack_into(">h", batch, 21, 0x08)
    struct.pack_into(">q", batch, 35, 99_000)
    assert {each.timestamp for each in headerless(bytes(batch))} == {99_000}
    assert {timestamp for _, timestamp, _, _ in parsed(bytes(batch))} == {99_000}


def test_a_batch_is_found_among_others_by_its_first_offset() -> None:
    batches = [batch_of(RECORDS[: at + 1], base_offset=100 * at) for at in range(3)]
    assert [batch_at(b"".join(batches) + b"cut short", 100 * at) for at in range(3)] == batches


def test_bytes_that_are_no_batch_raise_one_error_and_end() -> None:
    rng, batch = random.Random(4), batch_of(RECORDS)
    for _ in range(2_000):
        broken = bytearray(batch[: rng.choice([len(batch), rng.randrange(61, len(batch))])])
        for _ in range(rng.randrange(1, 20)):
            broken[rng.randrange(57, min(len(broken), 90))] = rng.randrange(256)
        with suppress(CorruptRecordException):
            # What was changed may still be a batch.
            assert len(list(headerless(bytes(broken)))) < len(batch)
