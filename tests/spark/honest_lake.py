"""
An honest history of many records, as a landing would have it, and the records of the callback topic.

In each partition a record is appended each second, and each second is sealed, so that each seal counts one record more.
"""

import hashlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from lake_rows import RECORD
from pyspark.sql import Row, SparkSession

from kafka_timers.core.callbacks import Shown
from kafka_timers.core.routing import hash_of, partition_of
from kafka_timers.core.sums import fired_digest_of
from kafka_timers.core.wire import FORMAT, Future, Header, callback_headers
from kafka_timers.lake.records import requests_of
from kafka_timers.lake.schema import CANCEL
from kafka_timers.lake.sealed import opened, seals_of
from kafka_timers.v1.sealed_pb2 import Sealed

START_S = 1_893_500_000
HORIZON_S = 3_600
TOPIC, TOPIC_PARTITIONS = "callbacks", 3
# How late callbacks and seals are written.
LATE_MS, SEALED_MS = 20, 30


class Asked(NamedTuple):
    """A record of timer-request; due_s is 0 of a cancel, and None of a refused record."""

    appended_ms: int
    due_s: int | None
    future: Future
    headers: list[tuple[str, bytes | None]] | None

    @property
    def due_ms(self) -> int:
        return (self.due_s or 0) * 1000 + self.future.millis

    def record(self, number: int, offset: int) -> tuple:
        key = b"soon" if self.due_s is None else b"%d" % self.due_s if self.due_s else b"id"
        appended = datetime.fromtimestamp(self.appended_ms / 1000, UTC).replace(tzinfo=None)
        return key, self.future.SerializeToString(), number, offset, appended, self.headers


@dataclass
class Came:
    """
    A record of a callback, tombstone or reply topic.

    Attributes:
        of: the request.
        place: of those of a partition of the topic, by which they lie in order.
    """

    of: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    at_ms: int
    partition: int = 0
    place: int = 0

    def row(self) -> tuple:
        at = datetime.fromtimestamp(self.at_ms / 1000, UTC).replace(tzinfo=None)
        return self.topic, self.partition, self.place, at, 1, self.key, self.value, self.headers


def callback_of(number: int, of: int, due_s: int, future: Future, at_ms: int) -> Came:
    """Return the callback for a request of partition *number*, to a topic of `TOPIC_PARTITIONS`."""
    shown, asked = Shown.of(future), future.callBackRecord
    told = callback_headers(future, due_s, b"%d:%d" % (number, of))  # type: ignore[arg-type]
    headers = [(key, value.encode() if isinstance(value, str) else value) for key, value in told]
    hashed = asked.partitionKey if asked.HasField("partitionKey") else shown.key
    # Without a key it may lie anywhere.
    at = of % TOPIC_PARTITIONS if hashed is None else hash_of(hashed) % TOPIC_PARTITIONS
    at = asked.partition if asked.HasField("partition") else at
    return Came(of, shown.topic, shown.key, shown.value, headers, at_ms, at, of)


@dataclass
class Told:
    """The outcomes of the records of partition *number*."""

    number: int
    asked: list[Asked]
    # Of each request that was withdrawn the record that did.
    taken_by: dict[int, int] = field(default_factory=dict)
    fired: list[int] = field(default_factory=list)

    def seals(self, rows: dict[int, Row], partitions: int) -> Iterator[tuple[int, bytes]]:
        """Yield UNIX milliseconds of the append and value of each, *rows* being those of `requests` by offset."""
        due: dict[int, list[int]] = {}
        for offset, asked in enumerate(self.asked):
            if asked.due_s:
                due.setdefault(asked.due_s, []).append(offset)
        takes: dict[int, list[int]] = {}
        for of, by in self.taken_by.items():
            takes.setdefault(by, []).append(of)
        sums = {"near": [0, 0], "far": [0, 0], "cancels": [0, 0]}
        waiting: set[int] = set()
        before = b""
        for offset, asked in enumerate(self.asked):
            second = START_S + offset
            is_far = (asked.due_s or 0) - second > HORIZON_S
            count = sums["cancels" if rows[offset]["kind"] == CANCEL else "far" if is_far else "near"]
            count[0], count[1] = count[0] + 1, (count[1] + rows[offset]["digest"]) % 2**64
            if asked.due_s and not is_far:
                waiting.add(offset)
            waiting.difference_update(takes.get(offset, ()))
            done = due.get(second, [])
            fired = [each for each in done if each not in self.taken_by]
            gone = [self.asked[self.taken_by[each]].due_s for each in done if each in self.taken_by]
            waiting -= set(fired)
            seal = Sealed(partition=self.number, first_ms=(second if offset else 1) * 1000, end_ms=(second + 1) * 1000)
            # A request that no worker takes is rejected when it is read.
            seal.rejected = int(asked.due_s is None)
            seal.due, seal.fired = len(fired) + seal.rejected, len(fired)
            seal.fired_digest = fired_digest_of(self.number, fired)
            seal.cancelled, seal.moved = sum(not each for each in gone), sum(bool(each) for each in gone)
            seal.pending, seal.fence, seal.restore_from = len(waiting), offset + 1, min(waiting, default=offset + 1)
            seal.worker, seal.partitions, seal.horizon_s = "worker", partitions, HORIZON_S
            seal.lateness_p50_ms = seal.lateness_p99_ms = seal.lateness_max_ms = LATE_MS if fired else 0
            seal.read_from, seal.format = 0, FORMAT
            for name, (records, digest) in sums.items():
                getattr(seal, name).count, getattr(seal, name).digest = records, digest
            seal.previous = before
            value = seal.SerializeToString()
            before = hashlib.sha256(value).digest()
            self.fired += fired
            yield second * 1000 + 1000 + SEALED_MS, value


def id_in(number: int, partitions: int, name: object) -> str:
    """Return a timer id that begins with *name* and belongs to partition *number*."""
    tries = (f"{name}-{each}" for each in itertools.count())
    return next(each for each in tries if partition_of(each, partitions) == number)


def told_of(rng: random.Random, number: int, partitions: int, seconds: int) -> Told:
    """Return a history of requests with and without ids, cancels, moves, far ones, and refused records."""
    told = Told(number, [])
    named: dict[str, int] = {}
    for offset in range(seconds):
        second = START_S + offset
        appended_ms = second * 1000 + rng.randrange(1000)
        open_ids = [each for each, of in named.items() if told.asked[of].due_ms > appended_ms]
        dice = rng.random()
        headers = [("timer-asked-by", b"somebody")] if rng.random() < 0.2 else None
        future, due_s = Future(callBackTopic=TOPIC, callBack=rng.randbytes(rng.randrange(40))), None
        if dice < 0.02:
            pass
        elif dice < 0.12 and open_ids:
            timer_id, due_s = rng.choice(open_ids), 0
            future = Future(timerId=timer_id, cancel=True)
            told.taken_by[named.pop(timer_id)] = offset
        else:
            due_s = second + (rng.randrange(HORIZON_S + 1, 10**8) if dice < 0.17 else rng.randrange(1, 120))
            if rng.random() < 0.3:
                future.millis = rng.randrange(1000)
            if rng.random() < 0.5:
                future.callBackKey = f"key-{rng.randrange(100)}"
            if rng.random() < 0.2:
                future.token = "token"
            if rng.random() < 0.3:
                future.headers.append(Header(key="own", value=rng.randbytes(3)))
            if dice < 0.5:
                moves = bool(open_ids) and rng.random() < 0.2
                future.timerId = rng.choice(open_ids) if moves else id_in(number, partitions, offset)
                if moves:
                    told.taken_by[named[future.timerId]] = offset
                named[future.timerId] = offset
        told.asked.append(Asked(appended_ms, due_s, future, headers))
        named = {each: of for each, of in named.items() if told.asked[of].due_ms > appended_ms}
    return told


def callbacks_of(told: Told, ends: list[int]) -> Iterator[Came]:
    """Yield the callbacks of the requests that have fired; *ends* has the end of each partition of the topic."""
    for of in sorted(told.fired, key=lambda each: (told.asked[each].due_ms, each)):
        asked = told.asked[of]
        came = callback_of(told.number, of, asked.due_s or 0, asked.future, asked.due_ms + LATE_MS)
        ends[came.partition] += 1
        came.place = ends[came.partition]
        yield came


class HonestLake(NamedTuple):
    """Rows of `requests` and `seals`, callbacks by the partition of their request, and the last second sealed."""

    requests: list[Row]
    seals: list[Row]
    came: dict[int, list[Came]]
    last_s: int


def honest_lake(spark: SparkSession, partitions: int, seconds: int, seed: int) -> HonestLake:
    """Return a history of *partitions* partitions and as many *seconds*, and records in each."""
    rng = random.Random(seed)
    every = [told_of(rng, number, partitions, seconds) for number in range(partitions)]
    records = [asked.record(told.number, offset) for told in every for offset, asked in enumerate(told.asked)]
    requests = requests_of(spark.createDataFrame(records, RECORD), partitions).collect()
    by_number: dict[int, dict[int, Row]] = {number: {} for number in range(partitions)}
    for row in requests:
        by_number[row["partition"]][row["offset"]] = row
    sealed = [
        (value, told.number, at, datetime.fromtimestamp(appended_ms / 1000, UTC).replace(tzinfo=None))
        for told in every
        for at, (appended_ms, value) in enumerate(told.seals(by_number[told.number], partitions))
    ]
    columns = "value binary, partition int, offset bigint, timestamp timestamp"
    seals = opened(seals_of(spark.createDataFrame(sealed, columns))).collect()
    ends = [0] * TOPIC_PARTITIONS
    came = {told.number: list(callbacks_of(told, ends)) for told in every}
    return HonestLake(requests, seals, came, START_S + seconds - 1)
