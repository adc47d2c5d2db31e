"""A request that no worker can fire is reported with its reason, counted, and stops nothing else."""

import asyncio
import time
from collections import Counter
from pathlib import Path

from aiokafka import ConsumerRecord
from aiokafka.codec import snappy_encode
from batches import append_batch, batch_of
from brokers import StartKafka, administering, set_topic
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from patience import LIMIT_S
from service import Process, Service

from kafka_timers.core.wire import Future

Bad = tuple[str, bytes | None, bytes | None]


def bad_requests(service: Service, second: int) -> list[Bad]:
    """Return reason, key and value of requests that cannot fire, of each kind."""
    key = b"%d" % second

    def value(topic: str, **more: object) -> bytes:
        return Future(callBackTopic=topic, callBackKey="k", **({"callBack": b"bad"} | more)).SerializeToString()

    good = value(service.callbacks)
    return [
        ("key-missing", None, good),
        ("key-missing", b"", good),
        ("key-not-a-second", b"tomorrow", good),
        ("key-not-a-second", b"-%d" % second, good),
        ("key-not-a-second", b"%d.5" % second, good),
        ("key-not-a-second", b"0", good),
        ("key-not-a-second", b"9" * 5_000, good),
        ("key-in-milliseconds", b"%d000" % second, good),
        ("value-missing", key, None),
        ("value-missing", key, b""),
        ("value-not-a-future", key, b'{"callBackTopic": "json"}'),
        ("value-not-a-future", key, b"\x0a\x02\xff\xfe"),  # a topic that is not UTF-8
        ("millis-out-of-range", key, value(service.callbacks, millis=1000)),
        ("id-missing", key, value(service.callbacks, cancel=True)),
        ("topic-missing", key, value("")),
        ("topic-unknown", key, value(service.prefix + "missing")),
        ("topic-unknown", key, value(service.prefix + "not a name")),
        ("topic-forbidden", key, value("elsewhere")),
        ("topic-reserved", key, value(service.topics.requests)),
        ("topic-reserved", key, value(service.topics.sealed)),
        ("topic-reserved", key, value("__consumer_offsets")),
        ("too-large", key, value(service.prefix + "small", callBack=b"x" * 3_000)),
    ]


async def publish(service: Service, bad: list[Bad]) -> dict[str, Bad]:
    """Publish *bad* and return it by `partition:offset`."""
    placed = {}
    for number, (reason, key, value) in enumerate(bad):
        at = await service.producer.send_and_wait(
            service.topics.requests, value, key=key, partition=number % service.partitions
        )
        placed[f"{at.partition}:{at.offset}"] = (reason, key, value)
    return placed


async def rejected(service: Service, count: int) -> list[ConsumerRecord]:
    """Return the records of `timer-rejected`, once *count* records are there and nothing more comes for a moment."""
    return await service.read_all(service.topics.rejected, count)


def by_request(service: Service, records: list[ConsumerRecord]) -> dict[str, Bad]:
    """Return reason, key and value of rejected records by `partition:offset` of the request; none is there twice."""
    told = {}
    for record in records:
        headers = {name: value.decode() for name, value in record.headers}
        assert headers.pop("timer-rejected-topic") == service.topics.requests
        at = headers.pop("timer-rejected-partition") + ":" + headers.pop("timer-rejected-offset")
        assert at not in told
        told[at] = reason, _, _ = (headers.pop("timer-rejected-reason"), record.key, record.value)
        words, cut = headers.pop("timer-rejected-words", ""), headers.pop("timer-rejected-cut", "")
        assert not headers
        # Of all else `timer-rejected` takes the whole.
        assert bool(cut) == (len(record.value or b"") > 1_000_000)
        # Where the broker has refused, its own words are told.
        assert bool(words) == (reason == "topic-refused")
    return told


def rejected_counts(worker: Process) -> dict[str, int]:
    """Return the metric of rejected requests by reason."""
    start = 'kafka_timers_rejected_total{reason="'
    lines = [line.removeprefix(start) for line in worker.get("/metrics")[1].splitlines() if line.startswith(start)]
    counts = {reason: int(float(count)) for reason, count in (line.split('"} ') for line in lines)}
    return {reason: count for reason, count in counts.items() if count}


async def assert_balanced(service: Service, due: int, fired: int) -> None:
    """Check each seal, and the sums over all partitions."""
    seals = [seal for tail in (await service.seals()).values() for seal in tail]
    assert all(seal.due == seal.fired + seal.rejected for seal in seals)
    assert (sum(seal.due for seal in seals), sum(seal.fired for seal in seals)) == (due, fired)


async def set_limit(service: Service, topic: str, bytes_max: int) -> None:
    """Have the broker take records of at most so many bytes on *topic*."""
    configs = {"max.message.bytes": str(bytes_max), "message.timestamp.type": "LogAppendTime"}
    await set_topic(service.bootstrap, topic, configs)


async def test_each_bad_request_is_rejected_once_with_its_reason_and_stops_no_other(service: Service) -> None:
    """Through all faults of the workers, one record tells of each; the timers of the same second fire."""
    await service.create_topic(service.prefix + "small", max_message_bytes="2000")
    allowed = ["--allowed-topics", f"{service.prefix}*, timer-*,__*"]
    second = int(time.time()) - 1000
    bad = bad_requests(service, second)
    good = [f"good-{n}" for n in range(40)]

    worker = await service.worker(*allowed)
    # They wait all the time, so a worker with an empty disk reads the log from its beginning.
    await service.requests(second + 900, [f"later-{n}" for n in range(4)])
    placed = await publish(service, bad)
    await service.requests(second, good)
    small = Future(callBackTopic=service.prefix + "small", callBack=b"x" * 1_000)
    await service.request(second, small, partition=0)
    await service.tick(second)
    await service.until_sealed(second)
    assert by_request(service, await rejected(service, len(bad))) == placed
    assert sorted(await service.callback_names(good)) == sorted(good)
    assert len(await service.read(service.prefix + "small", 1)) == 1
    await worker.until("/metrics", lambda _, body: 'reason="too-large"} 1.0' in body)
    assert rejected_counts(worker) == Counter(reason for reason, _, _ in bad)
    await assert_balanced(service, len(bad) + 41, 41)
    worker.child.kill()
    await worker.child.wait()

    # Taken in by one worker, told by the next one, whose disk is empty.
    heir = await service.worker(*allowed, data_dir=worker.data_dir)
    placed |= await publish(service, bad)
    more = [f"more-{n}" for n in range(40)]
    await service.requests(second + 20, more)
    await heir.until("/metrics", lambda *_: heir.metric("kafka_timers_pending") == len(bad) + 44)
    heir.child.kill()
    await service.worker(*allowed)
    await service.until_sealed(second + 20)
    assert by_request(service, await rejected(service, 2 * len(bad))) == placed
    assert sorted(await service.callback_names(good + more)) == sorted(good + more)


async def test_the_largest_request_that_kafka_takes_stops_no_other(service: Service) -> None:
    """With the service's headers the callback would be larger than its topic takes; the parts that fit are reported."""
    await service.worker()
    second = int(time.time()) - 1000
    future = Future(callBackTopic=service.callbacks)
    # 1,048,588 bytes are Kafka's default limit of a batch: 61 bytes are its header, the rest is around the record.
    future.callBack = b"x" * (1_048_588 - 61 - 40 - len(future.SerializeToString()))
    request = await service.request(second, future, partition=0)
    await service.requests(second, ["good"], partition=0)
    await service.until_sealed(second)
    records = await rejected(service, 1)
    [(at, (reason, key, value))] = by_request(service, records).items()
    assert (at, reason, key) == (request, "too-large", b"%d" % second)
    assert value
    whole = future.SerializeToString()
    assert whole.startswith(value)
    assert dict(records[0].headers)["timer-rejected-cut"] == b"%d" % (len(whole) - len(value))
    assert await service.callback_names(["good"]) == ["good"]


async def test_a_header_whose_name_is_not_text_stops_no_timer(service: Service) -> None:
    """A batch of a client in Go: to it the name is any bytes. Also for a worker that takes over."""
    second = int(time.time()) - 1000
    names = ["before", "odd", "behind"]
    values = [Future(callBackTopic=service.callbacks, callBack=name.encode()).SerializeToString() for name in names]
    records = [(b"%d" % (second + at // 3 * 20), values[at % 3]) for at in range(6)]
    await append_batch(service.bootstrap, service.topics.requests, 1, batch_of(records, odd=(1, 4), codec=1))
    worker = await service.worker()
    await service.requests(second, ["next"], partition=1)
    await service.until_sealed(second)
    assert sorted(await service.callback_names([*names, "next"])) == sorted([*names, "next"])
    worker.child.kill()
    await service.worker()
    await service.until_sealed(second + 20)
    assert sorted(await service.callback_names([*names, *names, "next"])) == sorted([*names, *names, "next"])


async def test_bytes_behind_the_compressed_records_of_a_batch_stop_no_timer(service: Service) -> None:
    """Brokers take it, and Kafka's own clients read over it."""
    second, names = int(time.time()) - 1000, []
    for codec, behind in ((1, b"junk"), (2, snappy_encode(b"")[:16]), (3, b"junk")):
        names += [f"{codec}-{n}" for n in range(3)]
        values = [Future(callBackTopic=service.callbacks, callBack=each.encode()) for each in names[-3:]]
        records = [(b"%d" % second, each.SerializeToString()) for each in values]
        await append_batch(service.bootstrap, service.topics.requests, 1, batch_of(records, codec=codec, behind=behind))
    await service.worker()
    await service.requests(second, ["next"], partition=1)
    await service.until_sealed(second)
    assert sorted(await service.callback_names([*names, "next"])) == sorted([*names, "next"])


async def test_ticks_that_are_no_seconds_are_counted_and_passed_over(service: Service) -> None:
    """A stray record on the oscillator's topic neither fires anything nor stops the ticks behind it."""
    worker = await service.worker()
    second = int(time.time()) - 1000
    await service.requests(second, ["t"], partition=0)
    keys = [b"soon", b"", None, b"-5", b"9" * 5_000]
    for key in keys:
        await service.producer.send_and_wait(service.topics.oscillator, b"1", key=key, partition=0)
    # Of a client in Go; a worker that starts again reads it first.
    odd = batch_of([(b"odd", None), (b"%d" % second, b"1")], odd=(0, 1), base_ms=second * 1000)
    await append_batch(service.bootstrap, service.topics.oscillator, 0, odd)
    await service.until_sealed(second)
    assert await service.callback_names(["t"]) == ["t"]
    await worker.until("/metrics", lambda *_: worker.metric("kafka_timers_ticks_refused_total") == len(keys) + 1)
    assert "is no second" in worker.child.last_words()
    await append_batch(service.bootstrap, service.topics.oscillator, 0, odd)
    worker.child.kill()
    await service.worker()
    await service.requests(second + 20, ["u"], partition=0)
    await service.until_sealed(second + 20)
    assert sorted(await service.callback_names(["t", "u"])) == ["t", "u"]


async def test_topic_deleted_while_a_timer_waits_costs_that_timer_alone(service: Service) -> None:
    """It was there when the request was accepted; the second is redone without it, and soon."""
    await service.create_topic(service.prefix + "gone")
    # Kafka's client sends to a missing topic for ever; the limit of a transaction ends that.
    worker = await service.worker("--transaction-timeout-s", "3")
    second = int(time.time()) - 1000
    lost = Future(callBackTopic=service.prefix + "gone", callBack=b"lost")
    requests = {await service.request(second, lost, partition=number) for number in range(4)}
    good = [f"good-{n}" for n in range(400)]
    await service.requests(second, good)
    await worker.until("/metrics", lambda *_: worker.metric("kafka_timers_requests_total") == 404)
    async with administering(service.bootstrap) as admin:
        await admin.delete_topics([service.prefix + "gone"])
    await service.until_sealed(second)
    told = by_request(service, await rejected(service, 4))
    assert told == {at: ("topic-unknown", b"%d" % second, lost.SerializeToString()) for at in requests}
    assert sorted(await service.callback_names(good)) == sorted(good)
    await assert_balanced(service, 404, 400)


async def test_a_topic_with_a_lowered_limit_refuses_only_callbacks_that_are_too_large(service: Service) -> None:
    """The limit is lowered while timers wait: large ones are rejected, the small ones of that topic fire."""
    worker = await service.worker()
    second = int(time.time()) - 1000
    large = Future(callBackTopic=service.callbacks, callBack=b"x" * 3_000)
    requests = {await service.request(second, large, partition=number) for number in range(4)}
    good = [f"good-{n}" for n in range(40)]
    await service.requests(second, good)
    await worker.until("/metrics", lambda *_: worker.metric("kafka_timers_requests_total") == 44)
    await set_limit(service, service.callbacks, 2_000)
    await service.until_sealed(second)
    told = by_request(service, await rejected(service, 4))
    assert {at: reason for at, (reason, _, _) in told.items()} == dict.fromkeys(requests, "too-large")
    assert sorted(await service.callback_names(good)) == sorted(good)


async def test_partitions_whose_seals_are_not_taken_fall_behind_for_all_to_see_and_go_on_after_it(
    service: Service,
) -> None:
    worker = await service.worker()
    second = int(time.time()) - 1000
    await service.until_sealed(second)
    # Less than a seal, and more than the markers of transactions, which a broker never writes again.
    await set_limit(service, service.topics.sealed, 100)
    names = [f"t-{n}" for n in range(40)]
    await service.requests(second + 5, names)
    await service.tick(second + 60)
    behind = "kafka_timers_seconds_behind"
    await worker.until("/metrics", lambda *_: worker.metric(behind) == 60 * service.partitions)
    # Each says so while it waits for its next try, and not during one.
    reason = "does not take it: MESSAGE_TOO_LARGE"
    await worker.until("/readyz", lambda _, body: body.count(reason) == service.partitions)
    await set_limit(service, service.topics.sealed, 1 << 20)
    await service.until_sealed(second + 60)
    await worker.until("/metrics", lambda *_: worker.metric(behind) == 0)
    assert sorted(await service.callback_names(names)) == sorted(names)


async def test_a_topic_for_rejects_that_takes_less_from_now_on_gets_shorter_ones(service: Service) -> None:
    await service.worker()
    second = int(time.time()) - 1000
    await service.until_sealed(second)
    await set_limit(service, service.topics.rejected, 2_000)
    future = Future(callBackTopic=service.prefix + "missing", callBack=b"v" * 10_000)
    await service.request(second + 1, future, partition=0)
    names = [f"t-{n}" for n in range(8)]
    await service.requests(second + 1, names)
    await service.until_sealed(second + 1)
    [told] = await rejected(service, 1)
    assert dict(told.headers)["timer-rejected-reason"] == b"topic-unknown"
    assert int(dict(told.headers)["timer-rejected-cut"]) > 8_000
    assert sorted(await service.callback_names(names)) == sorted(names)


async def test_topic_created_after_a_rejection_is_used_soon(service: Service) -> None:
    """A missing topic is looked up again every few seconds."""
    await service.worker()
    topic, second = service.prefix + "new", int(time.time()) - 1000
    future = Future(callBackTopic=topic, callBack=b"t")
    await service.request(second, future, partition=0)
    await service.until_sealed(second)
    [(reason, _, _)] = by_request(service, await rejected(service, 1)).values()
    assert reason == "topic-unknown"
    await service.create_topic(topic)
    created_s = time.monotonic()
    # A sender would do no other than to send again.
    while not (fired := await service.read(topic, 1, limit_s=0.5)):
        assert time.monotonic() - created_s < LIMIT_S
        second += 1
        await service.request(second, future, partition=0)
        await service.tick(second)
    assert fired[0].value == b"t"


async def test_topics_that_refuse_writes_or_are_missing_cost_their_own_timers_alone(
    start_kafka: StartKafka, prefix: str, tmp_path: Path
) -> None:
    """A refusal shows when the second is sent: all of it is sent again, without the culprit."""
    properties = {
        # Here a missing topic is created for any client that asks for it by its name, even by mistake.
        "auto.create.topics.enable": "true",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    kafka = await start_kafka(properties=properties)
    async with Service(kafka.bootstrap, prefix, tmp_path) as service:
        await service.create_topic(prefix + "closed")
        rule = (ResourceType.TOPIC, prefix + "closed", ResourcePatternType.LITERAL)
        deny = AclBinding(*rule, "User:ANONYMOUS", "*", AclOperation.WRITE, AclPermissionType.DENY)
        # With a rule of its own, a topic is open only to the users that a rule names.
        allow = AclBinding(*rule, "User:*", "*", AclOperation.ALL, AclPermissionType.ALLOW)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        acls = admin.create_acls([deny, allow])
        await asyncio.gather(*[asyncio.to_thread(acl.result, LIMIT_S) for acl in acls.values()])
        # So long that it does not help: the second has to be sent again before a transaction times out.
        worker = await service.worker("--transaction-timeout-s", "60")
        second = int(time.time()) - 1000
        refused = Future(callBackTopic=prefix + "closed", callBack=b"refused")
        missing = Future(callBackTopic=prefix + "missing", callBack=b"lost")
        expected = {}
        for number in range(4):
            for reason, future in (("topic-refused", refused), ("topic-unknown", missing)):
                request = await service.request(second, future, partition=number)
                expected[request] = (reason, b"%d" % second, future.SerializeToString())
        good = [f"good-{n}" for n in range(4_000)]
        await service.requests(second, good)
        await service.until_sealed(second)
        assert by_request(service, await rejected(service, 8)) == expected
        assert sorted(await service.callback_names(good)) == sorted(good)
        counted = {"topic-refused": 4, "topic-unknown": 4}
        await worker.until("/metrics", lambda *_: rejected_counts(worker) == counted)
        await assert_balanced(service, 4_008, 4_000)
        assert prefix + "missing" not in admin.list_topics(timeout=LIMIT_S).topics
