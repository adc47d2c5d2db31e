"""Records of other systems, written by a client that is not ours, and the callbacks a real worker makes of them."""

import base64
import io
import json
import time
from typing import Any

from brokers import administering, delete_group, delete_records
from confluent_kafka import Producer
from fastavro import schemaless_writer
from patience import LIMIT_S, SOON_S
from service import Service

from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Reply

Headers = list[tuple[str, bytes]]


async def test_a_record_of_each_adapter_fires_its_callback(service: Service) -> None:
    """Through one worker that has all of them; each second lies in the past and is ticked by the test."""
    second = int(time.time()) - 1_000
    when, rfc3339 = b"%d" % second, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second)).encode()
    to, prefix = service.callbacks.encode(), service.prefix
    etf1: Headers = [
        ("scheduler-epoch", when),
        ("scheduler-target-topic", to),
        ("scheduler-target-key", b"vid1"),
        ("customer-header", b"dummy"),
    ]
    karafka: Headers = [
        ("schedule_schema_version", b"1.0.0"),
        ("schedule_target_epoch", when),
        ("schedule_source_type", b"schedule"),
        ("schedule_target_topic", to),
        ("schedule_target_key", b"user-1"),
        ("own", b"1"),
    ]
    # The adapter, a record for its topic, and key, value and headers of the callback.
    cases: list[tuple[str, bytes | None, bytes, Headers, bytes | None, bytes, Headers]] = [
        (
            *("etf1", b"vid1-online", b'"video 1"', etf1),
            *(b"vid1", b'"video 1"'),
            [
                ("timer-id", f"etf1:{prefix}etf1:vid1-online".encode()),
                ("timer-expiry", when),
                *etf1,
                ("scheduler-timestamp", b"%d" % (second - 60)),
                ("scheduler-key", b"vid1-online"),
                ("scheduler-topic", f"{prefix}etf1".encode()),
            ],
        ),
        (
            *("headers", b"pay-7", b"pay now"),
            [
                ("timer-expiry", when),
                ("timer-callback-topic", to),
                ("timer-callback-key", b"order-7"),
                ("timer-token", b"tok"),
                ("trace", b"\x00"),
            ],
            *(b"order-7", b"pay now"),
            [("timer-token", b"tok"), ("timer-id", b"pay-7"), ("timer-expiry", when), ("trace", b"\x00")],
        ),
        (
            *("countdown", None, b'{"topic": "%b", "message": "hello", "countdown": 60}' % to),
            [("CALLER_SERVICE", b"S")],
            *(None, b"hello"),
            [("timer-expiry", when), ("CALLER_SERVICE", b"S")],
        ),
        (
            *("karafka", b"events-1", b"{}", karafka),
            *(b"user-1", b"{}"),
            [
                ("timer-id", f"karafka:{prefix}karafka:0:events-1".encode()),
                ("timer-expiry", when),
                *karafka,
                ("schedule_source_topic", f"{prefix}karafka".encode()),
                ("schedule_source_partition", b"0"),
                ("schedule_source_offset", b"0"),
                ("schedule_source_key", b"events-1"),
            ],
        ),
        (
            *("timebridge", b"user-2", b"hi"),
            [("X-Timebridge-When", rfc3339), ("X-Timebridge-Where", to), ("own", b"2")],
            *(b"user-2", b"hi"),
            [("timer-expiry", when), ("own", b"2")],
        ),
    ]
    producer = Producer({"bootstrap.servers": service.bootstrap})
    options = []
    for adapter, key, value, headers, *_ in cases:
        # With the producer's time, as most topics have.
        await service.create_topic(prefix + adapter, message_timestamp_type="CreateTime")
        at = {"partition": 0, "timestamp": (second - 60) * 1000}
        producer.produce(prefix + adapter, value, key, headers=headers, **at)
        options += ["--door", f"{adapter}={prefix}{adapter}"]
    assert producer.flush(LIMIT_S) == 0

    worker = await service.worker(*options)
    await worker.until("/metrics", lambda *_: worker.metric("kafka_timers_requests_total") == len(cases))
    await service.until_sealed(second)
    records = await service.read_all(service.callbacks, len(cases), quiet_s=3)
    assert {record.value: record.key for record in records} == {value: key for *_, key, value, _ in cases}
    by_value = {record.value: [pair for pair in record.headers if pair[0] != "timer-request"] for record in records}
    assert by_value == {value: headers for *_, value, headers in cases}
    assert len(records) == len(cases)
    assert worker.metric("kafka_timers_door_requests_total") == len(cases)
    assert worker.metric("kafka_timers_door_failures_total") == 0


async def test_schedules_of_etf1_are_moved_deleted_and_marked_as_done_where_they_lie(service: Service) -> None:
    """By librdkafka's own partitioner, which puts keys elsewhere than Kafka's."""
    topic = service.prefix + "schedules"
    await service.create_topic(topic, cleanup_policy="compact")
    await service.start("oscillator")
    worker = await service.worker("--door", f"etf1={topic}")
    producer, partitions = Producer({"bootstrap.servers": service.bootstrap}), {}

    def accepted(_: object, message: object) -> None:
        partitions[message.key()] = message.partition()

    def write(key: str, value: str | None, second: int) -> None:
        target = [("scheduler-target-topic", service.callbacks.encode()), ("scheduler-target-key", key.encode())]
        headers = [("scheduler-epoch", b"%d" % second), *target]
        producer.produce(topic, value, key, headers=headers, on_delivery=accepted)

    due = int(time.time()) + SOON_S
    for key in ("stays", "moves", "goes", "moves too", *"abcdef"):
        write(key, "v1", due)
    write("moves", "v2", due + 1)
    write("moves too", "v2", due)
    write("goes", None, due)
    assert producer.flush(LIMIT_S) == 0
    fired = await service.read(service.callbacks, 9)
    assert sorted((record.key, record.value) for record in fired) == sorted(
        [(b"stays", b"v1"), (b"moves", b"v2"), (b"moves too", b"v2")] + [(key.encode(), b"v1") for key in "abcdef"]
    )
    schedules = await service.read(topic, 13 + 9)
    tombstones = [record for record in schedules if "timer-request" in dict(record.headers)]
    assert {record.key: record.partition for record in tombstones} == {
        key: partition for key, partition in partitions.items() if key != b"goes"
    }
    assert {record.value for record in tombstones} == {None}
    assert len(await service.callback_names([""] * 9)) == 9
    await worker.until("/metrics", lambda *_: worker.metric("kafka_timers_door_records_total") == len(schedules))
    assert worker.metric("kafka_timers_taken_back_total") == 3
    assert worker.metric("kafka_timers_door_requests_total") == 13


async def test_a_client_without_protobuf_cancels_and_is_answered(service: Service) -> None:
    topic, due = service.prefix + "timers", int(time.time()) + 1_000
    await service.create_topic(topic)
    await service.worker("--door", f"headers={topic}")
    producer = Producer({"bootstrap.servers": service.bootstrap})
    reply_to = ("timer-reply-topic", service.topics.replies.encode())
    headers = [("timer-expiry", b"%d" % due), ("timer-callback-topic", service.callbacks.encode())]
    producer.produce(topic, "pay", "pay-7", headers=headers)
    producer.produce(topic, None, "pay-7", headers=[reply_to])
    producer.produce(topic, None, "pay-8", headers=[reply_to])
    assert producer.flush(LIMIT_S) == 0
    replies = [Reply.FromString(record.value) for record in await service.read(service.topics.replies, 2)]
    assert {reply.timerId: Reply.Outcome.Name(reply.outcome) for reply in replies} == {
        "pay-7": "CANCELLED",
        "pay-8": "UNKNOWN",
    }


async def test_a_worker_that_is_killed_loses_and_doubles_nothing_of_an_adapter(service: Service) -> None:
    """The first is killed while it passes records on; the second one finishes its work."""
    second = int(time.time()) - 1_000
    topic = service.prefix + "schedules"
    await service.create_topic(topic)
    first = await service.worker("--door", f"headers={topic}")
    await service.worker("--door", f"headers={topic}")
    producer = Producer({"bootstrap.servers": service.bootstrap})
    names = [f"t{number}" for number in range(6_000)]
    headers = [("timer-expiry", b"%d" % second), ("timer-callback-topic", service.callbacks.encode())]
    for number, name in enumerate(names):
        producer.produce(topic, name, name, headers=headers)
        if number == 3_000:
            producer.flush(LIMIT_S)
            await first.until("/metrics", lambda *_: first.metric("kafka_timers_door_records_total") > 0)
            first.child.kill()
    assert producer.flush(LIMIT_S) == 0
    assert len(await service.read(service.topics.requests, len(names))) == len(names)
    await service.until_sealed(second)
    assert sorted(await service.callback_names(names)) == sorted(names)


async def test_a_worker_whose_door_has_lost_its_place_says_so_and_all_else_goes_on(service: Service) -> None:
    """Its offsets, its places and its requests are gone."""
    second, orders, others = int(time.time()) - 1_000, service.prefix + "orders", service.prefix + "others"
    doors = ["--seal-every-s", "1", "--door", f"countdown={orders}", "--door", f"headers={others}"]
    producer = Producer({"bootstrap.servers": service.bootstrap})

    def write(name: str) -> None:
        """Write a record for each of the doors, due at once."""
        countdown = {"topic": service.callbacks, "message": f"countdown {name}", "countdown": 60}
        producer.produce(orders, json.dumps(countdown), partition=0, timestamp=(second - 60) * 1000)
        headers: Headers = [("timer-expiry", b"%d" % second), ("timer-callback-topic", service.callbacks.encode())]
        producer.produce(others, f"headers {name}", name, 0, headers=headers)
        assert producer.flush(LIMIT_S) == 0

    async def fired(until: int, *names: str) -> None:
        await service.until_sealed(until)
        assert sorted(await service.callback_names(names)) == sorted(names)

    await service.create_topic(orders, message_timestamp_type="CreateTime")
    await service.create_topic(others)
    worker = await service.worker(*doors)
    write("before")
    requests = await service.read(service.topics.requests, 2)
    await fired(second, "countdown before", "headers before")
    await worker.child.stop()
    await delete_group(service.bootstrap, f"{service.prefix}workers.door.countdown")
    async with administering(service.bootstrap) as ours:
        await ours.delete_topics([service.topics.doors])
    for each in requests:
        await delete_records(service.bootstrap, service.topics.requests, each.partition, each.offset + 1)
    await service.create_topic(service.topics.doors, cleanup_policy="compact")
    write("meanwhile")
    worker = await service.start("worker", *doors, data_dir=worker.data_dir)
    said = f"door countdown={orders}: nothing tells how far partition 0 was read"
    assert "--door-from earliest" in await worker.until("/readyz", lambda _, body: said in body)
    assert said in worker.child.last_words()
    assert worker.metric("kafka_timers_door_failures_total", 'door="countdown"') > 0
    await service.read(service.topics.requests, 1)
    await fired(second + 1, "countdown before", "headers before", "headers meanwhile")
    await worker.child.stop()
    await service.worker(*doors, "--door-from", "latest", data_dir=worker.data_dir)
    write("after")
    await service.read(service.topics.requests, 3)
    await fired(
        second + 2, *("countdown before", "headers before", "headers meanwhile"), "countdown after", "headers after"
    )


async def test_a_client_without_protobuf_asks_by_delay_and_reads_the_answer_in_headers(service: Service) -> None:
    await service.create_topic(service.prefix + "timers")
    await service.start("oscillator")
    names = ["--door-header", "delay=x-delay", "--door-header", "topic=x-topic"]
    await service.firing("--door", f"headers={service.prefix}timers", *names)
    producer = Producer({"bootstrap.servers": service.bootstrap})
    to = service.callbacks.encode()
    asked: list[tuple[bytes, bytes | None, Headers]] = [
        (b"soon", b"v", [("x-delay", b"250ms"), ("x-topic", to), ("timer-callback-key", b"\xff\x00")]),
        (b"gone", b"v", [("x-delay", b"1s"), ("x-topic", to), ("timer-tombstone", b"1")]),
        (b"late", b"v", [("x-delay", b"1h"), ("x-topic", to)]),
        (b"late", None, [("timer-reply-topic", service.topics.replies.encode())]),
        (b"wrong", b"v", [("x-delay", b"soon"), ("x-topic", to)]),
    ]
    for key, value, headers in asked:
        producer.produce(service.prefix + "timers", value, key, headers=headers)
        producer.flush()
    callbacks = await service.read(service.callbacks, 2)
    assert {(dict(each.headers)["timer-id"], each.key, each.value) for each in callbacks} == {
        (b"soon", b"\xff\x00", b"v"),
        (b"gone", None, None),
    }
    for each in callbacks:
        assert each.timestamp >= int(dict(each.headers)["timer-expiry"]) * 1000
    [reply] = await service.read(service.topics.replies, 1)
    told = dict(reply.headers)
    assert (reply.key, told["timer-answer"]) == (b"late", b"CANCELLED")
    assert int(told["timer-answer-due-ms"]) > time.time() * 1000
    assert Reply.FromString(reply.value).asked.encode() == told["timer-answer-to"]
    [rejected] = await service.read(service.topics.rejected, 1)
    assert (rejected.key, dict(rejected.headers)["timer-rejected-reason"]) == (b"wrong", b"delay-invalid")


async def test_a_schedule_for_its_own_topic_comes_round_and_is_refused_in_the_end(service: Service) -> None:
    """Here it has come round often before; a second schedule shows that the door goes on."""
    schedules, second = service.prefix + "etf1", int(time.time()) - 1_000
    await service.create_topic(schedules)
    await service.start("oscillator")
    await service.firing("--door", f"etf1={schedules}")
    producer = Producer({"bootstrap.servers": service.bootstrap})
    target = [("scheduler-epoch", b"%d" % second), ("scheduler-target-topic", schedules.encode())]
    round_ = [*target, ("scheduler-target-key", b"id"), ("timer-request", b"0:1"), ("timer-hops", b"98")]
    producer.produce(schedules, b"v", b"id", headers=round_)
    producer.flush()
    [rejected] = await service.read(service.topics.rejected, 1)
    told = dict(rejected.headers)
    assert (told["timer-rejected-reason"], told["timer-rejected-door"]) == (b"too-many-hops", b"etf1")
    assert (rejected.key, rejected.value, told["timer-hops"]) == (b"id", b"v", b"100")
    elsewhere = [("scheduler-epoch", b"%d" % second), ("scheduler-target-topic", service.callbacks.encode())]
    producer.produce(schedules, b"goes on", b"other", headers=elsewhere)
    producer.flush()
    [callback] = await service.read(service.callbacks, 1)
    assert callback.value == b"goes on"


# As sky-uk's scheduler has it.
SKYUK: dict[str, Any] = {
    "type": "record",
    "name": "AvroSchedule",
    "fields": [
        {"name": "time", "type": "long"},
        {"name": "topic", "type": "string"},
        {"name": "key", "type": "bytes"},
        {"name": "value", "type": ["null", "bytes"]},
        {"name": "headers", "type": {"type": "map", "values": "bytes"}},
    ],
}


async def test_schedules_of_skyuk_fire_in_either_format_and_their_topics_stay_tidy(service: Service) -> None:
    """
    Sent, moved, deleted and damaged by clients that are not ours, with librdkafka's partitioner.

    The cancelled schedules are due much later, so no cancel comes too late.
    """
    in_avro, in_json = service.prefix + "avro", service.prefix + "json"
    for topic in (in_avro, in_json):
        await service.create_topic(topic, cleanup_policy="compact")
    await service.create_topic(service.prefix + "state", cleanup_policy="compact")
    worker = await service.worker("--door", f"skyuk={in_avro}", "--door", f"skyuk={in_json}")
    producer = Producer({"bootstrap.servers": service.bootstrap})

    def write(name: str, key: bytes, value: bytes | None, due_ms: int, to: str = service.callbacks) -> None:
        headers = {"trace": name.encode() + b"\xff"}
        given = {"time": due_ms, "topic": to, "key": key, "value": value, "headers": headers}
        data = io.BytesIO()
        schemaless_writer(data, SKYUK, given)
        producer.produce(in_avro, data.getvalue(), name, headers=[("of the record", b"1")])
        text = {"key": base64_of(key), "value": None if value is None else base64_of(value)}
        text["headers"] = {name: base64_of(content) for name, content in headers.items()}
        producer.produce(in_json, json.dumps(given | text), name)

    second = int(time.time()) - 1_000
    due_ms, later_ms = second * 1000, (second + 100_000) * 1000
    write("stays", b"\xff\0key", b"\xfe value", due_ms)
    write("moves", b"", b"old", later_ms)
    write("moves", b"", b"new", due_ms + 345)
    write("goes", b"k", b"v", later_ms)
    write("past", b"k", b"", due_ms - 86_400_000)
    write("gone", b"state", None, due_ms, service.prefix + "state")
    write("damaged", b"k", b"v", later_ms)
    for topic in (in_avro, in_json):
        producer.produce(topic, None, "goes")
        producer.produce(topic, b"{\0 poison", "damaged")
    assert producer.flush(LIMIT_S) == 0

    await worker.until("/metrics", lambda *_: worker.metric("kafka_timers_door_records_total") == 2 * 9)
    await service.until_sealed(second + 1)
    fired = await service.read_all(service.callbacks, 6)
    found = []
    for record in fired:
        headers = dict(record.headers)
        name, due = headers["timer-id"].decode().rpartition(":")[2], int(headers["timer-expiry"]) * 1000
        assert headers["trace"] == name.encode() + b"\xff"
        assert "of the record" not in headers
        found.append((name, record.key, record.value, due + int(headers.get("timer-millis", b"0")) - due_ms))
    assert sorted(found) == [
        *[("moves", b"", b"new", 345)] * 2,
        *[("past", b"k", b"", -86_400_000)] * 2,
        *[("stays", b"\xff\0key", b"\xfe value", 0)] * 2,
    ]
    gone = await service.read(service.prefix + "state", 2)
    assert [(record.key, record.value) for record in gone] == [(b"state", None)] * 2

    rejected = await service.read(service.topics.rejected, 2)
    assert {(record.key, record.value) for record in rejected} == {(b"damaged", b"{\0 poison")}
    told = [dict(record.headers) for record in rejected]
    assert {(each["timer-rejected-reason"], each["timer-rejected-door"]) for each in told} == {
        (b"value-not-schedule", b"skyuk")
    }
    assert {each["timer-rejected-topic"].decode() for each in told} == {in_avro, in_json}
    for topic in (in_avro, in_json):
        # The fired schedules, and those that the user has taken back; the scheduler does not read damaged ones.
        records = await service.read(topic, 9 + 4)
        at = {(record.key, record.partition) for record in records if record.value is not None}
        ended = [(record.key, record.partition) for record in records if "timer-request" in dict(record.headers)]
        assert sorted(key for key, _ in ended) == [b"gone", b"moves", b"past", b"stays"]
        assert set(ended) <= at
    await worker.until("/metrics", lambda *_: worker.metric("kafka_timers_taken_back_total") == 2 * 3)
    assert worker.metric("kafka_timers_door_failures_total") == 0


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_partitions_missing_values_and_any_time_of_karafka_and_timebridge_are_taken(service: Service) -> None:
    second = int(time.time()) - 1_000
    to, options = service.callbacks.encode(), []
    for adapter in ("karafka", "timebridge"):
        await service.create_topic(service.prefix + adapter)
        options += ["--door", f"{adapter}={service.prefix}{adapter}"]
    producer = Producer({"bootstrap.servers": service.bootstrap})

    def envelope(key: str, value: bytes | None, version: bytes = b"1.0.0", **more: bytes) -> None:
        headers: Headers = [
            ("schedule_schema_version", version),
            ("schedule_source_type", b"schedule"),
            ("schedule_target_epoch", b"%d" % second),
            ("schedule_target_topic", to),
            ("schedule_target_key", key.encode()),
            *((f"schedule_target_{name}", told) for name, told in more.items()),
        ]
        producer.produce(service.prefix + "karafka", value, key, headers=headers)

    def bridged(key: bytes | None, value: bytes | None, when: bytes) -> None:
        headers = [("X-Timebridge-When", when), ("X-Timebridge-Where", to)]
        producer.produce(service.prefix + "timebridge", value, key, headers=headers)

    elsewhere = [key for key in map(str, range(99)) if partition_of(key, service.partitions) != 1]
    home = next(key for key in elsewhere if partition_of(key, service.partitions) == 2)
    envelope(elsewhere[0], b"partition", partition=b"1", partition_key=home.encode())
    envelope(elsewhere[1], b"partition key", partition_key=home.encode())
    envelope(elsewhere[2], None)
    envelope(elsewhere[3], b"older", b"0.9.0")
    envelope("newer", b"refused", b"1.1.0")
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second)).encode()
    bridged(b"\xff\0binary", b"v", now)
    bridged(b"nil", None, now)
    bridged(b"first", b"year", b"0001-01-01T00:00:00Z")
    bridged(b"last", b"year", b"9999-12-31T23:59:59.999999999Z")
    assert producer.flush(LIMIT_S) == 0

    worker = await service.worker(*options)
    await worker.until("/metrics", lambda *_: worker.metric("kafka_timers_door_records_total") == 9)
    await service.until_sealed(second)
    fired = await service.read_all(service.callbacks, 7)
    assert sorted((record.key, record.value or b"none") for record in fired) == sorted(
        [
            *((key.encode(), value) for key, value in zip(elsewhere, (b"partition", b"partition key"), strict=False)),
            *((elsewhere[2].encode(), b"none"), (elsewhere[3].encode(), b"older")),
            *((b"\xff\0binary", b"v"), (b"nil", b"none"), (b"first", b"year")),
        ]
    )
    assert {record.value: record.partition for record in fired if (record.value or b"").startswith(b"partition")} == {
        b"partition": 1,
        b"partition key": 2,
    }
    assert [record.value for record in fired if record.key in (elsewhere[2].encode(), b"nil")] == [None, None]
    assert b"99999999999" in [record.key for record in await service.read(service.topics.requests, 8)]
    [rejected] = await service.read(service.topics.rejected, 1)
    assert (rejected.key, dict(rejected.headers)["timer-rejected-reason"]) == (b"newer", b"version-unknown")
