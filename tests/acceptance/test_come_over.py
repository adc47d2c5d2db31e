"""
The programs of docs/migrate-code.md and the senders of docs/headers.md run as they stand, on a service as `make run`
starts it; addresses and times to wait are others.

kcat is a stand-in where there is none. Jars that the broker does not need are fetched once.
"""

import asyncio
import os
import re
import shlex
import shutil
import sys
from asyncio.subprocess import Process
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from brokers import make_topic
from confluent_kafka import Producer
from jgo.maven import MavenContext, PythonResolver
from patience import LIMIT_S
from programs import running
from service import Service
from test_examples import line_with, make, program_of

from kafka_timers import Pending, TimerClient
from kafka_timers.dev import java
from kafka_timers.dev.broker import free_port
from kafka_timers.dev.jars import KAFKA_VERSION, cache_folder, caches
from kafka_timers.runtime.tasks import cancel
from kafka_timers.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
PROGRAMS, SENDERS, README = (
    (ROOT / page).read_text() for page in ("docs/migrate-code.md", "docs/headers.md", "README.md")
)
_QUICK = "-XX:TieredStopAtLevel=1"
# Long enough for a JVM that starts on a busy machine to cancel in time.
_WAIT_S = 15

_KCAT = f"""#!{sys.executable}
import argparse, sys
from confluent_kafka import Producer
parser = argparse.ArgumentParser()
for flag in ("-P", "-Z"):
    parser.add_argument(flag, action="store_true")
for option in ("-b", "-t", "-k", "-K"):
    parser.add_argument(option)
parser.add_argument("-H", action="append", default=[])
given = parser.parse_args()
producer = Producer({{"bootstrap.servers": given.b}})
for line in sys.stdin.read().splitlines():
    key, value = line.split(given.K, 1) if given.K else (given.k, line)
    headers = [tuple(header.split("=", 1)) for header in given.H]
    producer.produce(given.t, None if given.Z and not value else value, key, headers=headers)
sys.exit(producer.flush(30))
"""

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>t</groupId><artifactId>t</artifactId><version>1</version><dependencies>
  {}
  </dependencies></project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"

# Flink's own shell needs a cluster; this runs the statements of a file in one process.
_FLINK = """
import java.nio.file.*;
import org.apache.flink.table.api.*;

public class Statements {
  public static void main(String[] args) throws Exception {
    var tables = TableEnvironment.create(EnvironmentSettings.inStreamingMode());
    var statements = Files.readString(Path.of("timers.sql")).strip().split(";");
    for (var statement : statements) tables.executeSql(statement).await();
  }
}
"""
_FLINK_VERSION = "2.2.1"


def saved(file: str, service: Service, folder: Path, **replaced: str) -> Path:
    """Return the file that the page says to save, with the address of *service*."""
    [code] = re.findall(rf"Save\s+this\s+as\s+`{re.escape(file)}`:\n\n```\w+\n(.*?)^```$", PROGRAMS, re.M | re.S)
    for old, new in ({WorkerSettings.bootstrap: service.bootstrap} | replaced).items():
        assert old in code
        code = code.replace(old, new)
    (folder / file).write_text(code)
    return folder / file


def jar_of(artifact: str) -> Path:
    """Return a jar of Kafka's that is not in the cache of the broker; skip where it cannot be had."""
    maven = MavenContext(PythonResolver(), repo_cache=caches() / "m2", timeout=LIMIT_S)
    try:
        found = maven.project("org.apache.kafka", artifact).at_version(KAFKA_VERSION).artifact().resolve()
    except (OSError, RuntimeError) as error:
        pytest.skip(f"{artifact} cannot be had: {error}")
    return Path(found)


async def jars_of(service: Service, folder: Path, *artifacts: str) -> Path:
    """Return a folder of *artifacts* and of all that they need; skip where they cannot be had."""
    _, name, version = artifacts[0].split(":")
    jars = caches() / f"{name}-{version}"
    if not jars.exists():
        whole = jars.with_suffix(f".{os.getpid()}")
        needed = "\n  ".join(_DEPENDENCY.format(*each.split(":")) for each in artifacts)
        (folder / "pom.xml").write_text(_POM.format(needed))
        words = ("-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={whole}")
        await make(service, program_of("mvn"), *words, cwd=folder)
        whole.rename(jars)
    return jars


async def compiled(source: Path, service: Service, *more: Path) -> AbstractAsyncContextManager[Process]:
    """Compile a program in Java, and have it running."""
    command = java.find()
    javac = command.resolve().with_name("javac")
    if not javac.exists():
        pytest.skip("this Java has no compiler")
    path, folder = os.pathsep.join([f"{cache_folder()}/*", *map(str, more)]), source.parent
    await make(service, javac, f"-J{_QUICK}", "-Xlint:all", "-Werror", "-cp", path, "-d", folder, source, cwd=folder)
    return running(command, _QUICK, "-cp", os.pathsep.join([path, str(folder)]), source.stem, cwd=folder)


async def seen(process: Process, wanted: str, never: str) -> None:
    """Wait until *process* has printed the line *wanted*; before it there is no line *never*."""
    while (line := await line_with(process, "")) != wanted:
        assert line != never


async def fired(service: Service, key: bytes | None, value: bytes) -> list[bytes | None]:
    """Wait until a callback of this key and value is there, and return the keys of all that came before it."""
    keys: list[bytes | None] = []
    async with service.reading("callbacks") as consumer, asyncio.timeout(LIMIT_S):
        async for record in consumer:
            if (record.key, record.value) == (key, value):
                return keys
            keys.append(record.key)
    raise AssertionError(keys)


async def fired_by(process: Process, service: Service, key: bytes | None, value: bytes) -> list[bytes | None]:
    """Return what `fired` does, or fail with what *process* said once it has ended."""
    firing, ending = (asyncio.create_task(each) for each in (fired(service, key, value), process.communicate()))
    try:
        await asyncio.wait({firing, ending}, return_when=asyncio.FIRST_COMPLETED)
        assert firing.done(), ending.result()[0].decode()
        return firing.result()
    finally:
        await cancel([firing, ending])


async def test_an_order_of_celery_expires_unless_it_is_paid(plain_service: Service, tmp_path: Path) -> None:
    program = saved("shop.py", plain_service, tmp_path, **{"TIME_TO_PAY_S = 1800": "TIME_TO_PAY_S = 5"})
    async with running(sys.executable, program, cwd=tmp_path) as process:
        await seen(process, "paid 7 in time: True", "expired 7")
        await seen(process, "expired 8", "expired 7")


async def test_an_order_of_quartz_expires_unless_it_is_paid(plain_service: Service, tmp_path: Path) -> None:
    program = saved("Shop.java", plain_service, tmp_path, **{"ofSeconds(1800)": f"ofSeconds({_WAIT_S})"})
    async with await compiled(program, plain_service) as process:
        await line_with(process, "expired 8: expire")
    # That of Python has fired too, and neither has order 7.
    assert b"7" not in await fired(plain_service, b"8", b"expire")


async def test_a_topology_of_kafka_streams_asks_and_cancels(plain_service: Service, tmp_path: Path) -> None:
    streams = jar_of("kafka-streams")
    await make_topic(plain_service.bootstrap, "orders", 2)
    program = saved("Deadlines.java", plain_service, tmp_path, **{'"30m"': f'"{_WAIT_S}s"'})
    async with await compiled(program, plain_service, streams):
        producer = Producer({"bootstrap.servers": plain_service.bootstrap})
        for number, state in (("21", "placed"), ("22", "placed"), ("21", "paid")):
            producer.produce("orders", state, number)
        assert producer.flush(LIMIT_S) == 0
        assert b"21" not in await fired(plain_service, b"22", b"expire")
    async with TimerClient(plain_service.bootstrap) as timers:
        assert await timers.get("deadline-21") is None


# --- senders ----------------------------------------------------------------------------------------------------------


def commands(page: str, name: str) -> list[str]:
    """Return the commands of *page* that pipe records into the program *name*, each as one line."""
    page = re.sub(r"\\\n +", "", page)
    return re.findall(rf"^(?:echo|printf) .* \| {re.escape(name)} .*$", page, re.MULTILINE)


async def sent(service: Service, command: str, folder: Path) -> None:
    """Run a line of a page in a shell, with the programs of *folder* first."""
    assert WorkerSettings.bootstrap in command
    line = command.replace(WorkerSettings.bootstrap, service.bootstrap)
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    async with running("bash", "-c", f"set -o pipefail; {line}", cwd=folder, PATH=path) as process:
        said, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode == 0, said.decode()


def program_in(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


async def pending(service: Service, timer_id: str, *, waits: bool) -> Pending | None:
    """Wait until a timer of this id is pending, or until none is, and return it."""
    async with TimerClient(service.bootstrap) as timers, asyncio.timeout(LIMIT_S):
        while ((timer := await timers.get(timer_id)) is not None) != waits:  # noqa: ASYNC110  # only a question tells
            await asyncio.sleep(0.05)
    return timer


async def test_a_shell_asks_and_cancels_with_kcat(plain_service: Service, tmp_path: Path) -> None:
    if not shutil.which("kcat"):
        program_in(tmp_path, "kcat", _KCAT)
    ask, cancel = commands(SENDERS, "kcat")
    assert commands(README, "kcat") == [ask]
    await asks_and_cancels(plain_service, ask, cancel, tmp_path)


async def test_a_shell_asks_and_cancels_with_the_command_of_kafka(plain_service: Service, tmp_path: Path) -> None:
    path = os.pathsep.join([f"{cache_folder()}/*", str(jar_of("kafka-tools"))])
    words = [str(java.find()), _QUICK, "-cp", path, "org.apache.kafka.tools.ConsoleProducer"]
    program_in(tmp_path, "kafka-console-producer.sh", f'#!/bin/bash\nexec {shlex.join(words)} "$@"\n')
    ask, cancel = commands(SENDERS, "kafka-console-producer.sh")
    await asks_and_cancels(plain_service, ask, cancel, tmp_path)


async def asks_and_cancels(service: Service, ask: str, cancel: str, folder: Path) -> None:
    """Have the first line ask for the timer pay-7, the second one take it back, and the first one ask anew."""
    assert "timer-delay" in ask
    await sent(service, ask.replace("30s", "1h"), folder)
    timer = await pending(service, "pay-7", waits=True)
    assert timer is not None
    assert (timer.topic, timer.value) == ("callbacks", b"pay now")
    await sent(service, cancel, folder)
    assert await pending(service, "pay-7", waits=False) is None
    await sent(service, ask.replace("30s", "1s").replace("pay now", folder.name), folder)
    await fired(service, None, folder.name.encode())


async def test_kafka_connect_asks_for_a_timer_of_each_line(plain_service: Service, tmp_path: Path) -> None:
    kafka = "org.apache.kafka"
    jars = await jars_of(
        plain_service, tmp_path, f"{kafka}:connect-runtime:{KAFKA_VERSION}", f"{kafka}:connect-file:{KAFKA_VERSION}"
    )
    [connector] = re.findall(r"^```properties\n(.*?)^```$", SENDERS, re.MULTILINE | re.DOTALL)
    assert "=30s\n" in connector
    (tmp_path / "deadlines.properties").write_text(connector.replace("=30s\n", "=1s\n"))
    (tmp_path / "orders.txt").write_text("order-31\norder-32\n")
    plugins = tmp_path / "plugins" / "file"
    plugins.mkdir(parents=True)
    for jar in jars.glob("connect-file-*.jar"):
        shutil.copy(jar, plugins)
    settings = {
        "bootstrap.servers": plain_service.bootstrap,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "offset.storage.file.filename": "offsets",
        "listeners": f"http://127.0.0.1:{free_port()}",
        "plugin.path": plugins.parent,
        "plugin.discovery": "service_load",
    }
    (tmp_path / "worker.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    path = os.pathsep.join(f"{folder}/*" for folder in (jars, cache_folder()))
    main = ("org.apache.kafka.connect.cli.ConnectStandalone", "worker.properties", "deadlines.properties")
    async with running(java.find(), _QUICK, "-cp", path, *main, cwd=tmp_path) as process:
        for name in (b"order-31", b"order-32"):
            await fired_by(process, plain_service, None, name)


@pytest.mark.chaos  # the first time, it fetches Flink, 130 MB
async def test_flink_asks_for_a_timer_of_each_order_that_is_not_paid(plain_service: Service, tmp_path: Path) -> None:
    flink = [
        f"org.apache.flink:flink-{part}:{_FLINK_VERSION}"
        for part in ("clients", "connector-base", "table-api-java-bridge", "table-planner-loader", "table-runtime")
    ]
    jars = await jars_of(plain_service, tmp_path, *flink, "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2")
    [statements] = re.findall(r"^```sql\n(.*?)^```$", SENDERS, re.MULTILINE | re.DOTALL)
    for old, new in {
        WorkerSettings.bootstrap: plain_service.bootstrap,
        "'orders'": "'flink-orders'",
        "30s": "5s",
    }.items():
        assert old in statements
        statements = statements.replace(old, new)
    (tmp_path / "timers.sql").write_text(statements)
    (tmp_path / "Statements.java").write_text(_FLINK)
    await make_topic(plain_service.bootstrap, "flink-orders", 2)
    producer = Producer({"bootstrap.servers": plain_service.bootstrap})
    for number, state in (("41", "placed"), ("42", "placed"), ("41", "paid")):
        producer.produce("flink-orders", state, number)
    assert producer.flush(LIMIT_S) == 0
    async with await compiled(tmp_path / "Statements.java", plain_service, jars / "*") as process:
        assert b"41" not in await fired_by(process, plain_service, b"42", b"pay now")
