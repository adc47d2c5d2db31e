"""Schedules through an adapter that fail when they are due, and the history of etf1, by a client that is not ours."""

import asyncio
import json
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from typing import Any

from confluent_kafka import Producer
from patience import LIMIT_S, SOON_S
from service import Service

Headers = list[tuple[str, bytes | None]]


async def told(service: Service, *arguments: str) -> list[dict[str, Any]]:
    """Return the JSON output of a command about *service*, be it one document or a line for each."""
    where = ("--bootstrap", service.bootstrap, "--topic-prefix", service.prefix, "--json")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kafka_timers", *arguments, *where), stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(LIMIT_S):
        output, errors = await process.communicate()
    assert process.returncode == 0, (output, errors)
    documents = [json.loads(line) for line in output.splitlines()]
    return documents[0] if documents and isinstance(documents[0], list) else documents


async def test_a_callback_that_fails_when_due_is_rejected_as_the_record_that_was_written(service: Service) -> None:
    """It is shown, found and sent again as the record that it is, once its topic has been created."""
    schedules, countdowns = service.prefix + "schedules", service.prefix + "countdowns"
    missing, second = service.prefix + "missing", int(time.time()) - 1_000
    await service.create_topic(schedules, cleanup_policy="compact", message_timestamp_type="CreateTime")
    await service.create_topic(countdowns, message_timestamp_type="CreateTime")
    etf1: Headers = [
        ("scheduler-epoch", b"%d" % second),
        ("scheduler-target-topic", missing.encode()),
        ("scheduler-target-key", b"\xffvid1"),
        ("customer-header", b"dummy"),
    ]
    countdown = b'{"topic": "%b", "message": "hello", "countdown": 60.25}' % missing.encode()
    producer, at = Producer({"bootstrap.servers": service.bootstrap}), dict[str, tuple[int, int]]()

    def accepted(_: object, message: Any) -> None:
        at[message.topic()] = message.partition(), message.offset()

    # So that neither lies where a request does.
    for _ in range(3):
        producer.produce(countdowns, None, None, partition=2)
    written = {"timestamp": (second - 60) * 1000, "on_delivery": accepted}
    producer.produce(schedules, b'"video 1"', b"vid1-online", headers=etf1, partition=1, **written)
    own: Headers = [("CALLER_SERVICE", b"S"), ("null", None)]
    producer.produce(countdowns, countdown, b"\xfe7", headers=own, partition=2, **written)
    assert producer.flush(LIMIT_S) == 0
    await service.start("oscillator")
    await service.firing("--door", f"etf1={schedules}", "--door", f"countdown={countdowns}")

    records = await service.read(service.topics.rejected, 5)
    rejected = {record.headers[4][1]: record for record in records if record.value is not None}
    documents = {each["door"]: each for each in await told(service, "rejected", "--topic", missing)}
    as_it_fires = [
        *etf1,
        ("scheduler-timestamp", b"%d" % (second - 60)),
        ("scheduler-key", b"vid1-online"),
        ("scheduler-topic", schedules.encode()),
    ]
    timer_id = f"etf1:{schedules}:vid1-online"
    for door, topic, key, value, has_id, headers in (
        ("etf1", schedules, b"vid1-online", b'"video 1"', timer_id, as_it_fires),
        ("countdown", countdowns, b"\xfe7", b"hello", "", own),
    ):
        record, (partition, offset) = rejected[door.encode()], at[topic]
        request = dict(record.headers)["timer-rejected-request"]
        due_ms = second * 1000 + (250 if door == "countdown" else 0)
        assert (record.key, record.value) == (key, value)
        assert list(record.headers) == [
            ("timer-rejected-reason", b"topic-unknown"),
            ("timer-rejected-topic", topic.encode()),
            ("timer-rejected-partition", b"%d" % partition),
            ("timer-rejected-offset", b"%d" % offset),
            ("timer-rejected-door", door.encode()),
            ("timer-rejected-request", request),
            ("timer-rejected-callback-topic", missing.encode()),
            *([("timer-rejected-id", has_id.encode())] if has_id else []),
            ("timer-rejected-due-ms", b"%d" % due_ms),
            *headers,
        ]
        document = documents[door]
        assert (document["source"], document["request"]) == (topic, f"{partition}:{offset}")
        assert (document["due_ms"], document["second"], document["topic"]) == (due_ms, second, missing)
        assert (document["made"], document["timer_id"]) == (request.decode(), has_id or None)

    assert [each["door"] for each in await told(service, "rejected", "--timer-id", timer_id)] == ["etf1"]
    [found] = await told(service, "find", timer_id)
    assert [(each["state"], each["reason"]) for each in found["records"]] == [("refused", "topic-unknown")]

    await service.create_topic(missing)
    again = await told(service, "redrive", "--topic", missing, "--yes", "--in", "6s")
    assert [each["outcome"] for each in again] == ["ACCEPTED"] * 2
    fired = {record.value: record for record in await service.read_all(missing, 2)}
    assert {value: record.key for value, record in fired.items()} == {b'"video 1"': b"\xffvid1", b"hello": None}
    assert ("customer-header", b"dummy") in fired[b'"video 1"'].headers
    assert ("CALLER_SERVICE", b"S") in fired[b"hello"].headers
    [_, tombstone] = await service.read(schedules, 2)
    assert (tombstone.key, tombstone.value, tombstone.partition) == (b"vid1-online", None, 1)


async def test_timers_fired_for_the_door_etf1_are_copied_to_its_history(service: Service) -> None:
    """As it fired, and nothing else: no schedule that was moved, cancelled, refused, or could not be written."""
    schedules, history = service.prefix + "schedules", service.prefix + "history"
    await service.create_topic(schedules, cleanup_policy="compact")
    await service.create_topic(history)
    await service.start("oscillator")
    options = ("--door", f"etf1={schedules}", "--door-history", history, "--door-grace-s", "3600")
    worker = await service.firing(*options)
    producer, due = Producer({"bootstrap.servers": service.bootstrap}), int(time.time()) + SOON_S

    def write(
        name: str, value: str | None, second: int = due, target: str = service.callbacks, key: bytes | None = None
    ) -> None:
        headers: Headers = [
            ("scheduler-epoch", b"%d" % second),
            ("scheduler-target-topic", target.encode()),
            ("own", None),
            *([] if key is None else [("scheduler-target-key", key)]),
        ]
        producer.produce(schedules, value, name, headers=headers)

    write("fires", "v1", key=b"k1")
    write("has no key", "v2")
    write("is binary", "v3", key=b"\xff")
    write("moves", "old")
    write("moves", "v4", due + 1, key=b"k4")
    write("goes", "v5")
    write("goes", None)
    write("fails", "v6", target=service.prefix + "missing")
    write("is refused", "v7", due - 100_000)
    write("is its own history", "v8", target=history, key=b"k8")
    assert producer.flush(LIMIT_S) == 0

    callbacks = await service.read_all(service.callbacks, 4)
    copies = await service.read_all(history, 5, quiet_s=2)
    assert sorted(record.value for record in callbacks) == [b"v1", b"v2", b"v3", b"v4"]
    assert sorted((record.value, record.key, record.headers) for record in copies if record.value != b"v8") == sorted(
        (record.value, record.key, record.headers) for record in callbacks
    )
    assert [record.key for record in copies if record.value == b"v8"] == [b"k8"]
    assert len(copies) == 5
    rejected = await service.read(service.topics.rejected, 2)
    reasons = [dict(record.headers)["timer-rejected-reason"] for record in rejected]
    assert sorted(reasons) == [b"past-grace", b"topic-unknown"]
    assert worker.metric("kafka_timers_door_history_missed_total") == 0
    assert worker.metric("kafka_timers_fired_total") == 5
