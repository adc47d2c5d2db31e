"""
Answers to cancels and moves, on the topics that asked for them.

They leave at once, past the transaction of any second. What they say stays true whoever owns the partition later: a
next owner reads the log up to its end before anything fires, so a cancel that an owner has read counts for all that
come after. But an owner that was paused may have read a cancel that its successor could not read yet when it fired (the
transaction of the cancel was committed later). So before anything is said to be taken back, the broker has to confirm
that this owner still was one, at a moment after it had read that.

What a seal covers is never decided anew. So a seal waits a moment for the answers to it, and what no broker has taken
by then goes into the seal itself: whoever owns the partition next sends it.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, count, islice
from typing import NamedTuple

from aiokafka.errors import KafkaError

from kafka_timers.clock import Clock
from kafka_timers.core.versions import Answer, Letter
from kafka_timers.core.wire import Reply
from kafka_timers.worker.faults import Fault, FaultError, FencedError
from kafka_timers.worker.metrics import WorkerMetrics
from kafka_timers.worker.ports import ReplySender

log = logging.getLogger(__name__)

IsHeld = Callable[[], Awaitable[bool]]

# What one who was shut out must not say.
_NEED_AN_OWNER = frozenset((Reply.CANCELLED, Reply.MOVED, Reply.ACCEPTED, Reply.IGNORED))
# For so long a seal waits for an answer, and one that finds no room for others to leave.
_WAIT_S = 2.0
_RETRY_S = 0.5
_LETTERS_AT_ONCE = 2_000
# They have to fit into a seal, which by default may take 1 MiB.
_UNSENT_BYTES_MAX = 512 << 10


class _Unsent(NamedTuple):
    """The `number`th answer of a partition that is confirmed, which waits for its topic since a monotonic moment."""

    number: int
    since_s: float
    letter: Letter


class Outbox:
    """
    Answers of one partition that have not left yet.

    Args:
        number: of the partition.
        replies: sends them.
        is_held: tells whether this was still the partition's owner at some moment after it was asked.
        clock: tells how long an answer has waited.
        metrics: count what is given up.
    """

    def __init__(
        self, number: int, replies: ReplySender, is_held: IsHeld, clock: Clock, metrics: WorkerMetrics
    ) -> None:
        self._number = number
        self._replies = replies
        self._is_held = is_held
        self._clock = clock
        self._metrics = metrics
        self._waiting: list[Answer] = []
        self._added = self._confirmed = 0
        # By topic, oldest first; and who sends to which.
        self._unsent: dict[str, deque[_Unsent]] = {}
        self._numbers = count()
        self._unsent_bytes = 0
        # When some of them left last, and until when a seal waits for all answers to be confirmed.
        self._left_s = clock.elapsed_s()
        self._wanted_by_s = math.inf
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self._is_running = False
        self._some = asyncio.Event()
        self._progress = asyncio.Event()
        self._fault: Fault | None = None

    def add(self, answers: Sequence[Answer]) -> None:
        """Have *answers* sent, once the owner is confirmed if they need one."""
        self._waiting += answers
        self._added += len(answers)
        if answers:
            self._some.set()

    def add_letters(self, letters: Iterable[Letter]) -> None:
        """Have *letters* sent, which need no owner; while too many wait, the oldest are given up."""
        now_s = self._clock.elapsed_s()
        if not self._unsent_bytes:
            self._left_s = now_s
        for letter in letters:
            self._unsent.setdefault(letter.topic, deque()).append(_Unsent(next(self._numbers), now_s, letter))
            self._unsent_bytes += letter.size()
            if self._is_running and letter.topic not in self._lanes:
                self._open_lane(letter.topic)
        if self._unsent_bytes > _UNSENT_BYTES_MAX:
            self._give_up()

    async def run(self) -> None:
        """
        Send until cancelled.

        Raises:
            FencedError: another worker owns the partition.
            aiokafka.errors.KafkaError: no broker tells who owns it.
        """
        self._is_running = True
        for topic in self._unsent:
            self._open_lane(topic)
        try:
            while True:
                await self._some.wait()
                self._some.clear()
                answers, self._waiting = self._waiting, []
                if any(answer.outcome in _NEED_AN_OWNER for answer in answers) and not await self._is_held():
                    raise FencedError
                await self._hand_over([Letter.of(answer, self._number) for answer in answers])
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self._is_running = False
            for lane in self._lanes.values():
                lane.cancel()

    async def _hand_over(self, letters: Sequence[Letter]) -> None:
        """Have *letters* sent, no more at a time than there is room for, as long as some leave."""
        begin = 0
        while begin < len(letters):
            end, room = begin, _UNSENT_BYTES_MAX - self._unsent_bytes
            while end < len(letters) and (room := room - letters[end].size()) >= 0:
                end += 1
            if end == begin:
                if await self._has_left():
                    continue
                end = len(letters)
            self.add_letters(letters[begin:end])
            self._confirmed += end - begin
            self._progress.set()
            begin = end

    async def _has_left(self) -> bool:
        """Wait for some answers to leave; False when none did for too long, or a seal waits no more."""
        left_s = min(self._left_s + _WAIT_S, self._wanted_by_s) - self._clock.elapsed_s()
        try:
            async with asyncio.timeout(max(left_s, 0)):
                await self._moves()
        except TimeoutError:
            return False
        return True

    def _open_lane(self, topic: str) -> None:
        lane = self._lanes[topic] = asyncio.create_task(self._send_to(topic))
        lane.add_done_callback(partial(self._sent_to, topic))

    async def _send_to(self, topic: str) -> None:
        unsent = self._unsent[topic]
        is_told = False
        while unsent:
            some = list(islice(unsent, _LETTERS_AT_ONCE))
            try:
                await self._replies.send(topic, [each.letter for each in some])
            except KafkaError as error:
                if not is_told:
                    log.warning("partition %d: replies to %s wait: %s", self._number, topic, error)
                is_told = True
                await asyncio.sleep(_RETRY_S)
            else:
                # Some may have been given up meanwhile.
                while unsent and unsent[0].number <= some[-1].number:
                    self._unsent_bytes -= unsent.popleft().letter.size()
                self._left_s = self._clock.elapsed_s()
                self._progress.set()

    def _sent_to(self, topic: str, lane: "asyncio.Task[None]") -> None:
        del self._lanes[topic]
        if lane.cancelled():
            return
        if error := lane.exception():
            self._fail(error)
        elif self._unsent[topic]:
            # It was added when the lane had found no more and was not done yet.
            self._open_lane(topic)
        else:
            del self._unsent[topic]

    def _give_up(self) -> None:
        given_up = 0
        while self._unsent_bytes > _UNSENT_BYTES_MAX:
            oldest = min(
                (waiting for waiting in self._unsent.values() if waiting), key=lambda waiting: waiting[0].number
            )
            self._unsent_bytes -= oldest.popleft().letter.size()
            given_up += 1
        self._metrics.replies.labels("given-up").inc(given_up)
        log.warning("partition %d: %d replies are given up: too many wait for their topics", self._number, given_up)

    def _fail(self, error: BaseException) -> None:
        self._fault = Fault.of(error)
        self._progress.set()

    async def confirmed(self) -> int:
        """
        Return once the owner is confirmed for all that was added by now: how many answers there were so far.

        That waits for slices, so a slice that is open must not wait for it.

        Raises:
            FaultError: `run` has ended.
        """
        added, self._wanted_by_s = self._added, self._clock.elapsed_s() + _WAIT_S
        try:
            while self._confirmed < added:
                await self._moves()
        finally:
            self._wanted_by_s = math.inf
        return added

    async def unsent(self) -> list[Letter]:
        """
        Return what no broker has taken yet of what is confirmed, oldest first; waits for it, for two seconds at most.

        Raises:
            FaultError: `run` has ended.
        """
        before_s = self._clock.elapsed_s()
        with suppress(TimeoutError):
            while (oldest_s := self._oldest_s()) is not None and oldest_s <= before_s:
                async with asyncio.timeout(max(oldest_s + _WAIT_S - self._clock.elapsed_s(), 0)):
                    await self._moves()
        return [each.letter for each in sorted(chain.from_iterable(self._unsent.values()))]

    def _oldest_s(self) -> float | None:
        return min((waiting[0].since_s for waiting in self._unsent.values() if waiting), default=None)

    async def _moves(self) -> None:
        """Return when there is something new."""
        if self._fault:
            raise FaultError(self._fault)
        self._progress.clear()
        await self._progress.wait()
