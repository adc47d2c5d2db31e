"""A log is read fairly: no partition keeps others of its broker from being read, with any number of records."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice

import pytest
from aiokafka.errors import KafkaError, StaleMetadata
from patience import LIMIT_S

from kafka_timers.broker.fetching import Fetched
from kafka_timers.core.wire import Record
from kafka_timers.runtime.log_reader import LogReader
from kafka_timers.runtime.priority import PriorityGate
from kafka_timers.runtime.tasks import cancel

PARTITIONS = (0, 1, 2, 3)


@dataclass
class Read:
    """A record."""

    offset: int
    key: bytes | None = None
    value: bytes | None = None
    timestamp: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass
class Place:
    """A partition, and up to where it was read."""

    number: int
    position: int = 0


@dataclass
class Feed:
    """Takes the records of one partition."""

    partition: Place
    awaited: int = 0
    faults: list[Exception] = field(default_factory=list)

    async def ready(self, epoch: int) -> None: ...

    def ingest(self, records: Sequence[Record], position: int) -> None:
        self.partition.position = position

    def blocked(self, stable: int, end: int) -> None: ...

    def fail(self, error: Exception) -> None:
        self.faults.append(error)


class Broker:
    """
    Leads all partitions, and has more of each than there is time to read.

    An answer has room for two partitions, those that the question names first, as Kafka fills it. It withholds the
    partitions *withheld*, as of a leader whose disk is broken.
    """

    def __init__(self, *withheld: int) -> None:
        self.withheld = withheld
        self.fetches = 0

    def leaders(self, numbers: Iterable[int]) -> dict[int, list[int]]:
        return {1: [*numbers]}

    async def find_leaders(self) -> None: ...

    async def moved(self) -> None:
        await asyncio.Event().wait()

    async def fetch(
        self, node: int, positions: Mapping[int, int], wait_ms: int, *, anew: bool
    ) -> dict[int, Fetched | KafkaError]:
        self.fetches += 1
        await asyncio.sleep(0)
        came: dict[int, Fetched | KafkaError] = {}
        room = 2
        for number, position in positions.items():
            if number in self.withheld:
                came[number] = StaleMetadata(f"partition {number} cannot be read")
                continue
            records = map(Read, islice(count(position), 5 if room > 0 else 0))
            behind = position + 5 * (room > 0)
            came[number] = Fetched(records, behind, False, 1_000, 1_000, 0)
            room -= 1
        return came


async def read(broker: Broker, fetches: int) -> list[Feed]:
    """Return the feeds of all partitions after so many fetches."""
    reader = LogReader(broker, PriorityGate())
    feeds = [Feed(Place(number)) for number in PARTITIONS]
    for feed in feeds:
        reader.add(feed)
    reading = asyncio.create_task(reader.run())
    async with asyncio.timeout(LIMIT_S):
        # The broker counts.
        while broker.fetches < fetches:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await cancel([reading])
    return feeds


async def test_partitions_with_more_than_fits_into_an_answer_starve_no_other() -> None:
    positions = [feed.partition.position for feed in await read(Broker(), 20)]
    assert min(positions) > max(positions) / 3


async def test_a_partition_that_its_leader_withholds_keeps_no_other_from_being_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    feeds = await read(Broker(0), 6)
    assert [feed.partition.position > 0 for feed in feeds] == [False, True, True, True]
    assert [record.getMessage() for record in caplog.records] == [
        "StaleMetadata: partition 0 cannot be read; trying again"
    ]
    assert not any(feed.faults for feed in feeds)


async def test_a_wait_for_callbacks_to_leave_is_limited() -> None:
    """They may wait for a broker themselves, those of several partitions in turn."""
    gate = PriorityGate()
    with gate.on():
        async with asyncio.timeout(LIMIT_S):
            await gate.over_soon()
