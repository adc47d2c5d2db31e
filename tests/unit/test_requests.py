"""What a record on `timer-request` asks for, and for which reasons it is refused."""

import pytest
from stand_ins import SECOND, Record, accepted, asked

from kafka_timers.request import partition_of
from kafka_timers.service.partition import REFUSED, Partition, is_late, parts_of
from kafka_timers.service.requests import (
    OVERHEAD_BYTES,
    Reason,
    Target,
    fits,
    pack_refused,
    second_of,
    unpack_refused,
)
from kafka_timers.wire import Future, Header, Request, Sealed

# --- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"1800000000", SECOND),
        (b"1", 1),
        (b"0001800000000", SECOND),
        (b"99999999999", 99_999_999_999),
        (None, Reason.KEY_MISSING),
        (b"", Reason.KEY_MISSING),
        (b"100000000000", Reason.KEY_IN_MILLISECONDS),
        (b"1800000000000", Reason.KEY_IN_MILLISECONDS),
        (b"0", Reason.KEY_NOT_A_SECOND),
        (b"-1800000000", Reason.KEY_NOT_A_SECOND),
        (b"+1800000000", Reason.KEY_NOT_A_SECOND),
        (b" 1800000000", Reason.KEY_NOT_A_SECOND),
        (b"1_800_000", Reason.KEY_NOT_A_SECOND),
        (b"1800000000.0", Reason.KEY_NOT_A_SECOND),
        (b"1.8e9", Reason.KEY_NOT_A_SECOND),
        ("١٨".encode(), Reason.KEY_NOT_A_SECOND),
        (SECOND.to_bytes(8, "big"), Reason.KEY_NOT_A_SECOND),
        (b"1" * 100_000, Reason.KEY_NOT_A_SECOND),
    ],
)
def test_a_key_is_a_second_in_ascii_or_is_refused(key: bytes | None, expected: int | Reason) -> None:
    assert second_of(key) == expected


# --- acceptance ------------------------------------------------------------------------------------------------------


def test_requests_are_kept_as_they_came_under_second_millis_and_offset() -> None:
    records = [asked(5), asked(7, millis=999), asked(9, key=b"%d" % (SECOND + 1))]
    out = accepted(records, Partition(0))
    assert [parts_of(key) for key, _ in out.rows] == [(SECOND, 0, 5), (SECOND, 999, 7), (SECOND + 1, 0, 9)]
    assert [value for _, value in out.rows] == [record.value for record in records]
    assert out.offsets == [5, 7, 9]
    assert not out.refused


def test_what_is_done_is_not_kept_again_whether_it_fired_or_was_refused() -> None:
    partition = Partition(0)
    partition.take_over([Sealed(last=SECOND, fence=2)], None)
    out = accepted([asked(0), asked(1, topic=""), asked(2), asked(3, topic="")], partition)
    assert out.offsets == [2, 3]
    assert all(is_late(key) for key, _ in out.rows)
    assert out.refused.total() == 1


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (asked(key=b"soon"), "key-not-a-second"),
        (asked(key=None), "key-missing"),
        (Record(b"%d" % SECOND, None), "value-missing"),
        (Record(b"%d" % SECOND, b""), "value-missing"),
        (Record(b"%d" % SECOND, b"{}"), "value-not-a-future"),
        (asked(millis=1_000), "millis-out-of-range"),
        (asked(millis=2**32 - 1), "millis-out-of-range"),
        (asked(cancel=True), "id-missing"),
        # The key of a cancel is not read.
        (asked(cancel=True, topic="", key=b"soon"), "id-missing"),
        (asked(topic=""), "topic-missing"),
        # The first thing that is wrong is told.
        (asked(key=b"soon", topic=""), "key-not-a-second"),
    ],
)
def test_what_can_never_fire_is_kept_for_the_next_tick_with_its_reason(record: Record, reason: str) -> None:
    out = accepted([asked(0), record, asked(2)], Partition(0))
    assert [parts_of(key)[0] for key, _ in out.rows] == [SECOND, REFUSED, SECOND]
    assert unpack_refused(out.rows[1][1]) == (reason, record.key, record.value)
    assert out.refused == {reason: 1}


@pytest.mark.parametrize("more", [{}, {"cancel": True}])
def test_an_id_outside_of_its_partition_is_refused(more: dict[str, object]) -> None:
    """Nobody could tell which request of the id is the latest."""
    records = [asked(number, timerId=f"id-{number}", **more) for number in range(100)]
    partitions = [accepted(records, Partition(number), partitions=3) for number in range(3)]
    refused = [{parts_of(key)[2] for key, _ in out.rows if parts_of(key)[0] == REFUSED} for out in partitions]
    assert all(
        out.refused == {Reason.ID_IN_FOREIGN_PARTITION: len(at)} for out, at in zip(partitions, refused, strict=True)
    )
    for record in records:
        home = partition_of(f"id-{record.offset}", 3)
        assert [record.offset in at for at in refused] == [number != home for number in range(3)]


def test_the_topics_of_what_is_kept_are_told() -> None:
    """So that they are known by the time they are due."""
    records = [asked(0, topic="a"), asked(1, topic="b"), asked(2, topic="a"), asked(3, key=b"soon", topic="c")]
    assert accepted(records, Partition(0)).topics == {"a", "b"}


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_a_request_well_below_the_limit_of_its_topic_fits() -> None:
    request = Request(callBackTopic=b"small", callBack=b"x" * 500)
    size = request.ByteSize()
    assert fits(request, size, Target(1, size + OVERHEAD_BYTES))


def test_what_the_callback_does_not_carry_is_not_counted_near_the_limit() -> None:
    """The request has the names of two topics beside what is passed on."""
    future = Future(callBackTopic="t" * 249, callBack=b"x" * 500, replyTopic="r" * 249)
    request = Request.FromString(future.SerializeToString())
    assert fits(request, future.ByteSize(), Target(1, 850))
    assert not fits(request, future.ByteSize(), Target(1, 600))


def test_headers_token_and_id_count() -> None:
    headers = [Header(key="name", value=b"v" * 100) for _ in range(3)]
    for more in ({"headers": headers}, {"token": b"t" * 330}, {"timerId": b"t" * 330}):
        request = Request(callBackTopic=b"small", callBack=b"x" * 500, **more)  # type: ignore[arg-type]
        assert not fits(request, request.ByteSize(), Target(1, 900))


# --- rows of refused requests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, b"", b"key", b"\x00\xff"])
@pytest.mark.parametrize("value", [None, b"", b"value", bytes(range(256))])
@pytest.mark.parametrize("reason", [Reason.KEY_MISSING, Reason.VALUE_NOT_A_FUTURE])
def test_a_refused_record_comes_back_byte_for_byte(reason: Reason, key: bytes | None, value: bytes | None) -> None:
    assert unpack_refused(pack_refused(reason, Record(key, value))) == (reason, key, value)
