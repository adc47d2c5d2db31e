"""
The client that services publish timers with.

`request` checks the arguments and makes the messages, `producer` sends them, `answers` brings the answers to cancels,
moves and creates.
"""

import asyncio
import dataclasses
import itertools
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from aiokafka import AIOKafkaProducer

from kafka_timers.broker.connection import Kafka
from kafka_timers.client.answers import AnswerReader
from kafka_timers.client.producer import (
    PartitionAccumulator,
    RecordHeaders,
    RenewableProducer,
    partition_count,
    served_count,
)
from kafka_timers.client.request import (
    Answer,
    Callback,
    Headers,
    Outcome,
    Timer,
    cancel_of,
    check_home,
    future_of,
    moment_after,
    moment_at,
    only_if_absent,
    only_if_pending,
    timed,
)
from kafka_timers.clock import Clock, HostClock
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import ASKED_BY_HEADER, Future, Topics
from kafka_timers.errors import PublishError, RequestError

__all__ = ["Answer", "Outcome", "Timer", "TimerClient"]


class TimerClient:
    """
    Publishes timers to the service whose workers run on the same Kafka.

    Use it as an async context manager, one for the whole process; calls may run at the same time, and many at once
    (`asyncio.gather`) travel in few batches. Requests with the same timer id, or without one the same key, are
    accepted in the order of the calls.

    Args:
        bootstrap: Kafka brokers, host:port, comma separated, or a `Kafka` that says how to log in; not used when
            *producer* is given.
        topic_prefix: put before the names of the service's own topics, as its workers have it.
        producer: a started producer without serializers to publish through: one with TLS or SASL, or a transactional
            one, to schedule inside your own transaction. It stays yours to stop. By default the client has its own,
            idempotent and with acks=all, and renews it when the broker has refused a batch. Answers are read over a
            connection with the same address, TLS and SASL.
        reply_topic: where `cancel`, `move` and `create` are answered; by default the service's own `timer-reply`. Every
            client reads the whole topic from its first such call on, so one that is busy may be given its own, which
            has to exist and to be allowed by the service's operator.
        timeout_s: longest wait for the broker to accept a batch.
        clock: what `after` counts from; this host's by default.
    """

    def __init__(
        self,
        bootstrap: str | Kafka = "127.0.0.1:9092",
        *,
        topic_prefix: str = "",
        producer: AIOKafkaProducer | None = None,
        reply_topic: str | None = None,
        timeout_s: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        self._topics = topics = Topics.of(topic_prefix)
        self._topic = topics.requests
        self._reserved = frozenset(dataclasses.astuple(topics))
        kafka = Kafka(bootstrap) if isinstance(bootstrap, str) else bootstrap
        self._producer = RenewableProducer(kafka, producer, timeout_s)
        self._timeout_s = timeout_s
        self._clock = clock or HostClock()
        self._accumulators: list[PartitionAccumulator] = []
        self._turns = itertools.count()
        self._reply_topic = reply_topic or topics.replies
        self._answers: AnswerReader | None = None
        self._opening = asyncio.Lock()

    async def start(self) -> None:
        """
        Connect and look up how many partitions the service runs with, which is fixed for its life.

        Raises:
            BrokerError: no broker answers at the address, or it refuses this client.
            TopicsError: `timer-request` does not exist, or this client may not see it.
        """
        await self._producer.start()
        try:
            partitions = await served_count(self._producer, self._topics, self._timeout_s)
        except BaseException:
            await self._producer.stop()
            raise
        self._accumulators = [
            PartitionAccumulator(self._producer, self._topic, partition, self._timeout_s)
            for partition in range(partitions)
        ]

    async def stop(self) -> None:
        """
        Wait until what is under way is accepted or has failed, and disconnect; nothing is raised.

        Answers are not waited for: a `cancel`, `move` or `create` without one ends in `AnswerError`.
        """
        accumulators, self._accumulators = self._accumulators, []
        await asyncio.gather(*(accumulator.flush() for accumulator in accumulators))
        async with self._opening:
            if self._answers is not None:
                await self._answers.close()
                self._answers = None
        await self._producer.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def at(
        self,
        when: datetime | float,
        *,
        topic: str,
        key: str | bytes | None = None,
        value: bytes = b"",
        timer_id: str | None = None,
        token: str | None = None,
        headers: Headers = (),
    ) -> Timer:
        """
        Ask for a callback at *when*, and return once the broker has accepted that.

        Args:
            when: an aware datetime or UNIX seconds; it fires at that millisecond. What is left of a fraction is rounded
                up: never early. A moment in the past fires at once.
            topic: gets the callback; it must exist and be allowed by the service's operator.
            key: key of the callback, as text or its UTF-8 bytes; None for a callback without a key.
            value: value of the callback.
            timer_id: your own name for the timer. It takes the place of the one that is pending under this name. If
                that one is due when the broker takes this request, both fire; `move` with `if_pending` and `create`
                rule that out.
            token: handed back in the header `timer-token`; see `TokenGuard`.
            headers: headers of the callback, after the service's own.

        Raises:
            WhenError: *when* is not a point in time that a timer can have.
            RequestError: another argument is not what a request can carry.
            PublishError: the broker did not accept the request; after a time limit it still may.
        """
        callback = Callback(topic, key, value, timer_id, token, headers)
        return await self._schedule(moment_at(when), callback)

    async def after(
        self,
        delay: timedelta | float,
        *,
        topic: str,
        key: str | bytes | None = None,
        value: bytes = b"",
        timer_id: str | None = None,
        token: str | None = None,
        headers: Headers = (),
    ) -> Timer:
        """
        Ask for a callback *delay* from now by this host's clock; otherwise as `at`.

        Args:
            delay: a timedelta or seconds; 0 is at once.

        Raises:
            WhenError: *delay* is negative, or no time at all.
        """
        callback = Callback(topic, key, value, timer_id, token, headers)
        return await self._schedule(moment_after(delay, self._clock.wall_s()), callback)

    async def send_later(self, key: bytes | None, value: bytes, topic: str, when: datetime | float) -> Timer:
        """
        Send *key* and *value* to *topic* at *when*; `at` with the arguments of other schedulers.

        Source: kafka-scheduler, `MessageScheduler.sendLater`.
        """
        return await self.at(when, topic=topic, key=key, value=value)

    async def create(
        self,
        timer_id: str,
        when: datetime | float,
        *,
        topic: str,
        key: str | bytes | None = None,
        value: bytes = b"",
        token: str | None = None,
        headers: Headers = (),
        request: str | None = None,
        timeout_s: float = 10.0,
    ) -> Answer:
        """
        Ask for a callback at *when* unless *timer_id* is known already, and return what the service says to that.

        An id is known while its timer is pending, and until an hour after the second of its last timer, whether that
        one has fired or was cancelled. So you can repeat a `create` whose answer you did not get: one timer stands.

        Args:
            timer_id: your own name for the timer.
            when: as in `at`, and so are the others.
            request: a request of this id (partition:offset) whose timer does not count once it is due: the
                one whose callback you have read, to ask for the next one once.
            timeout_s: longest wait for the answer, once the broker has accepted the request.

        Returns:
            `ACCEPTED`: the timer stands, and `Answer.asked` is its request. `IGNORED`: nothing has changed;
            `Answer.second` and `Answer.request` tell the timer by which the id is known.

        Raises:
            WhenError: *when* is not a point in time that a timer can have.
            RequestError: another argument is not what a request can carry; or as in `cancel`.
            PublishError: the broker did not accept the request; after a time limit it still may.
            AnswerError: the request was accepted, and no answer came. Repeat it to learn more. If that goes on, a
                worker of an earlier version may be left in the group: then `timer-rejected` has the request, with the
                reason `condition-unsupported`.
            BrokerError: the reply topic cannot be read.
            TopicsError: the reply topic does not exist.
        """
        callback = Callback(topic, key, value, timer_id, token, headers)
        due_ms = moment_at(when)
        future = future_of(callback, self._reserved)
        return await self.ask(only_if_absent(future, request), due_ms, timeout_s)

    async def cancel(
        self, timer_id: str, *, if_pending: bool = False, request: str | None = None, timeout_s: float = 10.0
    ) -> Answer:
        """
        Take back the timer that is pending under *timer_id*, and return what the service says to that.

        Too late is a cancel that the broker appends when the timer is due; the outcome says so.

        Args:
            timer_id: as it was given to `at`, `after`, `move` or `create`.
            if_pending: do nothing unless a timer is pending under this id. The answer is `CANCELLED` for a timer that
                this very cancel took back, and `IGNORED` in all other cases.
            request: with *if_pending*: cancel only the timer of this request (partition:offset, as in `Timer.request`),
                and not one that has replaced it since.
            timeout_s: longest wait for the answer, once the broker has accepted the cancel.

        Raises:
            RequestError: *timer_id* is empty or no text; *request* is none of this id; or the client publishes in
                transactions, where no answer can come before the commit. Use another client for it.
            PublishError: the broker did not accept the cancel; after a time limit it still may.
            AnswerError: the cancel was accepted, and no answer came. It stands, and asking again does no harm.
            BrokerError: the reply topic cannot be read.
            TopicsError: the reply topic does not exist.
        """
        future = only_if_pending(cancel_of(timer_id), if_pending, request)
        return await self.ask(future, None, timeout_s)

    async def move(
        self,
        timer_id: str,
        when: datetime | float,
        *,
        topic: str,
        key: str | bytes | None = None,
        value: bytes = b"",
        token: str | None = None,
        headers: Headers = (),
        if_pending: bool = False,
        request: str | None = None,
        timeout_s: float = 10.0,
    ) -> Answer:
        """
        Replace the timer that is pending under *timer_id* by one for *when*, and return what the service says to that.

        It is replaced as a whole: nothing of its topic, key, value, token or headers is kept. Without *if_pending* the
        new timer stands whatever the outcome is: after `TOO_LATE` both timers fire. With it the new timer stands if it
        has replaced the pending one, which is answered `MOVED`. Otherwise the answer is `IGNORED`, nothing has changed,
        and a timer that could not be replaced any more fires alone.

        Args:
            timer_id: as it was given to `at`, `after`, `move` or `create`.
            when: as in `at`, and so are the others.
            if_pending: do nothing unless a timer is pending under this id.
            request: with *if_pending*: replace only the timer of this request (partition:offset, as in
                `Timer.request`), and not one that has replaced it since.
            timeout_s: longest wait for the answer, once the broker has accepted the move.

        Raises:
            WhenError: *when* is not a point in time that a timer can have.
            RequestError: another argument is not what a request can carry; or as in `cancel`.
            PublishError: the broker did not accept the move; after a time limit it still may.
            AnswerError: the move was accepted, and no answer came. It stands, or with *if_pending* it stands if it has
                found the timer.
            BrokerError: the reply topic cannot be read.
            TopicsError: the reply topic does not exist.
        """
        callback = Callback(topic, key, value, timer_id, token, headers)
        due_ms = moment_at(when)
        future = future_of(callback, self._reserved)
        return await self.ask(only_if_pending(future, if_pending, request), due_ms, timeout_s)

    async def ask(self, future: Future, due_ms: int | None, timeout_s: float = 10.0, *, asked_by: str = "") -> Answer:
        """
        Publish *future*, and return what the service says to it: for tools that pass on requests of others.

        Args:
            future: has a timer id; its `replyTopic` is set to that of this client, its `millis` to those of *due_ms*.
            due_ms: UNIX millisecond at which it fires; None for a cancel.
            timeout_s: longest wait for the answer, once the broker has accepted the request.
            asked_by: who asks, for those who read `timer-request`: the record's header `timer-asked-by`, if any.

        Raises:
            RequestError: *future* has no timer id; or as in `cancel`.
            PublishError: the broker did not accept the request; after a time limit it still may.
            AnswerError: the request was accepted, and no answer came.
            BrokerError: the reply topic cannot be read.
            TopicsError: the reply topic does not exist.
        """
        if not future.timerId:
            raise RequestError("timer_id is None, and the answer is about a timer with an id: give a str")
        if future.ifRequest:
            check_home(future, self._partitions())
        future.replyTopic = self._reply_topic
        answers = await self._reading()
        # The key of a cancel is not read by the worker: it is what Kafka's own partitioners find the partition by.
        key = future.timerId.encode() if due_ms is None else timed(future, due_ms)
        headers = [(ASKED_BY_HEADER, asked_by.encode())] if asked_by else []
        publishing = self._publish(key, future.SerializeToString(), future.timerId, headers)
        return await answers.answer(future, publishing, timeout_s)

    async def _reading(self) -> AnswerReader:
        """Return the reader of answers, which sees all answers that come from now on."""
        async with self._opening:
            # Raises where the client is not started.
            self._partitions()
            if self._answers is None or self._answers.failed:
                kafka, options = self._producer.connection
                if self._answers is not None:
                    await self._answers.close()
                    self._answers = None
                partitions = await partition_count(self._producer.current, self._reply_topic)
                self._answers = await AnswerReader.open(self._reply_topic, partitions, kafka, options, self._timeout_s)
            return self._answers

    async def _schedule(self, due_ms: int, callback: Callback) -> Timer:
        future = future_of(callback, self._reserved)
        key = timed(future, due_ms)
        # One partition per timer id: only there has it one order, which a later request for the same id relies on.
        name = future.timerId or future.callBackKey
        partition, offset = await self._publish(key, future.SerializeToString(), name)
        return Timer(due_ms, partition, offset, callback.timer_id, callback.token)

    async def _publish(self, key: bytes, value: bytes, name: str, headers: RecordHeaders = ()) -> tuple[int, int]:
        """Return partition and offset of the record; *name* chooses the partition, an empty one takes them by turns."""
        count = self._partitions()
        partition = partition_of(name, count) if name else next(self._turns) % count
        return partition, await self._accumulators[partition].append(key, value, headers)

    def _partitions(self) -> int:
        """
        Return the number of partitions of `timer-request`.

        Raises:
            PublishError: the client is not started.
        """
        if not self._accumulators:
            raise PublishError("the client is not started: use `async with TimerClient(...)`", retriable=False)
        return len(self._accumulators)
