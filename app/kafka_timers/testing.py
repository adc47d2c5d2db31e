"""
Test timers without waiting: a clock that stands still until it is moved, and an in-memory broker that follows it.

    clock = ManualClock()
    timers = InMemoryTimers(clock)
    await place_order(timers.client)            # calls client.after(30, topic="reminders", …)
    await clock.advance(30)
    [record] = timers.take("reminders")

No Kafka, no threads, and the same result on every run. Of the service it has what a receiver sees, records, headers and
their order, and what `cancel`, `move` and `create` are answered. It lets every topic pass and keeps nothing after the
process.
"""

import asyncio
import heapq
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass

from aiokafka import ConsumerRecord

from kafka_timers.client.answers import AnswerReader
from kafka_timers.client.producer import RecordHeaders
from kafka_timers.client.request import Answer
from kafka_timers.client.timer_client import TimerClient
from kafka_timers.core import rows as batches
from kafka_timers.core.changes import Changes
from kafka_timers.core.contents import Contents
from kafka_timers.core.keys import is_late, parts_of
from kafka_timers.core.memory_store import MemoryStore
from kafka_timers.core.partition import Partition
from kafka_timers.core.verdicts import accept
from kafka_timers.core.versions import Answer as Decision
from kafka_timers.core.wire import Future, Request, callback_headers

__all__ = ["InMemoryTimers", "ManualClock"]

# Turns of the event loop that a woken task gets to reach its next sleep: a fixed number, so that every run is the same.
_TURNS = 20


class ManualClock:
    """
    A `kafka_timers.clock.Clock` that a test moves.

    Args:
        wall_s: UNIX seconds at which it stands.
    """

    def __init__(self, wall_s: float = 0.0) -> None:
        self._wall_s = wall_s
        self._elapsed_s = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    def wall_s(self) -> float:
        """Return UNIX time in seconds."""
        return self._wall_s

    def elapsed_s(self) -> float:
        """Return the seconds by which `advance` has moved the clock; `set` does not count."""
        return self._elapsed_s

    async def sleep_until(self, wall_s: float) -> None:
        """Return once the clock has reached *wall_s*; at once when it has."""
        while self._wall_s < wall_s:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._sleepers, (wall_s, next(self._numbers), woken))
            await woken

    def set(self, wall_s: float) -> None:
        """Step to *wall_s*, also backwards, as a host's clock may; sleepers that are due run when the caller awaits."""
        self._wall_s = wall_s
        while self._sleepers and self._sleepers[0][0] <= wall_s:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():  # it is, when the sleeper was cancelled
                woken.set_result(None)

    async def advance(self, seconds: float) -> None:
        """
        Move on by *seconds*, stopping wherever a sleeper is due, in order of time and then of falling asleep.

        Each woken task runs at its own moment until it waits again, so one that sleeps a second at a time wakes once
        for each second. What a task does after waiting for something other than this clock may come later.
        """
        if seconds < 0:
            raise ValueError(f"advance({seconds!r}): time does not go back; set() steps the clock")
        start_s, end_s = self._wall_s, self._wall_s + seconds
        base_s = self._elapsed_s
        await _let_run()
        while self._sleepers and (wake_s := self._sleepers[0][0]) <= end_s:
            self._elapsed_s = base_s + wake_s - start_s
            self.set(wake_s)
            await _let_run()
        self._elapsed_s = base_s + seconds
        self.set(end_s)


async def _let_run() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class _Record:
    """A record on `timer-request`, as `core.wire.Record` has it."""

    key: bytes
    value: bytes
    offset: int
    timestamp: int


class InMemoryTimers:
    """
    The timer service and its broker in memory, with one partition.

    It decides by the rules of the real service, whose code it runs. A cancel or a move is too late once its timer is
    due by the clock. Conditions are judged from the first request on.

    Attributes:
        client: a `TimerClient` whose requests stay in here; same checks, same results, no network.

    Args:
        clock: tells what is due, to the millisecond. What has come is not taken back when the clock is.
    """

    def __init__(self, clock: ManualClock) -> None:
        self._answers = _InMemoryAnswers()
        self.client: TimerClient = _InMemoryClient(self, clock, self._answers)
        self._clock = clock
        self._partition = Partition(0)
        # In the service the first seal of a partition says so.
        self._partition.conditions_from = self._partition.millis_from = 0
        self._store = MemoryStore()
        self._topics: defaultdict[str, list[ConsumerRecord[bytes, bytes]]] = defaultdict(list)
        self._taken: defaultdict[str, int] = defaultdict(int)
        self._tick()

    def take(self, topic: str) -> list[ConsumerRecord[bytes, bytes]]:
        """Return the callbacks on *topic* that are due by now and were not taken before, in the order of firing."""
        self._tick()
        records = self._topics[topic][self._taken[topic] :]
        self._taken[topic] += len(records)
        return records

    def _accept(self, key: bytes, value: bytes) -> int:
        """Take a record of `timer-request`, and return its offset."""
        self._tick()
        partition, offset = self._partition, self._partition.position
        # What comes after a moment was appended after it, also when the clock was set back.
        appended_ms = max(self._now_ms, partition.sealed_ms - 1)
        accepted = accept([_Record(key, value, offset, appended_ms)], partition, 1, self._store.versions)
        if accepted.refused or not accepted.count:
            raise AssertionError(f"the client has let pass what the service does not take: {accepted}")
        self._write(partition.read(offset + 1, accepted.rows, accepted.offsets, accepted.decided))
        self._answers.add(accepted.decided.answers)
        return offset

    def _tick(self) -> None:
        # Nobody can tell a callback that appears when it is due from one that appears when it is looked for.
        partition, store, end_ms = self._partition, self._store, self._now_ms + 1
        if end_ms <= partition.sealed_ms:
            return
        partition.begin(end_ms)
        start, end = partition.keys_left()
        contents = Contents()
        for batch_key, batch in store.rows(start, end):
            for key, row in batches.singles(batch_key, batch):
                self._fire(key, row, contents)
        cancelled, superseded = store.count_withdrawn(start, end)
        seal = partition.seal(contents, complete=True, cancelled=cancelled, superseded=superseded)
        self._write(partition.sealed(seal, contents, end))
        store.forget(partition.sealed_ms // 1000 - 1)

    def _fire(self, key: bytes, row: bytes, contents: Contents) -> None:
        request, (due_ms, offset) = Request.FromString(row), parts_of(key)
        contents.offsets.append(offset)
        contents.named |= bool(request.timerId)
        contents.late += is_late(key)
        contents.through = key
        # Late ones fire in the moment after they were accepted.
        fired_ms = max(due_ms, self._partition.sealed_ms)
        topic, callback_key, value = request.callBackTopic.decode(), request.callBackKey or None, request.callBack
        log = self._topics[topic]
        log.append(
            ConsumerRecord(
                topic=topic,
                partition=0,
                offset=len(log),
                timestamp=fired_ms,
                timestamp_type=1,
                key=callback_key,
                value=value,
                checksum=None,
                serialized_key_size=len(callback_key) if callback_key else -1,
                serialized_value_size=len(value),
                headers=tuple(callback_headers(request, due_ms // 1000, b"0:%d" % offset)),
            )
        )

    @property
    def _now_ms(self) -> int:
        return round(self._clock.wall_s() * 1000)

    def _write(self, changes: Changes) -> None:
        self._store.write(changes)
        self._partition.apply(changes)


class _InMemoryAnswers(AnswerReader):
    """The answers of the service, which are there as soon as the record that asks."""

    def __init__(self) -> None:
        super().__init__()
        self._answers: dict[int, Answer] = {}

    def add(self, answers: Iterable[Decision]) -> None:
        self._answers.update({answer.offset: Answer.of(answer.reply(0)) for answer in answers})

    async def answer(self, future: Future, publishing: Awaitable[tuple[int, int]], timeout_s: float) -> Answer:
        """Return the answer to what *publishing* publishes."""
        _, offset = await publishing
        return self._answers.pop(offset)


class _InMemoryClient(TimerClient):
    def __init__(self, timers: InMemoryTimers, clock: ManualClock, answers: _InMemoryAnswers) -> None:
        super().__init__(clock=clock)
        self._timers = timers
        self._in_memory = answers

    async def start(self) -> None:
        """Nothing to connect to."""

    async def _publish(self, key: bytes, value: bytes, name: str, headers: RecordHeaders = ()) -> tuple[int, int]:
        return 0, self._timers._accept(key, value)

    async def _reading(self) -> AnswerReader:
        return self._in_memory

    def _partitions(self) -> int:
        return 1
