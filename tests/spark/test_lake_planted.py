"""Each planted fault is found by an audit of a real lake, and named; and an honest history has none."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from lake_rows import of, seal
from pyspark.sql import DataFrame, Row, SparkSession

from kafka_timers.core.callbacks import Shown
from kafka_timers.core.routing import hash_of
from kafka_timers.core.wire import Callback, Future, Header, callback_headers
from kafka_timers.lake import audit as audits
from kafka_timers.lake.comparison import Comparison
from kafka_timers.lake.records import requests_of
from kafka_timers.lake.schema import POSITIONS, REQUESTS, SEALS
from kafka_timers.lake.service import Service, TopicFacts
from kafka_timers.lake.tables import append, constant, root_of
from kafka_timers.settings import LakeSettings

FIRST, LAST = 5000, 5200
COUNTS = {"t": 3, "u": 3, "s": 2, "r": 1}
FENCE = 20


def asked(due_s: int, future: Future | None = None, appended_s: int = 4900, **more: Any) -> tuple[int, int, Future]:
    """Return append, due and Future of a record; *due_s* 0 is that of a cancel."""
    return appended_s, due_s, future or Future(**({"callBackTopic": "t", "callBack": b"v"} | more))


OWN = [Header(key="own", value=b"1"), Header(key="own"), Header(key="other", value=b"")]
REQUESTED = [
    asked(5010, callBackKey="k", token="tok", headers=OWN),
    asked(5010),
    asked(5010, Future(callBackRecord=Callback(topic="t", key=b"\xff", partition=1))),
    asked(5011, Future(callBackRecord=Callback(topic="t", value=b"", partitionKey=b"p"))),
    asked(5011, timerId="a", replyTopic="r"),
    asked(0, Future(timerId="a", cancel=True, replyTopic="r"), appended_s=5001),
    asked(5012, timerId="b", tombstoneTopic="s", tombstoneKey="sk"),
    asked(90_000, timerId="c"),
    asked(5012, callBackKey="k", millis=7),
    asked(5012, callBackKey="k", millis=7),
    asked(4000, appended_s=3900),
    asked(5100, callBackKey="k", callBack=b"", appended_s=5050),
    asked(5100, callBackTopic="u"),
    asked(5101, timerId="d", replyTopic="r"),
    asked(5102, timerId="d", replyTopic="r", appended_s=5060),  # moves it
]
FIRED = {4000: [10], 5010: [0, 1, 2], 5011: [3], 5012: [6, 8, 9], 5100: [11, 12], 5102: [14]}
HONEST_SEALS = [
    seal(4999, 11, [10], first=1),
    seal(5010, FENCE, FIRED[5010], first=5000),
    seal(5011, FENCE, FIRED[5011]),
    seal(5012, FENCE, FIRED[5012]),
    seal(5099, FENCE, first=5013),
    seal(5100, FENCE, FIRED[5100]),
    seal(5200, FENCE, FIRED[5102], first=5101),
]


@dataclass
class Came:
    """A record of a callback, tombstone or reply topic."""

    of: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    at_ms: int
    partition: int = 0
    offset: int = 0
    type: int = 1


@dataclass
class History:
    """What is in the lake and on the topics of partition *number*."""

    number: int
    seals: list[Row] = field(default_factory=lambda: list(HONEST_SEALS))
    came: list[Came] = field(default_factory=list)

    def callback(self, of: int, at_ms: int | None = None) -> Came:
        """Return the callback of a request, to be changed; with *at_ms* another one."""
        found = next(each for each in self.came if each.of == of and each.topic in ("t", "u"))
        if at_ms is not None:
            found = Came(of, found.topic, found.key, found.value, list(found.headers), at_ms, found.partition, 99)
            self.came.append(found)
        return found

    def at(self, topic: str, of: int) -> Came:
        return next(each for each in self.came if (each.of, each.topic) == (of, topic))

    def drop(self, of: int, topics: Collection[str] = ("t", "u")) -> None:
        self.came = [each for each in self.came if each.of != of or each.topic not in topics]


def callback_of(number: int, offset: int, at_ms: int) -> Came:
    """Return what the service writes for a request."""
    _, due_s, future = REQUESTED[offset]
    shown, asked = Shown.of(future), future.callBackRecord
    name = b"%d:%d" % (number, offset)
    told = callback_headers(future, due_s, name)  # type: ignore[arg-type]
    headers = [(key, value.encode() if isinstance(value, str) else value) for key, value in told]
    hashed = asked.partitionKey if asked.HasField("partitionKey") else shown.key
    at = asked.partition if asked.HasField("partition") else hash_of(hashed) % 3 if hashed is not None else 2
    return Came(offset, shown.topic, shown.key, shown.value, headers, at_ms, at, offset)


def answer(number: int, offset: int, outcome: bytes, about: int | None = None, at_s: int = 5001) -> Came:
    headers = [("timer-answer", outcome), ("timer-answer-to", b"%d:%d" % (number, offset))]
    if about is not None:
        headers.append(("timer-answer-request", b"%d:%d" % (number, about)))
    return Came(offset, "r", b"id", b"", list(headers), at_s * 1000)


def honest(number: int) -> History:
    fired = [offset for offsets in FIRED.values() for offset in offsets if offset != 10]
    came = [
        callback_of(number, offset, REQUESTED[offset][1] * 1000 + REQUESTED[offset][2].millis + 20) for offset in fired
    ]
    came.append(Came(6, "s", b"sk", None, [("timer-request", b"%d:6" % number)], 5_012_020))
    came += [
        answer(number, 4, b"UNKNOWN", at_s=4900),
        answer(number, 5, b"CANCELLED", 4),
        answer(number, 13, b"UNKNOWN", at_s=4900),
        answer(number, 14, b"MOVED", 13, at_s=5060),
    ]
    return History(number, came=came)


Fault = Callable[[History], object]
Found = list[tuple[str, int | None, str]]


def sets(what: Callable[[History], Any], **values: Any) -> Fault:
    """Return the fault that what a history has is other than it was."""

    def plant(history: History) -> None:
        for name, value in values.items():
            setattr(what(history), name, value)

    return plant


def headers_without(name: str) -> Fault:
    def plant(history: History) -> None:
        callback = history.callback(0)
        callback.headers = [each for each in callback.headers if each[0] != name]

    return plant


def renamed(history: History, of: int, to: int, at_ms: int | None = None) -> None:
    callback, name = history.callback(of, at_ms), b"%d:%d" % (history.number, to)
    callback.headers = [(key, name if key == "timer-request" else value) for key, value in callback.headers]


def ahead(history: History) -> None:
    """Have the callback of what is due in a day come now."""
    history.came.append(callback_of(history.number, 7, 5_050_000))


def again(history: History) -> None:
    """Have the callback of what was done long before come again."""
    history.came.append(callback_of(history.number, 10, 5_150_000))


def unserved(history: History) -> None:
    history.seals = HONEST_SEALS[:1]
    history.came = [each for each in history.came if each.topic == "r"]


def swapped(history: History) -> None:
    one, other = history.callback(8), history.callback(9)
    one.offset, other.offset = other.offset, one.offset


def taken_back(history: History) -> None:
    history.came.append(callback_of(history.number, 4, 5_011_020))


def says(of: int, outcome: bytes, about: int | None = None) -> Fault:
    """Return the fault that an answer says something else."""

    def plant(history: History) -> None:
        told = history.at("r", of)
        told.headers = answer(history.number, of, outcome, about).headers

    return plant


def first(of: int) -> Callable[[History], Came]:
    return lambda history: history.callback(of)


NONE: Found = []
FAULTS: Mapping[str, tuple[Fault, Found]] = {
    "nothing": (lambda _: None, NONE),
    "a service that had been slow, by less than is a finding": (sets(first(1), at_ms=5_010_900), NONE),
    # --- which seconds are sealed
    "no seal at all": (
        sets(lambda history: history, seals=[], came=[]),
        [("unsealed", None, "the partition was never sealed, timer-sealed has no more")],
    ),
    "nobody serves the partition since long": (
        unserved,
        [("unsealed", None, "is sealed up to 4999, timer-sealed has no more of it, and the time range ends at 5200")],
    ),
    "the last seals are dropped": (
        lambda history: (history.seals.pop(), history.drop(14)),
        [("unsealed", None, "is sealed up to 5100")],
    ),
    "a seal between others is dropped": (
        lambda history: history.seals.pop(4),
        [("gap", None, "follows one that ended at 5012")],
    ),
    # --- how late
    "a seal says that it was late": (
        lambda history: history.seals.__setitem__(
            5, Row(**(HONEST_SEALS[5].asDict() | {"lateness_max_ms": 3_540_000}))
        ),
        [("late", None, "1 seals say that callbacks were more than 2000 ms late, the latest by 3540000 ms")],
    ),
    # --- what came
    "dropped": (lambda history: history.drop(1), [("missing", 1, "no callback in t")]),
    "doubled": (lambda history: history.callback(1, 5_010_500), [("doubled", 1, "2 callbacks, the first in t")]),
    "5 s early": (sets(first(1), at_ms=5_005_000), [("early", 1, "callback in t 5000 ms before it was due")]),
    "early, by the clock of a worker": (
        sets(first(1), at_ms=5_009_999, type=0),
        [("early", 1, "1 ms before it was due by the worker's clock")],
    ),
    "a day early": (ahead, [("early", 7, "callback in t 84950000 ms before it was due")]),
    "early, and again in time": (
        lambda history: history.callback(11, 5_009_000),
        [("doubled", 11, "2 callbacks"), ("early", 11, "91000 ms before it was due")],
    ),
    "again, long after it was done": (
        again,
        [("unexpected", 10, "callback in t, and its request was done")],
    ),
    "names no known request": (
        lambda history: renamed(history, 1, 18),
        [("missing", 1, "no callback"), ("unexpected", 18, "timer-request has no such request")],
    ),
    "names what is beyond the log": (
        lambda history: renamed(history, 1, 4711, 5_050_000),
        [("unexpected", 4711, "timer-request has no such request")],
    ),
    "names a cancel": (
        lambda history: renamed(history, 1, 5, 5_050_000),
        [("unexpected", 5, "the record that it names is a cancel")],
    ),
    "of another second": (
        sets(first(1), headers=[("timer-expiry", b"5011"), ("timer-request", b"N:1")]),
        [("unexpected", 1, "for second 5011; asked for were t and second 5010")],
    ),
    "on another topic": (
        sets(first(1), topic="u"),
        [("unexpected", 1, "callback in u for second 5010; asked for were t")],
    ),
    "of a cancelled timer": (taken_back, [("stale-version", 4, "record 5 had withdrawn it")]),
    # --- what it is
    "another value": (sets(first(0), value=b"w"), [("content", 0, "value of the callback in t")]),
    "no value": (sets(first(0), value=None), [("content", 0, "value of the callback in t")]),
    "no value in place of an empty one": (sets(first(3), value=None), [("content", 3, "value of the callback in t")]),
    "a value in place of none": (sets(first(2), value=b""), [("content", 2, "value of the callback in t")]),
    "another key": (
        sets(first(1), key=b"k", partition=hash_of(b"k") % 3),
        [("content", 1, "key of the callback in t")],
    ),
    "an empty key in place of none": (
        sets(first(1), key=b"", partition=hash_of(b"") % 3),
        [("content", 1, "key of the callback in t")],
    ),
    "no token": (headers_without("timer-token"), [("content", 0, "token of the callback in t")]),
    "no header of its own": (headers_without("other"), [("content", 0, "headers of the callback in t")]),
    "headers in another order": (
        lambda history: history.callback(0).headers.reverse(),
        [("content", 0, "headers of the callback in t")],
    ),
    "one header more": (
        lambda history: history.callback(0).headers.append(("more", b"")),
        [("content", 0, "headers of the callback in t")],
    ),
    "no millisecond": (
        lambda history: history.callback(8).headers.pop(1),
        [("content", 8, "headers of the callback in t")],
    ),
    # --- where it lies
    "in another partition than asked for": (
        sets(first(2), partition=0),
        [("partition", 2, "in partition 0 of t, and partition 1 was to have it")],
    ),
    "in another partition than its partition key gives": (
        sets(first(3), partition=(hash_of(b"p") + 1) % 3),
        [("partition", 3, f"and partition {hash_of(b'p') % 3} was to have it")],
    ),
    "in another partition than its key gives": (
        sets(first(11), partition=(hash_of(b"k") + 1) % 3),
        [("partition", 11, f"and partition {hash_of(b'k') % 3} was to have it")],
    ),
    "two of a moment in the wrong order": (swapped, [("order", 8, "behind that of request N:9")]),
    # --- tombstones and answers
    "no tombstone": (lambda history: history.drop(6, ["s"]), [("content", 6, "no tombstone in s")]),
    "a tombstone with another key": (
        lambda history: setattr(history.at("s", 6), "key", b"other"),
        [("content", 6, "its tombstone is not the one that was asked for in s")],
    ),
    "a tombstone that is none": (
        lambda history: setattr(history.at("s", 6), "value", b""),
        [("content", 6, "its tombstone is not the one")],
    ),
    "no answer": (lambda history: history.drop(5, ["r"]), [("answer", 5, "no answer in r")]),
    "cancelled, and it has fired": (
        says(5, b"CANCELLED", 1),
        [("answer", 5, "answered CANCELLED in r, and request 1 has fired")],
    ),
    "moved, by a cancel": (says(5, b"MOVED", 4), [("answer", 5, "answered MOVED in r, and what asked is a cancel")]),
    "too late, and it was withdrawn": (
        says(5, b"TOO_LATE", 4),
        [("answer", 5, "answered TOO_LATE in r, and request 4 was withdrawn")],
    ),
    "ignored, and it counts": (
        says(14, b"IGNORED", 13),
        [("answer", 14, "answered IGNORED in r, and what asked has counted")],
    ),
    "an id that was forgotten": (says(5, b"UNKNOWN"), NONE),
}
LATE = ("late", 12, "1 callbacks in u more than 2000 ms late, the latest by 3540000 ms")
NUMBERS = {name: number for number, name in enumerate(FAULTS)}


def requested(spark: SparkSession) -> list[Row]:
    """Return the rows of all requests, in partition 0, as a landing makes them."""
    records = [
        (b"%d" % due_s, future.SerializeToString(), 0, offset, datetime.fromtimestamp(appended_s, UTC), None)
        for offset, (appended_s, due_s, future) in enumerate(REQUESTED)
    ]
    columns = "key binary, value binary, partition int, offset bigint, timestamp timestamp, "
    frame = spark.createDataFrame(records, columns + "headers array<struct<key string, value binary>>")
    return requests_of(frame, 1).collect()


def in_partition(rows: Iterable[Row], number: int, **other: object) -> list[Row]:
    return [Row(**(row.asDict(recursive=False) | {"partition": number} | other)) for row in rows]


class Planted(Comparison):
    """What came, out of memory in place of Kafka."""

    frame: DataFrame

    def records(self, topics: Collection[str]) -> DataFrame:
        return self.frame.where(self.frame["topic"].isin(sorted(topics)))

    def facts(self, topics: Collection[str]) -> TopicFacts:
        return TopicFacts({name: COUNTS[name] for name in topics}, ["u"], set())


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> audits.Audit:
    """Plant each fault in a partition of its own, and audit all of them at once."""
    settings = LakeSettings(lake=str(tmp_path_factory.mktemp("lake")))
    root, rows = root_of(settings), requested(spark)
    seals: list[Row] = []
    came: list[tuple] = []
    for number, (plant, _) in enumerate(FAULTS.values()):
        history = honest(number)
        plant(history)
        seals += in_partition(history.seals, number)
        for each in history.came:
            headers = [(key, value and value.replace(b"N:", b"%d:" % number)) for key, value in each.headers]
            at = datetime.fromtimestamp(each.at_ms / 1000, UTC)
            came.append((each.topic, each.partition, each.offset, at, each.type, each.key, each.value, headers))
    # One of all of them is late.
    late = next(at for at, row in enumerate(came) if row[0] == "u")
    came[late] = (*came[late][:3], datetime.fromtimestamp(8640, UTC), *came[late][4:])
    # What a record counts by depends on its partition, and is not asked about here.
    requests = [row for number in range(len(FAULTS)) for row in in_partition(rows, number, digest=None)]
    seals = [Row(**(row.asDict() | {"partitions": len(FAULTS), "digests": None})) for row in seals]
    append(of(spark, requests, REQUESTS.columns), root, REQUESTS)
    append(of(spark, seals, SEALS.columns), root, SEALS)
    positions = [("timer-request", number, FENCE, 1) for number in range(len(FAULTS))]
    append(constant(spark, positions, POSITIONS.columns), root, POSITIONS)
    columns = "topic string, partition int, offset bigint, timestamp timestamp, timestampType int, key binary, "
    Planted.frame = spark.createDataFrame(
        came, columns + "value binary, headers array<struct<key string, value binary>>"
    ).persist()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(audits, "Comparison", Planted)
        return audits.audit(
            spark,
            settings,
            10_000,
            first=FIRST,
            last=LAST,
            callbacks=True,
            late_ms=2_000,
            shown=1_000,
            service=Service("cluster", {}),
        )


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_nothing_else(told: audits.Audit, fault: str) -> None:
    number, (_, wanted) = NUMBERS[fault], FAULTS[fault]
    found = [(row.kind, row.offset, row.detail) for row in told.findings if row.partition == number]
    found = [each for each in found if each != LATE]
    assert sorted(each[:2] for each in found) == sorted(each[:2] for each in wanted), found
    for kind, offset, words in wanted:
        assert any(each[:2] == (kind, offset) and words.replace("N:", f"{number}:") in each[2] for each in found), found


def test_callbacks_that_were_late_are_a_finding_for_their_topic(told: audits.Audit) -> None:
    assert [(row.kind, row.offset, row.detail) for row in told.findings if row.kind == "late" and row.offset] == [LATE]


def test_an_audit_says_what_it_has_not_checked(told: audits.Audit) -> None:
    assert told.partitions == len(FAULTS)
    assert len(told.sealed) == len(FAULTS) - 2
    assert told.sealed[NUMBERS["nothing"]] == (FIRST, LAST)
    assert told.sealed[NUMBERS["the last seals are dropped"]] == (FIRST, 5100)
    assert not told.undecided
    assert [each for each in told.unchecked if "retention" in each or "by a broker's clock" in each] == [
        "what retention may have deleted since the time range began in u",
        "when callbacks came to t by a broker's clock: their times are those of the workers",
    ]
