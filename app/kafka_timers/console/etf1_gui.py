"""
Answers for the admin GUI of etf1's kafka-message-scheduler, about timers that came through the door `etf1`.

    GET /liveness       200
    GET /info           address of Kafka, and topics with schedules
    GET /schedules      the next 10,000 pending schedules

Source: https://github.com/etf1/kafka-message-scheduler, apiserver/rest/routes.go and schedule/kafka/schedule.go.
"""

import base64
import socket
from collections.abc import Iterable
from typing import Any

from kafka_timers.console.actions import Service
from kafka_timers.core.text import bytes_in
from kafka_timers.core.wire import number_in
from kafka_timers.errors import QueryError
from kafka_timers.operate.waiting import Told

# The GUI waits for 2 s, and keeps the whole answer in memory.
_SCHEDULES_MAX = 10_000

_DOOR = "etf1"


async def info_of(service: Service, address: str) -> dict[str, Any]:
    """
    Return the address of Kafka and the topics with schedules, by the consumer groups of the doors. *address* is the one
    at which the caller reached the console.
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
    Return the pending schedules, in the order in which they fire.

    Raises:
        QueryError: a partition is unknown. The GUI's format has no way to say so.
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
    for timer in timers:
        headers = {each["name"]: bytes_in(each, "value") for each in timer["headers"]}
        yield {
            "id": _text(headers.get("scheduler-key")),
            "epoch": timer["second"],
            "timestamp": number_in(headers.get("scheduler-timestamp")) or 0,
            "topic": _text(headers.get("scheduler-topic")),
            "target-topic": _text(bytes_in(timer, "topic")),
            "target-key": _text(bytes_in(timer, "key")),
            "value": base64.b64encode(bytes_in(timer, "value") or b"").decode(),
        }


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")
