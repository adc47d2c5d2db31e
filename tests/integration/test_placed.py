"""Requests that are read by their place, also once they have left the log."""

import json
from typing import Any

from aiokafka import AIOKafkaProducer
from brokers import delete_records
from commands import ended

from kafka_timers.broker import topics
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.placed import placed
from kafka_timers.core.wire import KEPT_KEY, Future, Kept, KeptRequest, Sealed, Source, Topics, future_from

# Four requests, of which a sweep has repeated those at 1 and 2; the log begins behind them.
START, SWEPT = 4, 1_900_000_000_000_000


async def sweep(producer: AIOKafkaProducer, names: Topics, *waiting: Future) -> None:
    """Write requests, of which all but the first wait, a sweep of them, and the seal that tells of it."""
    for each in waiting:
        await producer.send_and_wait(names.requests, each.SerializeToString(), b"2000000000", partition=0)
    asked = [
        KeptRequest(offset=offset, dueMs=2_000_000_000_250, future=each.SerializeToString())
        for offset, each in enumerate(waiting)
    ]
    for begun in (SWEPT - 1, SWEPT):
        # Of a sweep before that was broken off, and of the one that counts.
        kept = Kept(begun=begun, requests=asked[1:3] if begun == SWEPT else asked)
        await producer.send_and_wait(names.requests, Future(kept=kept).SerializeToString(), KEPT_KEY, partition=0)
    seal = Sealed(first_ms=1_000, end_ms=2_000, fence=6, restore_from=START, partitions=1, format=1)
    seal.swept.add(begun=SWEPT, below=START, since=START, to=START + 2, requests=2)
    await producer.send_and_wait(names.sealed, seal.SerializeToString(), b"1", partition=0)
    await producer.send_and_wait(names.oscillator, b"1", b"1000", partition=0)


async def test_a_request_that_has_left_the_log_is_read_from_the_sweep(bootstrap: str, prefix: str) -> None:
    kafka, names = Kafka(bootstrap), Topics.of(prefix)
    await topics.create(kafka, prefix, 1)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        await sweep(producer, names, *(Future(timerId=name) for name in ("gone", "far", "farther", "gone too")))
    lying = await placed(kafka, prefix, "0:1")
    assert (lying.has_left, lying.record and lying.record.key) == (False, b"2000000000")
    await delete_records(bootstrap, names.requests, 0, START)
    for offset, name in ((1, "far"), (2, "farther")):
        found = await placed(kafka, prefix, f"0:{offset}")
        assert found.record is not None
        told = (found.has_left, found.record.offset, future_from(found.record.value or b"").timerId)
        assert told == (True, offset, name)
    for offset in (0, 3):
        found = await placed(kafka, prefix, f"0:{offset}")
        says = f"request 0:{offset} has left {names.requests}: partition 0 begins at offset 4 by now"
        assert (found.record, found.why) == (None, says)
    # A sweep's own record, and one that is still to come.
    for offset in (5, 99):
        found = await placed(kafka, prefix, f"0:{offset}")
        assert (found.record, found.has_left) == (None, False)
        assert found.why == f"no request lies at 0:{offset} on {names.requests}, or none that was committed"
    assert (await placed(kafka, prefix, "7:1")).why == f"{names.requests} has no partition 7"


async def test_redrive_takes_a_request_from_the_sweep_or_says_that_it_has_left_the_log(
    bootstrap: str, prefix: str
) -> None:
    """Of those that doors have made, and of cut ones, `timer-rejected` has no more than the place."""
    kafka, names = Kafka(bootstrap), Topics.of(prefix)
    await topics.create(kafka, prefix, 1)

    def about(**told: object) -> list[tuple[str, bytes]]:
        return [(f"timer-rejected-{name.replace('_', '-')}", str(value).encode()) for name, value in told.items()]

    made = [
        Future(
            callBackTopic="calls",
            callBack=b"%d" % offset,
            source=Source(door="etf1", topic="schedules", partition=2, offset=300 + offset),
        )
        for offset in range(2)
    ]
    large = Future(callBackTopic="calls", callBack=b"v" * 100)
    whole = large.SerializeToString()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        await sweep(producer, names, *made, large, large)
        for offset in range(2):
            headers = about(reason="topic-unknown", topic="schedules", partition=2, offset=300 + offset, door="etf1")
            headers += about(request=f"0:{offset}", callback_topic="calls", due_ms=2_000_000_000_250)
            await producer.send_and_wait(names.rejected, b"v", b"vid1", partition=0, headers=headers)
        for offset in (2, 3):
            headers = about(reason="too-large", topic=names.requests, partition=0, offset=offset, cut=len(whole) - 60)
            await producer.send_and_wait(names.rejected, whole[:60], b"2000000000", partition=0, headers=headers)

    async def dry_run() -> tuple[int, Any, str]:
        where = ("--bootstrap", bootstrap, "--topic-prefix", prefix)
        code, output, errors = await ended("redrive", *(f"0:{at}" for at in range(4)), "--dry-run", "--json", *where)
        return code, [each["place"] for each in json.loads(output)], errors

    assert (await dry_run())[:2] == (0, ["0:0", "0:1", "0:2", "0:3"])
    await delete_records(bootstrap, names.requests, 0, START)
    code, sent, errors = await dry_run()
    assert (code, sent) == (1, ["0:1", "0:2"])
    gone = f"has left {names.requests}: partition 0 begins at offset 4 by now"
    assert f"0:0 cannot be sent again: request 0:0 {gone}. Publish it on schedules again, for the door etf1" in errors
    missing = f"{len(whole) - 60} bytes of it are missing here"
    assert f"0:3 cannot be sent again: {missing}, and request 0:3 {gone}" in errors
