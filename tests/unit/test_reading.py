"""What follows a topic waits for a silent leader, says once for what it waits, and loses no record."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.errors import (
    KafkaError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.fetching import Fetched, Fetcher
from kafka_timers.broker.reading import Following

START = 7

Parts = dict[int, Fetched | KafkaError]


class Leader:
    """Leads partition 0 and gives the *answers* in turn: an error, or the records at these offsets."""

    log_id = b"first"
    numbers = (0,)

    def __init__(self, *answers: KafkaError | list[int]) -> None:
        self.answers = list(answers)
        self.asked: list[int] = []

    def leaders(self, numbers: Iterable[int]) -> dict[int, list[int]]:
        return {1: list(numbers)} if (numbers := list(numbers)) else {}

    async def fetch(
        self, _: int, positions: Mapping[int, int], *__: Any, **___: Any
    ) -> dict[int, Fetched | KafkaError]:
        self.asked.append(positions[0])
        answer = self.answers.pop(0)
        if isinstance(answer, OffsetOutOfRangeError):
            return {0: answer}
        if isinstance(answer, KafkaError):
            raise answer
        fields: dict[str, Any] = {"timestamp": 1, "timestamp_type": 1, "key": None, "value": None, "headers": ()}
        records = [SimpleNamespace(offset=offset, **fields) for offset in answer]
        return {0: Fetched(cast(Any, iter(records)), answer[-1] + 1, is_large=False, stable=99, end=99, epoch=0)}

    async def refresh(self) -> None: ...

    async def starts(self, _: object) -> dict[int, int]:
        return {0: 20}


def followed(leader: Leader) -> Following:
    return Following("calls", cast(Fetcher, leader), cast(LogBounds, leader), {0: START})


async def test_a_silent_leader_is_waited_for_and_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    silent = RequestTimedOutError("kafka:9092 has not answered Fetch within 4 s")
    leader = Leader(silent, silent, silent, [7, 8])
    following = followed(leader)
    polling = asyncio.create_task(following.poll())
    await asyncio.wait([polling], timeout=0.05)
    text = f"calls partition 0 (at offset {START}): {silent}"
    assert following.trouble == text
    assert [record.offset for record in await polling] == [7, 8]
    assert following.trouble == ""
    assert caplog.record_tuples == [
        ("kafka_timers.broker.reading", logging.WARNING, f"{text}; trying again"),
    ]
    await following.close()


async def test_what_was_deleted_unread_is_told_and_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    leader = Leader(OffsetOutOfRangeError(), [20])
    following = followed(leader)
    assert [record.offset for record in await following.poll()] == [20]
    assert leader.asked == [START, 20]
    assert caplog.messages == ["calls partition 0: offsets 7 to 19 were deleted unread"]
    await following.close()


async def test_a_refusal_ends_the_reading() -> None:
    following = followed(Leader(TopicAuthorizationFailedError("calls")))
    with pytest.raises(TopicAuthorizationFailedError):
        await following.poll()
    await following.close()


async def test_a_topic_made_anew_is_read_from_its_beginning(caplog: pytest.LogCaptureFixture) -> None:
    gone = UnknownTopicOrPartitionError()
    leader = Leader([7, 8], gone, gone, [0, 1])
    following = followed(leader)
    assert [record.offset for record in await following.poll()] == [7, 8]
    leader.log_id = b"second"
    assert [record.offset for record in await following.poll()] == [0, 1]
    assert leader.asked == [START, 9, 9, 0]
    assert caplog.messages[-1] == "topic calls was deleted and made anew: it is read from its beginning"
    await following.close()
