"""
The client that services publish timers with.

`request` checks the arguments and makes the messages, `channel` publishes them and brings the answers to cancels, moves
and creates.
"""

import dataclasses
from datetime import datetime, timedelta
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from aiokafka import AIOKafkaProducer

from kafka_timers.broker.connection import Kafka
from kafka_timers.client.channel import Channel, KafkaChannel
from kafka_timers.client.received import Received
from kafka_timers.client.request import (
    Answer,
    CallbackSpec,
    Headers,
    Outcome,
    Pending,
    Timer,
    cancel_of,
    check_home,
    checked_id,
    checked_request,
    future_of,
    only_if_absent,
    only_if_pending,
    question_of,
    timed,
)
from kafka_timers.client.retry import Retry, RetryPolicy, repeated
from kafka_timers.clock import Clock, HostClock
from kafka_timers.core.callbacks import Shown
from kafka_timers.core.moments import moment_after, moment_at, moment_of
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import ASKED_BY_HEADER, Future, Topics
from kafka_timers.errors import AnswerError, RequestError

if TYPE_CHECKING:
    from kafka_timers.client.schedules import Schedules

__all__ = ["Answer", "Outcome", "Timer", "TimerClient"]


# Of a timer that others move again and again meanwhile.
_MOVES_MAX = 5


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
        self._reserved = frozenset(dataclasses.astuple(topics))
        self._reply_topic = reply_topic or topics.replies
        self._clock = clock or HostClock()
        kafka = Kafka(bootstrap) if isinstance(bootstrap, str) else bootstrap
        self._channel: Channel = KafkaChannel(kafka, topic_prefix, producer, self._reply_topic, timeout_s)

    @cached_property
    def schedules(self) -> "Schedules":
        """
        Recurring timers. They need the extra `kafka-timers[schedules]`.

        Raises:
            ImportError: it is not installed.
        """
        try:
            from kafka_timers.client.schedules import Schedules
        except ImportError as error:
            raise ImportError("recurring timers need more: pip install 'kafka-timers[schedules]'") from error
        return Schedules(self._channel, self._clock, self._reserved)

    async def start(self) -> None:
        """
        Connect and look up how many partitions the service runs with, which is fixed for its life.

        Raises:
            BrokerError: no broker answers at the address, or it refuses this client.
            TopicsError: `timer-request` does not exist, or this client may not see it.
        """
        await self._channel.start()

    async def stop(self) -> None:
        """
        Wait until what is under way is accepted or has failed, and disconnect; nothing is raised.

        Answers are not waited for: a `cancel`, `move` or `create` without one ends in `AnswerError`.
        """
        await self._channel.stop()

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
        value: bytes | None = b"",
        timer_id: str | None = None,
        token: str | None = None,
        headers: Headers = (),
        partition: int | None = None,
        partition_key: str | bytes | None = None,
    ) -> Timer:
        """
        Ask for a callback at *when*, and return once the broker has accepted that.

        Args:
            when: an aware datetime or UNIX seconds; it fires at that millisecond. What is left of a fraction is rounded
                up: never early. A moment in the past fires at once.
            topic: gets the callback; it must exist and be allowed by the service's operator.
            key: key of the callback, text or bytes; None for a callback without a key.
            value: value of the callback; None for a tombstone, a record without a value.
            timer_id: your own name for the timer. It takes the place of the one that is pending under this name. If
                that one is due when the broker takes this request, both fire; `move` with `if_pending` and `create`
                rule that out.
            token: handed back in the header `timer-token`; see `TokenGuard`.
            headers: headers of the callback, after the service's own.
            partition: of *topic*; by default the one that Kafka's default partitioner gives to *key*.
            partition_key: gives the partition in place of *key*.

        A key that is not UTF-8, a tombstone, a partition and a partition key need workers of this version, as
        docs/wire.md tells: others refuse the request.

        Raises:
            WhenError: *when* is not a point in time that a timer can have.
            RequestError: another argument is not what a request can carry.
            PublishError: the broker did not accept the request; after a time limit it still may.
        """
        due_ms = moment_at(when)
        callback = CallbackSpec(topic, key, value, timer_id, token, headers, partition, partition_key)
        return await self._schedule(due_ms, future_of(callback, self._reserved))

    async def after(
        self,
        delay: timedelta | float,
        *,
        topic: str,
        key: str | bytes | None = None,
        value: bytes | None = b"",
        timer_id: str | None = None,
        token: str | None = None,
        headers: Headers = (),
        partition: int | None = None,
        partition_key: str | bytes | None = None,
    ) -> Timer:
        """
        Ask for a callback *delay* from now by this host's clock; otherwise as `at`.

        Args:
            delay: a timedelta or seconds; 0 is at once.

        Raises:
            WhenError: *delay* is negative, or no time at all.
        """
        due_ms = moment_after(delay, self._clock.wall_s())
        callback = CallbackSpec(topic, key, value, timer_id, token, headers, partition, partition_key)
        return await self._schedule(due_ms, future_of(callback, self._reserved))

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
        value: bytes | None = b"",
        token: str | None = None,
        headers: Headers = (),
        partition: int | None = None,
        partition_key: str | bytes | None = None,
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
        callback = CallbackSpec(topic, key, value, timer_id, token, headers, partition, partition_key)
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
        when: datetime | float | None = None,
        *,
        after: timedelta | float | None = None,
        topic: str | None = None,
        key: str | bytes | None = None,
        value: bytes | None = b"",
        token: str | None = None,
        headers: Headers = (),
        partition: int | None = None,
        partition_key: str | bytes | None = None,
        if_pending: bool = False,
        request: str | None = None,
        timeout_s: float = 10.0,
    ) -> Answer:
        """
        Move the timer that is pending under *timer_id* to another moment, and return what the service says to that.

        Without *topic* it keeps its topic, key, value, token and headers: the pending request is read, and takes its
        own place with the other moment if it is still pending then. It is answered `MOVED`, or `IGNORED`: nothing has
        changed, since no timer is pending under the id, or it is due.

        With *topic* it is replaced as a whole by what you give. Without *if_pending* the new timer then stands whatever
        the outcome is: after `TOO_LATE` both timers fire. With it the new timer stands if it has replaced the pending
        one, which is answered `MOVED`. Otherwise the answer is `IGNORED`, nothing has changed, and a timer that could
        not be replaced any more fires alone.

        Args:
            timer_id: as it was given to `at`, `after`, `move` or `create`.
            when: as in `at`.
            after: in place of *when* the delay from now, as in `after`.
            topic: as in `at`, and so is what describes the callback, which comes with it.
            if_pending: do nothing unless a timer is pending under this id; without *topic* it is always so.
            request: only the timer of this request (partition:offset, as in `Timer.request`), and not one that has
                replaced it since; with *topic* it needs *if_pending*.
            timeout_s: longest wait for the answer, once the broker has accepted the move.

        Raises:
            WhenError: *when* is not a point in time that a timer can have, *after* no delay, or both or none are given.
            RequestError: another argument is not what a request can carry; without *topic*, the request does not lie on
                `timer-request` any more; or as in `cancel`.
            PublishError: the broker did not accept the move; after a time limit it still may.
            AnswerError: the move was accepted, and no answer came. It stands, or where it has a condition it stands if
                it has found the timer. Without *topic* it may also be that what is pending could not be told, and then
                nothing has changed; the text says which.
            BrokerError: the reply topic cannot be read; without *topic*, `timer-request` neither: this client may need
                the right to.
            TopicsError: the reply topic does not exist.
        """
        due_ms = moment_of(when, after, self._clock.wall_s())
        if topic is None:
            others = (key, token, partition, partition_key)
            if value != b"" or headers or any(each is not None for each in others):
                raise RequestError(
                    "without a topic only the time is changed: give topic with key, value, token and all else of the "
                    "callback, or none of them"
                )
            return await self._move_in_time(checked_id(timer_id), due_ms, request, timeout_s)
        future = future_of(
            CallbackSpec(topic, key, value, timer_id, token, headers, partition, partition_key), self._reserved
        )
        return await self.ask(only_if_pending(future, if_pending, request), due_ms, timeout_s)

    async def get(self, timer_id: str, *, timeout_s: float = 10.0) -> Pending | None:
        """
        Return the timer that is pending under *timer_id*, None when none is.

        Asking costs one small record on `timer-request`, which the worker answers; then the pending request is read.
        Where far requests are left to a lake, one of those is found within an hour after it was made, and not later.

        Args:
            timer_id: as it was given to `at`, `after`, `move` or `create`.
            timeout_s: longest wait for the answer, once the broker has accepted the question.

        Raises:
            RequestError: as in `cancel`; or the request does not lie on `timer-request` any more.
            PublishError: the broker did not accept the question.
            AnswerError: no answer came, or it came from a worker of an earlier version, which does not tell.
            BrokerError: the reply topic or `timer-request` cannot be read: this client may need the right to.
            TopicsError: the reply topic does not exist.
        """
        timer_id = checked_id(timer_id)
        known = await self._known(timer_id, timeout_s)
        if not known.waits or known.request is None or known.due_ms is None:
            return None
        return Pending.of(await self._future_at(known.request, timer_id), known.due_ms, known.request)

    async def retry(self, record: Any, policy: RetryPolicy, *, error: BaseException | str | None = None) -> Retry:
        """
        Have *record* come again after the delay of *policy*, or go to its dead-letter topic if it came often enough.

        It is asked for once, however often the record is read: call this, then commit the record's offset. (An hour
        after it came again the service has forgotten that it did.) With a transactional producer of yours as
        `producer=`, what is asked for and the offsets that you send with the transaction stand together or not at all.

        The record keeps key, value, token and its own headers. Headers tell how often it came and why; see `Callback`.
        Its timer id is one of the service's, so a cancel by the id that it had at first does not find it.

        Args:
            record: that could not be handled, a callback or any other; of the kinds that `Callback.of` takes.
            policy: tells when it comes again, how often, and where to.
            error: why it could not be handled, for the header `timer-retry-error`; cut to 500 characters.

        Raises:
            RequestError: *record* is none, or not what a request can carry.
            PublishError: the broker did not accept the request; after a time limit it still may.
        """
        again = repeated(Received.of(record), policy, error)
        future = only_if_absent(future_of(again.callback, self._reserved))
        timer = await self._schedule(moment_after(again.delay_s, self._clock.wall_s()), future)
        return Retry(timer, again.attempt, again.gave_up)

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
            check_home(future, self._channel.partitions)
        future.replyTopic = self._reply_topic
        answers = await self._channel.answers()
        # The key of a cancel is not read by the worker: it is what Kafka's own partitioners find the partition by.
        key = future.timerId.encode() if due_ms is None else timed(future, due_ms)
        headers = [(ASKED_BY_HEADER, asked_by.encode())] if asked_by else []
        publishing = self._channel.publish(key, future.SerializeToString(), future.timerId.encode(), headers)
        return await answers.answer(future, publishing, timeout_s)

    async def _known(self, timer_id: str, timeout_s: float) -> Answer:
        """
        Return what the service knows of *timer_id*, without a change.

        Raises:
            AnswerError: as in `ask`; or a worker has answered that does not tell what waits.
        """
        home = partition_of(timer_id, self._channel.partitions)
        known = await self.ask(question_of(timer_id, home), None, timeout_s)
        if known.waits is None:
            raise AnswerError(
                f"whether request {known.request} of {timer_id!r} waits was not told, since a worker of an earlier "
                "version has answered: upgrade all workers of the group; nothing has changed",
                asked=known.asked,
            )
        return known

    async def _move_in_time(self, timer_id: str, due_ms: int, request: str | None, timeout_s: float) -> Answer:
        """Replace the pending timer, or that of *request* alone, by itself at *due_ms*."""
        meant, moves = request, 0
        while True:
            if meant is None:
                answer = await self._known(timer_id, timeout_s)
                meant = answer.request
                if meant is None or not answer.waits:
                    return answer
            future = await self._future_at(meant, timer_id)
            answer = await self.ask(only_if_pending(future, True, meant), due_ms, timeout_s)
            moves += 1
            # Others may have moved it meanwhile: then the answer names what is pending now.
            if request is not None or not answer.waits or moves == _MOVES_MAX:
                return answer
            meant = answer.request

    async def _future_at(self, request: str, timer_id: str) -> Future:
        """
        Return what the *request* of *timer_id* asks for.

        Raises:
            RequestError: it is not of this id, or does not lie there any more.
            BrokerError: it cannot be read.
        """
        future = await self._channel.read(checked_request(request))
        if future is None:
            raise RequestError(
                f"request {request} of {timer_id!r} lies on timer-request no more, so what it asks for is not known: "
                "give topic, key and value"
            )
        if future.timerId != timer_id:
            raise RequestError(f"request {request} is not one of {timer_id!r}")
        for field in ("copy", "condition", "ifRequest"):
            future.ClearField(field)
        return future

    async def _schedule(self, due_ms: int, future: Future) -> Timer:
        key = timed(future, due_ms)
        # One partition per timer id: only there has it one order, which a later request for the same id relies on.
        name = future.timerId.encode() or Shown.of(future).key or b""
        partition, offset = await self._channel.publish(key, future.SerializeToString(), name)
        return Timer(due_ms, partition, offset, future.timerId or None, future.token or None)
