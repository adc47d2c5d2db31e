"""
What the console does when it is asked: through the client, the workers and the topics.

Everything is opened when it is first needed, so a console that starts before its Kafka says so, and goes on.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import astuple
from itertools import chain
from types import TracebackType
from typing import Self

from kafka_timers.client.request import Answer, only_if_absent, only_if_pending
from kafka_timers.client.timer_client import TimerClient
from kafka_timers.clock import Clock
from kafka_timers.console.access import Caller
from kafka_timers.console.settings import ConsoleSettings
from kafka_timers.core.callbacks import topics_in
from kafka_timers.core.rejected import Again
from kafka_timers.core.wire import Future, Topics
from kafka_timers.errors import KafkaTimersError
from kafka_timers.operate.documents import callback_document
from kafka_timers.operate.find import Found, find, request_at
from kafka_timers.operate.health import ServiceStatus
from kafka_timers.operate.pending import Page, Workers, addresses_of, asking
from kafka_timers.operate.rejected import RejectedLog, reading_rejected
from kafka_timers.operate.status import read_status
from kafka_timers.operate.watch import watching

__all__ = ["Service", "TooManyError", "TopicForbiddenError"]

log = logging.getLogger(__name__)

# For so long it is believed where the workers answer; then they are looked up beside the next question.
_FRESH_S = 2.0
_FOLLOWERS_MAX = 20
# Whoever has gone is noticed, and proxies keep the connection.
_ALIVE_S = 5.0


class TopicForbiddenError(KafkaTimersError):
    """A callback topic is none that workers may write to."""


class TooManyError(KafkaTimersError):
    """As many follow callbacks as may at once."""


class Service:
    """
    One instance of the service.

    Args:
        settings: of the console.
        clock: what `after` counts from.

    Attributes:
        clock: as given.
        topics: names of the service's own topics.
        reserved: the same, as a set: they get no callbacks.
    """

    def __init__(self, settings: ConsoleSettings, clock: Clock) -> None:
        self._settings = settings
        self.clock = clock
        self.topics = Topics.of(settings.topic_prefix)
        self.reserved = frozenset(astuple(self.topics))
        self._allowed = topics_in(settings.allowed_topics)
        self._opened = AsyncExitStack()
        self._opening, self._starting = asyncio.Lock(), asyncio.Lock()
        self._client: TimerClient | None = None
        self._workers: Workers | None = None
        self._looking: asyncio.Task[None] | None = None
        self._looked_at_s = 0.0
        self._followers = 0

    async def __aenter__(self) -> Self:
        """Open nothing yet."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what was opened."""
        if self._looking:
            self._looking.cancel()
        await self._opened.aclose()

    # --- what waits --------------------------------------------------------------------------------------------------

    async def workers(self) -> Workers:
        """
        Return the workers, to be asked.

        Raises:
            SettingsError: the token or a certificate to ask them with cannot be read.
            TopicsError: `timer-sealed` does not exist.
            BrokerError: no broker answers.
        """
        async with self._opening:
            if self._workers is None:
                self._workers = await self._opened.enter_async_context(asking(self._settings))
                self._looked_at_s = self.clock.elapsed_s()
        is_old = self.clock.elapsed_s() > self._looked_at_s + _FRESH_S
        if is_old and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look(self._workers))
        return self._workers

    async def _look(self, workers: Workers) -> None:
        try:
            workers.addresses = await addresses_of(self._settings)
            self._looked_at_s = self.clock.elapsed_s()
        except KafkaTimersError as error:
            log.warning("where the workers answer cannot be read, and is believed to be as before: %s", error)

    async def waiting(self, timer_id: str) -> Page:
        """Return the timer that waits under *timer_id*, if one does, as `Workers.page` tells it."""
        return await (await self.workers()).page(1, with_values=True, timer_id=timer_id)

    async def found(self, timer_id: str) -> Found:
        """Return what became of the timers of *timer_id*, see `operate.find`."""
        return await find(self._settings.kafka, self._settings.topic_prefix, timer_id)

    async def pending(self, timer_id: str) -> tuple[str, int, Future] | None:
        """
        Return the request of the timer that waits under *timer_id*, its UNIX second, and what it asks for; None if none
        does.

        A worker tells the request at once; where none tells, the request log is read.
        """
        page = await self.waiting(timer_id)
        if page.timers:
            request = page.timers[0]["request"]
            future = await request_at(self._settings.kafka, self._settings.topic_prefix, request)
            if future is not None:
                future.ClearField("copy")
                return request, page.timers[0]["second"], future
        return (await self.found(timer_id)).waiting

    # --- asking ------------------------------------------------------------------------------------------------------

    async def create(self, future: Future, second: int, caller: Caller) -> Answer:
        """Ask for a timer whose id is not known yet."""
        self._check(future)
        return await self._ask(only_if_absent(future), second, caller, "create")

    async def set(self, future: Future, second: int, caller: Caller) -> Answer:
        """Ask for a timer, whatever its id has had."""
        self._check(future)
        return await self._ask(future, second, caller, "set")

    async def move(self, future: Future, second: int, caller: Caller, request: str) -> Answer:
        """Replace the timer of *request*, if it still waits."""
        self._check(future)
        return await self._ask(only_if_pending(future, True, request), second, caller, "move")

    async def cancel(self, timer_id: str, caller: Caller, request: str | None) -> Answer:
        """Take back the timer of *timer_id*; with *request* only that one."""
        future = only_if_pending(Future(cancel=True, timerId=timer_id), request is not None, request)
        return await self._ask(future, None, caller, "cancel")

    async def redrive(self, again: Again, caller: Caller) -> Answer:
        """Ask once more for what was refused."""
        self._check(again.future)
        return await self._ask(again.future, again.second, caller, "redrive")

    def _check(self, future: Future) -> None:
        self._check_topic(future.callBackTopic)
        if future.tombstoneTopic:
            self._check_topic(future.tombstoneTopic)

    def _check_topic(self, topic: str) -> None:
        if topic in self.reserved or not self._allowed.match(topic):
            raise TopicForbiddenError(
                f"topic {topic} is none of the allowed ones ({self._settings.allowed_topics}), so workers write no "
                "callbacks there"
            )

    async def _ask(self, future: Future, second: int | None, caller: Caller, what: str) -> Answer:
        async with self._starting:
            if self._client is None:
                client = TimerClient(self._settings.kafka, topic_prefix=self._settings.topic_prefix, timeout_s=10.0)
                self._client = await self._opened.enter_async_context(client)
        answer = await self._client.ask(future, second, asked_by=caller.name)
        log.info(
            "%s of timer %r by %r: %s, request %s", what, future.timerId, caller.name, answer.outcome, answer.asked
        )
        return answer

    # --- the service -------------------------------------------------------------------------------------------------

    def rejected(self) -> AbstractAsyncContextManager[RejectedLog]:
        """Open the topic of refused requests, see `operate.rejected`."""
        return reading_rejected(self._settings.kafka, self._settings.topic_prefix)

    async def callbacks(self, topic: str) -> AsyncIterator[str]:
        """
        Return server-sent events, one for each callback that comes on *topic* from now on, as JSON.

        Raises:
            TopicForbiddenError: workers may not write to it.
            TooManyError: too many follow one already.
            TopicsError: it does not exist.
            BrokerError: no broker answers.
        """
        self._check_topic(topic)
        if self._followers >= _FOLLOWERS_MAX:
            raise TooManyError(f"{_FOLLOWERS_MAX} follow callbacks already: close one of these pages")
        opened = AsyncExitStack()
        self._followers += 1
        opened.callback(self._unfollow)
        try:
            consumer = await opened.enter_async_context(watching(self._settings.kafka, topic, from_beginning=False))
        except BaseException:
            await opened.aclose()
            raise

        async def events() -> AsyncIterator[str]:
            async with opened:
                yield ": follows\n\n"
                while True:
                    fetched = await consumer.getmany(timeout_ms=int(_ALIVE_S * 1000), max_records=100)
                    records = list(chain.from_iterable(fetched.values()))
                    for record in records:
                        yield f"data: {json.dumps(callback_document(record, self.clock.wall_s()))}\n\n"
                    if not records:
                        yield ": nothing yet\n\n"

        return events()

    def _unfollow(self) -> None:
        self._followers -= 1

    async def status(self) -> ServiceStatus:
        """Return how the service stands, see `operate.status`."""
        settings = self._settings
        return await read_status(
            settings.kafka,
            settings.topic_prefix,
            settings.group,
            self.clock,
            allowed_topics=settings.allowed_topics,
            seal_every_s=settings.seal_every_s,
        )
