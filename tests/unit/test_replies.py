"""How answers are read, where it takes no broker to tell."""

import asyncio
import ssl
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from kafka_timers import TimerClient
from kafka_timers.replies import Replies
from kafka_timers.request import cancel_of
from kafka_timers.wire import Reply


@pytest.mark.parametrize(
    "given",
    [
        {"bootstrap_servers": ["a:1", "b:2"]},
        {"security_protocol": "SSL", "ssl_context": ssl.create_default_context()},
        {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": "name",
            "sasl_plain_password": "word",
        },
        {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "GSSAPI",
            "sasl_kerberos_service_name": "timers",
            "sasl_kerberos_domain_name": "example.org",
        },
    ],
)
async def test_answers_are_read_as_the_producer_connects(given: dict[str, Any]) -> None:
    producer = AIOKafkaProducer(**given)
    consumer = AIOKafkaConsumer(**TimerClient(producer=producer)._link.connection)
    ours, theirs = vars(consumer._client), vars(producer.client)
    settings = [name for name in theirs if name.startswith(("_bootstrap", "_security", "_ssl", "_sasl"))]
    assert len(settings) == 9
    assert {name: ours[name] for name in settings} == {name: theirs[name] for name in settings}
    await consumer.stop()
    await producer.stop()


async def test_answers_that_wait_for_their_question_are_bounded() -> None:
    replies = Replies()
    published: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
    call = asyncio.create_task(replies.answer(cancel_of("id"), published, 5))
    await asyncio.sleep(0)
    for offset in range(3_000):
        answer = Reply(timerId="id", outcome=Reply.CANCELLED, asked=f"0:{offset}")
        replies._take(b"id", answer.SerializeToString())
        replies._take(b"another", answer.SerializeToString())
    assert [len(asking.early) for asking in replies._asking.values()] == [1_000]
    published.set_result((0, 2_999))
    assert (await call).asked == "0:2999"
    assert replies._asking == {}
