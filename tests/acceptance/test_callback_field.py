"""Keys of any bytes, tombstones and partitions of one's own choice, asked for and read by a client that is not ours."""

import asyncio
import time
import uuid
from typing import Any

from brokers import make_topic
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from patience import LIMIT_S, SOON_S
from service import Service

from kafka_timers import Callback, Outcome, RetryPolicy, TimerClient
from kafka_timers.core.wire import Future

AVRO_KEY = b"\x00\x00\x00\x00\x07\x0e\xff\xfe"


def read(bootstrap: str, topic: str, count: int) -> list[Message]:
    """Return the first *count* committed records of *topic*, as confluent-kafka reads them."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "isolation.level": "read_committed"})
    partitions = consumer.list_topics(topic, LIMIT_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    records, end_s = [], time.monotonic() + LIMIT_S
    try:
        while len(records) < count and time.monotonic() < end_s:
            if (record := consumer.poll(0.2)) is not None and record.error() is None:
                records.append(record)
    finally:
        consumer.close()
    return records


async def test_any_bytes_leave_as_they_were_asked_for(service: Service) -> None:
    topic = service.prefix + "people"
    await make_topic(service.bootstrap, topic, 3, {"cleanup.policy": "compact"})
    await service.start("oscillator")
    worker = await service.firing()
    person = uuid.uuid4().bytes
    due = int(time.time()) + SOON_S
    wanted: list[dict[str, Any]] = [
        {"key": AVRO_KEY, "value": b"\x00\xff"},
        {"key": person},
        {"key": b"", "value": b"empty key"},
        {"key": b"here", "value": b"1", "partition": 2},
        {"key": b"there", "value": b"1", "partitionKey": b"home"},
    ]
    producer = Producer({"bootstrap.servers": service.bootstrap})
    for callback in wanted:
        future = Future(callBackRecord={"topic": topic, **callback})
        producer.produce(service.topics.requests, key=str(due), value=future.SerializeToString())
    beyond = Future(callBackRecord={"topic": topic, "key": b"k", "value": b"v", "partition": 3})
    producer.produce(service.topics.requests, key=str(due), value=beyond.SerializeToString())
    # As serializers of a schema registry write it: a zero, the schema's number, and the first message.
    for number, framing in enumerate((b"\0\0\0\0\x07\0", b"\0\0\0\0\x07\x02\0")):
        framed = Future(callBackTopic=topic, callBackKey=f"framed {number}", callBack=b"v", timerId=f"framed {number}")
        producer.produce(service.topics.requests, key=str(due), value=framing + framed.SerializeToString())
        taken_back = Future(timerId=f"gone {number}", callBackTopic=topic, callBackKey="gone", callBack=b"v")
        producer.produce(service.topics.requests, key=str(due), value=framing + taken_back.SerializeToString())
        cancel = Future(timerId=f"gone {number}", cancel=True)
        producer.flush()
        producer.produce(service.topics.requests, key=str(due), value=framing + cancel.SerializeToString())
    producer.flush()
    # The client's own forms of the same: one is cancelled, one moved, and one looked at.
    async with TimerClient(service.bootstrap, topic_prefix=service.prefix) as timers:
        await timers.at(due, topic=topic, key=AVRO_KEY, value=None, timer_id="tombstone")
        await timers.at(due, topic=topic, key=b"\xff", timer_id="cancelled")
        assert (await timers.cancel("cancelled")).outcome is Outcome.CANCELLED
        await timers.at(due + 1000, topic=topic, key=b"\xfe", value=b"moved", partition=1, timer_id="moved")
        assert (await timers.move("moved", due)).outcome is Outcome.MOVED
        waiting = await timers.get("moved")
        assert waiting is not None
        assert (waiting.topic, waiting.key, waiting.value, waiting.due_ms) == (topic, b"\xfe", b"moved", due * 1000)
    # Another worker with an empty disk reads all of it again.
    worker.child.kill()
    await worker.child.wait()
    await service.firing()
    records = await asyncio.to_thread(read, service.bootstrap, topic, len(wanted) + 4)
    assert {(record.key(), record.value()) for record in records} == {
        *((each["key"], each.get("value")) for each in wanted),
        (AVRO_KEY, None),
        (b"\xfe", b"moved"),
        (b"framed 0", b"v"),
        (b"framed 1", b"v"),
    }
    at = {record.value(): record.partition() for record in records if record.key() in (b"here", b"\xfe")}
    assert at == {b"1": 2, b"moved": 1}
    [rejected] = await asyncio.to_thread(read, service.bootstrap, service.topics.rejected, 1)
    assert dict(rejected.headers() or [])["timer-rejected-reason"] == b"partition-unknown"
    assert rejected.value() == beyond.SerializeToString()


async def test_a_record_with_a_binary_key_and_a_tombstone_come_again(service: Service) -> None:
    """As a consumer of Avro or of a compacted topic gives it to `retry`."""
    topic = service.prefix + "people"
    await make_topic(service.bootstrap, topic, 3, {"cleanup.policy": "compact"})
    await service.start("oscillator")
    await service.firing()
    producer = Producer({"bootstrap.servers": service.bootstrap})
    producer.produce(topic, key=AVRO_KEY, value=b"\x00\xff")
    producer.produce(topic, key=b"person-7", value=None)
    producer.flush()
    first = await asyncio.to_thread(read, service.bootstrap, topic, 2)
    async with TimerClient(service.bootstrap, topic_prefix=service.prefix) as timers:
        for record in first:
            await timers.retry(record, RetryPolicy(topic, first=0.1))
    both = await asyncio.to_thread(read, service.bootstrap, topic, 4)
    again = {(each.key(), each.value()) for each in both if (found := Callback.of(each)) and found.attempt == 1}
    assert again == {(AVRO_KEY, b"\x00\xff"), (b"person-7", None)}
