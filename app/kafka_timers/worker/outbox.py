"""
Sends answers to cancels and moves to the topics that asked for them.

Answers are sent at once, outside the transaction of any second. They stay true for every later owner: a next owner
reads the log to its end before anything fires, so a cancel that one owner has read counts for all later ones. But a
paused owner may have read a cancel that its successor could not read yet when it fired, because the cancel's
transaction was committed later. So before an answer says that a timer is withdrawn, the broker must confirm that this
owner still was the owner, at a moment after it read the cancel.

Decisions that a seal covers are final. So a seal waits a moment for its answers. Answers that no broker has taken by
then are stored in the seal, as many as it has room for, and the next owner of the partition sends them. The others are
kept here alone.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from heapq import merge
from itertools import count, islice
from typing import NamedTuple

from aiokafka.errors import KafkaError

from kafka_timers.clock import Clock
from kafka_timers.core.versions import Answer, Letter, Version
from kafka_timers.core.wire import Reply
from kafka_timers.runtime.metrics import WorkerMetrics
from kafka_timers.worker.faults import Fault, FaultError, FencedError
from kafka_timers.worker.replies import KafkaReplies

log = logging.getLogger(__name__)

IsHeld = Callable[[], Awaitable[bool]]
# Returns the Future of a request that waits, if it may have left the log; else nothing.
Kept = Callable[[Version], bytes]

# Outcomes that a fenced owner must not send.
_NEED_AN_OWNER = frozenset((Reply.CANCELLED, Reply.MOVED, Reply.ACCEPTED, Reply.IGNORED))
# How long a seal waits for an answer, and how long an answer waits for room in the outbox.
_WAIT_S = 2.0
_RETRY_S = 0.5
_LETTERS_AT_ONCE = 2_000
# What a seal has room for, which may take 1 MiB by default; and what one partition may have in memory.
_SEALED_BYTES_MAX, _KEPT_BYTES_MAX = 512 << 10, 16 << 20


class _Unsent(NamedTuple):
    """A confirmed answer with its number in the partition, waiting for its topic since `since_s` (monotonic)."""

    number: int
    since_s: float
    letter: Letter


class Outbox:
    """
    The unsent answers of one partition.

    Args:
        is_held: tells whether this was still the partition's owner at some moment after the question.
        kept: of a request that is named as pending.
    """

    def __init__(
        self,
        number: int,
        replies: KafkaReplies,
        is_held: IsHeld,
        clock: Clock,
        metrics: WorkerMetrics,
        kept: Kept = lambda _: b"",
    ) -> None:
        self._kept = kept
        self._number = number
        self._replies = replies
        self._is_held = is_held
        self._clock = clock
        self._metrics = metrics
        self._waiting: list[Answer] = []
        self._added = self._confirmed = 0
        # Unsent answers by topic, oldest first.
        self._unsent: dict[str, deque[_Unsent]] = {}
        self._numbers = count()
        self._unsent_bytes = 0
        # Whether the last seal had room for all answers that waited.
        self._has_room = True
        # Time when answers were last sent, and the deadline of a seal that waits for all answers to be confirmed.
        self._left_s = clock.elapsed_s()
        self._wanted_by_s = math.inf
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self._is_running = False
        self._some = asyncio.Event()
        self._progress = asyncio.Event()
        self._fault: Fault | None = None

    def add(self, answers: Sequence[Answer]) -> None:
        """Queue *answers*. They are sent after the ownership is confirmed, if they need that."""
        self._waiting += answers
        self._added += len(answers)
        if answers:
            self._some.set()

    def add_letters(self, letters: Iterable[Letter]) -> None:
        """Queue *letters*, which need no confirmed ownership. If too many wait, the oldest are dropped."""
        now_s = self._clock.elapsed_s()
        if not self._unsent_bytes:
            self._left_s = now_s
        for letter in letters:
            self._unsent.setdefault(letter.topic, deque()).append(_Unsent(next(self._numbers), now_s, letter))
            self._unsent_bytes += letter.size()
            if self._is_running and letter.topic not in self._lanes:
                self._open_lane(letter.topic)
        if self._unsent_bytes > _KEPT_BYTES_MAX:
            self._give_up()

    async def run(self) -> None:
        """
        Send answers until cancelled.

        Raises:
            FencedError: another worker owns the partition.
            aiokafka.errors.KafkaError: no broker tells which worker is the owner.
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
                await self._hand_over([self._letter(answer) for answer in answers])
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self._is_running = False
            for lane in self._lanes.values():
                lane.cancel()

    def _letter(self, answer: Answer) -> Letter:
        named = answer.version if answer.outcome == Reply.IGNORED else None
        return Letter.of(answer, self._number, self._kept(named) if named and named.waits else b"")

    async def _hand_over(self, letters: Sequence[Letter]) -> None:
        """Queue *letters* as far as there is room, as long as older ones are being sent."""
        begin = 0
        while begin < len(letters):
            end, room = begin, _KEPT_BYTES_MAX - self._unsent_bytes
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
        """Wait for answers to be sent; False if none was for too long, or if a seal cannot wait longer."""
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
                # Some answers may have been dropped meanwhile.
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
            # The answer was added after the lane's last look.
            self._open_lane(topic)
        else:
            del self._unsent[topic]

    def _give_up(self) -> None:
        given_up = 0
        while self._unsent_bytes > _KEPT_BYTES_MAX:
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
        Return once the ownership is confirmed for all answers so far; the result is their number.

        This waits for open slices, so an open slice must not wait for it.

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
        Return the confirmed answers that no broker has taken yet, oldest first, as many as a seal has room for.

        This waits for them for two seconds at most.

        Raises:
            FaultError: `run` has ended.
        """
        before_s = self._clock.elapsed_s()
        with suppress(TimeoutError):
            while (oldest_s := self._oldest_s()) is not None and oldest_s <= before_s:
                async with asyncio.timeout(max(oldest_s + _WAIT_S - self._clock.elapsed_s(), 0)):
                    await self._moves()
        sealed: list[Letter] = []
        room, waiting = _SEALED_BYTES_MAX, sum(map(len, self._unsent.values()))
        for each in merge(*self._unsent.values()):
            if (room := room - each.letter.size()) < 0:
                break
            sealed.append(each.letter)
        if self._has_room and len(sealed) < waiting:
            log.warning(
                "partition %d: %d replies wait for their topics, and a seal has room for %d of them: the others are "
                "lost if this worker ends before it has sent them",
                *(self._number, waiting, len(sealed)),
            )
        self._has_room = len(sealed) == waiting
        return sealed

    def _oldest_s(self) -> float | None:
        return min((waiting[0].since_s for waiting in self._unsent.values() if waiting), default=None)

    async def _moves(self) -> None:
        """Return when there is something new."""
        if self._fault:
            raise FaultError(self._fault)
        self._progress.clear()
        await self._progress.wait()
