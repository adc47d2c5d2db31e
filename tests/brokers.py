"""What tests of all folders do with brokers; `conftest.py` cannot be imported, since each folder may have one."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from kafka_timers.dev.broker import EmbeddedKafka

StartKafka = Callable[..., Awaitable[EmbeddedKafka]]


async def make_topic(bootstrap: str, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
    """Make a topic as an operator might, and wait until the broker tells of it: the controller is ahead of it."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        await admin.start()
        made = await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=dict(configs or {}))])
        assert [code for _, code, _ in made.topic_errors] == [0]
        async with asyncio.timeout(10):
            while name not in await admin.list_topics():  # noqa: ASYNC110  # a broker has to be asked
                await asyncio.sleep(0.02)
    finally:
        await admin.close()
