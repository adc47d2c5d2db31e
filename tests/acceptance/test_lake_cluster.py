"""
The lake's jobs on a cluster: a driver and two executors, each a Java of its own, whose Pythons have no kafka-timers.

All that an executor runs has to be shipped: by --packages, by --py-files, or with the task. Spark's `local-cluster`
starts executors as a standalone cluster does. The command is that of docs/lake.md, with another master and lake.
"""

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pyspark
import pytest
from brokers import set_topic
from programs import running
from service import Service

from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Condition, Future

ROOT = Path(__file__).parents[2]
MASTER = "local-cluster[2,1,1024]"
HORIZON_S, BUCKET_S = 3_600, 600
# From the requests to the second in which the far ones are due.
FAR_S = 2 * 86_400

# What takes Spark long with few rows, as in the session of other tests; and three Javas share the machine.
CONF = """
spark.ui.enabled false
spark.log.level ERROR
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.driver.extraJavaOptions -XX:+UseSerialGC
spark.executor.extraJavaOptions -XX:+UseSerialGC -XX:TieredStopAtLevel=1
spark.sql.shuffle.partitions 2
spark.sql.adaptive.enabled false
spark.sql.codegen.wholeStage false
spark.sql.codegen.factoryMode NO_CODEGEN
spark.sql.ui.explainMode simple
spark.sql.maxPlanStringLength 0
spark.databricks.delta.snapshotPartitions 1
spark.sql.sources.parallelPartitionDiscovery.parallelism 2
"""

# Runs the jobs that the test asks for one by one, in one session: to start one takes longer than a job.
JOBS = """
import json, socket, sys
from click.testing import CliRunner
from kafka_timers.cli.program import program

with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as test, test.makefile("rw") as lines:
    for line in lines:
        done = CliRunner().invoke(program, ["lake", *json.loads(line)])
        print(json.dumps([done.exit_code, done.stdout, done.stderr]), file=lines, flush=True)
"""


class Cluster:
    """What an operator has who follows docs/lake.md: Spark, and the files that its command names, in *folder*."""

    def __init__(self, folder: Path, service: Service) -> None:
        self.folder, self.lake = folder, folder / "lake"
        subprocess.run([sys.executable, ROOT / "deploy/release.py", folder / "made", "--packages"], check=True)
        shutil.copy(folder / "made/kafka_timers.zip", folder)
        shutil.copy(ROOT / "deploy/run.py", folder)
        (folder / "jobs.py").write_text(JOBS)
        (folder / "conf").mkdir()
        (folder / "conf/spark-defaults.conf").write_text(CONF)
        # Spark's own folder, but for the copies of jars that executors work with.
        (folder / "spark").mkdir()
        for name in ("bin", "jars", "python"):
            (folder / "spark" / name).symlink_to(Path(pyspark.__file__).parent / name)
        # With -S Python does not look for the checkout: it has the libraries, and kafka_timers from an archive alone.
        python = folder / "python"
        libraries, base = sysconfig.get_path("purelib"), Path(sys.executable).resolve()
        python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{libraries}" exec {base} -S "$@"\n')
        python.chmod(0o755)
        self.env = {
            "KAFKA_TIMERS_BOOTSTRAP": service.bootstrap,
            "KAFKA_TIMERS_TOPIC_PREFIX": service.prefix,
            "KAFKA_TIMERS_HORIZON_S": str(HORIZON_S),
            "KAFKA_TIMERS_LAKE": str(self.lake),
            "PYSPARK_PYTHON": str(python),
            "SPARK_CONF_DIR": str(folder / "conf"),
            "SPARK_HOME": str(folder / "spark"),
        }

    def submit(self, *program: str) -> list[str]:
        """Return the command of docs/lake.md, for this cluster and this lake; *program* replaces what it starts."""
        [text] = re.findall(r"^```text\n(spark-submit .*?)\n```", (ROOT / "docs/lake.md").read_text(), re.M | re.S)
        words = shlex.split(text.replace("\\\n", " "))
        for name, value in (("--master", MASTER), ("--deploy-mode", "client"), ("--lake", str(self.lake))):
            words[words.index(name) + 1] = value
        words[0] = str(self.folder / "spark/bin/spark-submit")
        return [*words[: words.index("run.py")], *program] if program else words

    @asynccontextmanager
    async def jobs(self) -> AsyncIterator[Callable[..., Awaitable[str]]]:
        """Yield a function that runs a job of the lake, all in one session, and returns what it prints."""
        connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Future()
        server = await asyncio.start_server(lambda *streams: connected.set_result(streams), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, running(*self.submit("jobs.py", str(port)), cwd=self.folder, **self.env) as driver:
            output = asyncio.create_task(driver.communicate())
            await asyncio.wait({connected, output}, return_when=asyncio.FIRST_COMPLETED)
            assert connected.done(), output.result()[0].decode()[-3_000:]
            reader, writer = connected.result()

            async def run(*job: str) -> str:
                writer.write(json.dumps(job).encode() + b"\n")
                line = await reader.readline()
                assert line, (await output)[0].decode()[-3_000:]
                code, out, errors = json.loads(line)
                assert code == 0, f"{job}: {code}, {out}{errors}"
                return str(out)

            yield run
            writer.close()
            await output
            assert driver.returncode == 0


async def live(service: Service, start_s: int) -> None:
    """Append eight requests of all kinds as of *start_s*."""
    far_s = start_s + FAR_S
    asks = [
        ("fires", start_s + 60, {}),
        ("cancelled", start_s + 60, {}),
        ("cancelled", 0, {"cancel": True}),
        ("fires", start_s + 70, {"condition": Condition.IF_ABSENT}),  # ignored
        ("far", far_s, {}),
        ("far-if-absent", far_s, {"condition": Condition.IF_ABSENT}),
        ("waits", far_s + FAR_S, {}),
    ]
    for name, second, more in asks:
        future = Future(callBackTopic=service.callbacks, callBackKey=name, callBack=name.encode(), timerId=name, **more)
        await service.producer.send_and_wait(
            service.topics.requests,
            future.SerializeToString(),
            key=b"%d" % second,
            partition=partition_of(name, service.partitions),
            timestamp_ms=start_s * 1000,
        )
    await service.producer.send_and_wait(
        service.topics.requests, b"no request", key=b"soon", partition=0, timestamp_ms=start_s * 1000
    )


@pytest.mark.usefixtures("needs_java")
async def test_the_line_of_the_docs_lands_on_a_cluster(service: Service, tmp_path: Path) -> None:
    await live(service, int(time.time()))
    cluster = await asyncio.to_thread(Cluster, tmp_path, service)
    async with running(*cluster.submit(), cwd=tmp_path, **cluster.env) as submitted:
        assert submitted.stdout
        lines = [""]
        while not re.search(r": land \S+timer-request into .*: 8 records in", lines[-1]):
            lines.append((await submitted.stdout.readline()).decode())
            assert lines[-1], "".join(lines)[-3_000:]
        # Spark has started it, and its own processes that check what the system can.
        [driver] = [each for each in psutil.Process(submitted.pid).children() if each.name().startswith("python")]
        driver.terminate()
        await submitted.communicate()
        assert submitted.returncode == 0


@pytest.mark.chaos
async def test_every_job_runs_where_executors_are_other_processes(service: Service, tmp_path: Path) -> None:
    # A day is over, and the far ones have been due for ten minutes.
    start_s = int(time.time()) - FAR_S - 600
    far_s = start_s + FAR_S
    await set_topic(service.bootstrap, service.topics.requests, {"message.timestamp.type": "CreateTime"})
    await live(service, start_s)
    await service.worker("--seal-every-s", "1", "--horizon-s", str(HORIZON_S))
    await service.until_sealed(start_s + 60)
    await service.until_sealed(far_s - 600)
    cluster = await asyncio.to_thread(Cluster, tmp_path, service)
    async with cluster.jobs() as run:
        await run("promote", "--once", "--land", "--bucket-s", str(BUCKET_S))
        await service.until_sealed(far_s)
        fired = ["far", "far-if-absent", "fires"]
        assert sorted(await service.callback_names(fired)) == fired
        await run("land", "--once")
        span = ["--from", str(start_s), "--to", str(far_s)]
        audited = json.loads(await run("audit", *span, "--callbacks", "--batches", "--rows", "--json"))
        assert (audited["fired"], audited["rejected"], audited["findings"], audited["undecided"]) == (3, 1, [], [])
        replayed = json.loads(await run("replay", *span, "--json"))
        assert (sum(row["fired"] for row in replayed), all(row["same"] for row in replayed)) == (3, True)
        told = await run("sql", "SELECT timer_id, text FROM fired ORDER BY ALL", "--json")
        assert json.loads(told) == [{"timer_id": name, "text": name} for name in fired]
        assert [row["timers"] for row in json.loads(await run("forecast", "--json"))["steps"]] == [1]
        assert (
            await run("publish-chain", "--to", str(tmp_path / "chain.jsonl"))
            == f"{service.partitions} days published\n"
        )
        await run("optimize")
        await run("expire", "--keep-days", "1")
        assert "forgotten 2 records" in await run("forget", "--key", "far", "--yes")
        waits = ["--where", "timer_id = 'waits'", "--yes"]
        assert "published 1 requests to have them moved" in await run("move", *waits, "--by", "60")
        assert "published 1 requests to have them cancelled" in await run("cancel", *waits)
