"""Rows → record batches: their partition, order and size, and the requests that go to `timer-rejected` instead."""

import itertools
import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from operator import itemgetter
from typing import Any

import pytest
from aiokafka.errors import KafkaError
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.record.memory_records import MemoryRecords
from batches import digest_of_batches
from stand_ins import DUE_MS, ROOMY, SECOND, Known, asked, slice_to

from kafka_timers.broker.batches import Batch
from kafka_timers.core.callbacks import Lack, Target, fits
from kafka_timers.core.changes import Row
from kafka_timers.core.keys import REFUSED_MS, batch_key, parts_of, row_key
from kafka_timers.core.partition import Partition
from kafka_timers.core.refused import Reason, pack_forwarded, pack_refused
from kafka_timers.core.routing import hash_of, partition_of
from kafka_timers.core.rows import framed, pack
from kafka_timers.core.wire import Callback, Future, Header, Request, Sealed, callback_headers
from kafka_timers.runtime.filling import BATCH_BYTES, Ready
from kafka_timers.testing import ManualClock
from kafka_timers.worker import slices
from kafka_timers.worker.firing import SliceSize
from kafka_timers.worker.slices import Slice


class Outbox:
    """Stands for the sender: keeps the batches it is given, as they would go over the wire."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, int, bytes]] = []

    def send_all(self, batches: Iterable[Ready]) -> None:
        for batch, topic, partition in batches:
            self.batches.append((topic, partition, bytes(batch.encoded(1, 0, 0))))

    def records(self, topic: str) -> Iterator[tuple[int, Any]]:
        """Yield partition and record of all that went to *topic*, in the order of sending."""
        for sent_to, partition, data in self.batches:
            if sent_to == topic:
                batches = MemoryRecords(data)
                while batches.has_next():
                    yield from ((partition, record) for record in batches.next_batch())


def row(offset: int, topic: str = "callbacks", second: int = SECOND, **more: Any) -> Row:
    key = Partition(3).place(second * 1000, offset)
    assert key
    return key, Future(callBackTopic=topic, **({"callBack": b"%d" % offset} | more)).SerializeToString()


async def fill(into: Slice, rows: Iterator[Row]) -> bool:
    """Add *rows* until they have ended, or until the slice is full; tell which."""
    while not into.is_full:
        if not await into.add(rows):
            return True
    return False


async def built(outbox: Outbox, rows: Iterable[Row], known: Known | None = None, **more: Any) -> Slice:
    done = slice_to(known, **more)
    assert await fill(done, iter(rows))
    outbox.send_all(done.rest())
    return done


# --- where callbacks go ----------------------------------------------------------------------------------------------


async def test_a_key_goes_to_the_partition_that_kafkas_clients_choose() -> None:
    """A receiver that also sends under the same keys finds both in one partition."""
    outbox, keys = Outbox(), [f"clé-{n}" for n in range(1_000)]
    await built(outbox, [row(offset, callBackKey=key) for offset, key in enumerate(keys)])
    choose, partitions = DefaultPartitioner(), list(range(ROOMY.partitions))
    found = {record.key: partition for partition, record in outbox.records("callbacks")}
    assert found == {key.encode(): choose(key.encode(), partitions, partitions) for key in keys}


async def test_callbacks_without_a_key_are_spread_by_their_second() -> None:
    outbox = Outbox()
    await built(outbox, [row(offset, second=SECOND + offset) for offset in range(14)])
    assert [record.key for _, record in outbox.records("callbacks")] == [None] * 14
    assert sorted(partition for partition, _ in outbox.records("callbacks")) == sorted([*range(7)] * 2)


async def test_callbacks_of_one_partition_keep_the_order_of_the_rows() -> None:
    outbox = Outbox()
    rows = [row(offset, callBackKey=f"{offset % 50}", callBack=b"%0100d" % offset) for offset in range(20_000)]
    done = await built(outbox, rows)
    assert len(outbox.batches) > ROOMY.partitions  # a partition gets several of them
    values: dict[int, list[bytes]] = {}
    for partition, record in outbox.records("callbacks"):
        values.setdefault(partition, []).append(record.value)
    assert all(here == sorted(here) for here in values.values())
    assert sorted(itertools.chain(*values.values())) == [b"%0100d" % offset for offset in range(20_000)]
    assert done.contents.offsets == list(range(20_000))
    assert done.contents.through == rows[-1][0]
    assert done.fired == {"callbacks": 20_000}


async def test_a_seal_names_the_batches_of_each_topic_by_their_sha256() -> None:
    """Prebuilt callbacks too: their rest leaves with rows that came later. Rejects are not named."""
    outbox, done = Outbox(), slice_to(Known(callbacks=ROOMY, other=ROOMY, state=ROOMY))
    named = Future(callBackTopic="callbacks", callBack=b"", timerId="a", token="t", tombstoneTopic="state")
    named.tombstoneKey = "old"
    rows = [row(offset, callBackKey=f"{offset % 50}", callBack=b"%0200d" % offset) for offset in range(30_000)]
    rows += [row(30_000, "other"), (row(30_001)[0], named.SerializeToString())]
    rows += [row(30_002 + number, "gone", callBack=b"%0200d" % number) for number in range(5_000)]
    assert await fill(done, iter(rows[:29_000]))
    outbox.send_all(done.full())
    assert await fill(done, iter(rows[29_000:]))
    outbox.send_all(done.full())
    outbox.send_all(done.rest())
    seal = Sealed()
    done.tell(seal)

    wanted: dict[str, list[tuple[int, list[Any]]]] = {}
    for topic, partition, data in outbox.batches:
        records = list(MemoryRecords(data).next_batch())
        assert len({record.timestamp for record in records}) == 1
        parts = [(record.key, record.value, record.headers) for record in records]
        wanted.setdefault(topic, []).append((partition, parts))
    assert len(wanted.pop("timer-rejected")) > 1
    assert sorted(wanted) == [each.topic for each in seal.sent] == ["callbacks", "other", "state"]
    assert len(wanted["callbacks"]) > ROOMY.partitions
    for each in seal.sent:
        batches = sorted(wanted[each.topic], key=itemgetter(0))
        assert [*zip(each.partitions, each.records, strict=True)] == [(at, len(parts)) for at, parts in batches]
        assert each.sha256 == digest_of_batches(parts for _, parts in batches)


async def test_a_seal_names_no_batches_where_they_are_too_many() -> None:
    outbox, wide = Outbox(), Target(partitions=2_000, batch_bytes_max=BATCH_BYTES)
    rows = [row(offset, second=SECOND + offset) for offset in range(1_001)]
    for count, topics in ((1_000, 1), (1_001, 0)):
        done, seal = await built(outbox, rows[:count], Known(callbacks=wide)), Sealed()
        done.tell(seal)
        assert len(seal.sent) == topics


async def test_a_late_callback_says_for_which_second_it_was() -> None:
    partition = Partition(3)
    partition.acquire([Sealed(end_ms=(SECOND + 60 + 1) * 1000, fence=5)], None)
    key = partition.place(DUE_MS + 250, 9)
    assert key
    outbox = Outbox()
    done = await built(outbox, [(key, row(9)[1])])
    [(_, record)] = outbox.records("callbacks")
    assert record.headers == [("timer-expiry", b"%d" % SECOND), ("timer-request", b"3:9")]
    assert not done.dues_ms


async def test_a_callback_built_ahead_is_dated_in_its_second() -> None:
    """Where the callback topic keeps the producer's time."""
    for wall_s, dated_ms in ((SECOND - 0.7, SECOND * 1000), (SECOND + 0.25, SECOND * 1000 + 250)):
        outbox = Outbox()
        await built(outbox, [row(0, callBackKey="a"), row(1)], wall_s=wall_s, not_before_ms=SECOND * 1000)
        assert [record.timestamp for _, record in outbox.records("callbacks")] == [dated_ms] * 2


async def test_a_callback_is_dated_when_it_leaves_and_not_when_it_was_built() -> None:
    clock, outbox = ManualClock(SECOND - 3.0), Outbox()
    done = slice_to(not_before_ms=SECOND * 1000, clock=clock)
    assert await fill(done, iter([row(0, callBackKey="a"), row(1)]))
    clock.set(SECOND + 12.5)
    outbox.send_all(done.rest())
    assert [record.timestamp for _, record in outbox.records("callbacks")] == [SECOND * 1000 + 12_500] * 2


# --- how much --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bytes_max", [500, 2_000, 100_000, 300_000])
async def test_no_batch_is_larger_than_its_topic_takes(bytes_max: int) -> None:
    outbox, chance = Outbox(), random.Random(2)
    sizes = [chance.randrange(bytes_max // 2) for _ in range(300)]
    rows = [row(offset, callBack=b"x" * size, callBackKey="k") for offset, size in enumerate(sizes)]
    done = await built(outbox, rows, Known(callbacks=Target(1, bytes_max)))
    assert max(len(data) for topic, _, data in outbox.batches if topic == "callbacks") <= bytes_max
    assert len(done.contents.rejected) + done.fired["callbacks"] == 300
    assert done.fired["callbacks"] > 100


def test_a_callback_is_never_larger_than_was_reckoned_when_it_was_accepted() -> None:
    chance = random.Random(3)
    for _ in range(500):
        text = lambda limit: "ü" * chance.randrange(limit)  # noqa: E731
        headers = [Header(key=text(9), value=b"h" * chance.randrange(50)) for _ in range(chance.randrange(4))]
        future = Future(callBackTopic="c", callBackKey=text(99), callBack=b"v" * chance.randrange(400))
        future.MergeFrom(Future(timerId=text(40), token=text(40), headers=headers))
        request = Request.FromString(future.SerializeToString())
        batch = Batch(BATCH_BYTES, is_transactional=True)
        own = callback_headers(request, SECOND, b"1023:9223372036854775807")
        key = request.callBackKey or None
        batch.append(timestamp=SECOND * 1000, key=key, value=request.callBack, headers=own)
        assert not fits(request, future.ByteSize(), Target(1, batch.size() - 1))


async def test_a_slice_ends_at_its_number_of_rows_and_the_next_goes_on_behind() -> None:
    rows = [row(offset) for offset in range(5_000)]
    left = iter(rows)
    for count, complete in ((2_400, False), (2_400, False), (200, True)):
        part = slice_to(rows_max=2_400)
        assert (await fill(part, left), len(part)) == (complete, count)


async def test_a_slice_ends_soon_after_its_number_of_bytes() -> None:
    part = slice_to(bytes_max=10_000_000)
    assert not await fill(part, (row(offset, callBack=b"x" * 20_000) for offset in range(5_000)))
    assert 10_000_000 <= len(part) * 20_000 <= 15_000_000


def test_slices_that_are_not_taken_in_time_get_smaller_in_callbacks_and_in_bytes_and_larger_again() -> None:
    size = SliceSize(25_000, 16 << 20)
    sizes = []
    for _ in range(5):
        size.shrink()
        sizes.append((size.rows, size.bytes >> 10))
    assert sizes == [(6_250, 4_096), (1_562, 1_024), (390, 256), (100, 64), (100, 64)]
    for _ in range(20):
        size.grow()
    assert (size.rows, size.bytes) == (25_000, 16 << 20)


async def test_a_slice_of_nothing_is_complete() -> None:
    outbox = Outbox()
    part = await built(outbox, [])
    assert (len(part), outbox.batches) == (0, [])
    assert part.lateness_ms(1) == 0


async def test_a_lateness_of_decades_fits_into_a_seal() -> None:
    part = await built(Outbox(), [row(0, second=1)])
    assert Sealed(lateness_max_ms=part.lateness_ms(1)).lateness_max_ms == 2**31 - 1


async def test_lateness_is_that_of_the_given_share_of_the_callbacks() -> None:
    rows = [row(offset, second=SECOND + (offset >= 2)) for offset in range(100)]
    part = await built(Outbox(), rows, wall_s=SECOND + 1.25)
    assert [part.lateness_ms(share) for share in (0.5, 0.98, 0.99, 1)] == [250, 250, 1_250, 1_250]


# --- requests for timer-rejected -------------------------------------------------------------------------------------


async def test_a_request_that_cannot_fire_by_now_is_rejected_and_the_rest_fires() -> None:
    """The topic was there, allowed and roomy enough when the requests were accepted."""
    known = Known(callbacks=ROOMY, small=Target(1, 700), secret=Reason.TOPIC_FORBIDDEN)
    rows = [row(0), row(1, "secret"), row(2, "small", callBack=b"x" * 900), row(3, "small"), row(4, "gone"), row(5)]
    rows.insert(3, (rows[0][0][:-1] + b"\x63", b"\xff"))
    outbox = Outbox()
    done = await built(outbox, rows, known)
    told = {dict(record.headers)["timer-rejected-offset"]: record for _, record in outbox.records("timer-rejected")}
    reasons = {offset: dict(record.headers)["timer-rejected-reason"] for offset, record in told.items()}
    expected = {b"1": b"topic-forbidden", b"2": b"too-large", b"4": b"topic-unknown", b"99": b"value-not-a-future"}
    assert reasons == expected
    assert told[b"1"].key == b"%d" % SECOND
    assert told[b"1"].value == rows[1][1]
    assert dict(told[b"1"].headers)["timer-rejected-topic"] == b"timer-request"
    assert dict(told[b"1"].headers)["timer-rejected-partition"] == b"3"
    assert done.fired == {"callbacks": 2, "small": 1}
    assert len(done) == 7
    assert sorted(done.contents.rejected) == [1, 2, 4, 99]
    assert done.refused == Counter(reason.decode() for reason in expected.values())


@pytest.mark.parametrize("together", [True, False], ids=["in a batch", "one by one"])
async def test_all_callbacks_of_a_topic_that_is_gone_are_rejected_at_once_and_their_neighbours_fire_in_order(
    together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be as many as a hot second has, and a look at each one costs twice as much."""
    known = Known(callbacks=ROOMY, small=Target(1, 700), gone=Reason.TOPIC_UNKNOWN, secret=Reason.TOPIC_FORBIDDEN)
    topics = ["gone", "callbacks", "secret", "gone", "callbacks"] * 50
    rows = [row(offset, topic, callBackKey="k", timerId=f"{offset}") for offset, topic in enumerate(topics)]
    values = [value for _, value in rows]
    if together:
        rows = [(batch_key(DUE_MS, 249, 250), pack(framed(values), range(250), named=True))]

    async def looked_at(*_: object) -> None:
        raise AssertionError("a request was looked at for itself")

    monkeypatch.setattr(Slice, "_add_any", looked_at)
    outbox = Outbox()
    done = await built(outbox, rows, known)
    told = [(record.key, record.value, record.headers) for _, record in outbox.records("timer-rejected")]
    assert Counter(told_of(*each) for each in told) == Counter(
        (b"%d" % SECOND, values[at], b"topic-unknown" if topic == "gone" else b"topic-forbidden", b"%d" % at)
        for at, topic in enumerate(topics)
        if topic != "callbacks"
    )
    fired = [record.value for _, record in outbox.records("callbacks")]
    assert fired == [b"%d" % at for at, topic in enumerate(topics) if topic == "callbacks"]
    assert done.refused == {"topic-unknown": 100, "topic-forbidden": 50}
    assert sorted(done.contents.rejected) == [at for at, topic in enumerate(topics) if topic != "callbacks"]
    assert done.contents.offsets == list(range(250))
    assert done.contents.named


def told_of(key: bytes, value: bytes, headers: tuple[tuple[str, bytes], ...]) -> tuple[bytes, bytes, bytes, bytes]:
    told = dict(headers)
    return key, value, told["timer-rejected-reason"], told["timer-rejected-offset"]


async def test_a_topic_that_is_gone_and_odd_neighbours() -> None:
    """A name that is no text, a tombstone that has no topic, and a callback that is too large are each told as such."""
    known = Known(callbacks=ROOMY, small=Target(1, 700), gone=Reason.TOPIC_UNKNOWN)
    tombstone = {"tombstoneTopic": "gone", "tombstoneKey": "k"}
    rows = [row(0, "gone"), row(1, "small", callBack=b"x" * 900), row(2, **tombstone), row(3), row(4, "gone")]
    rows += [(row_key(DUE_MS, 5), b"\x0a\x02\xff\xfe"), row(6, "gone", **tombstone)]
    outbox = Outbox()
    done = await built(outbox, rows, known)
    assert sorted(done.contents.rejected) == [0, 1, 2, 4, 5, 6]
    assert done.refused == {"topic-unknown": 4, "too-large": 1, "unreadable": 1}
    assert [record.value for _, record in outbox.records("callbacks")] == [b"3"]
    told = {told_of(record.key, record.value, record.headers)[1:] for _, record in outbox.records("timer-rejected")}
    reasons = {0: b"topic-unknown", 1: b"too-large", 2: b"topic-unknown", 4: b"topic-unknown"}
    reasons |= {5: b"unreadable", 6: b"topic-unknown"}
    assert told == {(rows[offset][1], reason, b"%d" % offset) for offset, reason in reasons.items()}


async def test_a_topic_is_asked_for_when_nothing_is_known_of_it() -> None:
    known = Known()
    done = await built(Outbox(), [row(0), row(1, "other"), row(2), row(3, "other")], known)
    assert sorted(known.asked) == ["callbacks", "other"]
    assert done.refused == {"topic-unknown": 4}


async def test_rejects_that_do_not_fit_are_cut_and_told_nevertheless() -> None:
    outbox = Outbox()
    request = row(0, "secret", callBack=b"x" * 50_000)
    known = Known(secret=Reason.TOPIC_FORBIDDEN)
    many = [(request[0][:-2] + offset.to_bytes(2, "big"), request[1]) for offset in range(20)]
    await built(outbox, many, known, rejected=Target(2, 10_000))
    records = [record for _, record in outbox.records("timer-rejected")]
    assert len(records) == 20
    assert all(request[1].startswith(record.value) and len(record.value) > 9_000 for record in records)
    assert max(len(data) for _, _, data in outbox.batches) <= 10_000
    told = {(int(dict(record.headers)["timer-rejected-cut"] or b""), len(record.value)) for record in records}
    assert told == {(len(request[1]) - size, size) for _, size in told}


async def test_a_refused_record_is_told_with_the_key_and_value_that_it_had() -> None:
    class Record:
        key, value, offset = b"tomorrow", None, 8

    key = Partition(3).place(REFUSED_MS, 8)
    assert key
    outbox = Outbox()
    done = await built(outbox, [(key, pack_refused(Reason.KEY_NOT_A_SECOND, Record))])  # type: ignore[arg-type]
    [(_, record)] = outbox.records("timer-rejected")
    assert (record.key, record.value) == (b"tomorrow", None)
    assert dict(record.headers)["timer-rejected-reason"] == b"key-not-a-second"
    assert (done.contents.rejected, done.refused) == ([8], {"key-not-a-second": 1})


def to_send_on(offset: int, timer_id: str = "a", size: int = 0) -> Row:
    """Return the row of a request that lies in a foreign partition."""

    key = Partition(3).place(REFUSED_MS, offset)
    assert key
    return key, pack_forwarded(3, asked(offset, timerId=timer_id, callBack=b"x" * size))


async def test_a_request_that_is_sent_on_goes_to_the_partition_of_its_id_behind_all_others() -> None:
    outbox = Outbox()
    done = await built(outbox, [to_send_on(8), to_send_on(9, "b"), row(1)], home=Target(5, 10_000))
    sent = list(outbox.records("timer-request"))
    assert [at for at, _ in sent] == [
        partition_of(timer_id, 5) for timer_id in sorted("ab", key=lambda name: partition_of(name, 5))
    ]
    assert {Future.FromString(record.value or b"").forwarded.fromOffset for _, record in sent} == {8, 9}
    assert {record.key for _, record in sent} == {b"1800000000"}
    assert [topic for topic, _, _ in outbox.batches] == ["callbacks", "timer-request", "timer-request"]
    assert (done.contents.rejected, done.contents.forwarded, done.refused) == ([8, 9], [8, 9], {})


@pytest.mark.parametrize("reason", ["topic-refused", "too-large"])
async def test_a_request_that_its_topic_does_not_take_is_rejected_and_not_sent_on(reason: str) -> None:
    known = Known(callbacks=ROOMY)
    if reason == "topic-refused":
        known.refuse("timer-request", Reason.TOPIC_REFUSED)
    outbox = Outbox()
    done = await built(
        outbox, [to_send_on(8, size=2_000)], known, home=Target(5, 1_000 if reason == "too-large" else 10_000)
    )
    [(_, record)] = outbox.records("timer-rejected")
    assert dict(record.headers)["timer-rejected-reason"] == reason.encode()
    assert dict(record.headers)["timer-rejected-offset"] == b"8"
    assert (done.contents.rejected, done.contents.forwarded, done.refused) == ([8], [], {reason: 1})
    assert list(outbox.records("timer-request")) == []


@pytest.mark.parametrize("small", [False, True], ids=["as usual", "one by one"])
async def test_a_tombstone_goes_with_the_callback_that_asks_for_it(small: bool) -> None:
    """To the partition that is named, where the topic has it."""
    known = Known(callbacks=ROOMY, schedules=Target(3, 1_000 if small else 1_048_588))
    asked = [Future(callBackTopic="callbacks", tombstoneTopic="schedules", tombstoneKey="k") for _ in range(4)]
    asked[1].tombstonePartition = 0
    asked[2].tombstonePartition = 7
    asked.append(Future(callBackTopic="callbacks"))
    rows = [(row_key(DUE_MS, offset), future.SerializeToString()) for offset, future in enumerate(asked)]
    outbox = Outbox()
    done = await built(outbox, rows, known)
    assert done.fired == {"callbacks": 5, "schedules": 0}
    hashed = DefaultPartitioner()(b"k", [0, 1, 2], [0, 1, 2])
    tombstones = sorted((r.headers, partition, r.key, r.value) for partition, r in outbox.records("schedules"))
    assert tombstones == [
        ([("timer-request", b"3:%d" % offset)], partition, b"k", None)
        for offset, partition in enumerate([hashed, 0, hashed, hashed])
    ]


# --- callbacks in a field of their own -------------------------------------------------------------------------------


def shaped(offset: int, topic: str = "callbacks", second: int = SECOND, **callback: Any) -> Row:
    """A request with its callback in the field `callBackRecord`."""
    key = Partition(3).place(second * 1000, offset)
    assert key
    return key, Future(callBackRecord=Callback(topic=topic, **callback)).SerializeToString()


def gathered(rows: list[Row]) -> list[Row]:
    """The same requests as one batch."""
    offsets = [parts_of(key)[1] for key, _ in rows]
    return [(batch_key(DUE_MS, offsets[-1], len(rows)), pack(framed([value for _, value in rows]), offsets))]


@pytest.mark.parametrize("together", [list, gathered], ids=["singles", "batch"])
async def test_keys_of_any_bytes_and_tombstones_leave_as_they_are(together: Any) -> None:
    outbox = Outbox()
    rows = [
        shaped(0, key=b"\xff\0\x80", value=b"v"),
        shaped(1, key=b"", value=b""),
        shaped(2, key=b"deleted"),
        shaped(3),
        row(4, callBackKey="k"),
    ]
    done = await built(outbox, together(rows))
    found = {record.headers[-1][1]: (record.key, record.value) for _, record in outbox.records("callbacks")}
    assert found == {
        b"3:0": (b"\xff\0\x80", b"v"),
        b"3:1": (b"", b""),
        b"3:2": (b"deleted", None),
        b"3:3": (None, None),
        b"3:4": (b"k", b"4"),
    }
    assert (done.fired, done.contents.offsets, done.refused) == ({"callbacks": 5}, [0, 1, 2, 3, 4], {})


@pytest.mark.parametrize("together", [list, gathered], ids=["singles", "batch"])
async def test_a_callback_goes_to_the_partition_that_it_names_or_that_its_key_for_that_gives(together: Any) -> None:
    outbox, choose, partitions = Outbox(), DefaultPartitioner(), list(range(ROOMY.partitions))
    rows = [
        *(shaped(at, key=b"key", value=b"", partition=at) for at in partitions),
        *(shaped(10 + n, key=b"key", value=b"", partitionKey=b"home-%d" % n) for n in range(20)),
        *(shaped(40 + n, key=b"\xff%d" % n, value=b"") for n in range(20)),
        # An empty key is a key: all of its records lie together, of any second.
        shaped(70, key=b"", value=b""),
        shaped(71, key=b"key", value=b"", partitionKey=b""),
    ]
    await built(outbox, together(rows))
    found = {int(record.headers[-1][1][2:]): partition for partition, record in outbox.records("callbacks")}
    homes = [choose(b"home-%d" % n, partitions, partitions) for n in range(20)]
    hashed = [choose(b"\xff%d" % n, partitions, partitions) for n in range(20)]
    assert [found[at] for at in partitions] == partitions
    assert [found[10 + n] for n in range(20)] == homes
    assert [found[40 + n] for n in range(20)] == hashed
    assert [found[70], found[71]] == [choose(b"", partitions, partitions)] * 2


@pytest.mark.parametrize("together", [list, gathered], ids=["singles", "batch"])
async def test_a_callback_on_a_partition_that_its_topic_has_not_is_rejected_and_its_neighbours_fire(
    together: Any,
) -> None:
    outbox = Outbox()
    rows = [shaped(0, value=b"a", partition=6), shaped(1, value=b"b", partition=7), shaped(2, value=b"c", partition=0)]
    done = await built(outbox, together(rows))
    assert [record.value for _, record in outbox.records("callbacks")] == [b"c", b"a"]
    assert (done.refused, done.contents.rejected) == ({Reason.PARTITION_UNKNOWN: 1}, [1])
    [(_, rejected)] = outbox.records("timer-rejected")
    assert rejected.value == rows[1][1]


async def test_a_tombstone_without_a_key_is_rejected_where_its_topic_wants_one() -> None:
    known = Known(compacted=Target(3, 1_048_588, needs_key=True))
    outbox = Outbox()
    rows = [shaped(0, "compacted"), shaped(1, "compacted", key=b""), shaped(2, "compacted", key=b"k")]
    done = await built(outbox, rows, known)
    assert sorted(record.key for _, record in outbox.records("compacted")) == [b"", b"k"]
    assert done.refused == {Reason.TOPIC_NEEDS_KEY: 1}


async def test_a_callback_in_its_field_that_is_too_large_for_its_topic_is_rejected() -> None:
    small = Target(3, 2_000)
    done = await built(Outbox(), [shaped(0, value=b"x" * 1_000), shaped(1, value=b"x" * 2_000)], Known(callbacks=small))
    assert (done.fired, done.refused) == ({"callbacks": 1}, {Reason.TOO_LARGE: 1})


async def test_a_callback_whose_tombstone_has_no_topic_is_refused() -> None:
    known = Known(callbacks=ROOMY, secret=Reason.TOPIC_FORBIDDEN)
    asked = Future(callBackTopic="callbacks", tombstoneTopic="secret", tombstoneKey="k").SerializeToString()
    plain = Future(callBackTopic="callbacks").SerializeToString()
    done = await built(Outbox(), [(row_key(DUE_MS, 0), asked), (row_key(DUE_MS, 1), plain)], known)
    assert (done.refused, done.contents.rejected) == ({Reason.TOPIC_FORBIDDEN: 1}, [0])


# --- topics that take no record without a key ------------------------------------------------------------------------


@pytest.mark.parametrize("together", [True, False], ids=["in a batch", "one by one"])
async def test_a_callback_without_a_key_is_rejected_where_its_topic_wants_one_and_its_neighbours_fire(
    together: bool,
) -> None:
    """A compacted topic would refuse the transaction of the whole second for it."""
    known = Known(callbacks=ROOMY, compacted=Target(3, 1_048_588, needs_key=True))
    asked = [
        Future(callBackTopic="callbacks", callBack=b"0"),
        Future(callBackTopic="compacted", callBack=b"1"),
        Future(callBackTopic="compacted", callBack=b"2", callBackKey="k"),
        Future(callBackTopic="callbacks", callBack=b"3", callBackKey="k"),
    ]
    values = [future.SerializeToString() for future in asked]
    rows = [(row_key(DUE_MS, offset), value) for offset, value in enumerate(values)]
    if together:
        rows = [(batch_key(DUE_MS, 3, 4), pack(framed(values), range(4), plain=True))]
    outbox = Outbox()
    done = await built(outbox, rows, known)
    assert done.fired == {"callbacks": 2, "compacted": 1}
    assert sorted(record.value for _, record in outbox.records("callbacks")) == [b"0", b"3"]
    assert [(record.key, record.value) for _, record in outbox.records("compacted")] == [(b"k", b"2")]
    [(_, rejected)] = outbox.records("timer-rejected")
    assert rejected.value == values[1]
    assert dict(rejected.headers)["timer-rejected-reason"] == b"topic-needs-key"
    assert (done.refused, done.contents.rejected) == ({Reason.TOPIC_NEEDS_KEY: 1}, [1])
    assert sorted(done.contents.offsets) == [0, 1, 2, 3]


async def test_where_all_have_a_key_a_topic_that_wants_one_takes_them_all() -> None:
    known = Known(compacted=Target(3, 1_048_588, needs_key=True))
    done = await built(Outbox(), [row(offset, "compacted", callBackKey="k") for offset in range(5)], known)
    assert (done.fired, done.refused) == ({"compacted": 5}, {})


async def test_a_tombstone_has_a_key_of_its_own() -> None:
    """So the topic that it goes to may want one."""
    known = Known(callbacks=ROOMY, schedules=Target(3, 1_048_588, needs_key=True))
    done = await built(Outbox(), [row(0, tombstoneTopic="schedules", tombstoneKey="k")], known)
    assert (done.fired, done.refused) == ({"callbacks": 1, "schedules": 0}, {})


# --- requests on which the code fails --------------------------------------------------------------------------------


async def assert_only_2_is_unreadable(rows: list[Row], odd: bytes) -> None:
    """Of four requests the third one is rejected, and all others fire."""
    outbox = Outbox()
    done = await built(outbox, rows)
    assert done.fired == {"callbacks": 3}
    values = Counter(record.value for _, record in outbox.records("callbacks"))
    assert values == Counter([b"0", b"1", b"3"])
    [(_, rejected)] = outbox.records("timer-rejected")
    assert (rejected.key, rejected.value) == (b"%d" % SECOND, odd)
    assert dict(rejected.headers)["timer-rejected-reason"] == b"unreadable"
    assert (done.refused, done.contents.rejected) == ({Reason.UNREADABLE: 1}, [2])
    assert sorted(done.contents.offsets) == [0, 1, 2, 3]


async def test_a_row_that_makes_no_callback_is_rejected_as_unreadable() -> None:
    """Its topic is no text, which no owner has let pass."""
    odd = b"\x0a\x02\xff\xfe"
    await assert_only_2_is_unreadable([row(0), row(1), (row_key(DUE_MS, 2), odd), row(3)], odd)


@pytest.mark.parametrize("together", [True, False], ids=["in a batch", "one by one"])
async def test_a_request_on_which_building_fails_is_rejected_as_unreadable(
    monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """Also in the midst of others that are like it, some of which are built by then; none fires twice."""

    def failing(request: Request, second: int, name: bytes) -> list[tuple[str, bytes | None]]:
        if name == b"3:2":
            raise ZeroDivisionError
        return callback_headers(request, second, name)

    monkeypatch.setattr(slices, "callback_headers", failing)
    rows = [row(offset) for offset in range(4)]
    values = [value for _, value in rows]
    if together:
        rows = [(batch_key(DUE_MS, 3, 4), pack(framed(values), range(4), named=True))]
    await assert_only_2_is_unreadable(rows, values[2])


async def test_tombstones_go_with_their_callbacks_where_building_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(request: Request, second: int, name: bytes) -> list[tuple[str, bytes | None]]:
        if name == b"3:1":
            raise ZeroDivisionError
        return callback_headers(request, second, name)

    monkeypatch.setattr(slices, "callback_headers", failing)
    outbox = Outbox()
    rows = [row(offset, tombstoneTopic="schedules", tombstoneKey=f"{offset}") for offset in range(3)]
    done = await built(outbox, rows, Known(callbacks=ROOMY, schedules=ROOMY))
    assert sorted(record.key for _, record in outbox.records("schedules")) == [b"0", b"2"]
    assert (done.fired, done.refused) == ({"callbacks": 2, "schedules": 0}, {Reason.UNREADABLE: 1})


@pytest.mark.parametrize("error", [KafkaError("no broker"), OSError("no network")], ids=["known", "unknown"])
@pytest.mark.parametrize("odd", [False, True], ids=["as usual", "one by one"])
async def test_nothing_is_rejected_because_topics_cannot_be_looked_up(error: Exception, odd: bool) -> None:
    """The slice fails, and is built anew by the next attempt."""

    class Away(Known):
        async def resolve(self, names: Collection[str]) -> None:
            raise error

    into = slice_to(Away(secret=Reason.TOPIC_FORBIDDEN))
    with pytest.raises(KafkaError, match=str(error)):
        await fill(into, iter([row(0), *([row(1, "secret")] if odd else [])]))
    assert (into.contents.rejected, into.refused) == ([], {})


# --- partitions that are unavailable ---------------------------------------------------------------------------------

AWAY = Lack(19, (2,))


async def test_callbacks_to_an_unavailable_partition_are_rejected_and_asked_for_again() -> None:
    """Those of the topic's other partitions leave."""
    known = Known(callbacks=ROOMY, weak=Target(2, 1_048_588, unavailable={1: AWAY}))
    known.words["weak"] = "partition 1: NOT_ENOUGH_REPLICAS"
    keys = {hash_of(key.encode()) % 2: key for key in ("a", "b", "c", "d")}
    rows = [row(1, "weak", callBackKey=keys[0]), row(2, "weak", callBackKey=keys[1]), row(3)]
    outbox = Outbox()
    done = await built(outbox, rows, known, not_before_ms=DUE_MS + 60_000)
    assert [(at, record.value) for at, record in outbox.records("weak")] == [(0, b"1")]
    assert len(list(outbox.records("callbacks"))) == 1
    [(_, rejected)] = outbox.records("timer-rejected")
    about = dict(rejected.headers)
    assert about["timer-rejected-reason"] == b"topic-unavailable"
    assert about["timer-rejected-words"] == b"partition 1: NOT_ENOUGH_REPLICAS"
    [(at, again)] = outbox.records("timer-request")
    assert (at, again.key) == (3, b"%d" % (SECOND + 90))
    assert Future.FromString(again.value).insteadOf.request == "3:2"
    assert (done.contents.rejected, done.contents.forwarded) == ([2], [])


async def test_a_callback_waits_for_its_tombstone_s_partition_too() -> None:
    known = Known(callbacks=ROOMY, weak=Target(1, 1_048_588, unavailable={0: AWAY}))
    outbox = Outbox()
    await built(outbox, [row(1, tombstoneTopic="weak", tombstoneKey="k")], known)
    assert len(list(outbox.records("timer-rejected"))) == len(list(outbox.records("timer-request"))) == 1
    assert not list(outbox.records("callbacks"))


async def test_a_timer_is_rejected_for_good_a_day_after_it_was_due() -> None:
    known, outbox = Known(weak=Target(1, 1_048_588, unavailable={0: AWAY})), Outbox()
    await built(outbox, [row(1, "weak")], known, not_before_ms=DUE_MS + 86_400_000)
    assert len(list(outbox.records("timer-rejected"))) == 1
    assert not list(outbox.records("timer-request"))


@pytest.mark.parametrize("now", [{0: AWAY}, None, {}])
async def test_callbacks_built_before_a_partition_went_or_came_back_are_built_again(
    now: dict[int, Lack] | None,
) -> None:
    was: dict[int, Lack] = {0: AWAY} if now == {} else {}
    known = Known(weak=Target(1, 1_048_588, unavailable=was))
    done = await built(Outbox(), [row(1, "weak")], known)
    assert not done.is_outdated
    if now is None:
        del known.verdicts["weak"]
    else:
        known.verdicts["weak"] = Target(1, 1_048_588, unavailable=now)
    assert done.is_outdated
