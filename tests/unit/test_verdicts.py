"""The meaning of a record on `timer-request`, and the reasons to refuse it."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from stand_ins import DUE_MS, SECOND, Record, accepted, asked

from kafka_timers.core import accepting, verdicts, wire
from kafka_timers.core import rows as batches
from kafka_timers.core.accepting import Accepted, accept
from kafka_timers.core.decisions import Known, decide
from kafka_timers.core.keys import REFUSED_MS, Copied, copied_in, count_of, is_late, parts_of
from kafka_timers.core.partition import Partition
from kafka_timers.core.refused import Reason, pack_refused, unpack_refused
from kafka_timers.core.routing import hash_of, partition_of
from kafka_timers.core.verdicts import Ask, Cancel, Verdict, expected_in, judged, second_of, timer_record
from kafka_timers.core.versions import Decided, KnownFromError, Original, TimerRecord, Version
from kafka_timers.core.wire import COPY_STALE_S, Callback, Condition, Copy, Forwarded, Future, Sealed, future_from

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


def test_requests_are_kept_as_they_came_under_moment_and_offset() -> None:
    records = [asked(5), asked(7, millis=999), asked(9, key=b"%d" % (SECOND + 1))]
    out = accepted(records, Partition(0))
    assert [parts_of(key) for key, _ in out.rows] == [(DUE_MS, 5), (DUE_MS + 999, 7), (DUE_MS + 1_000, 9)]
    assert [value for _, value in out.rows] == [record.value for record in records]
    assert out.offsets == [5, 7, 9]
    assert not out.refused


def test_a_done_request_is_not_kept_again_whether_it_fired_or_was_refused() -> None:
    partition = Partition(0)
    partition.acquire([Sealed(end_ms=(SECOND + 1) * 1000, fence=2)], None)
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
def test_a_request_that_can_never_fire_is_kept_for_the_next_tick_with_its_reason(record: Record, reason: str) -> None:
    out = accepted([asked(0), record, asked(2)], Partition(0))
    assert [parts_of(key)[0] for key, _ in out.rows] == [DUE_MS, REFUSED_MS, DUE_MS]
    assert unpack_refused(out.rows[1][1]) == (reason, record.key, record.value)
    assert out.refused == {reason: 1}


def sending_on() -> Partition:
    """Return one of three partitions, and not that of the id `a`."""
    return Partition((partition_of("a", 3) + 1) % 3)


@pytest.mark.parametrize("framing", [b"", b"\0\0\0\0\x07\0"], ids=["plain", "framed"])
@pytest.mark.parametrize("more", [{}, {"cancel": True}, {"millis": 7, "token": "t"}])
def test_an_id_outside_of_its_partition_is_sent_on_as_it_is_with_where_it_comes_from(
    more: dict[str, object], framing: bytes
) -> None:
    partition, record = sending_on(), asked(4, timerId="a", **more)
    record = replace(record, value=framing + (record.value or b""))
    out = accepted([record], partition, partitions=3)
    [(key, row)] = out.rows
    reason, sent_key, value = unpack_refused(row)
    assert (parts_of(key), reason, sent_key, out.refused, out.offsets) == ((REFUSED_MS, 4), None, record.key, {}, [4])
    assert value is not None
    assert value.startswith(record.value or b"-")
    sent = future_from(value)
    first = sent.forwarded
    assert (first.fromPartition, first.fromOffset, first.appendedMs) == (partition.number, 4, record.timestamp)
    sent.ClearField("forwarded")
    assert sent == future_from(record.value or b"")
    # And there it is taken for a forwarded one.
    home = Partition(partition_of("a", 3))
    arrived = accepted([replace(record, value=value, offset=9)], home, partitions=3)
    assert not arrived.refused
    assert len(arrived.rows) == (0 if more.get("cancel") else 1)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (asked(key=b"soon", timerId="a"), "key-not-a-second"),
        (asked(topic="", timerId="a"), "topic-missing"),
        (asked(timerId="a", condition=Condition.IF_PENDING, ifRequest="7:1"), "condition-invalid"),
        (asked(timerId="a", forwarded=Forwarded()), "id-in-foreign-partition"),
        (asked(timerId="a", forwarded=Forwarded(fromPartition=-1)), "id-in-foreign-partition"),
        (asked(timerId="a", copy=Copy(decidedOffset=1)), "id-in-foreign-partition"),
    ],
)
def test_a_request_that_would_be_refused_in_its_own_partition_is_not_sent_on(record: Record, reason: str) -> None:
    out = accepted([record], sending_on(), partitions=3)
    assert out.refused == {reason: 1}
    assert unpack_refused(out.rows[0][1]) == (reason, record.key, record.value)


@pytest.mark.parametrize(
    "more",
    [
        {"timerId": ""},
        {"forwarded": Forwarded(fromPartition=1)},
        {"forwarded": Forwarded(fromPartition=-1)},
        {"forwarded": Forwarded(fromOffset=-1)},
        {"forwarded": Forwarded(appendedMs=-1)},
    ],
)
def test_a_request_that_cannot_have_been_sent_on_is_refused(more: dict[str, Any]) -> None:
    out = accepted([asked(**{"timerId": "a", "forwarded": Forwarded()} | more)], Partition(0))
    assert out.refused == {"forwarded-invalid": 1}


@pytest.mark.parametrize("claimed_ms", [0, 10**15])
def test_no_request_can_be_older_than_it_is(claimed_ms: int) -> None:
    record = asked(4, timerId="a", forwarded=Forwarded(appendedMs=claimed_ms))
    told = timer_record(Future.FromString(record.value or b""), DUE_MS, record, 0)
    assert (told.first, told.first_ms) == ("0:0", min(claimed_ms, record.timestamp))


def test_the_topics_of_kept_requests_are_returned() -> None:
    """So that they are known by the time they are due."""
    records = [asked(0, topic="a"), asked(1, topic="b"), asked(2, topic="a"), asked(3, key=b"soon", topic="c")]
    assert accepted(records, Partition(0)).topics == {"a", "b"}


# --- far requests, and copies of them ------------------------------------------------------------------------------


def far_ahead(offset: int, appended_s: int, **more: object) -> Record:
    record = asked(offset, **more)
    record.timestamp = appended_s * 1000 + 999
    return record


def copied(offset: int, of: int, decided: int, *, age_s: int = 0, **more: object) -> Record:
    """Return a copy, appended ten seconds ahead, of a request that was appended a hundred ahead."""
    copy = Copy(offset=of, appended=SECOND - 100, decidedOffset=decided, decided=SECOND - 10 - age_s)
    return far_ahead(offset, SECOND - 10, copy=copy, **more)


@pytest.mark.parametrize("more", [{}, {"millis": 7}, {"timerId": "a"}, {"timerId": "a", "millis": 7}])
def test_a_request_due_later_than_the_horizon_is_left_to_the_lake(more: dict[str, object]) -> None:
    """Whether requests are looked at in one go or one by one."""
    records = [far_ahead(0, SECOND - 60), far_ahead(1, SECOND - 61, **more), far_ahead(2, SECOND - 59, **more)]
    out = accepted(records, Partition(0, horizon_s=60))
    assert (out.offsets, out.far) == ([0, 2], {1})
    assert out.decided.versions.get(b"a") == (Version(DUE_MS + more.get("millis", 0), 2) if "timerId" in more else None)
    assert accepted(records, Partition(0)).far == set()
    assert accepted([far_ahead(1, SECOND - 61, **more)], Partition(0, horizon_s=60)).topics == set()


def test_a_far_request_does_not_lie_within_a_batch_though_append_times_step_back() -> None:
    """Its copy keeps its offset, and a slice that ends there would take the batch around it for fired."""
    records = [far_ahead(0, SECOND - 60), far_ahead(1, SECOND - 61), far_ahead(2, SECOND - 59)]
    assert len(accepted(records, Partition(0, horizon_s=60)).rows) == 2
    assert len(accepted([records[1], records[0], records[2]], Partition(0, horizon_s=60)).rows) == 1


def test_a_far_request_of_an_id_takes_the_place_of_a_near_one_and_is_known_for_an_hour() -> None:
    records = [far_ahead(0, SECOND - 60, timerId="a"), far_ahead(1, SECOND - 60, timerId="a", key=b"1900000000")]
    out = accepted(records, Partition(0, horizon_s=60))
    assert [each.superseded for each in out.decided.withdrawn] == [True]
    assert out.decided.versions == {b"a": Version(1_900_000_000_000, 1, far=True, since_ms=SECOND * 1000 - 59_001)}
    assert out.decided.expiring[SECOND] == ([b"a"], [1])


def test_a_copy_is_kept_under_its_original_and_where_it_lies() -> None:
    out = accepted([copied(20, 3, 12, timerId="a", millis=5), copied(21, 4, 12)], Partition(0, horizon_s=60))
    assert [parts_of(key) for key, _ in out.rows] == [(DUE_MS + 5, 3), (DUE_MS, 4)]
    assert [copied_in(key) for key, _ in out.rows] == [Copied(20, 12), Copied(21, 12)]
    assert (out.offsets, out.copies) == ([12, 12], {"in time": 2})
    assert not out.far
    late = Partition(0, horizon_s=60)
    late.acquire([Sealed(end_ms=(SECOND + 1) * 1000, fence=15, horizon_s=60)], None)
    assert accepted([copied(14, 2, 12), copied(20, 3, 12)], late).copies == {"late": 1}


def test_of_copies_that_are_kept_it_tells_how_long_before_their_second_they_came() -> None:
    stale = copied(22, 5, 12, age_s=COPY_STALE_S + 1)
    out = accepted([copied(20, 3, 12), copied(21, 4, 12), stale], Partition(0, horizon_s=60))
    assert (out.copies["in time"], out.copies_lead_s) == (2, 20)


@pytest.mark.parametrize(
    ("record", "known", "worth"),
    [
        (copied(20, 3, 12, age_s=COPY_STALE_S), {}, "in time"),
        (copied(20, 3, 12, age_s=COPY_STALE_S + 1), {}, "stale"),
        (copied(20, 3, 12), {Original(3, 0, 0, 0).name: Version(DUE_MS, 3)}, "repeated"),
        (copied(20, 3, 12, timerId="a"), {b"a": Version(DUE_MS, 11)}, "in time"),
        (copied(20, 3, 12, timerId="a"), {b"a": Version(DUE_MS, 12)}, "overtaken"),
        (copied(20, 3, 12, timerId="a"), {b"a": Version(DUE_MS, 3, far=True)}, "in time"),
        (copied(20, 3, 12, timerId="a"), {b"a": Version(0, 0, cancelled=True, by=12)}, "overtaken"),
    ],
)
def test_a_copy_means_nothing_when_it_is_stale_repeated_or_overtaken(
    record: Record, known: dict[bytes, Version], worth: str
) -> None:
    out = accepted([record], Partition(0, horizon_s=60), known)
    assert out.copies == {worth: 1}
    assert len(out.rows) == len(out.offsets) == (worth == "in time")
    assert not out.refused


def test_workers_that_hold_the_original_take_no_copy_of_it() -> None:
    """The lake's horizon is shorter than theirs, or they have none."""
    for horizon_s in (0, 100):
        assert accepted([copied(20, 3, 12)], Partition(0, horizon_s)).copies == {"held": 1}
    grown = Partition(0, horizon_s=100)
    grown.acquire([Sealed(end_ms=2_000, fence=4, restore_from=4, horizon_s=60)], None)
    # Requests below it were judged by the horizon of before.
    assert accepted([copied(20, 3, 12), copied(21, 4, 12)], grown).copies == {"in time": 1, "held": 1}


def test_a_copy_that_was_decided_below_the_known_offset_wants_the_log_read_again() -> None:
    partition = Partition(0, horizon_s=60)
    partition.acquire([Sealed(end_ms=2_000, fence=13, restore_from=13, horizon_s=60)], None)
    with pytest.raises(KnownFromError) as raised:
        accepted([copied(20, 3, 12)], partition)
    assert raised.value.offset == 12


@pytest.mark.parametrize("record", [copied(20, 12, 12), copied(20, 3, 21), copied(20, 3, 12, cancel=True, timerId="a")])
def test_a_copy_of_a_later_request_is_refused(record: Record) -> None:
    assert accepted([record], Partition(0, horizon_s=60)).refused == {"copy-invalid": 1}


@pytest.mark.parametrize(("of", "decided"), [(-1, 12), (-(2**63), 12), (-1, -1), (3, -1)])
def test_a_copy_with_a_negative_offset_is_refused_and_its_neighbours_are_kept(of: int, decided: int) -> None:
    """No request has such an offset, and no key can name it."""
    records = [copied(20, 3, 12), copied(21, of, decided), copied(22, 4, 12)]
    out = accepted(records, Partition(0, horizon_s=60))
    assert out.refused == {"copy-invalid": 1}
    assert (out.copies, out.count, out.faults) == ({"in time": 2}, 3, {})
    assert sorted(parts_of(key) for key, _ in out.rows) == [(REFUSED_MS, 21), (DUE_MS, 3), (DUE_MS, 4)]


# --- conditions ------------------------------------------------------------------------------------------------------

ABSENT, IF_PENDING = Condition.IF_ABSENT, Condition.IF_PENDING


def begun() -> Partition:
    """Return a partition that is sealed up to its offset 5."""
    partition = Partition(0)
    seal = Sealed(fence=5, first_ms=1_000, end_ms=2_000)
    partition.acquire([seal], None)
    return partition


@pytest.mark.parametrize(
    "more",
    [
        {"condition": ABSENT},
        {"condition": ABSENT, "ifRequest": "0:7"},
        {"condition": IF_PENDING},
        {"condition": IF_PENDING, "cancel": True},
        {"condition": IF_PENDING, "ifRequest": "0:7"},
        {"condition": IF_PENDING, "ifRequest": "0:7", "cancel": True},
        # The record itself may lie below: it then means nothing.
        {"condition": IF_PENDING, "ifRequest": "0:9223372036854775807"},
        {"condition": IF_PENDING, "ifRequest": "0:9999999999999999999"},
    ],
)
def test_a_condition_is_judged_by_the_known_records_of_its_id(more: dict[str, object]) -> None:
    verdict = judged(asked(9, timerId="a", **more), 0, 1)
    assert isinstance(verdict, Cancel) if "cancel" in more else isinstance(verdict, Ask) and verdict.due_ms == DUE_MS


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"condition": 3}, "condition-invalid"),
        ({"condition": -1}, "condition-invalid"),
        # Nothing can be absent and cancelled.
        ({"condition": ABSENT, "cancel": True}, "condition-invalid"),
        ({"ifRequest": "0:7"}, "condition-invalid"),
        ({"ifRequest": "0:7", "cancel": True}, "condition-invalid"),
        ({"condition": ABSENT, "timerId": ""}, "id-missing"),
        ({"condition": IF_PENDING, "timerId": ""}, "id-missing"),
        ({"condition": IF_PENDING, "timerId": "", "cancel": True}, "id-missing"),
        ({"condition": ABSENT, "copy": Copy(offset=3, decidedOffset=5)}, "condition-invalid"),
        ({"condition": IF_PENDING, "copy": Copy(offset=3, decidedOffset=5)}, "condition-invalid"),
        # Other faults are reported as ever.
        ({"condition": ABSENT, "topic": ""}, "topic-missing"),
        ({"condition": ABSENT, "key": b"soon"}, "key-not-a-second"),
        ({"condition": ABSENT, "millis": 1_000}, "millis-out-of-range"),
    ],
)
def test_a_condition_that_cannot_be_judged_is_refused(more: dict[str, Any], reason: str) -> None:
    assert judged(asked(9, **({"timerId": "a"} | more)), 0, 1) == reason


@pytest.mark.parametrize(
    "name",
    [
        "7",
        ":7",
        "0:",
        "0",
        "1:7",
        "00:7",
        " 0:7",
        "0: 7",
        "0:-7",
        "0:+7",
        "0:7:7",
        "0:0x7",
        "0:\u0667",
        "0:" + "1" * 20,
    ],
)
def test_a_request_that_no_reply_names_so_cannot_be_meant(name: str) -> None:
    record = asked(9, timerId="a", condition=IF_PENDING, ifRequest=name)
    assert judged(record, 0, 1) == Reason.CONDITION_INVALID
    assert expected_in(Future(ifRequest=name), 0) is None


def test_the_request_that_is_meant_is_named_by_partition_and_offset() -> None:
    assert expected_in(Future(ifRequest="0:7"), 0) == 7
    assert expected_in(Future(ifRequest="12:0"), 12) == 0
    # No offset is larger, so none is meant.
    assert expected_in(Future(ifRequest="0:9999999999999999999"), 0) == 2**63 - 1


def test_an_ignored_request_is_not_kept_and_its_neighbours_are() -> None:
    records = [
        asked(5, timerId="a"),
        asked(6, timerId="a", condition=ABSENT),
        asked(7, timerId="b", condition=ABSENT),
        asked(8, timerId="a", condition=IF_PENDING, ifRequest="0:6"),
        asked(9, timerId="a", condition=IF_PENDING, ifRequest="0:5", topic="moved"),
    ]
    out = accepted(records, begun())
    assert (sorted(parts_of(key)[1] for key, _ in out.rows), out.offsets) == ([5, 7, 9], [5, 7, 9])
    assert out.decided.ignored == {6: DUE_MS, 8: DUE_MS}
    assert [parts_of(each.key) for each in out.decided.withdrawn] == [(DUE_MS, 5)]
    assert not out.refused


# --- callbacks in a field of their own -------------------------------------------------------------------------------


def shaped(offset: int, **more: Any) -> Record:
    """A request with its callback in the field `callBackRecord`."""
    callback = more.pop("callback", {"topic": "calls", "key": b"\xff"})
    given = {"callBackKey": "", "callBack": b"", "topic": "", "callBackRecord": Callback(**callback)}
    return asked(offset, **(given | more))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"callback": {}}, "topic-missing"),
        ({"callback": {"topic": "t", "partition": -1}}, "callback-invalid"),
        ({"callback": {"topic": "t", "partition": 1, "partitionKey": b"k"}}, "callback-invalid"),
        ({"callBackKey": "k"}, "callback-invalid"),
        ({"callBack": b"v"}, "callback-invalid"),
    ],
)
def test_a_callback_that_contradicts_itself_is_refused_and_its_neighbours_are_kept(
    more: dict[str, Any], reason: str
) -> None:
    partition = Partition(0)
    out = accepted([asked(5), shaped(6, **more), asked(7)], partition)
    assert out.refused == {reason: 1}
    assert [parts_of(key) for key, _ in out.rows] == [(DUE_MS, 5), (REFUSED_MS, 6), (DUE_MS, 7)]


@pytest.mark.parametrize("named", [{}, {"timerId": "a"}])
def test_callbacks_in_their_field_are_kept_among_others(named: dict[str, Any]) -> None:
    partition = Partition(0)
    more = named | ({"replyTopic": "r"} if named else {})
    out = accepted([asked(5), shaped(6, **more), shaped(7, millis=5)], partition)
    assert [offset for key, row in out.rows for offset in (parts_of(key)[1],)] == [5, 6, 7]
    assert (out.topics, out.refused) == ({"callbacks", "calls"}, {})
    together = accepted([asked(5), shaped(6)], partition)
    assert [count_of(key) for key, _ in together.rows] == [2]


@pytest.mark.parametrize("named", [{}, {"timerId": "a", "replyTopic": "r"}])
def test_far_callbacks_in_their_field_are_left_to_the_lake(named: dict[str, Any]) -> None:
    partition = Partition(0, horizon_s=60)
    far = replace(shaped(6, **named), timestamp=(SECOND - 61) * 1000)
    out = accepted([far], partition)
    assert (out.rows, out.far) == ([], {6})


# --- the framing of a schema registry --------------------------------------------------------------------------------

# The first message of schema 1234, as Confluent's serializers write it, and the same in the long way.
FRAMES = [b"\0\0\0\x04\xd2\0", b"\0\0\0\x04\xd2\x02\0", b"\0\xff\xff\xff\xff\x04\x02\x06"]


@pytest.mark.parametrize("frame", FRAMES)
def test_a_future_in_the_framing_of_a_schema_registry_is_kept_without_it(frame: bytes) -> None:
    partition = Partition(0)
    plain = [asked(5), asked(6, timerId="a"), asked(7, cancel=True, timerId="a", replyTopic="r")]
    wrapped = [replace(record, value=frame + (record.value or b"")) for record in plain]
    out, wanted = accepted(wrapped, partition), accepted(plain, partition)
    singles = [single for each in wanted.rows for single in batches.singles(*each)]
    assert (out.rows, out.offsets, out.topics) == (singles, wanted.offsets, wanted.topics)
    assert (out.decided, out.refused) == (wanted.decided, {})


@pytest.mark.parametrize(
    "value",
    [
        b"\0",
        b"\0\0\0\x04\xd2",
        b"\0\0\0\x04\xd2\x01" + (asked().value or b""),
        b"\0\0\0\x04\xd2\x02\xff" + (asked().value or b""),
        b"\0\0\0\x04\xd2\x7e" + (asked().value or b""),
        b"\0\0\0\x04\xd2\0" + b"\xff",
        b"\0\0\0\x04\xd2\0" + FRAMES[0] + (asked().value or b""),
    ],
)
def test_a_value_in_another_framing_is_refused_as_it_came(value: bytes) -> None:
    partition = Partition(0)
    out = accepted([asked(5), replace(asked(6), value=value)], partition)
    assert out.refused.keys() <= {"value-not-a-future", "topic-missing"}
    assert out.refused.total() == 1
    assert unpack_refused(out.rows[-1][1])[2] == value


# --- records on which the code fails ---------------------------------------------------------------------------------


class Broken(Partition):
    """A partition that fails on the offset 6, unless it is refused."""

    def place(self, due_ms: int, offset: int, copied: Copied | None = None) -> bytes | None:
        if offset == 6 and due_ms != REFUSED_MS:
            raise ZeroDivisionError("place")
        return super().place(due_ms, offset, copied)


def assert_only_6_is_set_aside(out: Accepted, message: str) -> None:
    """The second of three is refused, and its neighbours are kept."""
    keys = sorted(parts_of(key) for key, row in out.rows for key, row in batches.singles(key, row))
    assert keys == [(REFUSED_MS, 6), (DUE_MS, 5), (DUE_MS, 7)]
    assert (out.count, out.offsets) == (3, [5, 6, 7])
    assert out.refused == {Reason.UNREADABLE: 1}
    refused = [unpack_refused(row) for key, row in out.rows if parts_of(key)[0] == REFUSED_MS]
    assert refused == [(Reason.UNREADABLE, b"%d" % SECOND, asked(6, timerId="6").value)]
    assert {offset: str(error) for offset, error in out.faults.items()} == {6: message}


def three(**more: object) -> list[Record]:
    """Return three requests with timer ids; the first one has *more*."""
    return [asked(5, timerId="5", **more), asked(6, timerId="6"), asked(7, timerId="7")]


def test_a_request_that_cannot_be_placed_is_set_aside_and_its_neighbours_are_kept() -> None:
    # One that is looked at for itself has all of a fetch looked at so.
    out = accepted([asked(5, timerId="5", millis=0, condition=0), *three()[1:]], Broken(0))
    assert out.refused == {}
    partition = Broken(0)
    partition.acquire([Sealed(end_ms=(SECOND + 1) * 1000, fence=5)], None)
    out = accepted(three(), partition)
    assert_only_6_is_set_aside(out, "place")
    assert sorted(out.decided.versions) == [b"5", b"7"]


def test_a_record_that_cannot_be_judged_is_set_aside_and_its_neighbours_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail_on_6(record: wire.Record, number: int, partitions: int) -> Verdict:
        if record.offset == 6:
            raise ZeroDivisionError("judged")
        return judged(record, number, partitions)

    monkeypatch.setattr(accepting, "judged", fail_on_6)
    partition = Partition(0)
    partition.acquire([Sealed(end_ms=(SECOND + 1) * 1000, fence=5)], None)
    assert_only_6_is_set_aside(accepted(three(), partition), "judged")


@pytest.mark.parametrize("at_once", [True, False])
def test_a_record_that_cannot_be_decided_on_is_set_aside_and_its_neighbours_are_kept(
    monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    def fail_on_6(records: Iterable[TimerRecord], known: Known, partition: Partition) -> Decided:
        records = list(records)
        if any(record.offset == 6 for record in records):
            raise ZeroDivisionError("decide")
        return decide(records, known, partition)

    monkeypatch.setattr(accepting, "decide", fail_on_6)
    out = accepted(three() if at_once else three(replyTopic="", condition=ABSENT), begun())
    assert_only_6_is_set_aside(out, "decide")
    assert sorted(out.decided.versions) == [b"5", b"7"]


def test_a_record_on_which_looking_at_all_at_once_fails_is_set_aside_and_its_neighbours_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail_on_6(name: bytes) -> int:
        if name == b"6":
            raise ZeroDivisionError("hash_of")
        return hash_of(name)

    monkeypatch.setattr(verdicts, "hash_of", fail_on_6)
    out = accepted(three(), Partition(0))
    assert_only_6_is_set_aside(out, "hash_of")
    assert sorted(out.decided.versions) == [b"5", b"7"]


def test_of_several_records_on_which_the_code_fails_each_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_on_even(records: Iterable[TimerRecord], known: Known, partition: Partition) -> Decided:
        records = list(records)
        if any(record.offset % 2 == 0 for record in records):
            raise ZeroDivisionError
        return decide(records, known, partition)

    monkeypatch.setattr(accepting, "decide", fail_on_even)
    out = accepted([asked(offset, timerId="a") for offset in range(6)], Partition(0))
    assert sorted(out.faults) == [0, 2, 4]
    assert (out.refused, out.offsets) == ({Reason.UNREADABLE: 3}, [0, 1, 2, 3, 4, 5])
    assert out.decided.versions == {b"a": Version(DUE_MS, 5)}


def test_an_error_outside_of_a_record_is_no_fault_of_it() -> None:
    """A store that cannot be read, and records to read again, are for the partition's owner."""

    def broken(names: Sequence[bytes]) -> list[Version | None]:
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        accept(three(), Partition(0), 1, broken)


def test_a_record_with_any_bytes_gets_a_verdict() -> None:
    chance = random.Random(4)
    whole = asked(0, timerId="a", millis=5, condition=IF_PENDING, ifRequest="0:3", replyTopic="r").value or b""
    whole += asked(0, copy=Copy(offset=-5, appended=-1, decidedOffset=2**63 - 1, decided=-(2**63))).value or b""
    for _ in range(300):
        records = []
        for offset in range(5, 15):
            value = bytearray(whole)
            for _ in range(chance.randrange(4)):
                value[chance.randrange(len(value))] = chance.randrange(256)
            key = chance.choice([b"%d" % SECOND, b"1", None, b"\xff"])
            records.append(Record(key, bytes(value[: chance.randrange(len(value) + 1)]), offset, DUE_MS - 5_000))
        out = accepted(records, begun())
        assert (out.count, out.faults) == (10, {})
        kept = {parts_of(single)[1] for key, row in out.rows for single, _ in batches.singles(key, row)}
        assert kept == set(out.offsets) <= set(range(5, 15))


# --- rows of refused requests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, b"", b"key", b"\x00\xff"])
@pytest.mark.parametrize("value", [None, b"", b"value", bytes(range(256))])
@pytest.mark.parametrize("reason", [Reason.KEY_MISSING, Reason.VALUE_NOT_A_FUTURE])
def test_a_refused_record_comes_back_byte_for_byte(reason: Reason, key: bytes | None, value: bytes | None) -> None:
    assert unpack_refused(pack_refused(reason, Record(key, value))) == (reason, key, value)
