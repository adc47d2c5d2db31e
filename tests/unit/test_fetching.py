"""The answer of a broker to a fetch, and the size of the question."""

import struct
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import RequestTimedOutError, StaleMetadata
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from batches import batch_of
from simulation.sessions import Sessions

from kafka_timers.broker.cluster import Leader
from kafka_timers.broker.fetching import Fetched, Fetcher, parsed
from kafka_timers.broker.requests import Fetch

_TRANSACTIONAL, _CONTROL = 0x10, 0x20
PRODUCER = 7


def of_a_transaction(batch: bytes, attributes: int, *, is_empty: bool = False) -> bytes:
    """Return *batch* as one of a transaction of `PRODUCER`; an empty one is left of it by compaction."""
    header = 61
    odd = bytearray(batch[:header] if is_empty else batch)
    struct.pack_into(">h", odd, 21, attributes)
    struct.pack_into(">q", odd, 43, PRODUCER)
    if is_empty:
        struct.pack_into(">i", odd, 8, header - 12)
        struct.pack_into(">i", odd, 57, 0)
    struct.pack_into(">I", odd, 17, calc_crc32c(bytes(odd[21:])))
    return bytes(odd)


def test_a_marker_that_compaction_has_emptied_is_passed_over() -> None:
    """The log cleaner keeps the last batch of a producer that is alive, without its record."""
    aborted = of_a_transaction(batch_of([(b"aborted", b"")]), _TRANSACTIONAL)
    emptied = of_a_transaction(batch_of([(b"\0\0\0\0", b"")], base_offset=1), _TRANSACTIONAL | _CONTROL, is_empty=True)
    data = aborted + emptied + batch_of([(b"next", b"")], base_offset=2)
    came = parsed(data, [(PRODUCER, 0)], 0, 3, 3, 0)
    assert [(record.offset, record.key) for record in came.records] == [(2, b"next")]
    assert came.position == 3


class Slow:
    """A cluster whose one broker sends so many bytes within the limit of a question, and no more."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.asked: list[int] = []

    def leader(self, topic: str, number: int) -> Leader:
        return Leader(1, 0)

    async def send(self, node: int, request: Fetch, *, lane: str) -> Any:
        assert request.partition_bytes_max <= request.bytes_max
        self.asked.append(request.bytes_max)
        if request.bytes_max > self.bytes_max:
            raise RequestTimedOutError("not within 4 s")
        return SimpleNamespace(error_code=0, session=0, topics=[])


async def test_records_that_a_slow_network_does_not_bring_in_time_are_fetched_in_smaller_parts() -> None:
    slow = Slow(1 << 20)
    fetcher = Fetcher(slow, "timer-request", "requests")  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(RequestTimedOutError):
            await fetcher.fetch(1, {0: 5}, 100)
    await fetcher.fetch(1, {0: 5}, 100)
    slow.bytes_max = 1 << 30
    for _ in range(6):
        await fetcher.fetch(1, {0: 5}, 100)
    assert slow.asked == [size << 10 for size in (8192, 2048, 512, 1024, 2048, 4096, 8192, 8192, 8192)]


class Remembering:
    """A cluster whose one broker keeps fetch sessions, and can forget them."""

    def __init__(self) -> None:
        self.ends = {0: 5, 1: 7}
        self.sessions = Sessions()
        self.requests: list[tuple[list[int], list[int]]] = []

    def leader(self, topic: str, number: int) -> Leader:
        return Leader(1, 0)

    def name_of(self, node: int) -> str:
        return f"broker {node}"

    async def send(self, node: int, request: Fetch, *, lane: str) -> Any:
        self.requests.append((sorted(request.positions), sorted(request.forgotten)))
        return self.sessions.answer(node, request, self._part)

    def _part(self, number: int, epoch: int, position: int) -> tuple[Any, ...]:
        batches = [batch_of([(b"key", b"")], base_offset=offset) for offset in range(position, self.ends[number])]
        data = b"".join(batches)
        return number, 0, self.ends[number], self.ends[number], 0, None, -1, data, {}


async def read_on(fetcher: Fetcher, positions: dict[int, int], *, anew: bool = False) -> dict[int, int]:
    """Fetch once, move *positions*, and return how many records came of each partition that was answered."""
    came = await fetcher.fetch(1, positions, 100, anew=anew)
    counts = {}
    for number, part in came.items():
        assert isinstance(part, Fetched)
        counts[number] = len(list(part.records))
        positions[number] = part.position
    return counts


async def test_a_partition_without_news_is_neither_asked_for_nor_answered() -> None:
    broker = Remembering()
    fetcher = Fetcher(broker, "timer-request", "requests")  # type: ignore[arg-type]
    positions = {0: 3, 1: 7}
    assert await read_on(fetcher, positions, anew=True) == {0: 2, 1: 0}
    assert await read_on(fetcher, positions) == {}
    broker.ends[1] = 9
    assert await read_on(fetcher, positions) == {1: 2}
    assert broker.requests == [([0, 1], []), ([0], []), ([], [])]
    broker.requests.clear()
    del positions[0]
    assert await read_on(fetcher, positions) == {}
    assert broker.requests == [([1], [0])]
    assert await read_on(fetcher, positions, anew=True) == {1: 0}


async def test_records_that_a_broker_has_sent_in_vain_come_again() -> None:
    """A reader that begins anew drops the answer to the fetch before."""
    broker = Remembering()
    fetcher = Fetcher(broker, "timer-request", "requests")  # type: ignore[arg-type]
    positions = {0: 5, 1: 7}
    await read_on(fetcher, positions, anew=True)
    broker.ends[0] = 8
    await read_on(fetcher, dict(positions))
    assert await read_on(fetcher, positions) == {0: 3}


async def test_a_broker_that_has_forgotten_a_session_is_asked_for_all_again() -> None:
    broker = Remembering()
    fetcher = Fetcher(broker, "timer-request", "requests")  # type: ignore[arg-type]
    positions = {0: 3, 1: 7}
    await read_on(fetcher, positions, anew=True)
    broker.sessions.forget()
    broker.ends[1] = 8
    assert await read_on(fetcher, positions) == {0: 0, 1: 1}
    assert broker.requests == [([0, 1], []), ([0], []), ([0, 1], [])]
    assert await read_on(fetcher, positions) == {}


class Throttling:
    """A cluster whose one broker sends nothing, because of a quota."""

    def led(self, topic: str, numbers: Iterable[int]) -> dict[int, list[int]]:
        return {1: [*numbers]}

    def leader(self, topic: str, number: int) -> Leader:
        return Leader(1, 0)

    def name_of(self, node: int) -> str:
        return f"broker {node}"

    async def send(self, node: int, request: Fetch, *, lane: str) -> Any:
        return SimpleNamespace(error_code=0, session=0, topics=[])


async def test_a_broker_that_sends_nothing_because_of_a_quota_is_asked_later() -> None:
    fetcher = Fetcher(Throttling(), "timer-request", "requests")  # type: ignore[arg-type]
    assert await fetcher.fetch(1, {0: 5}, 100, anew=False) == {}
    why = await fetcher.fetch_one(0, 5, 100)
    assert isinstance(why, StaleMetadata)
    assert "broker 1 sends nothing for now, because of a quota" in str(why)


def test_a_batch_of_the_format_before_kafka_0_11_is_read_and_marks_no_log() -> None:
    builder = LegacyRecordBatchBuilder(1, 0, 1 << 20)
    builder.append(0, 1_000, b"key", b"value")
    part = parsed(bytes(builder.build()), [], 0, 1, 1, 0)
    assert ([record.value for record in part.records], part.position, part.mark) == ([b"value"], 1, b"")
