"""
Carry out the console's requests: through the client, the workers and the topics.

Everything is opened when it is first needed. So a console that starts before its Kafka reports that, and goes on.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import astuple
from functools import partial
from typing import Self

from kafka_timers.broker.placed import Placed, placed
from kafka_timers.broker.seals import last_seals
from kafka_timers.broker.ticked import ticked_s
from kafka_timers.client.batching import RecordHeaders
from kafka_timers.client.request import Answer, Outcome, only_if_absent, only_if_pending
from kafka_timers.client.timer_client import TimerClient
from kafka_timers.clock import Clock
from kafka_timers.console.access import Caller
from kafka_timers.console.console_settings import ConsoleSettings
from kafka_timers.console.sharing import ANSWER_S, BusyError, LateError, Shared
from kafka_timers.core.callbacks import Shown, topics_in
from kafka_timers.core.outcomes import records_of
from kafka_timers.core.rejected import Again, Rejected
from kafka_timers.core.wire import (
    ASKED_BY_HEADER,
    BODY_HEADER,
    SECOND_LIMIT,
    Future,
    Topics,
    future_from,
    is_far,
    latest,
    number_in,
)
from kafka_timers.errors import BrokerError, KafkaTimersError
from kafka_timers.operate.callback_topics import CallbackTopic, read_callback_topics
from kafka_timers.operate.documents import callback_document
from kafka_timers.operate.find import Found, find
from kafka_timers.operate.health import ServiceStatus
from kafka_timers.operate.redrive import RejectedLog, Which, last_refused, reading_rejected
from kafka_timers.operate.status import read_status
from kafka_timers.operate.waiting import Page, Told, Workers, addresses_of, asking
from kafka_timers.operate.watch import watching

log = logging.getLogger(__name__)

# The workers' addresses count as fresh for this time; later, they are looked up again beside the next query.
_FRESH_S = 2.0
_FOLLOWERS_MAX = 20
# Events at this interval reveal a client that has gone, and proxies keep the connection open.
_ALIVE_S = 5.0
# A status that takes longer to read than callers wait is shown when it is there, unless it is older than this. Kafka's
# limit is 10 s; the status then lists the silent brokers.
_STALE_S = 15.0
# Earlier refusals do not count for the list of topics.
_REFUSED_WITHIN_S = 3_600
# A change needs the timer's request, so a log may have to be read. A caller waits longer for a change than for a read.
_READING_S = 5.0


class TopicForbiddenError(KafkaTimersError):
    """Workers may not write to the callback topic."""


class Service:
    """
    One instance of the service.

    What reads a log raises LateError while the log is still being read, and BrokerError or TopicsError if it cannot be
    read.

    Args:
        clock: clock that `after` counts from, unless it is 0.
        answer_s: seconds that a caller waits for an answer from a log.

    Attributes:
        reserved: names of the service's own topics, which get no callbacks.
        reads: shares questions about one id or filter, by names of which the first word says the kind.
    """

    def __init__(self, settings: ConsoleSettings, clock: Clock, answer_s: float = ANSWER_S) -> None:
        self._settings = settings
        self.clock = clock
        self.kafka = settings.kafka
        self.bootstrap = settings.bootstrap
        self.door_history = settings.door_history
        self.topics = Topics.of(settings.topic_prefix)
        self.reserved = frozenset(astuple(self.topics))
        self._allowed = topics_in(settings.allowed_topics)
        self._opened = AsyncExitStack()
        self._answer_s = answer_s
        # Questions that all callers share, and questions about one id or filter: many of these never block those.
        self._looks, self.reads = Shared(answer_s), Shared(answer_s)
        self._starting = asyncio.Lock()
        self._client: TimerClient | None = None
        self._workers: Workers | None = None
        self._looking: asyncio.Task[None] | None = None
        self._looked_at_s = 0.0
        # With the UNIX time at which it was read.
        self._status: tuple[ServiceStatus, float] | None = None
        self._followers = 0

    async def __aenter__(self) -> Self:
        """Open nothing yet."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self._looks.close()
        await self.reads.close()
        if self._looking:
            self._looking.cancel()
        await self._opened.aclose()

    # --- pending timers ----------------------------------------------------------------------------------------------

    async def workers(self) -> Workers:
        """
        Return the workers, for queries.

        Raises:
            SettingsError: the token or a certificate for the queries cannot be read.
        """
        workers = self._workers
        if workers is None:
            workers = await self._looks.answer("workers", self._open_workers, "the addresses of the workers")
        is_old = self.clock.elapsed_s() > self._looked_at_s + _FRESH_S
        if is_old and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look(workers))
        return workers

    async def _open_workers(self) -> Workers:
        self._workers = await self._opened.enter_async_context(asking(self._settings))
        self._looked_at_s = self.clock.elapsed_s()
        return self._workers

    async def _look(self, workers: Workers) -> None:
        try:
            workers.addresses = await addresses_of(self._settings)
            self._looked_at_s = self.clock.elapsed_s()
        except Exception as error:  # nobody awaits this
            log.warning("the addresses of the workers cannot be read; the last known ones stay in use: %r", error)

    async def timer(self, timer_id: str, *, with_history: bool) -> Found | Told:
        """
        Return the records of *timer_id*. If *with_history* is false, or the log cannot be read in time, return a
        worker's answer about the pending timer if there is one.
        """
        waiting = asyncio.create_task(self._waiting(timer_id))
        try:
            if not with_history and (timer := await _result_of(waiting, self._answer_s / 2)):
                return timer
            return await self.records(timer_id, self._answer_s)
        except (LateError, BusyError, BrokerError):
            if timer := await _result_of(waiting, self._answer_s):
                return timer
            raise
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def pending(self, timer_id: str) -> tuple[str, int, Future] | Found:
        """
        Return the pending timer of *timer_id*; if none is pending, the records of the id.

        The timer is partition:offset of its request, its UNIX millisecond, and its Future. A worker names the request
        at once. If no worker does, the request log is read.
        """
        if (timer := await self._waiting(timer_id)) is not None:
            record = (await self.placed(timer["request"])).record
            # Another record lies there if the log was made anew a moment ago.
            if record and records_of([record], timer_id):
                future = future_from(record.value or b"")
                future.ClearField("copy")
                return timer["request"], timer["due_ms"], future
        found = await self.records(timer_id)
        return found.waiting or found

    async def request(self, place: str) -> tuple[Placed, bool | None]:
        """
        Return the request at *place*, partition:offset, and whether its timer is pending.

        The second part is None if no worker knows, or if the request may be in the lake.
        """
        settings, workers, number = self._settings, await self.workers(), int(place.partition(":")[0])
        if number not in workers.addresses:
            return Placed(why=f"the service has no partition {number} of {self.topics.requests}"), False
        found = await self.placed(place, self._answer_s)
        second = number_in(found.record.key) if found.record else None
        if not found.record or not second or second >= SECOND_LIMIT:
            return found, False
        waits = await workers.waits(place, second)
        # With a horizon nobody sweeps.
        if waits is False and second > self.clock.wall_s() and not found.has_left:
            seal = latest((await last_seals(settings.kafka, settings.topic_prefix))[number])
            if seal and is_far(second, found.record.timestamp // 1000, seal.horizon_s):
                return found, None
        return found, waits

    async def now_ms(self) -> int:
        """Return the UNIX millisecond of the last tick: a timer that is due then fires at once."""
        return await ticked_s(self._settings.kafka, self._settings.topic_prefix) * 1000

    async def callback_topics(self) -> tuple[list[CallbackTopic], Page]:
        """Return the callback topics of the timers that fire next, and of requests refused within an hour."""
        return await self.reads.answer("topics", self._callback_topics, "the callback topics")

    async def _callback_topics(self) -> tuple[list[CallbackTopic], Page]:
        settings, since_ms = self._settings, int(self.clock.wall_s() - _REFUSED_WITHIN_S) * 1000
        return await read_callback_topics(
            settings.kafka, settings.topic_prefix, await self.workers(), self._is_allowed, since_ms
        )

    async def _waiting(self, timer_id: str) -> Told | None:
        """Return a worker's answer about the pending timer *timer_id*; None if no worker knows one."""
        page = await (await self.workers()).page(1, with_values=True, timer_id=timer_id)
        return page.timers[0] if page.timers else None

    async def placed(self, place: str, limit_s: float = _READING_S) -> Placed:
        """Return the request at *place*, partition:offset."""
        ask = partial(placed, self._settings.kafka, self._settings.topic_prefix, place)
        return await self.reads.answer(("request", place), ask, f"request {place}", limit_s)

    async def records(self, timer_id: str, limit_s: float = _READING_S) -> Found:
        """Return the records of *timer_id*, see `operate.find`."""
        ask = partial(find, self._settings.kafka, self._settings.topic_prefix, timer_id)
        return await self.reads.answer(("find", timer_id), ask, f"the records of {timer_id!r}", limit_s)

    # --- requests ----------------------------------------------------------------------------------------------------

    async def create(self, future: Future, due_ms: int, caller: Caller, digest: str) -> Answer:
        """Request a timer whose id is not known yet, by a body with this *digest*."""
        self._check(future)
        return await self._ask(only_if_absent(future), due_ms, caller, "create", [(BODY_HEADER, digest.encode())])

    async def set(self, future: Future, due_ms: int, caller: Caller) -> Answer:
        """Request a timer, whether its id is known or not, unless *future* has a condition."""
        self._check(future)
        return await self._ask(future, due_ms, caller, "set")

    async def move(self, future: Future, due_ms: int, caller: Caller, request: str) -> Answer:
        """Replace the timer of *request*, if it is still pending."""
        self._check(future)
        return await self._ask(only_if_pending(future, True, request), due_ms, caller, "move")

    async def cancel(self, timer_id: str, caller: Caller, request: str | None) -> Answer:
        """Cancel the timer of *timer_id*; if *request* is given, only the timer of that request."""
        future = only_if_pending(Future(cancel=True, timerId=timer_id), request is not None, request)
        return await self._ask(future, None, caller, "cancel")

    async def redrive(self, again: Again, caller: Caller) -> Answer:
        """Send a refused request again."""
        self._check(again.future)
        return await self._ask(again.future, again.due_ms, caller, "redrive")

    async def client(self) -> TimerClient:
        """Return the client, once it is connected."""
        async with self._starting:
            if self._client is None:
                client = TimerClient(self._settings.kafka, topic_prefix=self._settings.topic_prefix, timeout_s=10.0)
                self._client = await self._opened.enter_async_context(client)
        return self._client

    def _check(self, future: Future) -> None:
        self.check_topic(Shown.of(future).topic)
        if future.tombstoneTopic:
            self.check_topic(future.tombstoneTopic)

    def _is_allowed(self, topic: str) -> bool:
        return topic not in self.reserved and bool(self._allowed.match(topic))

    def check_topic(self, topic: str) -> None:
        """Raise TopicForbiddenError if workers may not write to *topic*."""
        if not self._is_allowed(topic):
            raise TopicForbiddenError(
                f"topic {topic} is none of the allowed ones ({self._settings.allowed_topics}), so workers write no "
                "callbacks there"
            )

    async def _ask(
        self, future: Future, due_ms: int | None, caller: Caller, what: str, headers: RecordHeaders = ()
    ) -> Answer:
        client = await self.client()
        by = [(ASKED_BY_HEADER, caller.name.encode())] if caller.name else []
        answer = await client.ask(future, due_ms, headers=[*by, *headers])
        if answer.outcome is not Outcome.IGNORED:
            # A read of the log that is under way may end before this request.
            self.reads.forget(("find", future.timerId))
        log.info(
            "%s of timer %r by %r: %s, request %s", what, future.timerId, caller.name, answer.outcome, answer.asked
        )
        return answer

    # --- the service -------------------------------------------------------------------------------------------------

    def rejected(self) -> AbstractAsyncContextManager[RejectedLog]:
        """Open the topic of refused requests, see `operate.rejected`."""
        return reading_rejected(self._settings.kafka, self._settings.topic_prefix)

    async def last_refused(self, which: Which, since_ms: int, limit: int) -> tuple[list[Rejected], int]:
        """Return the last refused requests, see `RejectedLog.last`."""
        settings = self._settings
        ask = partial(last_refused, settings.kafka, settings.topic_prefix, which, since_ms, limit)
        return await self.reads.answer(("refused", which, since_ms, limit), ask, "the refused requests")

    async def callbacks(self, topic: str) -> AsyncIterator[str]:
        """
        Return server-sent events with JSON, one for each callback that comes on *topic* from now on.

        Raises:
            TopicForbiddenError: workers may not write to the topic.
            BusyError: too many callers are following callbacks.
        """
        self.check_topic(topic)
        if self._followers >= _FOLLOWERS_MAX:
            raise BusyError(f"{_FOLLOWERS_MAX} pages follow callbacks already: close one of them")
        opened = AsyncExitStack()
        self._followers += 1
        opened.callback(self._unfollow)
        try:
            following = await opened.enter_async_context(watching(self._settings.kafka, topic, from_beginning=False))
        except BaseException:
            await opened.aclose()
            raise

        async def events() -> AsyncIterator[str]:
            async with opened:
                yield ": follows\n\n"
                while True:
                    try:
                        async with asyncio.timeout(_ALIVE_S):
                            records = await following.poll()
                    except TimeoutError:
                        yield ": nothing yet\n\n"
                        continue
                    for record in records:
                        yield f"data: {json.dumps(callback_document(record, self.clock.wall_s()))}\n\n"

        return events()

    def _unfollow(self) -> None:
        self._followers -= 1

    async def status(self) -> tuple[ServiceStatus, float]:
        """
        Return the state of the service, see `operate.status`, and the UNIX time at which it was read.

        If Kafka takes longer than a caller waits, return the state that was read before.

        Raises:
            LateError: no earlier state was read, or it is too old.
        """
        try:
            return await self._looks.answer("status", self._read_status, "the status of the service")
        except LateError:
            if self._status is None or self.clock.wall_s() > self._status[1] + _STALE_S:
                raise
        return self._status

    async def _read_status(self) -> tuple[ServiceStatus, float]:
        settings = self._settings
        status = await read_status(
            settings.kafka,
            settings.topic_prefix,
            settings.group,
            self.clock,
            allowed_topics=settings.allowed_topics,
            seal_every_s=settings.seal_every_s,
        )
        self._status = status, self.clock.wall_s()
        return self._status


async def _result_of(task: asyncio.Task[Told | None], limit_s: float) -> Told | None:
    """Return the result of *task* within *limit_s*; None if it fails or is not done."""
    await asyncio.wait({task}, timeout=limit_s)
    return task.result() if task.done() and task.exception() is None else None
