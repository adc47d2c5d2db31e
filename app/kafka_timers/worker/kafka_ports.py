"""Kafka as the owners of partitions see it: the ends of the logs that they read."""

import asyncio
from collections.abc import Collection

from aiokafka import AIOKafkaConsumer, TopicPartition

from kafka_timers.broker.seals import read_tail
from kafka_timers.core.wire import Sealed


class KafkaLogBounds:
    """
    First and last offsets of the request log.

    Args:
        consumer: that reads nothing else.
        topic: the name of `timer-request`.
    """

    def __init__(self, consumer: AIOKafkaConsumer, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic

    async def ends(self, numbers: Collection[int]) -> dict[int, int]:
        """
        Return the offset behind the last committed request of each partition.

        Raises:
            aiokafka.errors.KafkaError: a leader does not answer.
        """
        where = [TopicPartition(self._topic, number) for number in numbers]
        return {at.partition: end for at, end in (await self._consumer.end_offsets(where)).items()}

    async def starts(self, numbers: Collection[int]) -> dict[int, int]:
        """
        Return the first offset that is left in the log of each partition.

        Raises:
            aiokafka.errors.KafkaError: a leader does not answer.
        """
        where = [TopicPartition(self._topic, number) for number in numbers]
        return {at.partition: start for at, start in (await self._consumer.beginning_offsets(where)).items()}


class KafkaSealLog:
    """
    The seals of any partition, one reading at a time over one connection.

    Args:
        consumer: that reads nothing else.
        topic: the name of `timer-sealed`.
    """

    def __init__(self, consumer: AIOKafkaConsumer, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic
        self._free = asyncio.Lock()

    async def seals(self, number: int) -> list[Sealed]:
        """
        Return the last seals of partition *number*, with the latest complete one among them.

        Raises:
            BrokerError: they could not be read.
        """
        async with self._free:
            return await read_tail(self._consumer, self._topic, number)
