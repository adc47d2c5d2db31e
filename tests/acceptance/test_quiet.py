"""A healthy instance is quiet: no process of it logs a warning or an error, idle or loaded, however long it runs."""

import asyncio
import re
import time
from pathlib import Path

import pytest
from brokers import StartKafka
from devs import dev, dev_ports
from service import Service

from kafka_timers import TimerClient

pytestmark = pytest.mark.usefixtures("needs_java")

# Kafka closes idle connections after ten minutes. Connections of the service are opened again without a word.
_IDLE = {"connections.max.idle.ms": "4000"}
_EXPIRY = {
    "transactional.id.expiration.ms": "2000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
}


async def loud_lines(folder: Path, idle_s: float, loaded_s: float, *more: str) -> list[str]:
    """
    Return the lines of WARNING and above that all processes of `kafka-timers dev` have logged.

    Args:
        idle_s: how long it runs without a timer, in seconds.
        loaded_s: how long it runs with ten timers a second after that.
    """
    ports = dev_ports()
    async with dev(folder, ports, *more) as running:
        bootstrap = more[1] if more else f"127.0.0.1:{ports[0]}"
        await asyncio.sleep(idle_s)
        async with TimerClient(bootstrap) as client:
            for number in range(int(10 * loaded_s)):
                await client.after(1, topic="callbacks", key=b"%d" % number, value=b"v")
                await asyncio.sleep(0.1)
        logs = [*(folder / ".kafka-timers" / "log").glob("*.log")]
        lines = [f"{log.stem}: {line}" for log in logs for line in log.read_text().splitlines()]
        await running.end()
    assert {log.stem for log in logs} == {"oscillator", "worker", "console"}
    return [line for line in lines if re.search(r"\b(WARNING|ERROR|CRITICAL)\b", line)]


@pytest.mark.chaos
async def test_a_healthy_instance_says_nothing_for_ten_minutes(tmp_path: Path) -> None:
    """Half of it idle: what looks for consumers that hang finds them after five minutes."""
    assert await loud_lines(tmp_path, 330, 270) == []


async def test_a_healthy_instance_says_nothing_of_connections_that_the_broker_closes(
    tmp_path: Path, start_kafka: StartKafka
) -> None:
    kafka = await start_kafka(properties=_IDLE)
    assert await loud_lines(tmp_path, 12, 6, "--bootstrap", kafka.bootstrap) == []


async def test_an_owner_whose_transactional_ids_have_expired_fires_on_without_a_warning(
    tmp_path: Path, start_kafka: StartKafka, prefix: str
) -> None:
    """Brokers forget an id under which nothing was written for a week, or for as long as they are told."""
    kafka = await start_kafka(properties=_EXPIRY)
    async with Service(kafka.bootstrap, prefix, tmp_path, partitions=1) as service:
        await service.start("oscillator")
        worker = await service.start("worker", "--seal-every-s", "9")
        await service.requests(int(time.time()) + 1, ["a"])
        assert await service.callback_names(["a"]) == ["a"]
        await asyncio.sleep(5)
        await service.requests(int(time.time()) + 1, ["b"])
        assert await service.callback_names(["a", "b"]) == ["a", "b"]
        lines = worker.child.last_words().splitlines()
        assert [
            line for line in lines if "INFO" in line and "partition 0: transactional id" in line and "expired" in line
        ]
        assert [line for line in lines if re.search(r"\b(WARNING|ERROR|CRITICAL)\b", line)] == []
        assert worker.metric("kafka_timers_fenced_total") == 0
