"""
Test timers without waiting: a clock that stands still until you move it, and an in-memory broker that follows it.

    clock = ManualClock()
    timers = InMemoryTimers(clock)
    await place_order(timers.client)            # calls client.after(30, topic="reminders", …)
    await clock.advance(30)
    [record] = timers.take("reminders")

It needs no Kafka and no threads, and gives the same result on every run. It shows the service as a receiver sees it:
records, headers and their order, the answers to `cancel`, `move` and `create`, and failures when a test asks for them.
It keeps nothing after the process.
"""

import asyncio
import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Awaitable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from aiokafka import ConsumerRecord

from kafka_timers import sync
from kafka_timers.broker.placed import Latest
from kafka_timers.broker.reading import consumed
from kafka_timers.client.answers import AnswerReader
from kafka_timers.client.batching import RecordHeaders
from kafka_timers.client.channel import Channel
from kafka_timers.client.received import RawHeaders, pairs_of
from kafka_timers.client.request import Answer, Pending
from kafka_timers.client.timer_client import TimerClient
from kafka_timers.core import rows as batches
from kafka_timers.core.accepting import accept
from kafka_timers.core.callbacks import Outgoing
from kafka_timers.core.changes import Changes
from kafka_timers.core.contents import Contents
from kafka_timers.core.keys import first_key, is_late, parts_of
from kafka_timers.core.memory_store import MemoryStore
from kafka_timers.core.partition import Partition
from kafka_timers.core.refused import Reason
from kafka_timers.core.versions import Answer as Decision
from kafka_timers.core.wire import SECOND_LIMIT, Future, Request, Topics, callback_headers, reject_headers
from kafka_timers.errors import AnswerError, PublishError

if TYPE_CHECKING:
    from kafka_timers.core.planning import Plans

__all__ = ["InMemoryTimers", "ManualClock"]

_TOPICS = Topics()
_ALL_RECORDS = 1_000_000

# Turns of the event loop that a woken task gets to reach its next sleep. The number is fixed, so every run is the same.
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
        """Return once the clock has reached *wall_s*, at once if it has already."""
        while self._wall_s < wall_s:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._sleepers, (wall_s, next(self._numbers), woken))
            await woken

    def set(self, wall_s: float) -> None:
        """Step to *wall_s*, also backwards, as a host's clock may. Sleepers that are due run when the caller awaits."""
        self._wall_s = wall_s
        while self._sleepers and self._sleepers[0][0] <= wall_s:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():  # a sleeper that was cancelled is done
                woken.set_result(None)

    async def advance(self, seconds: float) -> None:
        """
        Move on by *seconds* and stop wherever a sleeper is due, in order of time, then in order of falling asleep.

        Each woken task runs at its own moment until it waits again, so a task that sleeps a second at a time wakes once
        each second. If a task waits for something other than this clock, its next steps may come later.
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
    key: bytes | None
    value: bytes | None
    offset: int
    timestamp: int
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_type: int = 1


class InMemoryTimers:
    """
    The timer service and its broker in memory, with one partition.

    It runs the code of the real service, so it decides by the same rules. A cancel or a move is too late once its timer
    is due by the clock. Conditions are judged from the first request on.

    Attributes:
        client: a `TimerClient` whose requests stay in memory; same checks, same results, no network.
        topics: callback topics that exist. A callback for any other topic goes to `timer-rejected`, as `topic-unknown`.
            None allows every topic.

    Args:
        clock: decides to the millisecond which timers are due. Setting it back does not take back any callback.
        topics: as above.
    """

    def __init__(self, clock: ManualClock, topics: Collection[str] | None = None) -> None:
        self.topics = topics
        self._failures: deque[PublishError | AnswerError] = deque()
        self._answers = _InMemoryAnswers()
        self.client: TimerClient = _InMemoryClient(_InMemoryChannel(self, self._answers), clock)
        self._clock = clock
        self._partition = Partition(0)
        self._store = MemoryStore()
        self._topics: defaultdict[str, list[ConsumerRecord[bytes, bytes]]] = defaultdict(list)
        self._taken: defaultdict[str, int] = defaultdict(int)
        # The records of timer-schedule, and the latest of timer-planned.
        self._schedules: list[tuple[bytes, bytes | None]] = []
        self._planned: dict[bytes, bytes | None] = {}
        # Created with the first schedule, since planning needs an extra that other tests do without.
        self._plans: Plans | None = None
        # Key and value of each request, by offset.
        self._requests: list[tuple[bytes, bytes]] = []
        self._tick()

    @cached_property
    def sync_client(self) -> sync.TimerClient:
        """The same client for code without asyncio. Close it at the end of the test."""
        return sync.TimerClient.over(self.client)

    def pending(self) -> list[Pending]:
        """Return the waiting timers, in the order in which they fire."""
        self._tick()
        partition, waiting = self._partition, []
        start, end = first_key(partition.sealed_ms), first_key(SECOND_LIMIT * 1000)
        for batch_key, batch in self._store.rows(start, end):
            for key, row in batches.singles(batch_key, batch):
                due_ms, offset = parts_of(key)
                waiting.append(Pending.of(Future.FromString(row), due_ms, f"0:{offset}"))
        return waiting

    def put(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: RawHeaders = ()
    ) -> ConsumerRecord[bytes, bytes]:
        """Write a record on *topic* that is no callback, and return it. `take` returns it among the callbacks."""
        self._tick()
        return self._append(topic, key, value, pairs_of(headers), self._now_ms)

    def fail_next(self, *errors: PublishError | AnswerError) -> None:
        """
        Make the next calls of the client fail, each with one of *errors*.

        After a `PublishError` nothing was accepted. After an `AnswerError` a cancel, a move or a create was accepted
        and stands; calls that wait for no answer do not use one up. `get`, and a move without a topic, first ask for
        the pending timer: that question fails, and nothing has changed.
        """
        self._failures.extend(errors)

    def take(self, topic: str) -> list[ConsumerRecord[bytes, bytes]]:
        """
        Return the records on *topic* that are there by now and were not taken before, in the order of firing.

        *topic* may also be `timer-rejected`.
        """
        self._tick()
        records = self._topics[topic][self._taken[topic] :]
        self._taken[topic] += len(records)
        return records

    def _accept(self, key: bytes, value: bytes) -> int:
        """
        Take a record of `timer-request`, and return its offset.

        Raises:
            PublishError: a test has asked for it.
        """
        if self._failures and isinstance(self._failures[0], PublishError):
            raise self._failures.popleft()
        self._tick()
        offset = self._take(key, value, self._now_ms)
        if self._failures and Future.FromString(value).replyTopic:
            self._answers.lose(self._failures.popleft())
        return offset

    def _take(self, key: bytes, value: bytes, now_ms: int) -> int:
        partition, offset = self._partition, self._partition.position
        # A record that comes after a moment counts as appended after it, even if the clock was set back.
        appended_ms = max(now_ms, partition.sealed_ms - 1)
        accepted = accept([_Record(key, value, offset, appended_ms)], partition, 1, self._store.versions)
        if accepted.refused or not accepted.count:
            raise AssertionError(f"the client has accepted a request that the service refuses: {accepted}")
        self._write(
            partition.read(offset + 1, accepted.rows, accepted.offsets, accepted.decided, appended_ms=appended_ms)
        )
        self._answers.add(accepted.decided.answers)
        self._requests.append((key, value))
        return offset

    def _put_schedule(self, key: bytes, value: bytes | None) -> int:
        from kafka_timers.core.planning import Plans

        self._tick()
        if self._plans is None:
            self._plans = Plans()
        offset = len(self._schedules)
        self._schedules.append((key, value))
        self._plans.schedule(key, offset, self._now_ms, value)
        self._plan(self._plans, self._now_ms)
        return offset

    def _latest_schedules(self, before: int | None) -> dict[bytes, Latest]:
        return {key: Latest(offset, value) for offset, (key, value) in enumerate(self._schedules[:before])}

    def _plan(self, plans: "Plans", now_ms: int) -> None:
        """Request the runs of schedules, as a planner does each second."""
        while step := plans.step(now_ms):
            plans.fill(step, _ALL_RECORDS)
            for write in step.requests:
                self._take(write.key, write.value, now_ms)
            self._planned |= step.planned
            plans.written(step)

    def _request(self, partition: int, offset: int) -> Future | None:
        if partition or offset >= len(self._requests):
            return None
        return Future.FromString(self._requests[offset][1])

    def _tick(self) -> None:
        # A test cannot tell whether a callback appeared when it was due or only now, so callbacks are made on demand.
        now_ms = self._now_ms
        while self._plans and (wakes_ms := self._plans.wakes_ms) is not None and wakes_ms <= now_ms:
            self._fire_up_to(wakes_ms + 1)
            self._plan(self._plans, wakes_ms)
        self._fire_up_to(now_ms + 1)

    def _fire_up_to(self, end_ms: int) -> None:
        partition, store = self._partition, self._store
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
        partition.passed(partition.sealed_ms)
        store.forget(partition.forgets_s)

    def _fire(self, key: bytes, row: bytes, contents: Contents) -> None:
        request, (due_ms, offset) = Request.FromString(row), parts_of(key)
        contents.offsets.append(offset)
        contents.named |= bool(request.timerId)
        contents.late += is_late(key)
        contents.through = key
        # Late requests fire in the moment after they were accepted.
        fired_ms = max(due_ms, self._partition.sealed_ms)
        outgoing = Outgoing.of(request)
        topic = outgoing.topic.decode()
        if self.topics is not None and topic not in self.topics:
            contents.rejected.append(offset)
            [headers] = reject_headers(Reason.TOPIC_UNKNOWN, _TOPICS.requests, 0, [offset])
            self._append(_TOPICS.rejected, *self._requests[offset], headers, fired_ms)
            return
        headers = callback_headers(request, due_ms // 1000, b"0:%d" % offset)
        self._append(topic, outgoing.key, outgoing.value, headers, fired_ms)

    def _append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]],
        timestamp_ms: int,
    ) -> ConsumerRecord[bytes, bytes]:
        log = self._topics[topic]
        record = consumed(_Record(key, value, len(log), timestamp_ms, tuple(headers)), topic, 0)
        log.append(record)
        return record

    @property
    def _now_ms(self) -> int:
        return round(self._clock.wall_s() * 1000)

    def _write(self, changes: Changes) -> None:
        self._store.write(changes)
        self._partition.apply(changes)


class _InMemoryAnswers(AnswerReader):
    """The answers of the service, which exist as soon as the record that asks."""

    def __init__(self) -> None:
        super().__init__()
        self._answers: dict[int, Answer] = {}
        self._lost: dict[int, Exception] = {}

    def add(self, answers: Iterable[Decision]) -> None:
        self._answers.update({answer.offset: Answer.of(answer.reply(0)) for answer in answers})

    def lose(self, error: PublishError | AnswerError) -> None:
        self._lost[max(self._answers)] = error

    async def answer(self, future: Future, publishing: Awaitable[tuple[int, int]], timeout_s: float) -> Answer:
        _, offset = await publishing
        answer = self._answers.pop(offset)
        if (error := self._lost.pop(offset, None)) is not None:
            raise error
        return answer


class _InMemoryChannel:
    """Takes a client's records into the service in memory."""

    partitions = 1

    def __init__(self, timers: InMemoryTimers, answers: _InMemoryAnswers) -> None:
        self._timers = timers
        self._answers = answers

    async def start(self) -> None:
        """Do nothing: there is no connection."""

    async def stop(self) -> None:
        """Do nothing: there is no connection."""

    async def publish(self, key: bytes, value: bytes, name: bytes, headers: RecordHeaders = ()) -> tuple[int, int]:
        return 0, self._timers._accept(key, value)

    async def answers(self) -> AnswerReader:
        return self._answers

    async def read(self, request: str) -> Future | None:
        return self._timers._request(*map(int, request.split(":")))

    async def write_schedule(self, name: bytes, key: bytes, value: bytes | None) -> int:
        return self._timers._put_schedule(key, value)

    async def schedules(self, name: bytes | None, before: int | None = None) -> dict[bytes, Latest]:
        return self._timers._latest_schedules(before)

    async def planned(self, name: bytes | None) -> dict[bytes, Latest]:
        return {key: Latest(0, value) for key, value in self._timers._planned.items()}


class _InMemoryClient(TimerClient):
    def __init__(self, channel: Channel, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self._channel = channel
