"""Errors of a partition that refuses a batch, however often it is sent."""

from collections.abc import Sequence
from typing import NamedTuple

from aiokafka.errors import KafkaError

from kafka_timers.broker import codes


class Refusal(NamedTuple):
    """The reason why a partition refuses a batch: the error number, and the broker's own message."""

    topic: str
    partition: int
    code: int
    words: str

    def __str__(self) -> str:
        return f"{codes.name_of(self.code)} {self.words}".rstrip()


class RefusedError(KafkaError):  # type: ignore[misc]  # aiokafka tells no types
    """Topics refuse a batch; `refusals` lists the partitions and reasons."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        first = refusals[0]
        super().__init__(f"{first.topic} partition {first.partition} does not take it: {first}")
        self.refusals = refusals
