"""
What the admin GUI of etf1's kafka-message-scheduler asks of a scheduler, for timers that came by the door `etf1`.

    GET /liveness       200
    GET /info           where Kafka is, and which topics have schedules
    GET /schedules      those that wait, the next 10,000 of them

Source: https://github.com/etf1/kafka-message-scheduler, apiserver/rest/routes.go and schedule/kafka/schedule.go.
"""

import base64
import socket
from collections.abc import Iterable
from typing import Any

from kafka_timers.console.service import Service
from kafka_timers.core.text import bytes_in
from kafka_timers.core.wire import number_in
from kafka_timers.errors import QueryError
from kafka_timers.operate.pending import Told

__all__ = ["info_of", "schedules_of"]

# The GUI waits for 2 s, and holds all that it gets.
_SCHEDULES_MAX = 10_000

_DOOR = "etf1"


async def info_of(service: Service, address: str) -> dict[str, Any]:
    """
    Return where Kafka is and which topics have schedules, as the groups of doors tell it.

    Args:
        service: that is asked.
        address: under which it is reached.
    """
    status, _ = await service.status()
    host = socket.gethostname()
    return {
        "hostname": host,
        "address": [],
        "server_address": address,
        "kafka": {
            "bootstrap_servers": service.bootstrap,
            "topics": sorted({door.topic for door in status.doors if door.door == _DOOR}),
            "history_topic": service.door_history,
        },
    }


async def schedules_of(service: Service) -> list[dict[str, Any]]:
    """
    Return the schedules that wait, in the order in which they fire.

    Raises:
        QueryError: of a partition nothing is known, and no answer can say so to that GUI.
    """
    workers = await service.workers()
    found: list[dict[str, Any]] = []
    async for page in workers.pages(_SCHEDULES_MAX, with_values=True, id_prefix=f"{_DOOR}:"):
        if page.unknown:
            number, why = min(page.unknown.items())
            raise QueryError(f"schedules in {len(page.unknown)} partitions are unknown; in partition {number}: {why}")
        found += _schedules(page.timers)
    return found


def _schedules(timers: Iterable[Told]) -> Iterable[dict[str, Any]]:
    for told in timers:
        headers = {each["name"]: bytes_in(each, "value") for each in told["headers"]}
        yield {
            "id": _text(headers.get("scheduler-key")),
            "epoch": told["second"],
            "timestamp": number_in(headers.get("scheduler-timestamp")) or 0,
            "topic": _text(headers.get("scheduler-topic")),
            "target-topic": _text(bytes_in(told, "topic")),
            "target-key": _text(bytes_in(told, "key")),
            "value": base64.b64encode(bytes_in(told, "value") or b"").decode(),
        }


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")
