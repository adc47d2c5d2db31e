"""Each planted fault is found by an audit of a real lake and real topics, and named; an honest history has none."""

import asyncio
import hashlib
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic
from batches import digest_of_batches
from brokers import administering, delete_records
from forged import forged
from honest_lake import TOPIC_PARTITIONS, Came, callback_of, id_in
from lake_rows import HORIZON_S, RECORD, of
from planner_stand_in import PlannerStandIn
from pyspark.sql import Row, SparkSession

from kafka_timers.core.chain import Day
from kafka_timers.core.plan_history import Written
from kafka_timers.core.routing import hash_of, partition_of
from kafka_timers.core.schedules import Planned, Schedule, run_id
from kafka_timers.core.sums import fired_digest_of, hash_of_record
from kafka_timers.core.versions import headers_of_reply
from kafka_timers.core.wire import Callback, Copy, Forwarded, Future, Header, Reply, last_second_of
from kafka_timers.dev.broker import EmbeddedKafka
from kafka_timers.lake import audit as audits
from kafka_timers.lake.records import requests_of
from kafka_timers.lake.schema import CANCEL, PLANNED, POSITIONS, REJECTED, REQUEST, REQUESTS, SCHEDULES, SEALS
from kafka_timers.lake.sealed import seals_of
from kafka_timers.lake.service import Service
from kafka_timers.lake.tables import append, constant, root_of
from kafka_timers.settings import LakeSettings
from kafka_timers.v1.sealed_pb2 import Sealed

FIRST, LAST = 5000, 5200
COUNTS = {"t": TOPIC_PARTITIONS, "u": TOPIC_PARTITIONS, "s": 2, "r": 1}
FENCE = 28
PAGE = Path(__file__).parents[2] / "docs" / "lake.md"


def asked(due_s: int, future: Future | None = None, appended_s: int = 4900, **more: Any) -> tuple[int, int, Future]:
    """Return append, due and Future of a record; *due_s* 0 is that of a cancel."""
    return appended_s, due_s, future or Future(**({"callBackTopic": "t", "callBack": b"v"} | more))


OWN = [Header(key="own", value=b"1"), Header(key="own"), Header(key="other", value=b"")]
REQUESTED = [
    asked(5010, callBackKey="k", token="tok", headers=OWN),
    asked(5010),
    asked(5010, Future(callBackRecord=Callback(topic="t", key=b"\xff", partition=1))),
    asked(5011, Future(callBackRecord=Callback(topic="t", value=b"", partitionKey=b"p"))),
    asked(5011, timerId="a", replyTopic="r", tombstoneTopic="s", tombstoneKey="ak"),
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
    asked(-1, appended_s=4950),  # is refused
    asked(5011, callBackTopic="gone"),  # is rejected when it is due
    asked(5100, appended_s=2900),  # far
    asked(5100, copy=Copy(offset=17, appended=2900, decidedOffset=18, decided=4900)),
    asked(90_000),
    asked(5100, timerId="e"),
    asked(0, Future(timerId="e", cancel=True), appended_s=5050),
    asked(5150, appended_s=5090),  # a run of a schedule
    asked(0, Future(timerId="nobody", cancel=True), appended_s=5091),
]
FIRED = {4000: [10], 5010: [0, 1, 2], 5011: [3], 5012: [6, 8, 9], 5100: [11, 12, 17], 5102: [14], 5150: [22]}
FAR = (7, 17, 19)
REFUSED, REJECT = 15, 16
REASONS = {REFUSED: "key-not-a-second", REJECT: "topic-unknown"}
RUN, CANCEL_OF_NOBODY = 22, 23
RUN_S, PLANS_FROM_S = 5150, 5040
PLANS_END = 3000
# Behind those of `REQUESTED`, a record that is sent on to the next partition, and one that came from the one before.
FOREIGN, ARRIVED = 24, 25


def sent_from(number: int, offset: int = FOREIGN) -> Forwarded:
    """Return what a record of partition *number* says that came from the one before it."""
    return Forwarded(fromPartition=(number - 1) % len(FAULTS), fromOffset=offset, appendedMs=4_950_000)


@cache
def asked_in(number: int, *, is_true: bool = False) -> list[tuple[int, int, Future]]:
    """Return the requests of partition *number*, with timer ids that belong there; if *is_true*, before any change."""
    every = []
    for appended_s, due_s, asked in REQUESTED:
        future = Future()
        future.CopyFrom(asked)
        if asked.timerId:
            future.timerId = id_in(number, len(FAULTS), asked.timerId)
        every.append((appended_s, due_s, future))
    [run] = planner_of(number).asked
    every[RUN] = (*every[RUN][:2], Future.FromString(run.value or b""))
    ids = (id_in(each, len(FAULTS), "f") for each in ((number + 1) % len(FAULTS), number))
    foreign, arrived = (Future(callBackTopic="t", callBack=b"v", timerId=each) for each in ids)
    arrived.forwarded.CopyFrom(sent_from(number))
    every += [(4950, 5300, foreign), (5011, 5300, arrived)]
    change = CHANGES.get(list(FAULTS)[number])
    if change and not is_true:
        change(number, every)
    return every


def moments(*at_s: int) -> Schedule:
    """Return a schedule with runs at these seconds."""
    schedule = Schedule()
    schedule.instants.at_ms[:] = [each * 1000 for each in at_s]
    schedule.callback.callBackTopic, schedule.callback.callBack = "t", b"run"
    return schedule


@cache
def planner_of(number: int) -> PlannerStandIn:
    """Return the planner of a schedule whose run is asked for in partition *number*."""
    names = (f"s{each}" for each in itertools.count())
    name = next(each for each in names if partition_of(run_id(each, RUN_S * 1000), len(FAULTS)) == number)
    planner = PlannerStandIn()
    planner.put(name.encode(), moments(RUN_S), PLANS_FROM_S * 1000)
    planner.ticks(PLANS_FROM_S, LAST)
    return planner


# Of each seal its last second, its fence, the fired and the rejected requests.
SEALED = [
    (4999, 11, [10], []),
    (5010, FENCE, FIRED[5010], [REFUSED, FOREIGN]),
    (5011, FENCE, FIRED[5011], [REJECT]),
    (5012, FENCE, FIRED[5012], []),
    (5099, FENCE, [], []),
    (5100, FENCE, FIRED[5100], []),
    (5200, FENCE, FIRED[5102] + FIRED[5150], []),
]


def sealed(number: int, rows: Iterable[Row]) -> list[bytes]:
    """Return the seals that an owner of partition *number* writes after it has read *rows*."""
    values: list[bytes] = []
    first = 1
    for last, fence, fired, rejected in SEALED:
        seal = Sealed(partition=number, first_ms=first * 1000, end_ms=(last + 1) * 1000, fence=fence, read_from=0)
        seal.due, seal.fired, seal.rejected = len(fired) + len(rejected), len(fired), len(rejected)
        seal.fired_digest, seal.forwarded = fired_digest_of(number, fired), rejected.count(FOREIGN)
        seal.cancelled, seal.moved = int(last in (5011, 5100)), int(last == 5200)
        seal.worker, seal.partitions, seal.horizon_s = "w", len(FAULTS), HORIZON_S
        for row in rows:
            if row["offset"] < fence:
                is_far = row["offset"] in FAR
                count = seal.cancels if row["kind"] == CANCEL else seal.far if is_far else seal.near
                count.count, count.digest = count.count + 1, (count.digest + row["digest"]) % 2**64
        if values:
            seal.previous = hashlib.sha256(values[-1]).digest()
        values.append(seal.SerializeToString())
        first = last + 1
    return values


@dataclass
class History:
    """
    The rows of the lake and the records on the topics of partition *number*.

    Attributes:
        rows: of `requests`.
        seals: their values.
        rejected: reasons of the requests on timer-rejected, by offset.
        schedules, planned: records of timer-schedule and timer-planned.
        came: to callback, tombstone and reply topics.
        told: other columns of rows of `seals`, by the second that they end with.
    """

    number: int
    rows: list[Row]
    seals: list[bytes]
    rejected: dict[int, str] = field(default_factory=lambda: dict(REASONS))
    schedules: list[Written] = field(default_factory=list)
    planned: list[Written] = field(default_factory=list)
    came: list[Came] = field(default_factory=list)
    told: dict[int, dict[str, Any]] = field(default_factory=dict)

    def plan(self, planner: PlannerStandIn) -> None:
        """Have the records of *planner* too, but for its requests."""
        self.schedules += planner.schedules
        self.planned += planner.planned

    def row(self, of: int, **other: Any) -> None:
        """Have the row of a request say something else."""
        self.rows = [Row(**(row.asDict() | other)) if row["offset"] == of else row for row in self.rows]

    def without(self, *of: int) -> None:
        """Have the lake lose rows."""
        self.rows = [row for row in self.rows if row["offset"] not in of]

    def seal(self, at: int, **other: Any) -> None:
        """Have a seal on timer-sealed say something else."""
        seal = Sealed.FromString(self.seals[at])
        for name, value in other.items():
            setattr(seal, name, value)
        self.seals[at] = seal.SerializeToString()

    def link(self) -> None:
        """Have each seal name the one before it."""
        for at in range(1, len(self.seals)):
            self.seal(at, previous=hashlib.sha256(self.seals[at - 1]).digest())

    def name_sent(self) -> None:
        """Have each seal name the batches that were sent with it, one for each partition of a topic."""
        for at, (_, _, fired, _) in enumerate(SEALED):
            seal = Sealed.FromString(self.seals[at])
            del seal.sent[:]
            # The callback of request 10 was there before the time range.
            left = [each for each in self.came if each.of in fired and each.topic in ("t", "u", "s")]
            for topic in sorted({each.topic for each in left}):
                there = sorted((each.partition, each.place) for each in left if each.topic == topic)
                numbers = sorted({partition for partition, _ in there})
                parts = [
                    [
                        each
                        for each in sorted(left, key=lambda each: each.place)
                        if (each.topic, each.partition) == (topic, at)
                    ]
                    for at in numbers
                ]
                batches = [[(each.key, each.value, each.headers) for each in part] for part in parts]
                seal.sent.add(
                    topic=topic, partitions=numbers, records=map(len, batches), sha256=digest_of_batches(batches)
                )
            self.seals[at] = seal.SerializeToString()
        self.link()

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


def came_of(number: int, offset: int, at_ms: int, *, is_true: bool = False) -> Came:
    """Return the callback for a request; if *is_true*, before any change."""
    _, due_s, future = asked_in(number, is_true=is_true)[offset]
    return callback_of(number, offset, due_s, future, at_ms)


def answer(number: int, offset: int, outcome: str, about: int | None = None, at_s: int = 5001) -> Came:
    timer_id = asked_in(number)[offset][2].timerId
    reply = Reply(timerId=timer_id, outcome=outcome, asked=f"{number}:{offset}")
    if about is not None:
        reply.request, reply.second = f"{number}:{about}", REQUESTED[about][1]
    value = reply.SerializeToString()
    return Came(offset, "r", timer_id.encode(), value, headers_of_reply(value), at_s * 1000)


def honest(number: int, rows: list[Row], *, is_true: bool = False) -> History:
    fired = [offset for offsets in FIRED.values() for offset in offsets if offset != 10]
    came = [
        came_of(number, offset, REQUESTED[offset][1] * 1000 + REQUESTED[offset][2].millis + 20, is_true=is_true)
        for offset in fired
    ]
    came.append(Came(6, "s", b"sk", None, [("timer-request", b"%d:6" % number)], 5_012_020))
    came += [
        answer(number, 4, "UNKNOWN", at_s=4900),
        answer(number, 5, "CANCELLED", 4),
        answer(number, 13, "UNKNOWN", at_s=4900),
        answer(number, 14, "MOVED", 13, at_s=5060),
    ]
    history = History(number, rows, sealed(number, rows), came=came)
    history.plan(planner_of(number))
    return history


Fault = Callable[[History], object]
Found = list[tuple[str, int | None, str]]


def sets(what: Callable[[History], Any], **values: Any) -> Fault:
    """Return the fault that changes a record of a history."""

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


def unserved(history: History) -> None:
    history.seals = history.seals[:1]
    history.came = [each for each in history.came if each.topic == "r"]


def swapped(history: History) -> None:
    one, other = history.callback(8), history.callback(9)
    one.place, other.place = other.place, one.place


def came_too(of: int, at_ms: int) -> Fault:
    """Return the fault that a callback came of a request that was not to fire."""
    return lambda history: history.came.append(came_of(history.number, of, at_ms))


def in_another_order(history: History) -> None:
    history.seals[2], history.seals[3] = history.seals[3], history.seals[2]


def put_in(history: History) -> None:
    """Have somebody else write a seal of a second that is sealed."""
    seal = Sealed.FromString(history.seals[2])
    seal.worker = "another"
    history.seals.insert(3, seal.SerializeToString())


def stopped(history: History) -> None:
    """Have the service stand still from 5100 on."""
    history.seals = history.seals[:5]
    for gone in (11, 12, 17, 14, RUN):
        history.drop(gone)


def row_is_doubled(history: History) -> None:
    history.rows = [*history.rows, next(row for row in history.rows if row["offset"] == 11)]


def says(of: int, outcome: str, about: int | None = None) -> Fault:
    """Return the fault that an answer says something else."""

    def plant(history: History) -> None:
        told, other = history.at("r", of), answer(history.number, of, outcome, about)
        told.headers, told.value = other.headers, other.value

    return plant


def in_value(of: int, **other: Any) -> Fault:
    """Return the fault that the value of an answer says something else, and its headers do not."""

    def plant(history: History) -> None:
        told = history.at("r", of)
        reply = Reply.FromString(told.value or b"")
        reply.MergeFrom(Reply(**other))
        told.value = reply.SerializeToString()

    return plant


def about_another(history: History) -> None:
    """Have the answer to a cancel be about another id, and be consistent in itself."""
    told = history.at("r", 5)
    reply = Reply.FromString(told.value or b"")
    reply.timerId = "another"
    told.key, told.value = b"another", reply.SerializeToString()


def at_another_time(history: History) -> None:
    """Have the answer to a cancel tell another time of the timer, in its value and in its headers."""
    told = history.at("r", 5)
    reply = Reply.FromString(told.value or b"")
    reply.second += 1
    told.value = reply.SerializeToString()
    told.headers = headers_of_reply(told.value)


def rejects(of: int, reason: str) -> Fault:
    """Return the fault that timer-rejected has a record, or says something else of it."""
    return lambda history: history.rejected.update({of: reason})


def other_schedule(at_s: int = 5160, last: int = LAST) -> PlannerStandIn:
    """Return the planner of one more schedule, by the ticks up to *last*."""
    planner = PlannerStandIn(begins=1000)
    planner.put(b"other", moments(at_s), PLANS_FROM_S * 1000)
    planner.ticks(PLANS_FROM_S, last)
    return planner


def passed_over(history: History) -> None:
    """Have a planner pass over a run."""
    planner = other_schedule()
    plan = Planned.FromString(planner.planned[-1].value or b"")
    plan.ClearField("asked_ms")
    plan.runs = 0
    planner.planned[-1] = planner.planned[-1]._replace(value=plan.SerializeToString())
    history.plan(planner)


def held(history: History) -> None:
    """Have a schedule paused, and another one deleted."""
    for name, begins in ((b"paused", 1000), (b"deleted", 2000)):
        planner = PlannerStandIn(begins=begins)
        planner.put(name, moments(5160), PLANS_FROM_S * 1000)
        planner.ticks(PLANS_FROM_S, 5049)
        if name == b"paused":
            planner.hold(name, 5_050_000, paused=True)
        else:
            planner.put(name, None, 5_050_000)
        planner.ticks(5050, LAST)
        history.plan(planner)


def never_planned(history: History) -> None:
    """Have a schedule that no planner has read."""
    planner = other_schedule(last=0)
    history.plan(planner)


def schedule_is_changed(history: History) -> None:
    """Have somebody change the record of a schedule once it is planned."""
    history.schedules = [each._replace(value=moments(RUN_S + 1).SerializeToString()) for each in history.schedules]


def first(of: int) -> Callable[[History], Came]:
    return lambda history: history.callback(of)


NONE: Found = []


# --- changes that somebody has meant, who may write to all topics and to the lake

Changed = list[tuple[int, int, Future]]


def digest_in(number: int, offset: int, asked: tuple[int, int, Future]) -> int:
    appended_s, due_s, future = asked
    record = {"offset": offset, "timestamp": appended_s * 1000, "key": b"%d" % due_s, "headers": []}
    return hash_of_record(number, SimpleNamespace(**record, value=future.SerializeToString()))


def puts(of: int, future: Future, *, by: int = 0) -> Callable[[int, Changed], None]:
    """Return the change of a request to *future*, with a digest that is larger *by* so much than the true one."""

    def change(number: int, every: Changed) -> None:
        appended_s, due_s, _ = every[of]
        digest = (digest_in(number, of, every[of]) + by) % 2**64
        meant = Future()
        meant.CopyFrom(future)
        if meant.timerId:
            meant.timerId = id_in(number, len(FAULTS), meant.timerId)
        every[of] = appended_s, due_s, forged(meant, b"%d" % due_s, number, of, appended_s * 1000, digest)

    return change


def arrives(at: int, of: int = FOREIGN, **other: Any) -> Callable[[int, Changed], None]:
    """Return the change that a record is another one that came from offset *of* of the partition before."""

    def change(number: int, every: Changed) -> None:
        appended_s, _, _ = every[at]
        future = Future(callBackTopic="t", timerId=id_in(number, len(FAULTS), "f"), **({"callBack": b"v"} | other))
        future.forwarded.CopyFrom(sent_from(number, of))
        every[at] = max(appended_s, 5011), 5300, future

    return change


def both(*changes: Callable[[int, Changed], None]) -> Callable[[int, Changed], None]:
    def change(number: int, every: Changed) -> None:
        for each in changes:
            each(number, every)

    return change


def run_again(number: int, every: Changed) -> None:
    """Have a run asked for twice."""
    every[CANCEL_OF_NOBODY] = every[RUN]


def run_otherwise(number: int, every: Changed) -> None:
    """Have a run asked for with another value than its schedule has."""
    every[RUN][2].callBack = b"forged"


def sealed_anew(history: History) -> None:
    """Have somebody write all seals anew, by the changed requests and callbacks."""
    history.seals = sealed(history.number, history.rows)
    history.name_sent()


def removed_whole(history: History) -> None:
    """Have somebody remove a seal, and write the later ones anew as if it had never been."""
    del history.seals[4]
    history.seal(4, first_ms=5_013_000)
    history.link()


# Of each of these faults the change of the requests. Callbacks are changed to match.
CHANGES: Mapping[str, Callable[[int, Changed], None]] = {
    "an hour is written anew, with all of its seals": puts(
        11, Future(callBackTopic="t", callBack=b"forged", callBackKey="k"), by=3
    ),
    "two changes cancel each other out in the sums": both(
        puts(11, Future(callBackTopic="t", callBack=b"forged", callBackKey="k"), by=5),
        puts(14, Future(callBackTopic="t", callBack=b"forged", timerId="d", replyTopic="r"), by=-5),
    ),
    "a cancel that never was": puts(19, Future(timerId="d", cancel=True)),
    "another topic in a request": puts(1, Future(callBackTopic="u", callBack=b"v")),
    # What was sent on from the partition before.
    "what was not to be sent on arrives": arrives(ARRIVED, FOREIGN - 1),
    "what was sent on arrives with another value": arrives(19),
    "an id that was forgotten": arrives(ARRIVED, callBack=b"w"),
    "a run is asked for twice": run_again,
    "a run is asked for with another value than its schedule has": run_otherwise,
}
# The seal of second 5012 is as if it had not been landed.
LEFT_OUT: Found = [
    ("gap", None, "follows one that ended at 5011"),
    ("chain", None, "the seal at offset 4 follows one"),
    ("seal-count", None, ""),
    ("batches", None, "the records in t of this seal are more than were sent with it"),
    ("batches", None, "the records in s of this seal are more than were sent with it"),
]
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
        lambda history: (history.seals.pop(), history.drop(14), history.drop(RUN)),
        [("unsealed", None, "is sealed up to 5100")],
    ),
    "the service stands still": (
        stopped,
        [("unsealed", None, "is sealed up to 5099, timer-sealed has no more of it")],
    ),
    "a seal of seconds in which nothing fired is dropped": (
        lambda history: history.seals.pop(4),
        [("gap", None, "follows one that ended at 5012"), ("chain", None, "the seal at offset 4 follows one")],
    ),
    "a seal is dropped": (
        lambda history: history.seals.pop(2),
        [
            ("gap", None, "follows one that ended at 5010"),
            ("chain", None, "the seal at offset 2 follows one"),
            ("seal-count", None, "expected due 5, fired 4, rejected 1"),
        ],
    ),
    "two seals lie in another order": (in_another_order, [("chain", None, "")] * 3),
    "somebody else has sealed a second too": (
        put_in,
        [("chain", None, "the seal at offset 3 follows one"), ("chain", None, "the seal at offset 4 follows one")],
    ),
    # --- content of the seals
    "a seal counts one more": (
        lambda history: history.seal(6, due=3, fired=3),
        [("seal-count", None, "sealed due 3, fired 3, rejected 0")],
    ),
    "a seal says that another one has fired": (
        lambda history: history.seal(6, fired_digest=fired_digest_of(history.number, [13])),
        [("seal-digest", None, "sealed due 2, fired 2, rejected 0")],
    ),
    "a seal is written anew, with other counts of what was withdrawn": (
        lambda history: history.seal(3, cancelled=7, moved=7, pending=7),
        [("chain", None, "the seal at offset 4 follows one with SHA-256")],
    ),
    "a seal is written anew, and says that nothing was late": (
        lambda history: history.seal(3, lateness_p99_ms=1, lateness_max_ms=1),
        [("chain", None, "the seal at offset 4 follows one with SHA-256")],
    ),
    "a row of seals says something else than the seal": (
        lambda history: history.told.update({5012: {"horizon_s": 7}}),
        LEFT_OUT,
    ),
    "a row of seals has another fence, as if it were not landed": (
        lambda history: history.told.update({5012: {"fence": FENCE + 1}}),
        LEFT_OUT,
    ),
    "the last row of seals has another second, as if more were sealed": (
        lambda history: (history.told.update({5200: {"last": 90_000}}), history.drop(14), history.drop(RUN)),
        [("unsealed", None, "is sealed up to 5100")],
    ),
    "a row of seals has another value": (lambda history: history.told.update({5012: {"value": b"v"}}), LEFT_OUT),
    # --- how late
    "the last seal says that it was late": (
        lambda history: history.seal(6, lateness_max_ms=3_540_000),
        [("late", None, "1 seals say that callbacks were more than 2000 ms late, the latest by 3540000 ms")],
    ),
    # --- rows of the lake
    "the lake has lost a request that fired": (
        lambda history: (history.without(11), history.drop(11)),
        [("unread", None, "the lake has"), ("seal-count", None, "expected due 2, fired 2")],
    ),
    "the lake has lost a request, and its callback is there": (
        lambda history: history.without(11),
        [
            ("unread", None, "the lake has"),
            ("seal-count", None, "expected due 2, fired 2"),
            ("unexpected", 11, "timer-request has no such request"),
        ],
    ),
    "the lake has lost a far request that waits": (
        lambda history: history.without(19),
        [("unread", None, "2 far, 2 cancels)")],
    ),
    "the lake has lost a cancel": (
        lambda history: history.without(21),
        [
            ("unread", None, "1 cancels)"),
            ("seal-count", None, "the difference is request N:20, which is not in the seal"),
            ("missing", 20, "no callback in t"),
        ],
    ),
    "the lake has a request twice": (
        row_is_doubled,
        [("unread", None, "the lake has"), ("seal-count", None, "expected due 4, fired 4")],
    ),
    "the lake has lost a copy": (
        lambda history: history.without(18),
        [
            ("unread", None, "the lake has"),
            ("seal-count", None, ""),
            ("not-promoted", 17, "no worker has it"),
            ("unexpected", 17, "no worker had taken a copy of it"),
        ],
    ),
    "a row has another value": (
        lambda history: history.row(19, value=b"v"),
        [("altered", 19, "its key, value, headers or append time are not those of the record that was landed")],
    ),
    "a row has another key": (
        lambda history: history.row(19, key=b"9"),
        [("altered", 19, "its key, value, headers or")],
    ),
    "a row has another append time": (
        lambda history: history.row(19, appended_ms=4_900_001),
        [("altered", 19, "its key, value, headers or append time")],
    ),
    "a row has another digest": (
        lambda history: history.row(19, digest=1),
        [("altered", 19, "its key, value, headers or append time"), ("unread", None, "the lake has")],
    ),
    "a row has no digest any more": (
        lambda history: history.row(19, digest=None),
        [("unread", None, "the lake has")],
    ),
    "a row has another second than its bytes say": (
        lambda history: history.row(19, second=91_000),
        [("altered", 19, "its record says something else of second")],
    ),
    "a row has another timer id than its bytes say": (
        lambda history: history.row(19, timer_id="x"),
        [("altered", 19, "its record says something else of timer_id")],
    ),
    "timer-rejected has lost what was refused": (
        lambda history: history.rejected.pop(REFUSED),
        [("not-rejected", 15, "timer-rejected does not have it")],
    ),
    "timer-rejected has lost what was rejected when it was due": (
        lambda history: history.rejected.pop(REJECT),
        [("seal-count", None, "expected due 2, fired 2, rejected 0"), ("missing", 16, "no callback in gone")],
    ),
    "a reject with another reason": (
        rejects(REFUSED, "too-large"),
        [("reject", REFUSED, "rejected (too-large), and the record was refused (key-not-a-second)")],
    ),
    "a reject of a request, as if it were none": (
        rejects(REJECT, "key-missing"),
        [("reject", REJECT, "rejected (key-missing), and the record is a request")],
    ),
    "a reject of no record": (
        rejects(26, "topic-unknown"),
        [("reject", 26, "rejected (topic-unknown), and timer-request has no such record")],
    ),
    "a reject of a request that waits": (
        rejects(7, "topic-unknown"),
        [("reject", 7, "rejected (topic-unknown) before it was due")],
    ),
    "a reject of a cancelled request": (
        rejects(4, "topic-unknown"),
        [("reject", 4, "rejected (topic-unknown), and record 5 had withdrawn it")],
    ),
    "a reject of a cancel": (
        rejects(5, "topic-unknown"),
        [("reject", 5, "rejected (topic-unknown), and the record is a cancel, which was not refused")],
    ),
    # --- recurring timers
    "a schedule is paused, and another one deleted": (held, NONE),
    "a run is planned, and never asked for": (
        lambda history: history.plan(other_schedule()),
        [("run", None, "run other@1970-01-01T01:26:00Z was planned, and not asked for")],
    ),
    "the planner passes over a run": (
        passed_over,
        [
            (
                "run",
                None,
                "at offset 1002 of timer-planned passes over the run of 1970-01-01T01:26:00Z",
            )
        ],
    ),
    "a run is asked for twice": (lambda _: None, [("run", CANCEL_OF_NOBODY, "is asked for, and no plan has it")]),
    "a run is asked for with another value than its schedule has": (
        lambda _: None,
        [("run", RUN, "is asked for otherwise than its schedule says")],
    ),
    "a schedule stops": (
        lambda history: history.plan(other_schedule(5180, last=5041)),
        [("schedule", None, "schedule other has stopped: nobody has asked for its run of 1970-01-01T01:26:20Z")],
    ),
    "a schedule is never planned": (
        never_planned,
        [("schedule", None, "has stopped: its record at offset 1000 of timer-schedule was never planned")],
    ),
    "a schedule is changed once it is planned": (
        schedule_is_changed,
        [("schedule", None, "is not planned by its record at offset 0 of timer-schedule")],
    ),
    # --- callbacks
    "dropped": (lambda history: history.drop(1), [("missing", 1, "no callback in t")]),
    "doubled": (lambda history: history.callback(1, 5_010_500), [("doubled", 1, "2 callbacks, the first in t")]),
    "5 s early": (sets(first(1), at_ms=5_005_000), [("early", 1, "callback in t 5000 ms before it was due")]),
    "1 ms early": (sets(first(1), at_ms=5_009_999), [("early", 1, "1 ms before it was due by the worker's clock")]),
    "a day early": (came_too(7, 5_050_000), [("early", 7, "callback in t 84950000 ms before it was due")]),
    "early, and again in time": (
        lambda history: history.callback(11, 5_009_000),
        [("doubled", 11, "2 callbacks"), ("early", 11, "91000 ms before it was due")],
    ),
    "again, long after it was done": (
        came_too(10, 5_150_000),
        [("unexpected", 10, "callback in t, and its request was done")],
    ),
    "names no known request": (
        lambda history: renamed(history, 1, 26),
        [("missing", 1, "no callback"), ("unexpected", 26, "timer-request has no such request")],
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
        [("unexpected", 1, "for second 5011; its request names t and second 5010")],
    ),
    "on another topic": (
        sets(first(1), topic="u"),
        [("unexpected", 1, "callback in u for second 5010; its request names t")],
    ),
    "of a cancelled timer": (came_too(4, 5_011_020), [("stale-version", 4, "record 5 had withdrawn it")]),
    "of a moved timer": (came_too(13, 5_101_020), [("stale-version", 13, "record 14 had withdrawn it")]),
    "more than an hour late": (
        sets(first(1), at_ms=5_010_000 + 7_200_000),
        [("missing", 1, "no callback in t")],
    ),
    # --- content of the callbacks
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
    "a tombstone of a cancelled timer": (
        lambda history: history.came.append(Came(4, "s", b"ak", None, [("timer-request", b"N:4")], 5_011_020)),
        [("content", 4, "it has a tombstone, and was not to fire")],
    ),
    "a tombstone that is none": (
        lambda history: setattr(history.at("s", 6), "value", b""),
        [("content", 6, "its tombstone is not the one")],
    ),
    "no answer": (lambda history: history.drop(5, ["r"]), [("answer", 5, "no answer in r")]),
    "cancelled, and it has fired": (
        says(5, "CANCELLED", 1),
        [("answer", 5, "answered CANCELLED in r, and request 1 has fired")],
    ),
    "moved, by a cancel": (
        says(5, "MOVED", 4),
        [("answer", 5, "answered MOVED in r, and the record that asked is a cancel")],
    ),
    "too late, and it was withdrawn": (
        says(5, "TOO_LATE", 4),
        [("answer", 5, "answered TOO_LATE in r, and request 4 was withdrawn")],
    ),
    "ignored, and it counts": (
        says(14, "IGNORED", 13),
        [("answer", 14, "answered IGNORED in r, and the record that asked took effect")],
    ),
    "an answer's value says something else than its headers": (
        in_value(5, outcome="TOO_LATE"),
        [("answer", 5, "answered CANCELLED in r, and its value says something else than its headers")],
    ),
    "an answer's value is none": (
        lambda history: setattr(history.at("r", 5), "value", b"\xff"),
        [("answer", 5, "answered CANCELLED in r, and its value is no answer")],
    ),
    "an answer about another timer id": (
        about_another,
        [("answer", 5, "answered CANCELLED in r, about another timer id")],
    ),
    "an answer with another time": (
        at_another_time,
        [("answer", 5, "answered CANCELLED in r, with another time than that of request 4")],
    ),
    # --- records that were sent on
    "a seal counts one less that was sent on": (
        lambda history: (history.seal(1, forwarded=0), history.link()),
        [("seal-count", None, "rejected 2, forwarded 0, digest")],
    ),
    "what was sent on never arrives": (
        lambda _: None,
        [("forwarded", FOREIGN, "it was sent on to the partition of its timer id, and no record came of it")],
    ),
    "what was not to be sent on arrives": (
        lambda _: None,
        [("forwarded", ARRIVED, "and that one was not to be sent on")],
    ),
    "what was sent on arrives twice": (
        lambda _: None,
        [("forwarded", FOREIGN, "it was sent on 2 times, first as record")],
    ),
    "what was sent on arrives with another value": (
        lambda _: None,
        [("forwarded", FOREIGN, "with another key or value")],
    ),
    "an id that was forgotten": (says(5, "UNKNOWN"), NONE),
    # --- meant
    "an hour is written anew, with all of its seals": (sealed_anew, [("published", None, "")]),
    "two changes cancel each other out in the sums": (
        lambda _: None,
        [("batches", None, "the records in t of this seal differ from those that were sent with it, by SHA-256")] * 2,
    ),
    "a cancel that never was": (
        lambda history: history.drop(14),
        [
            ("seal-count", None, "the difference is request N:14, which should not be in the seal"),
            ("batches", None, "are fewer than were sent with it"),
        ],
    ),
    "another topic in a request": (lambda _: None, [("batches", None, "are fewer than were sent with it")]),
    "a seal is removed, and the others are written anew": (
        removed_whole,
        [("published", None, "the 6 seals of 1970-01-01 are not the 7 that were published")],
    ),
}
MEANT = [name for name in FAULTS if list(FAULTS).index(name) > list(FAULTS).index("an id that was forgotten")]
LATE = ("late", 12, "1 callbacks in u more than 2000 ms late, the latest by 3540000 ms, by the worker's clock")
NUMBERS = {name: number for number, name in enumerate(FAULTS)}


def requested(spark: SparkSession, partitions: int) -> dict[int, list[Row]]:
    """Return the rows of all requests by partition, as a landing makes them."""
    records = [
        (b"%d" % due_s, future.SerializeToString(), number, offset, datetime.fromtimestamp(appended_s, UTC), None)
        for number in range(partitions)
        for offset, (appended_s, due_s, future) in enumerate(asked_in(number))
    ]
    rows = requests_of(spark.createDataFrame(records, RECORD), partitions)
    found: dict[int, list[Row]] = {number: [] for number in range(partitions)}
    for row in rows.orderBy("partition", "offset").collect():
        found[row["partition"]].append(row)
    return found


def sealed_s(last: int) -> int:
    """Return when the seal of *last* was appended, the last one so late that rejects of all others must be landed."""
    return last + (700 if last == LAST else 1)


def landed(spark: SparkSession, root: str, histories: Iterable[History]) -> None:
    """Have all that is on topics of the service in a lake."""
    histories = list(histories)
    append(of(spark, [row for each in histories for row in each.rows], REQUESTS.columns), root, REQUESTS)
    values = [
        (value, each.number, at, datetime.fromtimestamp(sealed_s(last_second_of(Sealed.FromString(value))), UTC))
        for each in histories
        for at, value in enumerate(each.seals)
    ]
    frame = spark.createDataFrame(values, "value binary, partition int, offset bigint, timestamp timestamp")
    others = {each.number: each.told for each in histories}
    seals = [Row(**(row.asDict() | others[row["partition"]].get(row["last"], {}))) for row in seals_of(frame).collect()]
    append(of(spark, seals, SEALS.columns), root, SEALS)
    rejected = [
        (0, each.number * FENCE + at, 5_011_000, reason, "timer-request", each.number, of, "1970-01-01")
        for each in histories
        for at, (of, reason) in enumerate(each.rejected.items())
    ]
    append(constant(spark, rejected, REJECTED.columns), root, REJECTED)
    for table, name in ((SCHEDULES, "schedules"), (PLANNED, "planned")):
        kept = [
            (each.number, row.offset, row.appended_ms, row.appended_ms // 1000, row.key, row.value, "1970-01-01")
            for each in histories
            for row in getattr(each, name)
        ]
        append(constant(spark, kept, table.columns), root, table)
    ends = {"timer-request": FENCE, "timer-planned": PLANS_END}
    positions = [(topic, each.number, end, 1, None, None) for each in histories for topic, end in ends.items()]
    append(constant(spark, positions, POSITIONS.columns), root, POSITIONS)


async def publish(bootstrap: str, came: Iterable[Came]) -> None:
    """Have *came* on topics that keep all; one has lost its first record."""
    topics = [NewTopic(name, count, 1, topic_configs={"retention.ms": "-1"}) for name, count in COUNTS.items()]
    own = AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=1 << 20)
    async with administering(bootstrap) as admin, own as producer:
        await admin.create_topics(topics)
        await producer.send_and_wait("u", b"gone", partition=0)
        await delete_records(bootstrap, "u", 0, 1)
        # One by one aiokafka sends none that has neither key nor value.
        batches = {(name, number): producer.create_batch() for name in COUNTS for number in range(COUNTS[name])}
        for each in sorted(came, key=lambda each: each.place):
            batch = batches[each.topic, each.partition]
            told = {"timestamp": each.at_ms, "key": each.key, "value": each.value, "headers": each.headers}
            assert batch.append(**told) is not None
        acks = [await producer.send_batch(batch, name, partition=at) for (name, at), batch in batches.items()]
        await asyncio.gather(*acks)


def true_seals(number: int, rows: list[Row]) -> list[bytes]:
    """Return the seals of partition *number* before anything was changed."""
    true = [
        Row(**(row.asDict() | {"digest": digest_in(number, at, asked), "kind": CANCEL if asked[2].cancel else REQUEST}))
        for at, (row, asked) in enumerate(zip(rows, asked_in(number, is_true=True), strict=True))
    ]
    history = honest(number, true, is_true=True)
    history.name_sent()
    return history.seals


@pytest.fixture(scope="module")
def told(spark: SparkSession, kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> audits.Audit:
    """Plant each fault in a partition of its own, and audit all of them at once."""
    settings = LakeSettings(bootstrap=kafka.bootstrap, lake=str(tmp_path_factory.mktemp("lake")))
    rows = requested(spark, len(FAULTS))
    histories: list[History] = []
    published = {}
    for number, (name, (plant, _)) in enumerate(FAULTS.items()):
        history = honest(number, rows[number])
        if name in MEANT:
            # The seals as the worker has written them, which somebody has kept.
            history.seals = true_seals(number, rows[number])
            hashes = [hashlib.sha256(each).digest() for each in history.seals]
            published[number, "1970-01-01"] = Day.of(hashes)
        plant(history)
        for each in history.came:
            each.headers = [(key, value and value.replace(b"N:", b"%d:" % number)) for key, value in each.headers]
        histories.append(history)
    came = [each for history in histories for each in history.came]
    # One of all of them is late.
    next(each for each in came if each.topic == "u").at_ms = 8_640_000
    asyncio.run(publish(kafka.bootstrap, came))
    landed(spark, root_of(settings), histories)
    wanted = {"first": FIRST, "last": LAST, "callbacks": True, "late_ms": 2_000, "rows": True, "shown": 1_000}
    wanted |= {"batches": True, "chain": published}
    service = Service("cluster", planned_ends=dict.fromkeys(range(len(FAULTS)), PLANS_END))
    return audits.audit(spark, settings, 10_000, service=service, **wanted)


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


def test_an_audit_lists_the_checks_that_it_left_out(told: audits.Audit) -> None:
    assert told.partitions == len(FAULTS)
    assert len(told.sealed) == len(FAULTS) - 2
    assert told.sealed[NUMBERS["nothing"]] == (FIRST, LAST)
    assert told.sealed[NUMBERS["the last seals are dropped"]] == (FIRST, 5100)
    assert not told.undecided
    assert [each for each in told.unchecked if "retention" in each or "by a broker's clock" in each] == [
        "records that retention may have deleted since the time range began, of u",
        "arrival of callbacks in t, u by a broker's clock: their times are those of the workers",
        "the batches in u: compaction or retention may have deleted records",
    ]


def test_the_page_lists_each_planted_fault_with_its_finding() -> None:
    listed = re.findall(r"^\| ([^|`]+) \| (-|`[^|]+`) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    found = {name: sorted({each[0] for each in wanted}) for name, (_, wanted) in FAULTS.items()}
    wanted = [(name, ", ".join(f"`{kind}`" for kind in kinds) or "-") for name, kinds in found.items()]
    assert [each for each in listed if each[0] in FAULTS] == wanted
