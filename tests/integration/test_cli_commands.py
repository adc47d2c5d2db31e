"""The commands that look at a real broker, run as a user runs them."""

import asyncio
import json
import shlex
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from batches import append_batch, batch_of
from brokers import make_topic
from commands import ended
from patience import LIMIT_S

from kafka_timers import Outcome
from kafka_timers.broker import topics
from kafka_timers.broker.connection import Kafka
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Condition, Future, Reply, Sealed, future_from

# Outcomes whose answer names no earlier timer.
NOT_KNOWN = ("UNKNOWN", "ACCEPTED")


@asynccontextmanager
async def watching(*arguments: str) -> AsyncIterator[Process]:
    """`kafka-timers watch`, once it says that it sees callbacks from now on; ended if the block leaves it running."""
    command = [sys.executable, "-m", "kafka_timers", "watch", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(LIMIT_S):
            assert (await process.stderr.readline()).endswith(b"; Ctrl-C ends\n")
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def producing(bootstrap: str) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@pytest.fixture
def where(bootstrap: str, prefix: str) -> list[str]:
    return ["--bootstrap", bootstrap, "--topic-prefix", prefix]


@pytest.fixture
async def callbacks(bootstrap: str, prefix: str) -> str:
    """A topic for callbacks, with one partition."""
    await topics.create(Kafka(bootstrap), prefix, 1)
    # Any topic with one partition will do.
    return prefix + "timer-rejected"


@pytest.fixture
async def calls(bootstrap: str, prefix: str) -> str:
    """A topic of a user."""
    await make_topic(bootstrap, f"{prefix}calls")
    return f"{prefix}calls"


def expiring(second: int) -> list[tuple[str, bytes]]:
    return [("timer-expiry", b"%d" % second), ("timer-request", b"0:1")]


async def test_topics_are_checked_created_and_checked_again(where: list[str]) -> None:
    code, output, _ = await ended("topics", "check", *where)
    assert (code, output.count("is missing: create it")) == (1, 8)
    code, output, _ = await ended("topics", "create", *where, "--partitions", "2")
    assert (code, output.count("created "), output.count(" with 2 partitions\n")) == (0, 8, 8)
    assert await ended("topics", "create", *where) == (0, "all topics exist and stay as they are\n", "")
    assert await ended("topics", "check", *where) == (0, "all topics are as they should be\n", "")


async def test_topics_as_json(where: list[str], prefix: str) -> None:
    code, output, _ = await ended("topics", "check", *where, "--json")
    assert (code, len(json.loads(output)["problems"])) == (1, 8)
    code, output, _ = await ended("topics", "create", *where, "--json")
    assert (code, prefix + "oscillator" in json.loads(output)["created"]) == (0, True)
    assert json.loads((await ended("topics", "create", *where, "--json"))[1]) == {"created": [], "left_out": []}
    assert json.loads((await ended("topics", "check", *where, "--json"))[1]) == {"problems": []}


async def test_send_publishes_the_request_of_its_options(
    bootstrap: str, where: list[str], prefix: str, calls: str
) -> None:
    await topics.create(Kafka(bootstrap), prefix, 1)
    at = ["--at", "2030-03-17T18:46:40.250+01:00", "--topic", calls, "--key", "k", "--value", "v"]
    more = ["--timer-id", "id", "--token", "t", "--header", "a=b=c", "--header", "a="]
    code, output, errors = await ended("send", *where, *at, *more, "--json")
    assert (code, errors) == (0, "")
    assert json.loads(output) == {
        "due_ms": 1_900_000_000_250,
        "second": 1_900_000_000,
        "partition": 0,
        "offset": 0,
        "timer_id": "id",
        "token": "t",
        "request": "0:0",
    }
    where_read = TopicPartition(prefix + "timer-request", 0)
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    consumer.assign([where_read])
    record = await asyncio.wait_for(consumer.getone(), LIMIT_S)
    await consumer.stop()
    future = future_from(record.value)
    assert record.key == b"1900000000"
    assert (future.callBackTopic, future.callBackKey, future.callBack) == (calls, "k", b"v")
    assert (future.timerId, future.token) == ("id", "t")
    assert [(header.key, header.value) for header in future.headers] == [("a", b"b=c"), ("a", b"")]


async def test_send_takes_keys_of_any_bytes_tombstones_and_partitions(
    bootstrap: str, where: list[str], prefix: str, calls: str
) -> None:
    await topics.create(Kafka(bootstrap), prefix, 1)
    for more in (
        ["--key-base64", "/wA=", "--tombstone"],
        [b"--key", b"\xff", "--value", "v"],
        ["--key", "k", "--partition", "3"],
        ["--key", "k", "--partition-key", "home"],
    ):
        code, _, errors = await ended("send", *where, "--in", "1h", "--topic", calls, *more)
        assert (code, errors) == (0, "")
    consumer = AIOKafkaConsumer(prefix + "timer-request", bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    async with consumer:
        records = [await asyncio.wait_for(consumer.getone(), LIMIT_S) for _ in range(4)]
    told = [future_from(record.value).callBackRecord for record in records]
    assert [{field.name: value for field, value in each.ListFields()} for each in told] == [
        {"topic": calls, "key": b"\xff\0"},
        {"topic": calls, "key": b"\xff", "value": b"v"},
        {"topic": calls, "key": b"k", "value": b"", "partition": 3},
        {"topic": calls, "key": b"k", "value": b"", "partitionKey": b"home"},
    ]


async def test_send_reads_the_value_from_standard_input(bootstrap: str, where: list[str], prefix: str) -> None:
    await topics.create(Kafka(bootstrap), prefix, 1)
    before_s = time.time()
    code, output, _ = await ended("send", *where, "--in", "1h", "--topic", "calls", "--value", "-", stdin=b"\x00\xff\n")
    assert code == 0
    due_s = float(output.split("(second ")[1].split(")")[0])
    assert 3_600 <= due_s - before_s < 3_600 + LIMIT_S
    assert output.endswith("request 0:0\n")
    consumer = AIOKafkaConsumer(prefix + "timer-request", bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    record = await asyncio.wait_for(consumer.getone(), LIMIT_S)
    await consumer.stop()
    assert future_from(record.value).callBack == b"\x00\xff\n"


async def test_send_says_that_the_topic_of_the_callback_is_missing(
    bootstrap: str, where: list[str], prefix: str
) -> None:
    await topics.create(Kafka(bootstrap), prefix, 1)
    topic = prefix + "nowhere"
    code, output, errors = await ended("send", "--in", "600", "--topic", topic, *where)
    assert (code, "fires at" in output) == (0, True)
    assert errors.startswith(f"no topic {topic} is there: create it before the timer is due")
    await make_topic(bootstrap, topic, 1)
    code, _, errors = await ended("send", "--in", "600", "--topic", topic, *where)
    assert (code, errors) == (0, "")


async def test_send_without_the_topics_says_how_to_make_them(where: list[str], prefix: str) -> None:
    code, output, errors = await ended("send", *where, "--in", "3s", "--topic", "calls")
    assert (code, output) == (1, "")
    assert errors.startswith(f"Error: topic {prefix}timer-request is missing")
    # To be copied as it stands.
    assert errors.endswith(f"create it with kafka-timers topics create {shlex.join(where)}\n")


@asynccontextmanager
async def answered(bootstrap: str, prefix: str) -> AsyncIterator[list[ConsumerRecord[bytes, bytes]]]:
    """The requests on the way, each answered with the outcome that its timer id names, if it names one."""
    seen = []

    async def work() -> None:
        async for record in requests:
            seen.append(record)
            future = future_from(record.value)
            if name := next((name for name in Outcome if name in future.timerId), None):
                reply = Reply(timerId=future.timerId, outcome=name, asked=f"{record.partition}:{record.offset}")
                if name not in NOT_KNOWN:
                    reply.second, reply.request = 1_900_000_000, "0:17"
                if name is Outcome.IGNORED:
                    reply.waits = False
                await producer.send_and_wait(future.replyTopic, reply.SerializeToString(), future.timerId.encode())

    await topics.create(Kafka(bootstrap), prefix, 1)
    requests = AIOKafkaConsumer(
        prefix + "timer-request", bootstrap_servers=bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=50
    )
    async with requests, producing(bootstrap) as producer:
        task = asyncio.create_task(work())
        yield seen
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["a-CANCELLED", "b-CANCELLED"], 0),
        (["a-CANCELLED", "b-TOO_LATE"], 3),
        (["a-UNKNOWN", "b-TOO_LATE", "c-CANCELLED"], 4),
        (["a-IGNORED", "b-CANCELLED"], 5),
    ],
)
async def test_cancel_prints_the_outcome_of_each_timer(
    bootstrap: str, where: list[str], prefix: str, names: list[str], code: int
) -> None:
    async with answered(bootstrap, prefix) as seen:
        ended_with, output, errors = await ended("cancel", *where, *names)
        assert (ended_with, errors) == (code, "")
        assert output.splitlines() == [line_of(name) for name in names]
        ended_with, output, errors = await ended("cancel", *where, *names, "--json")
        assert (ended_with, errors) == (code, "")
    assert [future_from(record.value).cancel for record in seen] == [True] * 2 * len(names)
    shown = json.loads(output)
    assert [(row["timer_id"], row["outcome"]) for row in shown] == [(name, name[2:]) for name in names]
    assert {row["asked"] for row in shown} == {f"0:{record.offset}" for record in seen[len(names) :]}
    assert (shown[-1]["second"], shown[-1]["request"]) == (1_900_000_000, "0:17")


def line_of(name: str) -> str:
    line = f"{name}: {name[2:].lower().replace('_', ' ')}"
    between = "; known is the timer of " if "IGNORED" in name else ", of "
    known = "2030-03-17 17:46:40 UTC (second 1900000000), request 0:17"
    return line if name[2:] in NOT_KNOWN else line + between + known


async def test_cancel_with_one_answer_missing_shows_the_others(bootstrap: str, where: list[str], prefix: str) -> None:
    async with answered(bootstrap, prefix):
        code, output, errors = await ended("cancel", *where, "mute-\x1b[31m", "b-CANCELLED", "--json")
    assert code == 1
    assert errors.count("\n") == 1
    assert "The cancel of 'mute-\\x1b[31m' was accepted, in partition 0 of timer-request at offset 0" in errors
    missing, other = json.loads(output)
    assert (missing["timer_id"], "Error: " + missing["error"] + "\n") == ("mute-\x1b[31m", errors)
    assert other["outcome"] == "CANCELLED"


@pytest.mark.parametrize(("name", "code"), [("a-MOVED", 0), ("a-TOO_LATE", 3), ("a-UNKNOWN", 4)])
async def test_move_publishes_the_request_of_its_options_and_names_the_replaced_one(
    bootstrap: str, where: list[str], prefix: str, name: str, code: int
) -> None:
    at = ["--at", "2030-03-17T18:46:40+01:00", "--topic", "calls", "--key", "k", "--value", "v"]
    more = ["--token", "t", "--header", "a=b=c"]
    async with answered(bootstrap, prefix) as seen:
        before_s = time.time()
        assert await ended("move", name, *where, "--in", "1h", "--topic", "calls") == (
            code,
            f"{line_of(name)}; the new request is 0:0\n",
            "",
        )
        ended_with, output, errors = await ended("move", name, *where, *at, *more, "--json")
    assert (ended_with, errors) == (code, "")
    second, request = (None, None) if "UNKNOWN" in name else (1_900_000_000, "0:17")
    assert json.loads(output) == {
        "timer_id": name,
        "outcome": name[2:],
        "waits": False,
        "due_ms": second and second * 1000,
        "second": second,
        "request": request,
        "asked": "0:1",
    }
    first, record = seen
    due_s = int(first.key) + future_from(first.value).millis / 1000
    assert 3_600 <= due_s - before_s + 1e-6 < 3_600 + LIMIT_S
    future = future_from(record.value)
    assert (record.key, future.timerId, future.cancel) == (b"1900000000", name, False)
    assert (future.callBackTopic, future.callBackKey, future.callBack) == ("calls", "k", b"v")
    assert (future.token, [(header.key, header.value) for header in future.headers]) == ("t", [("a", b"b=c")])


@pytest.mark.parametrize(("name", "code"), [("a-ACCEPTED", 0), ("a-IGNORED", 5)])
async def test_send_if_absent_tells_whether_the_timer_stands(
    bootstrap: str, where: list[str], prefix: str, calls: str, name: str, code: int
) -> None:
    send = ["send", *where, "--at", "1900000007", "--topic", calls, "--timer-id", name, "--if-absent"]
    async with answered(bootstrap, prefix) as seen:
        new = "; the new request is 0:0" if code == 0 else ""
        assert await ended(*send) == (code, f"{line_of(name)}{new}\n", "")
        ended_with, output, errors = await ended(*send, "--json")
    assert (ended_with, errors) == (code, "")
    second, request = (None, None) if code == 0 else (1_900_000_000, "0:17")
    due = {"due_ms": second and second * 1000, "second": second}
    answer = {"outcome": name[2:], **due, "request": request, "asked": "0:1", "waits": False}
    assert json.loads(output) == {"timer_id": name} | answer
    futures = [future_from(record.value) for record in seen]
    assert [(future.timerId, future.condition) for future in futures] == [(name, Condition.IF_ABSENT)] * 2


async def test_cancel_and_move_if_pending_name_the_request_that_is_meant(
    bootstrap: str, where: list[str], prefix: str
) -> None:
    meant = [*where, "--if-pending", "--request", "0:17"]
    new = ["--in", "1h", "--topic", "calls"]
    async with answered(bootstrap, prefix) as seen:
        assert await ended("cancel", "a-IGNORED", *meant) == (5, f"{line_of('a-IGNORED')}\n", "")
        assert await ended("move", "a-IGNORED", *meant, *new) == (5, f"{line_of('a-IGNORED')}\n", "")
        assert (await ended("move", "a-MOVED", *meant, *new))[0] == 0
        assert (await ended("cancel", "a-CANCELLED", *where, "--if-pending"))[0] == 0
        code, _, errors = await ended("cancel", "a-CANCELLED", *where, "--if-pending", "--request", "1:17")
        assert (code, errors.count("\n")) == (1, 1)
        assert errors.startswith("Error: request 1:17 is not one of 'a-CANCELLED'")
    futures = [future_from(record.value) for record in seen]
    assert {future.condition for future in futures} == {Condition.IF_PENDING}
    assert [future.ifRequest for future in futures] == ["0:17", "0:17", "0:17", ""]


async def test_find_shows_how_the_timers_of_an_id_stand(bootstrap: str, where: list[str], prefix: str) -> None:
    await topics.create(Kafka(bootstrap), prefix, 4)
    partition, requests = partition_of("größe", 4), prefix + "timer-request"
    now_s = int(time.time())

    async def put(producer: AIOKafkaProducer, key: bytes, future: Future) -> None:
        await producer.send_and_wait(requests, future.SerializeToString(), key, partition)

    async def ask(producer: AIOKafkaProducer, second: int, timer_id: str = "größe") -> None:
        await put(producer, b"%d" % second, Future(callBackTopic="calls", callBackKey="k", timerId=timer_id))

    async with producing(bootstrap) as producer:
        await ask(producer, now_s - 100)  # 0: below restore_from
        await ask(producer, now_s - 50)  # 1: fired
        for number in range(500):
            await ask(producer, now_s + 500, f"größe-{number}")
        await ask(producer, now_s + 500)  # 502: moved
        await ask(producer, now_s + 600)  # 503: cancelled
        await put(producer, b"whatever", Future(timerId="größe", cancel=True))  # 504
        seal = Sealed(partition=partition, end_ms=(now_s - 10 + 1) * 1000, fence=400, restore_from=1)
        await producer.send_and_wait(prefix + "timer-sealed", seal.SerializeToString(), b"%d" % partition, partition)
        await ask(producer, now_s + 800)  # 505
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=prefix) as transactions:
        await transactions.begin_transaction()
        await ask(transactions, now_s + 700)  # 506: never was
        await transactions.abort_transaction()
    await until_ended(bootstrap, TopicPartition(requests, partition), 508)  # the marker is 507
    code, output, errors = await ended("find", "größe", *where, "--json")
    assert (code, errors) == (0, "")
    shown = json.loads(output)
    records = shown.pop("records")
    assert shown.pop("problem") == ""
    assert shown.pop("stands") == records[-1]
    assert shown == {"timer_id": "größe", "partition": partition, "start": 1, "end": 508, "sealed": now_s - 10}
    assert [(row["offset"], row["second"], row["cancel"], row["state"]) for row in records] == [
        (1, now_s - 50, False, "fired"),
        (502, now_s + 500, False, "moved"),
        (503, now_s + 600, False, "cancelled"),
        (504, None, True, "cancelled"),
        (505, now_s + 800, False, "pending"),
    ]
    assert (records[0]["topic"], records[0]["key"]) == ("calls", "k")
    assert all(abs(row["appended_ms"] / 1000 - now_s) < LIMIT_S for row in records)
    code, output, _ = await ended("find", "größe", *where)
    assert code == 0
    assert f"{partition}:504  " in output
    assert "größe: pending, of 20" in output
    assert f"(second {now_s + 800}), request {partition}:505\n" in output
    assert f"5 records of größe in partition {partition} from offset 1 to 508; sealed up to 20" in output
    assert max(map(len, output.splitlines()[:-1])) <= 80


async def until_ended(bootstrap: str, where: TopicPartition, end: int) -> None:
    """The coordinator writes its markers after it has answered."""
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
        while (await consumer.end_offsets([where]))[where] < end:  # noqa: ASYNC110  # a broker has to be asked
            await asyncio.sleep(0.02)


async def test_find_says_so_if_the_id_is_unknown(bootstrap: str, where: list[str], prefix: str) -> None:
    code, _, errors = await ended("find", "id", *where)
    assert (code, errors.startswith(f"Error: topic {prefix}timer-sealed is missing")) == (1, True)
    await topics.create(Kafka(bootstrap), prefix, 2)
    partition = partition_of("\x1b[31m", 2)
    assert await ended("find", "\x1b[31m", *where) == (
        4,
        f"0 records of \\x1b[31m in partition {partition} from offset 0 to 0; nothing is sealed\n",
        "",
    )


async def test_watch_shows_callbacks_from_now_on_with_their_lateness(bootstrap: str, callbacks: str) -> None:
    async with producing(bootstrap) as producer:
        await producer.send_and_wait(callbacks, b"before", headers=expiring(1))
        async with watching(callbacks, "--bootstrap", bootstrap, "--count", "2", "--json") as watch:
            # The topic is stamped by the broker.
            second = int(time.time()) - 100
            await producer.send_and_wait(callbacks, b"first", key=b"k", headers=expiring(second))
            await producer.send_and_wait(callbacks, b"second", headers=expiring(second))
            output, errors = await watch.communicate()
    assert (watch.returncode, errors) == (0, b"")
    first, last = map(json.loads, output.splitlines())
    assert (first["key"], first["value"], first["second"], first["request"]) == ("k", "first", second, "0:1")
    assert 100_000 <= first["lateness_ms"] < 100_000 + LIMIT_S * 1000
    assert last["value"] == "second"


async def test_watch_from_the_beginning_also_shows_earlier_callbacks(bootstrap: str, callbacks: str) -> None:
    async with producing(bootstrap) as producer:
        await producer.send_and_wait(callbacks, b"before", headers=expiring(1))
    async with watching(callbacks, "--bootstrap", bootstrap, "--from-beginning", "--count", "1") as watch:
        output, _ = await watch.communicate()
    assert b"before" in output


async def test_watch_shows_a_record_whose_header_has_a_name_that_is_not_text(bootstrap: str, callbacks: str) -> None:
    """The first thing that there is to read, as a client in Go may have written it."""
    odd = batch_of([(b"k", b"odd"), (b"k", b"usual")], odd=(0,), headers=expiring(1))
    await append_batch(bootstrap, callbacks, 0, odd)
    for options in ([], ["--json"]):
        watched = [callbacks, "--bootstrap", bootstrap, "--from-beginning", "--count", "2", *options]
        async with watching(*watched) as watch:
            output, errors = await watch.communicate()
        assert (watch.returncode, errors) == (0, b"")
        # Headers are told on a line of their own, further in.
        told = [line for line in output.splitlines() if not line.startswith(b" ")]
        assert [line.count(b"odd") for line in told] == [1, 0]
        assert output.count(rb"\\xff\\xfe\\xfd\\xfc" if options else rb"\xff\xfe\xfd\xfc=") == 1


async def test_find_and_status_read_on_behind_a_header_whose_name_is_not_text(
    bootstrap: str, where: list[str], prefix: str
) -> None:
    """In each of the topics that they read."""
    await topics.create(Kafka(bootstrap), prefix, 1)
    odd = batch_of([(b"k", b"v")] * 3, odd=(1,))
    for topic in ("timer-request", "timer-sealed", "timer-rejected"):
        await append_batch(bootstrap, prefix + topic, 0, odd)
    second = int(time.time()) - 50
    async with producing(bootstrap) as producer:
        value = Future(callBackTopic="calls", timerId="id").SerializeToString()
        request = await producer.send_and_wait(prefix + "timer-request", value, b"%d" % second, 0)
        seal = Sealed(
            first_ms=(second - 1) * 1000,
            end_ms=(second + 1) * 1000,
            fence=request.offset + 1,
            due=4,
            fired=1,
            rejected=3,
        )
        await producer.send_and_wait(prefix + "timer-sealed", seal.SerializeToString(), b"0", 0)
        told = [("reason", b"topic-unknown"), ("topic", (prefix + "timer-request").encode()), ("partition", b"0")]
        headers = [(f"timer-rejected-{name}", text) for name, text in [*told, ("offset", b"%d" % request.offset)]]
        await producer.send_and_wait(prefix + "timer-rejected", value, b"%d" % second, 0, headers=headers)
    code, output, _ = await ended("find", "id", *where)
    assert (code, "topic-unknown" in output) == (0, True)
    code, output, _ = await ended("status", *where, "--json")
    told = json.loads(output)
    assert (code, told["partitions"][0]["second"]) == (1, second)
    assert told["refused"] == {
        "reasons": {"topic-unknown": 1, "no reason is told": 3},
        "is_all": True,
        "last": f"{prefix}timer-request 0:{request.offset}",
    }


async def test_watch_never_hands_control_characters_to_the_terminal(bootstrap: str, callbacks: str) -> None:
    evil = b"\x1b[2J\x1b]0;title\x07\r\n[bold]"
    async with (
        watching(callbacks, "--bootstrap", bootstrap, "--count", "1") as text,
        watching(callbacks, "--bootstrap", bootstrap, "--count", "1", "--json") as lines,
        producing(bootstrap) as producer,
    ):
        await producer.send_and_wait(callbacks, evil, key=b"\x1b[31m", headers=[("timer-token", evil), *expiring(1)])
        for process in (text, lines):
            output, _ = await process.communicate()
            assert output.endswith(b"\n")
            assert all(line.isprintable() for line in output[:-1].decode().split("\n"))
    told = json.loads(output)
    assert told["value"] == evil.decode()
    assert told["headers"][0] == {"name": "timer-token", "value": evil.decode()}


async def test_watch_shows_committed_callbacks_only(bootstrap: str, prefix: str, callbacks: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=prefix)
    await producer.start()
    async with watching(callbacks, "--bootstrap", bootstrap, "--count", "1") as watch:
        for value, commit in ((b"aborted", False), (b"committed", True)):
            await producer.begin_transaction()
            await producer.send_and_wait(callbacks, value, headers=expiring(1))
            await (producer.commit_transaction() if commit else producer.abort_transaction())
        output, _ = await watch.communicate()
    await producer.stop()
    assert b"committed" in output
    assert b"aborted" not in output


async def test_ctrl_c_ends_watch_quietly(bootstrap: str, callbacks: str) -> None:
    async with watching(callbacks, "--bootstrap", bootstrap) as watch:
        watch.send_signal(signal.SIGINT)
        assert await watch.communicate() == (b"", b"")
    assert watch.returncode == 0


async def test_watch_ends_when_nobody_reads_its_output(bootstrap: str, callbacks: str) -> None:
    async with producing(bootstrap) as producer, watching(callbacks, "--bootstrap", bootstrap) as watch:
        assert watch.stdout is not None
        watch._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
        await producer.send_and_wait(callbacks, b"unread")
        await watch.wait()


async def test_status_shows_the_figures_of_the_seals(bootstrap: str, where: list[str], prefix: str) -> None:
    await topics.create(Kafka(bootstrap), prefix, 2)
    second = int(time.time()) - 100
    seal = Sealed(
        partition=1,
        end_ms=(second + 1) * 1000,
        fired=2,
        pending=7,
        lateness_p50_ms=3,
        lateness_p99_ms=4,
        lateness_max_ms=5,
    )
    seal.worker = "http://10.0.0.1:8070 w1"
    async with producing(bootstrap) as producer:
        await producer.send_and_wait(prefix + "timer-sealed", seal.SerializeToString(), key=b"1", partition=1)
    code, output, errors = await ended("status", *where, "--json")
    assert (code, errors) == (1, "")
    told = json.loads(output)
    unknown, row = told["partitions"]
    assert [value for value in unknown.values() if value] == []
    lag_s = row.pop("lag_s")
    assert 100 <= lag_s < 100 + LIMIT_S
    assert row.pop("overdue_s") == lag_s
    assert [problem[:11] for problem in told["problems"]] == ["no tick yet", "no worker i"]
    assert row == {
        "tick_age_s": None,
        "ticked_by": None,
        "blocked_s": 0,
        "unread_s": 0,
        "log_records": 0,
        "log_start": 0,
        "log_bytes": 0,
        "held_from": None,
        "held_since_s": None,
        "partition": 1,
        "second": second,
        "pending": 7,
        "fired_per_s": 0.2,
        "lateness_p50_ms": 3,
        "lateness_p99_ms": 4,
        "lateness_max_ms": 5,
        "owner": "http://10.0.0.1:8070 w1",
        "swept": 0,
        "asked_meanwhile": 0,
        "is_other_log": False,
        "held_alone": 0,
        "lost": None,
        "missing": None,
        "kept_by": [],
    }
    code, output, _ = await ended("status", *where)
    assert "3/4/5" in output
    assert "\x1b" not in output
    screen, _, wrong = output.rpartition("\n\n")
    assert max(map(len, screen.splitlines())) <= 80
    assert "firing        0 a second; 7 wait" in screen
    assert "request log   0 records, 0 bytes\n" in screen
    assert wrong.startswith("2 wrong:\n  - no tick yet, and without ticks nothing fires: start kafka-timers oscillator")


async def test_status_without_the_topics_says_how_to_make_them(where: list[str], prefix: str) -> None:
    assert await ended("status", *where) == (
        1,
        "",
        f"Error: topic {prefix}timer-sealed is missing: create it with kafka-timers topics create {' '.join(where)}\n",
    )
