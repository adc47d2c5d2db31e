"""
Test timers without waiting: a clock that stands still until it is moved, and an in-memory broker that follows it.

    clock = ManualClock()
    timers = InMemoryTimers(clock)
    await place_order(timers.client)            # calls client.after(30, topic="reminders", …)
    await clock.advance(30)
    [record] = timers.take("reminders")

No Kafka, no threads, and the same result on every run. Of the service it has what a receiver sees, records, headers and
their order, and what `cancel` and `move` are answered. It lets every topic pass and keeps nothing after the process.
"""

import asyncio
import heapq
import itertools
from collections import defaultdict
from dataclasses import dataclass

from aiokafka import ConsumerRecord

from kafka_timers.client.request import Answer, Outcome
from kafka_timers.client.timer_client import TimerClient
from kafka_timers.core.wire import ID_MEMORY_S, Future, Request, callback_headers

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


@dataclass(slots=True)
class _Version:
    """The latest request of a timer id; `ended` is the second in which it fires or, when it was, is cancelled."""

    second: int
    offset: int
    ended: int
    cancelled: bool = False


class InMemoryTimers:
    """
    The timer service and its broker in memory, with one partition.

    A cancel or a move is too late once the second of its timer has begun on the clock.

    Attributes:
        client: a `TimerClient` whose requests stay in here; same checks, same results, no network.

    Args:
        clock: its seconds are the ticks. A tick that was read is not taken back when the clock is.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.client: TimerClient = _InMemoryClient(self, clock)
        self._clock = clock
        self._second = int(clock.wall_s())
        self._pending: list[tuple[int, int, int, int, Request]] = []
        self._taken_back: set[int] = set()
        self._versions: dict[str, _Version] = {}
        self._offsets = itertools.count()
        self._topics: defaultdict[str, list[ConsumerRecord[bytes, bytes]]] = defaultdict(list)
        self._taken: defaultdict[str, int] = defaultdict(int)

    def take(self, topic: str) -> list[ConsumerRecord[bytes, bytes]]:
        """Return the callbacks on *topic* that are due by now and were not taken before, in the order of firing."""
        self._tick()
        records = self._topics[topic][self._taken[topic] :]
        self._taken[topic] += len(records)
        return records

    def _accept(self, second: int | None, future: Future) -> tuple[int, Answer]:
        """Take a request for *second*, or with None a cancel; return its offset, and what there is to say to its id."""
        self._tick()
        offset = next(self._offsets)
        answer = self._answer(future, f"0:{offset}")
        if second is not None:
            request = Request.FromString(future.SerializeToString())
            # Late ones fire with the next tick, before those with millis, as in the service.
            late = second <= self._second
            due, millis = (self._second + 1, 0) if late else (second, request.millis)
            heapq.heappush(self._pending, (due, millis, offset, second, request))
            if future.timerId:
                self._versions[future.timerId] = _Version(second, offset, due)
        return offset, answer

    def _answer(self, future: Future, asked: str) -> Answer:
        version = self._versions.get(future.timerId)
        if version is None or self._second - version.ended > ID_MEMORY_S:
            return Answer(Outcome.UNKNOWN, None, None, asked)
        if version.cancelled:
            if not future.cancel:
                return Answer(Outcome.UNKNOWN, None, None, asked)
            outcome = Outcome.CANCELLED
        elif version.second <= self._second:
            outcome = Outcome.TOO_LATE
        else:
            outcome = Outcome.CANCELLED if future.cancel else Outcome.MOVED
            self._taken_back.add(version.offset)
            version.ended, version.cancelled = self._second, True
        return Answer(outcome, version.second, f"0:{version.offset}", asked)

    def _tick(self) -> None:
        # Nobody can tell a callback that appears in its second from one that appears when it is looked for.
        self._second = max(self._second, int(self._clock.wall_s()))
        while self._pending and self._pending[0][0] <= self._second:
            due, _, offset, second, request = heapq.heappop(self._pending)
            if offset not in self._taken_back:
                self._fire(due, second, offset, request)

    def _fire(self, due: int, second: int, offset: int, request: Request) -> None:
        topic, key, value = request.callBackTopic.decode(), request.callBackKey or None, request.callBack
        log = self._topics[topic]
        log.append(
            ConsumerRecord(
                topic=topic,
                partition=0,
                offset=len(log),
                timestamp=due * 1000,
                timestamp_type=1,
                key=key,
                value=value,
                checksum=None,
                serialized_key_size=len(key) if key else -1,
                serialized_value_size=len(value),
                headers=tuple(callback_headers(request, second, b"0:%d" % offset)),
            )
        )


class _InMemoryClient(TimerClient):
    def __init__(self, timers: InMemoryTimers, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self._timers = timers

    async def start(self) -> None:
        """Nothing to connect to."""

    async def _publish(self, key: bytes, value: bytes, name: str) -> tuple[int, int]:
        return 0, self._timers._accept(int(key), Future.FromString(value))[0]

    async def _answer(self, future: Future, second: int | None, timeout_s: float) -> Answer:
        return self._timers._accept(second, future)[1]
