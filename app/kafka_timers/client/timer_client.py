"""
Publish timers: checks and bytes are made in `request`, this module takes them to the broker, `replies` brings answers.

Each partition has a lane. What comes while one batch is under way makes up the next, so a thousand calls at once cost
few round trips and a single call none but its own. Batches are built here rather than with the producer's `send()`:
of its callers that wait for room each is woken for each batch, and 100,000 calls at once then take minutes.
"""

import asyncio
import dataclasses
import itertools
from collections import deque
from contextlib import suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka.producer.message_accumulator import BatchBuilder

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.internals import connection_of, transactional_id_of
from kafka_timers.broker.producing import stop
from kafka_timers.broker.topics import answering
from kafka_timers.client.answers import Replies
from kafka_timers.client.request import (
    Answer,
    Headers,
    Outcome,
    Timer,
    cancel_of,
    check_home,
    future_of,
    only_if_absent,
    only_if_pending,
    partition_of,
    second_after,
    second_of,
)
from kafka_timers.clock import Clock, HostClock
from kafka_timers.core.wire import Future, Topics
from kafka_timers.errors import BrokerError, PublishError, RequestError, TopicsError

__all__ = ["Answer", "Outcome", "Timer", "TimerClient"]

# At 150 bytes a request some 400 of them. Larger batches gain little, and a topic may take less than Kafka's 1 MiB.
_BATCH_BYTES = 64 << 10

# A topic that was just made is not known to every broker at once.
_TOPIC_WAIT_S = 5.0


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
        topics = Topics.of(topic_prefix)
        self._topic = topics.requests
        self._reserved = frozenset(dataclasses.astuple(topics))
        self._link = _Link(Kafka(bootstrap) if isinstance(bootstrap, str) else bootstrap, producer, timeout_s)
        self._timeout_s = timeout_s
        self._clock = clock or HostClock()
        self._lanes: list[_Lane] = []
        self._turns = itertools.count()
        self._reply_topic = reply_topic or topics.replies
        self._replies: Replies | None = None
        self._opening = asyncio.Lock()

    async def start(self) -> None:
        """
        Connect and look up the partitions of `timer-request`; their count is fixed for the life of the topic.

        Raises:
            BrokerError: no broker answers at the address, or it refuses this client.
            TopicsError: `timer-request` does not exist, or this client may not see it.
        """
        await self._link.start()
        try:
            partitions = await _partition_count(self._link.producer, self._topic)
        except BaseException:
            await self._link.stop()
            raise
        self._lanes = [_Lane(self._link, self._topic, partition, self._timeout_s) for partition in range(partitions)]

    async def stop(self) -> None:
        """
        Wait until what is under way is accepted or has failed, and disconnect; nothing is raised.

        Answers are not waited for: a `cancel`, `move` or `create` without one ends in `AnswerError`.
        """
        lanes, self._lanes = self._lanes, []
        await asyncio.gather(*(lane.done() for lane in lanes))
        async with self._opening:
            if self._replies is not None:
                await self._replies.close()
                self._replies = None
        await self._link.stop()

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
        millis: int = 0,
        headers: Headers = (),
    ) -> Timer:
        """
        Ask for a callback at *when*, and return once the broker has accepted that.

        Args:
            when: an aware datetime or UNIX seconds. A fraction of a second is rounded up: never early. A moment in the
                past fires with the next tick.
            topic: gets the callback; it must exist and be allowed by the service's operator.
            key: of the callback, text or its UTF-8 bytes; None is a callback without a key.
            value: of the callback.
            timer_id: your own name for the timer. It takes the place of the one that is pending under this name. If
                the second of that one has begun when the broker takes this request, both fire; `move` with
                `if_pending` and `create` rule that out.
            token: handed back in the header `timer-token`; see `TokenGuard`.
            millis: 0-999, orders the callbacks of one second; all of them leave at its tick.
            headers: of the callback, after the service's own.

        Raises:
            WhenError: *when* is not a point in time that a timer can have.
            RequestError: another argument is not what a request can carry.
            PublishError: the broker did not accept the request; after a time limit it still may.
        """
        second = second_of(when)
        return await self._ask(second, topic, key, value, timer_id, token, millis, headers)

    async def after(
        self,
        delay: timedelta | float,
        *,
        topic: str,
        key: str | bytes | None = None,
        value: bytes = b"",
        timer_id: str | None = None,
        token: str | None = None,
        millis: int = 0,
        headers: Headers = (),
    ) -> Timer:
        """
        Ask for a callback *delay* from now by this host's clock; otherwise as `at`.

        Args:
            delay: a timedelta or seconds; 0 is the next second that begins. Never early, so up to a second later.

        Raises:
            WhenError: *delay* is negative, or no time at all.
        """
        second = second_after(delay, self._clock.wall_s())
        return await self._ask(second, topic, key, value, timer_id, token, millis, headers)

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
        millis: int = 0,
        headers: Headers = (),
        timeout_s: float = 10.0,
    ) -> Answer:
        """
        Ask for a callback at *when* unless *timer_id* is known already, and return what the service says to that.

        An id is known while its timer is pending, and until an hour after the second of its last timer, whether that
        one has fired or was cancelled. So you can repeat a `create` whose answer you did not get: one timer stands.

        Args:
            timer_id: your own name for the timer.
            when: as in `at`, and so are the others.
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
        second = second_of(when)
        future = future_of(
            topic=topic,
            key=key,
            value=value,
            timer_id=timer_id,
            token=token,
            millis=millis,
            headers=headers,
            reserved=self._reserved,
        )
        return await self._answer(only_if_absent(future), second, timeout_s)

    async def cancel(
        self, timer_id: str, *, if_pending: bool = False, request: str | None = None, timeout_s: float = 10.0
    ) -> Answer:
        """
        Take back the timer that is pending under *timer_id*, and return what the service says to that.

        Too late is a cancel that the broker appends when the timer's second has begun; the outcome says so.

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
        return await self._answer(future, None, timeout_s)

    async def move(
        self,
        timer_id: str,
        when: datetime | float,
        *,
        topic: str,
        key: str | bytes | None = None,
        value: bytes = b"",
        token: str | None = None,
        millis: int = 0,
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
        second = second_of(when)
        future = future_of(
            topic=topic,
            key=key,
            value=value,
            timer_id=timer_id,
            token=token,
            millis=millis,
            headers=headers,
            reserved=self._reserved,
        )
        return await self._answer(only_if_pending(future, if_pending, request), second, timeout_s)

    async def _answer(self, future: Future, second: int | None, timeout_s: float) -> Answer:
        """Publish a move or a create for *second*, or a cancel, and return its answer."""
        if not future.timerId:
            raise RequestError("timer_id is None, and the answer is about a timer with an id: give a str")
        if future.ifRequest:
            check_home(future, self._partitions())
        future.replyTopic = self._reply_topic
        replies = await self._reading()
        # The key of a cancel is not read by the worker: it is what Kafka's own partitioners find the partition by.
        key = future.timerId.encode() if second is None else b"%d" % second
        publishing = self._publish(key, future.SerializeToString(), future.timerId)
        return await replies.answer(future, publishing, timeout_s)

    async def _reading(self) -> Replies:
        """Return the reader of answers, which sees all that come from now on."""
        async with self._opening:
            self._started_lanes()
            if self._replies is None or self._replies.failed:
                kafka, options = self._link.connection
                if self._replies is not None:
                    await self._replies.close()
                    self._replies = None
                partitions = await _partition_count(self._link.producer, self._reply_topic)
                self._replies = await Replies.open(self._reply_topic, partitions, kafka, options, self._timeout_s)
            return self._replies

    async def _ask(
        self,
        second: int,
        topic: str,
        key: str | bytes | None,
        value: bytes,
        timer_id: str | None,
        token: str | None,
        millis: int,
        headers: Headers,
    ) -> Timer:
        future = future_of(
            topic=topic,
            key=key,
            value=value,
            timer_id=timer_id,
            token=token,
            millis=millis,
            headers=headers,
            reserved=self._reserved,
        )
        # One partition per timer id: only there has it one order, which a later request for the same id relies on.
        partition, offset = await self._publish(
            b"%d" % second, future.SerializeToString(), timer_id or future.callBackKey
        )
        return Timer(second, partition, offset, timer_id, token)

    async def _publish(self, key: bytes, value: bytes, name: str) -> tuple[int, int]:
        """Return partition and offset of the record; *name* chooses the partition, an empty one lets any do."""
        lanes = self._started_lanes()
        partition = partition_of(name, len(lanes)) if name else next(self._turns) % len(lanes)
        return partition, await lanes[partition].publish(key, value)

    def _partitions(self) -> int:
        return len(self._started_lanes())

    def _started_lanes(self) -> "list[_Lane]":
        if not self._lanes:
            raise PublishError("the client is not started: use `async with TimerClient(...)`", retriable=False)
        return self._lanes


async def _partition_count(producer: AIOKafkaProducer, topic: str) -> int:
    try:
        async with asyncio.timeout(_TOPIC_WAIT_S):
            # All topics: a question for one that is missing makes it, on brokers that allow that.
            while (ids := (await producer.client.fetch_all_metadata()).partitions_for_topic(topic)) is None:  # noqa: ASYNC110  # brokers cannot be waited for but by asking
                await asyncio.sleep(0.1)
    except TimeoutError as error:
        raise TopicsError(
            f"topic {topic} is missing, or this client may not see it: create it with kafka-timers topics create"
        ) from error
    except KafkaError as error:
        raise BrokerError(f"no broker answers through the given producer; was it started? ({error})") from error
    return len(ids)


class _Link:
    """
    The producer, and another in its place when it is spent.

    An idempotent producer of aiokafka is spent once the broker has refused a batch, as too large for one: the batch has
    used up sequence numbers, and the broker refuses all that come after as out of order. A given one stays.
    """

    def __init__(self, kafka: Kafka, given: AIOKafkaProducer | None, timeout_s: float) -> None:
        self._kafka = kafka
        self._given = given
        self._timeout_s = timeout_s
        self._own: AIOKafkaProducer | None = None
        self._renewing = asyncio.Lock()

    @property
    def producer(self) -> AIOKafkaProducer:
        """The one to publish with now."""
        return self._given or self._own

    @property
    def connection(self) -> tuple[Kafka, dict[str, Any]]:
        """
        What a consumer needs to connect as the producer does: where to, and options that go over those of the Kafka.

        Raises:
            RequestError: the producer is transactional, so that nothing it sends is answered before its commit.
        """
        given = self._given
        if given is None:
            return self._kafka, {}
        if transactional_id_of(given) is not None:
            raise RequestError(
                "no answer to a cancel or a move comes before the transaction of its producer commits: use a client "
                "whose producer is not transactional"
            )
        where, options = connection_of(given)
        return Kafka(where), options

    async def start(self) -> None:
        if self._given is None:
            self._own = await self._started()

    async def renew(self, spent: AIOKafkaProducer) -> None:
        """Put another in the place of *spent*; while no broker answers it stays, to be renewed by the next failure."""
        async with self._renewing:
            if spent is not self._own:
                return
            with suppress(BrokerError):
                self._own = await self._started()
                # Sends what other partitions have under way.
                await stop(spent)

    async def stop(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            await stop(own)

    async def _started(self) -> AIOKafkaProducer:
        async with answering(self._kafka, timeout_s=self._timeout_s):
            producer = AIOKafkaProducer(
                **self._kafka.client_options(),
                enable_idempotence=True,
                acks="all",
                max_batch_size=_BATCH_BYTES,
                request_timeout_ms=int(self._timeout_s * 1000),
            )
            try:
                await producer.start()
            except BaseException:
                await stop(producer)
                raise
            return producer


class _Lane:
    """The way to one partition: one batch under way, and the requests that wait for the next, in order of the calls."""

    def __init__(self, link: _Link, topic: str, partition: int, timeout_s: float) -> None:
        self._link = link
        self._topic = topic
        self._partition = partition
        self._timeout_s = timeout_s
        self._waiting: deque[tuple[bytes, bytes, asyncio.Future[int]]] = deque()
        self._driver: asyncio.Task[None] | None = None

    def publish(self, key: bytes, value: bytes) -> asyncio.Future[int]:
        """Return what becomes the record's offset; cancelled before its batch is made up, the record is not sent."""
        offset: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, value, offset))
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
        return offset

    async def done(self) -> None:
        """Return once nothing waits any more."""
        if self._driver is not None:
            await self._driver

    async def _drive(self) -> None:
        while self._waiting:
            producer = self._link.producer
            batch, offsets = self._next_batch(producer)
            if not offsets:
                continue
            try:
                async with asyncio.timeout(self._timeout_s):
                    sent = await (await producer.send_batch(batch, self._topic, partition=self._partition))
            except Exception as error:  # every caller hears of it, whatever it is
                away = isinstance(error, TimeoutError | KafkaTimeoutError)
                if away:
                    # The broker is away: who has waited behind this batch would wait another limit for the same.
                    offsets += [offset for _, _, offset in self._waiting]
                    self._waiting.clear()
                for offset in offsets:
                    if not offset.done():
                        offset.set_exception(_publish_error(error, self._topic, self._timeout_s))
                        offset.exception()  # a caller that was cancelled meanwhile does not ask for it
                if not away:
                    await self._link.renew(producer)
            else:
                for number, offset in enumerate(offsets):
                    if not offset.done():
                        offset.set_result(sent.offset + number if sent.offset >= 0 else -1)

    def _next_batch(self, producer: AIOKafkaProducer) -> tuple[BatchBuilder, list[asyncio.Future[int]]]:
        waiting, batch, offsets = self._waiting, producer.create_batch(), []
        while waiting:
            key, value, offset = waiting[0]
            # The first record is taken whatever its size, so one that is too large fails alone.
            if not offset.done() and batch.append(key=key, value=value, timestamp=None) is None:
                break
            waiting.popleft()
            if not offset.done():
                offsets.append(offset)
        return batch, offsets


def _publish_error(error: Exception, topic: str, timeout_s: float) -> PublishError:
    match error:
        case TimeoutError() | KafkaTimeoutError():
            text = (
                f"no answer from the broker within {timeout_s:g} s: the request may still be accepted, or be twice if "
            )
            text += "it is published again"
            retriable = True
        case MessageSizeTooLargeError() | RecordListTooLargeError():
            text, retriable = f"the request is larger than topic {topic} takes (max.message.bytes)", False
        case TopicAuthorizationFailedError():
            text, retriable = f"this client may not write to topic {topic}: it needs the ACL", False
        case OutOfOrderSequenceNumber():
            text = "the broker has refused an earlier batch, after which the producer is of no more use: start another"
            retriable = False
        case UnknownTopicOrPartitionError():
            text = (
                f"topic {topic} has gone or has other partitions now: create it again with kafka-timers topics create"
            )
            retriable = False
        case _:
            text, retriable = f"the broker did not take the request: {error!r}", getattr(error, "retriable", False)
    mapped = PublishError(text, retriable=retriable)
    mapped.__cause__ = error
    return mapped
