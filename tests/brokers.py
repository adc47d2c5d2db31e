"""What tests of all folders do with brokers; `conftest.py` cannot be imported, since each folder may have one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from kafka_timers.dev.broker import EmbeddedKafka

StartKafka = Callable[..., Awaitable[EmbeddedKafka]]


@asynccontextmanager
async def administering(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """Yield a connected admin client."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


async def make_topic(bootstrap: str, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
    """Make a topic as an operator might, and wait until the broker tells of it: the controller is ahead of it."""
    async with administering(bootstrap) as admin:
        made = await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=dict(configs or {}))])
        assert [code for _, code, _ in made.topic_errors] == [0]
        async with asyncio.timeout(30):
            while name not in await admin.list_topics():  # noqa: ASYNC110  # a broker has to be asked
                await asyncio.sleep(0.02)


async def set_topic(bootstrap: str, name: str, configs: Mapping[str, str]) -> None:
    """Give a topic these settings, and the broker's defaults for all others."""
    async with administering(bootstrap) as admin:
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, dict(configs))])


async def delete_records(bootstrap: str, topic: str, partition: int, before: int) -> None:
    """Delete what lies below the offset *before*."""
    async with administering(bootstrap) as admin:
        await admin.delete_records({TopicPartition(topic, partition): RecordsToDelete(before)})
