"""Without a token to log in, brokers cannot be reached: that ends no process, and the error names the token."""

from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from kafka_timers.broker import cluster as brokers
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.requests import Metadata
from kafka_timers.broker.topics import answering
from kafka_timers.errors import BrokerError, LoginError

WORDS = "no OAuth token from https://tokens: HTTPError 503"


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    async def fail(host: str, port: int, **options: Any) -> None:
        raise LoginError(WORDS)

    monkeypatch.setattr(brokers, "dial", fail)
    return Kafka("one:9092,two:9092")


async def test_a_question_to_brokers_without_a_token_raises_a_retriable_error(kafka: Kafka) -> None:
    cluster = Cluster(kafka)
    with pytest.raises(KafkaConnectionError) as caught:
        await cluster.ask_any(Metadata([]))
    assert caught.value.retriable


async def test_people_are_told_that_the_token_is_missing(kafka: Kafka) -> None:
    with pytest.raises(BrokerError, match=f"^{WORDS}$") as caught:
        async with answering(kafka), Cluster.open(kafka):
            pass
    assert caught.value.retriable
