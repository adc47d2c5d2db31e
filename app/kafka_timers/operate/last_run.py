"""Find the last callback of a schedule on its topic."""

import asyncio
from typing import NamedTuple

from aiokafka import ConsumerRecord

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.reading import TopicLog
from kafka_timers.client.recurring import Recurring
from kafka_timers.core.callbacks import Outgoing
from kafka_timers.core.moments import moment_at
from kafka_timers.core.wire import ID_HEADER, SCHEDULE_HEADER, Request
from kafka_timers.operate.watch import lateness_of

# Of each partition so many records are read at most.
_RECORDS_MAX = 1_000
# A run that is due now may still be on its way; and a worker's clock may be behind the broker's.
_MARGIN_S = 5.0
# Runs by hand of a schedule that had no other one yet.
_HOUR_S = 3_600.0


class LastRun(NamedTuple):
    """A run that has fired: its timer id, when it was due in UNIX milliseconds, and how late its callback was."""

    timer_id: str
    due_ms: int
    lateness_ms: int


async def last_run_of(kafka: Kafka, found: Recurring, now_s: float) -> LastRun | None:
    """
    Return the last run of the schedule *found*, of those by hand too; None if the topic does not have its callback.

    Reading begins at the last run by the schedule's times, an hour ago without one, and ends 1,000 records later.

    Raises:
        ScheduleError: the schedule is not valid.
        BrokerError: the topic cannot be read.
    """
    last, name = found.last(now_s - _MARGIN_S), found.schedule_id.encode()
    since_ms = moment_at((last.due.timestamp() if last else now_s - _HOUR_S) - _MARGIN_S)
    callback = Outgoing.of(Request.FromString(found.message.callback.SerializeToString()))
    async with TopicLog.open(kafka, found.topic) as (log,):
        numbers = log.numbers
        if numbers and (callback.hashed is not None or callback.partition is not None):
            numbers = [number] if (number := callback.at(len(numbers), 0)) in numbers else []
        starts = await asyncio.gather(*(log.bounds.since(number, since_ms) for number in numbers))
        ends = await log.bounds.ends(numbers)
        runs: list[ConsumerRecord] = []
        for number, start in zip(numbers, starts, strict=True):
            if start is not None:
                async for records in log.pages(number, start, min(ends[number], start + _RECORDS_MAX)):
                    runs += [each for each in records if (SCHEDULE_HEADER, name) in each.headers]
    if not runs:
        return None
    record = max(runs, key=lambda each: each.timestamp)
    due_ms, lateness_ms = lateness_of(record, now_s)
    timer_id = dict(record.headers).get(ID_HEADER)
    if due_ms is None or lateness_ms is None or timer_id is None:
        return None
    return LastRun(timer_id.decode(errors="replace"), due_ms, lateness_ms)
