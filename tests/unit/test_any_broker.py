"""A question that any broker can answer goes to one after the other."""

import asyncio
from typing import Any

import pytest
from patience import LIMIT_S

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.requests import Metadata


async def test_another_broker_is_asked_while_one_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def ask(_: Cluster, address: Any, *__: Any) -> str:
        asked.append(address.host)
        if len(asked) == 1:
            await asyncio.Event().wait()
        return str(address.host)

    monkeypatch.setattr(Cluster, "_ask", ask)
    async with asyncio.timeout(LIMIT_S):
        answer = await Cluster(Kafka("one:9092,two:9092")).ask_any(Metadata([]))
    assert sorted(asked) == ["one", "two"]
    assert answer == asked[1]
