"""A batch whose headers are not text is read as any other one."""

import random
import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
from aiokafka.codec import snappy_encode
from aiokafka.errors import CorruptRecordException
from aiokafka.record.memory_records import MemoryRecords
from batches import CODECS, NOT_UTF8, batch_of

from kafka_timers.broker import fetching, odd_batches
from kafka_timers.broker.odd_batches import records_of, shown

RECORDS = [(b"1", b"one"), (None, b""), (b"", None), (b"k" * 200, b"v" * 70_000), (b"last", b"five")]


FIELDS = ("offset", "timestamp", "timestamp_type", "key", "value", "headers", "checksum")


def told(records: Iterable[Any]) -> list[tuple]:
    return [tuple(getattr(each, field) for field in FIELDS) for each in records]


def compiled(batch: bytes) -> list[tuple]:
    """Return the records as the compiled parser reads them."""
    return told(MemoryRecords(batch).next_batch())


@pytest.mark.parametrize("codec", CODECS)
def test_it_reads_each_record_like_the_compiled_parser(codec: int) -> None:
    batch = batch_of(RECORDS, codec=codec, base_offset=2**40)
    assert told(odd_batches.parsed(batch)) == compiled(batch)
    assert [each.key for each in odd_batches.parsed(batch)] == [key for key, _ in RECORDS]


@pytest.mark.parametrize("codec", CODECS)
def test_a_name_that_is_not_text_changes_nothing_but_itself(codec: int) -> None:
    batch = batch_of(RECORDS, odd=(1, 3), codec=codec)
    with pytest.raises(UnicodeDecodeError):
        compiled(batch)
    records, usual = list(odd_batches.parsed(batch)), list(odd_batches.parsed(batch_of(RECORDS)))
    assert [each._replace(headers=[]) for each in records] == [each._replace(headers=[]) for each in usual]
    assert [shown(each.headers[0][0]) for each in records] == ["text", r"\xff\xfe\xfd\xfc"] * 2 + ["text"]
    assert [each.headers[0][0].encode(errors="surrogateescape") for each in records][1] == NOT_UTF8
    assert [each.headers[1:] for each in records] == [each.headers[1:] for each in usual]


# The bytes that a broker takes behind compressed records, by the number of the codec; no others are taken.
BEHIND = [(1, b"junk"), (1, b"\x1f"), (1, b"\x1f\x8b"), (2, snappy_encode(b"")[:16]), (3, b"junk")]


@pytest.mark.parametrize(("codec", "behind"), BEHIND)
@pytest.mark.parametrize("odd", [(), (2,)], ids=["text", "not text"])
def test_bytes_behind_compressed_records_change_nothing(codec: int, behind: bytes, odd: tuple[int, ...]) -> None:
    batch = batch_of(RECORDS, odd=odd, codec=codec, behind=behind)
    [*records] = records_of(MemoryRecords(batch).next_batch(), batch)
    assert told(records) == told(odd_batches.parsed(batch_of(RECORDS, odd=odd)))


def test_a_fetch_with_any_content_is_read_to_its_end() -> None:
    """With batches of more records than are parsed in one go, and one cut short."""
    many = [(b"%d" % n, None) for n in range(1_200)]
    batches = [
        batch_of(many, base_offset=0),
        batch_of(many, odd=(0, 700, 1_199), codec=4, base_offset=2_000),
        batch_of(RECORDS, odd=(4,), base_offset=4_000),
        batch_of(RECORDS, base_offset=5_000),
    ]
    fetched = fetching.parsed(b"".join(batches) + batches[0][:50], [], position=0, stable=5_005, end=5_005, epoch=0)
    offsets = [*range(1_200), *range(2_000, 3_200), *range(4_000, 4_005), *range(5_000, 5_005)]
    assert [each.offset for each in fetched.records] == offsets
    assert fetched.position == 5_005


def test_a_topic_with_the_brokers_times_has_one_for_all_records_of_a_batch() -> None:
    batch = bytearray(batch_of(RECORDS))
    struct.pack_into(">h", batch, 21, 0x08)
    struct.pack_into(">q", batch, 35, 99_000)
    assert {(each.timestamp, each.timestamp_type) for each in odd_batches.parsed(bytes(batch))} == {(99_000, 1)}
    assert {(each[1], each[2]) for each in compiled(bytes(batch))} == {(99_000, 1)}


def test_bytes_that_are_no_batch_raise_one_error_and_end() -> None:
    rng, batch = random.Random(4), batch_of(RECORDS)
    for _ in range(2_000):
        broken = bytearray(batch[: rng.choice([len(batch), rng.randrange(61, len(batch))])])
        for _ in range(rng.randrange(1, 20)):
            broken[rng.randrange(57, min(len(broken), 90))] = rng.randrange(256)
        with suppress(CorruptRecordException):
            # The changed bytes may still be a batch.
            assert len(list(odd_batches.parsed(bytes(broken)))) < len(batch)
