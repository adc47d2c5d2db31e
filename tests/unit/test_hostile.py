"""
Records as no client should write them: each is read or refused, and the records beside it go their way.

Drawn with a seed: bytes that are no message, messages with every field at its limits, and messages with some bytes
changed. A longer run found nothing more: `HOSTILE_ROUNDS=20000 pytest tests/unit/test_hostile.py`.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from aiokafka.record.memory_records import MemoryRecords
from hostile import some_value
from stand_ins import DUE_MS, ROOMY, SECOND, Known, Record, accepted, slice_to

from kafka_timers.adapters import ADAPTERS
from kafka_timers.adapters.commands import Command, Refusal, SourceHeaders
from kafka_timers.adapters.countdown import Callers
from kafka_timers.core.changes import Row
from kafka_timers.core.partition import Partition
from kafka_timers.core.tick_clock import tick_second
from kafka_timers.core.verdicts import Ask, Cancel, judged
from kafka_timers.core.wire import SECOND_LIMIT, Future, Sealed, number_in
from kafka_timers.worker.slices import Slice
from kafka_timers_oscillator.schedule import Schedule

ROUNDS = int(os.environ.get("HOSTILE_ROUNDS", "150"))
NOW_MS = DUE_MS - 5_000
KEYS = [b"%d" % SECOND, b"1", b"", None, b"\xff", b"-1", b"9" * 5_000, b"%d" % SECOND_LIMIT, b"99999999999", b"0" * 14]


def good(offset: int) -> Record:
    return Record(
        b"%d" % SECOND,
        Future(callBackTopic="callbacks", callBack=b"good %d" % offset).SerializeToString(),
        offset,
        NOW_MS,
    )


def some_records(chance: random.Random) -> list[Record]:
    """Return good requests at even offsets, and any at odd ones."""
    timestamps = [NOW_MS, NOW_MS, 0, -1, DUE_MS + 1, 2**62]
    return [
        Record(chance.choice(KEYS), some_value(chance), offset, chance.choice(timestamps))
        if offset % 2
        else good(offset)
        for offset in range(10, 30)
    ]


class Outbox:
    """Takes batches as they would go over the wire."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes | None, dict[str, bytes | None]]] = []

    def take(self, filled: Slice) -> None:
        for batch, topic, _ in filled.rest():
            batches = MemoryRecords(bytes(batch.encoded(1, 0, 0)))
            while batches.has_next():
                for record in batches.next_batch():
                    self.records.append((topic, record.value, dict(record.headers)))


async def fired(rows: list[Row]) -> Outbox:
    """Return all that *rows* come to, also those of seconds that are far off."""
    outbox, known = Outbox(), Known(callbacks=ROOMY)
    left: Iterator[Row] = iter(sorted(rows))
    more = True
    while more:
        filled = slice_to(known, rows_max=7)
        while more and not filled.is_full:
            more = await filled.add(left)
        outbox.take(filled)
    return outbox


@pytest.mark.parametrize("horizon_s", [0, 3_600])
@pytest.mark.parametrize("sealed", [False, True], ids=["first", "after seals"])
async def test_a_request_fires_beside_any_odd_records_and_those_are_reported(horizon_s: int, sealed: bool) -> None:
    chance, odd = random.Random(15), Counter[str]()
    for _ in range(ROUNDS):
        partition = Partition(0, horizon_s)
        if sealed:
            partition.acquire([Sealed(end_ms=(SECOND + 1) * 1000, fence=5, horizon_s=horizon_s)], None)
        records = some_records(chance)
        out = accepted(records, partition)
        assert out.faults == {}
        assert out.count == len(records)
        outbox = await fired(out.rows)
        values = Counter(value for topic, value, _ in outbox.records if topic == "callbacks")
        for offset in range(10, 30, 2):
            assert values[b"good %d" % offset] == 1
        told = [headers for topic, _, headers in outbox.records if topic == "timer-rejected"]
        # A record without a value is a tombstone beside a callback.
        calls = [value for topic, value, _ in outbox.records if topic == "callbacks" and value is not None]
        assert len(calls) + len(told) == len(out.offsets)
        odd.update((headers["timer-rejected-reason"] or b"").decode() for headers in told)
    assert len(odd) > 8


@dataclass
class Given:
    """A record on the topic of a door."""

    key: bytes | None
    value: bytes | None
    headers: SourceHeaders
    timestamp: int
    topic: str = "theirs"
    partition: int = 3
    offset: int = 17


NAMES = [
    *("scheduler-epoch", "scheduler-target-topic", "scheduler-target-key", "timer-expiry", "timer-callback-topic"),
    *("timer-callback-key", "timer-token", "timer-reply-topic", "timer-request", "timer-id", "X-Timebridge-When"),
    *("X-Timebridge-Where", "CALLER_SERVICE", "schedule_schema_version", "schedule_source_type", "schedule_target_key"),
    *("schedule_target_epoch", "schedule_target_topic", "", "\udcff\udcfe", "é", "x" * 1_000),
]
# With these each door that reads headers finds a request. Random ones come behind, and may take their place.
GOOD_HEADERS = [
    *(("scheduler-epoch", b"%d" % SECOND), ("scheduler-target-topic", b"callbacks")),
    *(("timer-expiry", b"%d" % SECOND), ("timer-callback-topic", b"callbacks")),
    *(("X-Timebridge-When", b"2030-01-01T00:00:00Z"), ("X-Timebridge-Where", b"callbacks")),
    *(("schedule_schema_version", b"1.0.0"), ("schedule_source_type", b"schedule")),
    *(("schedule_target_epoch", b"%d" % SECOND), ("schedule_target_topic", b"callbacks")),
]
CONTENTS = [
    *(b"%d" % SECOND, b"callbacks", b"", None, b"\xff", b"1.0.0", b"schedule", b"cancel", b"-1", b"9" * 5_000),
    *(b"2030-01-01T00:00:00Z", b"0001-01-01T00:00:00+23:59", b"9999-12-31T23:59:59-23:59", b"2030-02-30T99:00:00Z"),
]
BODIES = [
    *(
        b'{"topic": "t", "message": "m", "countdown": %b}' % number
        for number in (b"5", b"1e400", b"-0", b"NaN", b"true")
    ),
    *(
        b'{"topic": "\\ud800", "message": "m", "countdown": 1}',
        b"[" * 50_000,
        b"9" * 5_000,
        b"\xff",
        b"null",
        b"",
        None,
    ),
    *(b'{"topic": "t", "message": "m", "countdown": %b}' % (b"9" * 5_000), b'{"topic": "t", "message": 5}'),
    *(
        b'{"time": %b, "topic": %b, "key": "aw", "value": "dg", "headers": %b}' % each
        for each in (
            (b"1893456000000", b'"t"', b"null"),
            (b"-1", b'"t"', b'{"h": "aA"}'),
            (b'"9e999"', b'"t"', b"{}"),
            (b"9" * 5_000, b'"t"', b"{}"),
            (b"1", b'"\\ud800"', b'{"\\ud800": "aA"}'),
            (b"1", b'""', b'{"h": "?"}'),
        )
    ),
    b"\x80\x80\xd8\xe7\xb3n\x02t\x02k\x00",  # Avro
]


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_door_makes_a_request_of_a_record_or_refuses_it(name: str) -> None:
    chance, callers, said = random.Random(name), Callers(required=False, limit=3), Counter[str]()
    for _ in range(20 * ROUNDS):
        record = Given(
            chance.choice([b"k", b"", None, b"\xff", b"k" * 5_000]),
            chance.choice(BODIES),
            [
                *chance.choice([[], GOOD_HEADERS]),
                *((each, chance.choice(CONTENTS)) for each in chance.choices(NAMES, k=chance.randrange(12))),
            ],
            chance.choice([NOW_MS, -1, 0, 2**63 - 1, -(2**63)]),
        )
        assert callers.refuse(record) in (None, Refusal.CALLER_OVER_LIMIT)
        try:
            parsed = ADAPTERS[name](record)
        except UnicodeError:
            # The reader tells it as `not-utf8`.
            parsed = Refusal.NOT_UTF8
        if isinstance(parsed, Command):
            verdict = judged(Record(parsed.key, parsed.future), 0, 1)
            assert isinstance(verdict, Ask | Cancel)
            said["request"] += isinstance(verdict, Ask)
        said[type(parsed).__name__] += 1
    assert said["request"], "no record is a request: BODIES or GOOD_HEADERS lack a good record of this door"
    assert said["Refusal"]


def test_ticks_of_any_key_and_time_end_no_oscillator_and_move_no_partition_ahead() -> None:
    chance = random.Random(5)
    schedule, now_s = Schedule(range(3), replica=0, catch_up_s=100, max_ahead_s=5.0), 1_000_000.0
    schedule.saw(0, 999_999, 999_999.5, now_s)
    schedule.start(now_s)
    for _ in range(10 * ROUNDS):
        second = number_in(chance.choice(KEYS))
        append_s = chance.choice([now_s, now_s - 3_600, 0.0, -0.001])
        if second is not None:
            schedule.saw(chance.randrange(3), second, append_s, now_s)
            assert (tick_second(second, int(append_s * 1000), 5.0) or 0) <= append_s or append_s <= 0
    assert all(schedule.last_in(partition) <= now_s for partition in range(3))
    assert schedule.due(now_s + 5)
