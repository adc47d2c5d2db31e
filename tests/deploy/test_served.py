"""The pods of the chart with `mode: serve`, by their arguments and variables: on a real Kafka, and on this host."""

import asyncio
import json
import os
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from patience import LIMIT_S
from service import Process, Service, take
from test_chart import Manifest, pods
from test_serve import is_free, until_ready

from kafka_timers.broker.environment import env_name
from kafka_timers.dev.broker import free_port
from kafka_timers.runtime.child import Child

SCENARIO, TOKEN = "console-values.yaml", "operate-0123456789abcdef"


@asynccontextmanager
async def started(pod: Manifest, folder: Path, **here: str) -> AsyncIterator[Process]:
    """Run what *pod* runs; *here* are variables that are others on this host. What is left is killed in the end."""
    [container] = pod["spec"]["containers"]
    # Three that follow each other.
    while not all(map(is_free, (port := free_port(), port + 1, port + 2))):
        pass
    other = {"0.0.0.0": "127.0.0.1", "8080": str(port), "/data/store": str(folder / "store")}
    env = {each["name"]: each.get("value") for each in container["env"]}
    env |= {env_name(name): value for name, value in here.items()}
    assert None not in env.values(), env
    command = [sys.executable, "-m", "kafka_timers", *(other.get(each, each) for each in container["args"])]
    child = await Child.start("pod", command, folder / "pod.log", os.environ | env)
    try:
        yield Process(child, port, folder)
    finally:
        child.kill()
        await child.wait()


def ask(port: int, path: str, body: object = None) -> Any:
    """Return the answer of the console at *port*."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    with urllib.request.urlopen(asked, timeout=10) as answer:
        return json.load(answer)


async def test_two_pods_tick_fire_and_show_the_timers_of_both(bootstrap: str, prefix: str, tmp_path: Path) -> None:
    (tokens := tmp_path / "tokens").write_text(f"operate {TOKEN} billing\n")
    (query_token := tmp_path / "token").write_text("of the pods alone, 0123456789")
    shared = {"bootstrap": bootstrap, "topic_prefix": prefix}
    parts = {pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod for _, pod in pods(SCENARIO)}
    async with started(parts["topics"], tmp_path, **shared) as job, asyncio.timeout(LIMIT_S):
        assert await job.child.wait() == 0, job.child.last_words()

    def pod(number: int, console: int) -> AbstractAsyncContextManager[Process]:
        (folder := tmp_path / f"pod-{number}").mkdir()
        here = {"replica": str(number), "query_port": str(free_port()), "query_address": "127.0.0.1"}
        files = {"query_token_file": str(query_token), "token_file": str(tokens), "console_port": str(console)}
        return started(parts["worker"], folder, **shared, **here, **files)

    topic, consoles = f"orders-{prefix}callbacks", [free_port(), free_port()]
    first, second = (pod(number, port) for number, port in enumerate(consoles))
    async with first as one, second as two, Service(bootstrap, prefix, tmp_path / "service") as service:
        await service.create_topic(topic)
        await asyncio.gather(until_ready(one), until_ready(two))
        for number in range(16):
            timer = {"after": 3_600, "topic": topic, "value": "v", "timerId": f"{number}"}
            await asyncio.to_thread(ask, consoles[number % 2], "/v1/timers", timer)
        # Each has some of the partitions, and each console knows the timers of all.
        for console in consoles:
            async with asyncio.timeout(LIMIT_S):
                while len((await asyncio.to_thread(ask, console, "/v1/timers?limit=50"))["timers"]) < 16:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        assert 0 < one.metric("kafka_timers_pending") < 16
        assert one.metric("kafka_timers_oscillator_ready") + two.metric("kafka_timers_oscillator_ready") == 2
        await asyncio.to_thread(ask, consoles[0], "/v1/timers", {"after": 1, "topic": topic, "value": "fired"})
        async with service.reading(topic) as callbacks:
            [fired] = await take(callbacks, 1, LIMIT_S)
        assert fired.value == b"fired"
        for process in (one, two):
            await process.child.stop(LIMIT_S)
            assert process.child.returncode == 0
