"""Why a partition does not take what a producer sends to it, however often it is sent."""

from collections.abc import Sequence
from typing import NamedTuple

from aiokafka.errors import KafkaError

from kafka_timers.broker import codes

__all__ = ["Refusal", "RefusedError"]


class Refusal(NamedTuple):
    """Why a partition does not take what was sent to it: the number of the error, and the broker's own words."""

    topic: str
    partition: int
    code: int
    words: str

    def __str__(self) -> str:
        return f"{codes.name_of(self.code)} {self.words}".rstrip()


class RefusedError(KafkaError):  # type: ignore[misc]  # aiokafka tells no types
    """Topics do not take what was sent to them; `refusals` says which, and why."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        first = refusals[0]
        super().__init__(f"{first.topic} partition {first.partition} does not take it: {first}")
        self.refusals = refusals
