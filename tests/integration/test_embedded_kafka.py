"""The embedded Kafka, and `kafka-timers dev` around it, with real processes."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import UnknownTopicOrPartitionError
from brokers import StartKafka, make_topic
from patience import LIMIT_S

from kafka_timers.dev.broker import EmbeddedKafka, free_port
from kafka_timers.errors import KafkaSetupError


async def produce(bootstrap: str, topic: str, value: bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(topic, value)


async def consume(bootstrap: str, topic: str, count: int, group: str | None = None) -> list[bytes]:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest")
    async with consumer, asyncio.timeout(LIMIT_S):
        return [(await consumer.getone()).value for _ in range(count)]


async def test_produced_records_are_consumed_by_a_group(bootstrap: str, prefix: str) -> None:
    await make_topic(bootstrap, prefix + "x")
    await produce(bootstrap, prefix + "x", b"hello")
    assert await consume(bootstrap, prefix + "x", 1, group=prefix + "group") == [b"hello"]


async def test_a_topic_that_nobody_made_stays_missing(kafka: EmbeddedKafka, prefix: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, request_timeout_ms=1_000) as producer:
        with pytest.raises(UnknownTopicOrPartitionError):
            await producer.send_and_wait(prefix + "x", b"hello")


async def test_records_outlive_a_crash_a_stop_and_a_change_of_port(start_kafka: StartKafka) -> None:
    """
    A second `kafka-timers dev` relies on this to go on where the first one was. Here the id of the cluster begins with
    a dash, as one in 64 does.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(bytes=b"\xf8" + bytes(15)))
        broker = await start_kafka()
    properties = (broker.folder / "data" / "meta.properties").read_text()
    assert "cluster.id=-AAAAAAAAAAAAAAAAAAAAA" in properties
    await make_topic(broker.bootstrap, "x")
    await produce(broker.bootstrap, "x", b"first")
    await broker.kill()
    await broker.start()
    await produce(broker.bootstrap, "x", b"second")
    await broker.stop()
    async with EmbeddedKafka(broker.folder) as moved:
        assert moved.port != broker.port
        assert await consume(moved.bootstrap, "x", 2) == [b"first", b"second"]


async def test_a_taken_port_is_named_with_the_steps_to_take(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(KafkaSetupError, match=f"port {port} .* is taken by another program: .* give another port"):
            await EmbeddedKafka(tmp_path, port).start()
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("needs_java")
async def test_a_broker_that_refuses_its_settings_is_told_with_its_last_words(tmp_path: Path) -> None:
    broker = EmbeddedKafka(tmp_path, properties={"num.partitions": "many"})
    with pytest.raises(KafkaSetupError, match=r"(?s)broker\.log.*Invalid value many"):
        await broker.start()


@pytest.mark.usefixtures("needs_java")
async def test_a_broker_that_ends_while_it_starts_is_told_with_its_last_words(tmp_path: Path) -> None:
    # Found wrong only after the storage was formatted.
    broker = EmbeddedKafka(tmp_path, properties={"authorizer.class.name": "no.such.Authorizer"})
    with pytest.raises(KafkaSetupError, match=r"(?s)Kafka did not start.*no\.such\.Authorizer"):
        await broker.start()


# Stands for an oscillator or a worker: ready at once on its port; at SIGTERM it says so in the common log.
CHILD = """
import pathlib, signal, sys, http.server

name, port, ends = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])

class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

def end(*_):
    with ends.open("a") as log:
        log.write(name + "\\n")
    sys.exit(0)

signal.signal(signal.SIGTERM, end)
http.server.HTTPServer(("127.0.0.1", port), Ready).serve_forever()
"""

WAIT_FOR_OSCILLATOR = """
import socket, sys, time

while socket.socket().connect_ex(("127.0.0.1", int(sys.argv[2]) - 1)):
    time.sleep(0.01)
"""

# Ready once the oscillator is up: before that, a signal would end it without a word.
WORKER = WAIT_FOR_OSCILLATOR + CHILD

FAILING_WORKER = WAIT_FOR_OSCILLATOR + 'sys.exit("no more disk")'

DEV = """
import json, sys
from pathlib import Path
from kafka_timers.processes.supervisor import Part
from kafka_timers.serve import dev
from kafka_timers.serve.dev_settings import DevSettings

parts, settings, folder = json.loads(sys.argv[1])
dev.parts = lambda *_: [Part(log=Path(folder, part["name"]), **part) for part in parts]
sys.exit(dev.run(DevSettings(**settings)))
"""


async def start_dev(bootstrap: str, prefix: str, folder: Path, worker: str = WORKER) -> asyncio.subprocess.Process:
    """Run `dev` with stand-ins for the oscillator and the worker, whose own tests are elsewhere."""
    port = free_port()
    settings = {
        "bootstrap": bootstrap,
        "topic_prefix": prefix,
        "folder": str(folder / "dev"),
        "metrics_port": port,
        "query_port": free_port(),
        "console_port": free_port(),
    }
    parts = [
        {
            "name": name,
            "command": [sys.executable, "-c", code, name, str(port + number), str(folder / "ends")],
            "turn": turn,
            "url": f"http://127.0.0.1:{port + number}",
        }
        for name, number, turn, code in (("oscillator", 1, 1, CHILD), ("worker", 2, 0, worker))
    ]
    given = json.dumps((parts, settings, str(folder)))
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", DEV, given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


async def output_until(dev: asyncio.subprocess.Process, text: str) -> str:
    assert dev.stdout
    async with asyncio.timeout(LIMIT_S):
        return (await dev.stdout.readuntil(text.encode())).decode()


async def output_to_the_end(dev: asyncio.subprocess.Process) -> str:
    async with asyncio.timeout(LIMIT_S):
        output, _ = await dev.communicate()
    return output.decode()


async def test_dev_prints_commands_to_try_and_ends_the_worker_first(
    bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    dev = await start_dev(bootstrap, prefix, tmp_path)
    said = await output_until(dev, "logs")
    assert f"kafka-timers watch callbacks --bootstrap {bootstrap}\n" in said
    dev.terminate()
    assert "the next start goes on from here" in await output_to_the_end(dev)
    assert dev.returncode == 0
    assert (tmp_path / "ends").read_text().split() == ["worker", "oscillator"]


async def test_dev_ends_everything_when_one_process_cannot_start_and_says_why(
    bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    dev = await start_dev(bootstrap, prefix, tmp_path, worker=FAILING_WORKER)
    said = await output_to_the_end(dev)
    assert dev.returncode == 1
    assert "worker ended with exit code 1" in said
    assert "no more disk" in said
    assert (tmp_path / "ends").read_text().split() == ["oscillator"]
