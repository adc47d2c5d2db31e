"""Requests that are kept together: they come back whole, and nobody can tell them from those kept one by one."""

import random
from collections import Counter

import pytest
from aiokafka.record.memory_records import MemoryRecords
from google.protobuf.message import DecodeError
from stand_ins import DUE_MS, SECOND, Known, Record, accepted, slice_to

from kafka_timers.core import rows as batches
from kafka_timers.core.callbacks import Target
from kafka_timers.core.changes import Row
from kafka_timers.core.keys import Copied, batch_key, count_of, is_batch, parts_of, row_key
from kafka_timers.core.partition import Partition
from kafka_timers.core.refused import Reason
from kafka_timers.core.verdicts import screened
from kafka_timers.core.wire import Future, Header
from kafka_timers.worker.slices import Slice

TOPICS = ("a", "b", "small", "secret", "unknown")


def some_future(chance: random.Random, topics: tuple[str, ...]) -> bytes:
    """Return a Future as any client might write it: fields in any order, twice, or unknown to this version."""
    parts = [Future(callBackTopic=chance.choice(topics))]
    parts.append(Future(callBackKey=chance.choice(("", "k", "clé", "k" * 300))))
    parts.append(Future(callBack=b"v" * chance.choice((0, 1, 127, 128, 700, 20_000))))
    if chance.random() < 0.2:
        parts.append(Future(token=chance.choice(("t", "tök"))))
    if chance.random() < 0.2:
        parts.append(Future(timerId="id", headers=[Header(key="h", value=b"1"), Header(key="null")]))
    if chance.random() < 0.1:
        parts.append(Future(callBackTopic=chance.choice(topics)))
    if chance.random() < 0.1:
        chance.shuffle(parts)
    unknown = b"\x98\x06\x01" if chance.random() < 0.05 else b""
    return b"".join([part.SerializeToString() for part in parts]) + unknown


async def fired(rows: list[Row]) -> tuple[list[tuple[object, ...]], Slice]:
    """Return all that *rows* become, by topic and partition in the order of sending."""
    verdicts: dict[str, Target | Reason] = {
        "a": Target(5, 1_048_588),
        "b": Target(1, 1_048_588),
        "small": Target(2, 900),
        "secret": Reason.TOPIC_FORBIDDEN,
        "unknown": Reason.TOPIC_UNKNOWN,
    }
    built = slice_to(Known(**verdicts), rejected=Target(2, 1_048_588))
    left = iter(sorted(rows))
    while await built.add(left):
        pass
    records = []
    for batch, topic, partition in built.rest():
        sent = MemoryRecords(bytes(batch.encoded(1, 0, 0)))
        while sent.has_next():
            records += [(topic, partition, r.key, r.value, r.headers) for r in sent.next_batch()]
    return sorted(records, key=lambda record: record[:2]), built


@pytest.mark.parametrize("topics", [TOPICS[:1], TOPICS[:2], TOPICS], ids=len)
async def test_requests_in_a_batch_fire_like_single_ones(topics: tuple[str, ...]) -> None:
    chance = random.Random(7)
    for _ in range(60):
        seconds = [SECOND + n for n in range(chance.choice((1, 1, 3)))]
        records = [
            Record(b"%d" % chance.choice(seconds), some_future(chance, topics), offset)
            for offset in sorted(chance.sample(range(5_000), chance.randrange(1, 60)))
        ]
        out = accepted(records, Partition(0))
        assert len(out.rows) == len({record.key for record in records})
        assert out.offsets == [record.offset for record in records]
        assert sum(count_of(key) for key, _ in out.rows) == len(records)
        by_one = [single for key, row in out.rows for single in batches.singles(key, row)]
        assert Counter(by_one) == Counter(
            (row_key(int(record.key or 0) * 1000, record.offset), record.value) for record in records
        )
        (together, built), (alone, built_alone) = await fired(out.rows), await fired(by_one)
        assert together == alone
        assert sorted(built.contents.offsets) == sorted(built_alone.contents.offsets)
        assert sorted(built.contents.rejected) == sorted(built_alone.contents.rejected)
        assert (built.fired, built.refused, built.dues_ms) == (
            built_alone.fired,
            built_alone.refused,
            built_alone.dues_ms,
        )


@pytest.mark.parametrize("odd", [Future(millis=1), Future(millis=1_000), Future(cancel=True)], ids=str)
def test_one_that_is_not_due_like_the_others_keeps_all_of_a_fetch_apart(odd: Future) -> None:
    """Also where the next one says that it is not odd."""
    plain, not_odd = Future(callBackTopic="a").SerializeToString(), b"\x30\x00\x40\x00"
    values = [plain, plain + odd.SerializeToString(), plain + not_odd]
    assert Future.FromString(values[2]) == Future.FromString(plain)
    records = [Record(b"%d" % SECOND, value, offset) for offset, value in enumerate(values)]
    assert not any(is_batch(key) for key, _ in accepted(records, Partition(0)).rows)


def test_requests_that_an_open_scan_may_have_looked_at_are_kept_one_by_one() -> None:
    partition = Partition(0)
    partition.begin(DUE_MS + 1_000)
    for due, together in ((SECOND, False), (SECOND + 1, True)):
        record = Record(b"%d" % due, Future(callBackTopic="a").SerializeToString(), 7)
        [(key, _)] = accepted([record], partition).rows
        assert is_batch(key) == together


def test_the_key_of_a_batch_lies_behind_its_last_request_and_before_all_later_ones() -> None:
    key = batch_key(DUE_MS, 9, 4)
    assert row_key(DUE_MS, 9) < key < row_key(DUE_MS, 10)
    assert (parts_of(key), count_of(key)) == ((DUE_MS, 9), 4)


def test_requests_that_are_none_are_known() -> None:
    good = Future(callBackTopic="a").SerializeToString()
    assert screened([good], 0, 1) is not None
    assert screened([good, b"\xff"], 0, 1) is None
    assert screened([good, b"\x0a\x01\xff"], 0, 1) is None  # no UTF-8
    with pytest.raises(DecodeError):
        batches.requests_in([b"\xff"])


def test_a_request_without_topic_is_refused_beside_one_that_has_two() -> None:
    without, doubled = Future(callBackKey="k").SerializeToString(), Future(callBackTopic="a").SerializeToString() * 2
    for values in ([without, doubled], [doubled, without], [doubled, without[:0]], [without + doubled, without]):
        assert screened(values, 0, 1) is None
    assert screened([doubled, doubled], 0, 1) is not None


def test_cancels_beside_them_do_not_keep_requests_apart() -> None:
    plain, cancel = Future(callBackTopic="a").SerializeToString(), Future(timerId="t", cancel=True).SerializeToString()
    values = [plain, cancel, plain, cancel, plain]
    keys = [b"%d" % SECOND, b"t", b"%d" % SECOND, None, b"%d" % SECOND]
    out = accepted([Record(*each, offset) for offset, each in enumerate(zip(keys, values, strict=True))], Partition(0))
    [(key, row)] = out.rows
    assert (count_of(key), [*batches.unpack(row).offsets], out.offsets, out.count) == (3, [0, 2, 4], [0, 2, 4], 5)


def test_a_withdrawn_request_is_left_out_wherever_it_lies() -> None:
    def batch(*offsets: int) -> Row:
        values = [Future(callBack=b"%d" % offset).SerializeToString() for offset in offsets]
        packed = batches.pack(batches.framed(values), offsets, plain=True, named=True)
        return batch_key(DUE_MS, offsets[-1], len(offsets)), packed

    single = (row_key(DUE_MS, 6), b"single")
    with_millis = (row_key(DUE_MS + 500, 1), b"with millis")
    rows = [batch(2, 3, 5), single, batch(7, 8), batch(9, 10), with_millis]
    gone = [row_key(DUE_MS + millis, offset) for millis, offset in ((0, 3), (0, 6), (0, 7), (0, 8), (500, 1))]
    left = list(batches.without(rows, iter(gone)))
    assert [[*batches.unpack(row).offsets] for _, row in left] == [[2, 5], [9, 10]]
    assert [request.callBack for request in batches.unpack(left[0][1]).requests] == [b"2", b"5"]
    # An owner remembers for an hour after its second that some of a batch have ids.
    assert (batches.unpack(left[0][1]).plain, batches.unpack(left[0][1]).named) == (True, True)
    assert list(batches.without(rows, iter(()))) == rows


def test_requests_whose_records_lie_at_some_offsets_are_counted() -> None:
    batch = batch_key(DUE_MS, 9, 3), batches.pack(b"", [5, 7, 9])
    assert [batches.count_at(*batch, range(offset)) for offset in (5, 6, 8, 9, 10)] == [0, 1, 2, 2, 3]
    assert [batches.count_at(*batch, range(offset, 9)) for offset in (5, 6, 8, 9, 10)] == [2, 1, 0, 0, 0]
    assert [batches.count_at(row_key(DUE_MS, 5), b"", range(offset)) for offset in (5, 6)] == [0, 1]
    # A copy has the offset of its original, and a record of its own.
    copy = row_key(DUE_MS, 5, Copied(20, 18))
    assert [batches.count_at(copy, b"", range(offset)) for offset in (20, 21)] == [0, 1]
