"""
The client with which services publish timers.

`request` checks the arguments and makes the messages. `channel` publishes them and brings the answers to cancels, moves
and creates.
"""

import dataclasses
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, Unpack

from aiokafka import AIOKafkaProducer

from kafka_timers.broker.connection import Kafka
from kafka_timers.client.batching import RecordHeaders
from kafka_timers.client.channel import Channel, KafkaChannel
from kafka_timers.client.received import Received
from kafka_timers.client.request import (
    Answer,
    CallbackOptions,
    CallbackSpec,
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
from kafka_timers.core.verdicts import fault_of
from kafka_timers.core.wire import Future, Topics
from kafka_timers.errors import RequestError

if TYPE_CHECKING:
    from kafka_timers.client.recurring import Schedules

__all__ = ["Answer", "Outcome", "Timer", "TimerClient"]


# Limits the attempts if others move the timer again and again meanwhile.
_MOVES_MAX = 5


class TimerClient:
    """
    Publishes timers to the service whose workers run on the same Kafka.

    Use it as an async context manager, one for the whole process. Calls may run at the same time, and many at once
    (`asyncio.gather`) travel in few batches. Requests with the same timer id, or without one the same key, are accepted
    in the order of the calls.

    A call raises `RequestError` for an argument that no request can carry, `WhenError` for a moment that no timer can
    have, and `PublishError` if the broker did not accept its request; after a time limit the broker still may. Calls
    that return the service's answer wait for it for their own *timeout_s*, once their request is accepted. They raise
    `AnswerError` if none came, and `BrokerError` or `TopicsError` if the reply topic cannot be read or does not exist.

    Args:
        bootstrap: Kafka brokers, host:port, comma separated, or a `Kafka` that holds the login too; not used if
            *producer* is given.
        topic_prefix: prefix of the service's own topics; give the same as to its workers.
        producer: a started producer without serializers to publish through: one with TLS or SASL, or a transactional
            one, to schedule inside your own transaction. You stop it yourself. By default the client has its own,
            idempotent and with acks=all, and renews it when the broker has refused a batch. Answers are read over a
            connection with the same address, TLS and SASL.
        reply_topic: topic for answers to `cancel`, `move` and `create`; by default the service's own `timer-reply`.
            Every client reads the whole topic from its first such call on, so you may give a busy client its own. That
            topic must exist, and the service's operator must allow it.
        timeout_s: longest wait for the broker to accept a batch.
        clock: clock that `after` counts from; this host's by default.
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
            ImportError: the extra is not installed.
        """
        try:
            from kafka_timers.client.recurring import Schedules
        except ImportError as error:
            raise ImportError("recurring timers need more: pip install 'kafka-timers[schedules]'") from error
        return Schedules(self._channel, self._clock, self._reserved)

    async def start(self) -> None:
        """
        Connect, and look up once with how many partitions the service runs.

        Raises:
            BrokerError: no broker answers at the address, or it refuses this client.
            TopicsError: `timer-request` does not exist, or this client may not see it.
        """
        await self._channel.start()

    async def stop(self) -> None:
        """
        Wait until all calls under way are accepted or have failed, and disconnect. Nothing is raised.

        This does not wait for answers: a `cancel`, `move` or `create` without one ends in `AnswerError`.
        """
        await self._channel.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def at(
        self,
        when: datetime | float,
        *,
        topic: str,
        timer_id: str | None = None,
        **others: Unpack[CallbackOptions],
    ) -> Timer:
        """
        Ask for a callback at *when*. Returns once the broker has accepted the request.

        Args:
            when: an aware datetime or UNIX seconds. The timer fires at that millisecond; a finer fraction is rounded
                up, so it is never early. A moment in the past fires at once.
            topic: topic that gets the callback; it must exist, and the service's operator must allow it.
            timer_id: your own name for the timer. This timer replaces the one that is pending under the same name. If
                that one is due when the broker takes this request, both fire; `move` with `if_pending` and `create`
                rule that out.
            others: key, value, token, headers, partition and partition_key of the callback; see `CallbackOptions`.
        """
        due_ms = moment_at(when)
        return await self._schedule(due_ms, self._future(CallbackSpec(topic, timer_id=timer_id, **others)))

    async def after(
        self,
        delay: timedelta | float,
        *,
        topic: str,
        timer_id: str | None = None,
        **others: Unpack[CallbackOptions],
    ) -> Timer:
        """
        Ask for a callback *delay* from now by this host's clock; otherwise as `at`.

        Args:
            delay: a timedelta or seconds; 0 is at once, and less raises `WhenError`.
        """
        due_ms = moment_after(delay, self._clock.wall_s())
        return await self._schedule(due_ms, self._future(CallbackSpec(topic, timer_id=timer_id, **others)))

    async def send_later(self, key: bytes | None, value: bytes, topic: str, when: datetime | float) -> Timer:
        """
        Send *key* and *value* to *topic* at *when*. It is `at` with the arguments of other schedulers.

        Source: kafka-scheduler, `MessageScheduler.sendLater`.
        """
        return await self.at(when, topic=topic, key=key, value=value)

    async def create(
        self,
        timer_id: str,
        when: datetime | float,
        *,
        topic: str,
        request: str | None = None,
        timeout_s: float = 10.0,
        **others: Unpack[CallbackOptions],
    ) -> Answer:
        """
        Ask for a callback at *when* unless *timer_id* is known already, and return the service's answer.

        An id is known while its timer is pending, and for an hour after the second of its last timer, or after its
        cancel. So you can repeat a `create` whose answer you did not get: one timer stands.

        Args:
            timer_id: your own name for the timer.
            when: as in `at`, and so are *topic* and *others*.
            request: partition:offset of a request of this id whose timer does not count once it is due. Give the
                request of the callback that you have read, to ask for the next timer only once.

        Returns:
            `ACCEPTED`: the timer stands, and `Answer.asked` is its request. `IGNORED`: nothing has changed;
                `Answer.second` and `Answer.request` describe the timer by which the id is known.

        Raises:
            RequestError: as in `cancel` too.
            AnswerError: the request was accepted, but no answer came. Repeat the call to get one.
        """
        due_ms = moment_at(when)
        future = self._future(CallbackSpec(topic, timer_id=timer_id, **others))
        return await self.ask(only_if_absent(future, request), due_ms, timeout_s)

    async def cancel(
        self, timer_id: str, *, if_pending: bool = False, request: str | None = None, timeout_s: float = 10.0
    ) -> Answer:
        """
        Cancel the timer that is pending under *timer_id*, and return the service's answer.

        The cancel is too late if the timer is due when the broker appends it; the outcome says so.

        Args:
            timer_id: as you gave it to `at`, `after`, `move` or `create`.
            if_pending: do nothing unless a timer is pending under this id. The answer is `CANCELLED` for a timer that
                this very cancel took back, and `IGNORED` in all other cases.
            request: with *if_pending*: cancel only the timer of this request (partition:offset, as in `Timer.request`),
                and not one that has replaced it since.

        Raises:
            RequestError: *timer_id* is empty or not text; *request* is not of this id; or the client publishes in
                transactions, so that no answer can come before the commit. Then use another client to cancel.
            AnswerError: the cancel was accepted, but no answer came. It stands, and you may ask again.
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
        if_pending: bool = False,
        request: str | None = None,
        timeout_s: float = 10.0,
        **others: Unpack[CallbackOptions],
    ) -> Answer:
        """
        Move the timer that is pending under *timer_id* to another moment, and return the service's answer.

        Without *topic* the timer keeps its topic, key, value, token and headers. The client reads the pending request
        and publishes it again with the new moment, on condition that it is still pending. The answer is `MOVED`, or
        `IGNORED`: nothing has changed, since no timer is pending under the id, or it is due.

        With *topic* you replace the whole timer by your arguments. Without *if_pending* the new timer then stands at
        any outcome: after `TOO_LATE` both timers fire. With *if_pending* the new timer stands only if it has replaced
        the pending one, and the answer is `MOVED`. Otherwise the answer is `IGNORED`, nothing has changed, and a timer
        that was too late to replace fires alone.

        Args:
            timer_id: as you gave it to `at`, `after`, `move` or `create`.
            when: as in `at`.
            after: in place of *when*, the delay from now, as in `after`.
            topic: as in `at`, and so are *others*, which need it.
            if_pending: do nothing unless a timer is pending under this id; without *topic* this always applies.
            request: move only the timer of this request (partition:offset, as in `Timer.request`), and not one that has
                replaced it since; with *topic* it needs *if_pending*.

        Raises:
            WhenError: also if you gave both *when* and *after*, or none.
            RequestError: without *topic*, the request does not lie on `timer-request` any more; or as in `cancel`.
            AnswerError: the move was accepted, but no answer came. It stands; a move with a condition stands only if it
                has found the timer. Without *topic*, the pending timer may have stayed unknown instead, and then
                nothing has changed. The text says which of these it is.
            BrokerError: without *topic*, also if `timer-request` cannot be read. This client may lack the permission.
        """
        due_ms = moment_of(when, after, self._clock.wall_s())
        if topic is None:
            given = CallbackSpec("", **others)
            # No headers may be given as any empty collection.
            if dataclasses.replace(given, headers=given.headers or ()) != CallbackSpec(""):
                raise RequestError(
                    "without a topic only the time is changed: give topic with key, value, token and all else of the "
                    "callback, or none of them"
                )
            return await self._move_in_time(checked_id(timer_id), due_ms, request, timeout_s)
        future = self._future(CallbackSpec(topic, timer_id=timer_id, **others))
        return await self.ask(only_if_pending(future, if_pending, request), due_ms, timeout_s)

    async def get(self, timer_id: str, *, timeout_s: float = 10.0) -> Pending | None:
        """
        Return the timer that is pending under *timer_id*, None if none is.

        The question costs one small record on `timer-request`, which the worker answers; then the client reads the
        pending request. If far requests are left to a lake, one of those is found only within an hour after it was
        made.

        Args:
            timer_id: as you gave it to `at`, `after`, `move` or `create`.

        Raises:
            RequestError: as in `cancel`; or the request does not lie on `timer-request` any more.
            BrokerError: also if `timer-request` cannot be read. This client may lack the permission.
        """
        timer_id = checked_id(timer_id)
        known = await self._known(timer_id, timeout_s)
        if not known.waits or known.request is None or known.due_ms is None:
            return None
        return Pending.of(await self._future_of(known.request, timer_id, known, timeout_s), known.due_ms, known.request)

    async def retry(
        self,
        record: Any,
        policy: RetryPolicy,
        *,
        error: BaseException | str | None = None,
        timeout_s: float | None = None,
    ) -> Retry:
        """
        Make *record* come again after the delay of *policy*, or go to its dead-letter topic after the last retry.

        A record that you read twice comes again once: call this, then commit the record's offset. The service ignores a
        second request for the same repeat until an hour after it has fired. If you give the client a transactional
        producer (`producer=`), the repeat and the offsets in your transaction are committed together or not at all.

        The record keeps its key, value, token and own headers. Headers tell how often it came and why; see `Callback`.
        Its timer id is a generated one, so a cancel by its first id does not find it.

        Args:
            record: the record that you could not handle, a callback or any other; of the kinds that `Callback.of`
                takes.
            policy: decides the delay, the number of repeats and the topic.
            error: reason of the failure, for the header `timer-retry-error`; cut to 500 characters.
            timeout_s: wait so long for the service's answer, so that `Retry.ignored` tells whether it ignores this
                request. None does not ask: a receiver goes on with its records also while no worker answers.

        Raises:
            WhenError: the delay of *policy* leads to a time that a timer cannot have.
            RequestError: *record* is not a record, or a request cannot carry it; with *timeout_s*, as in `cancel`.
            AnswerError: with *timeout_s*: the request was accepted, but no answer came. The record comes again.
        """
        callback, delay_s, attempt, gave_up = repeated(Received.of(record), policy, error)
        future = only_if_absent(self._future(callback))
        due_ms = moment_after(delay_s, self._clock.wall_s())
        if timeout_s is None:
            return Retry(await self._schedule(due_ms, future), attempt, gave_up)
        answer = await self.ask(future, due_ms, timeout_s)
        partition, _, offset = answer.asked.partition(":")
        timer = Timer(due_ms, int(partition), int(offset), future.timerId, future.token or None)
        return Retry(timer, attempt, gave_up, answer.outcome is Outcome.IGNORED)

    async def ask(
        self, future: Future, due_ms: int | None, timeout_s: float = 10.0, *, headers: RecordHeaders = ()
    ) -> Answer:
        """
        Publish *future*, and return the service's answer. This is for tools that pass on requests of others.

        Args:
            future: has a timer id. Its `replyTopic` is set to that of this client, its `millis` to those of *due_ms*.
            due_ms: UNIX millisecond at which it fires; None for a cancel.
            headers: headers of the record, such as `timer-asked-by`; none of them changes the request's meaning.

        Raises:
            RequestError: *future* has no timer id; workers would refuse it as it comes, and so not answer; or as in
                `cancel`.
        """
        if not future.timerId:
            raise RequestError("timer_id is None, and the answer is about a timer with an id: give a str")
        if future.ifRequest:
            check_home(future, self._channel.partitions)
        future.replyTopic = self._reply_topic
        answers = await self._channel.answers()
        # The worker does not read the key of a cancel. Kafka's own partitioners find the partition by it.
        key = future.timerId.encode() if due_ms is None else timed(future, due_ms)
        value = future.SerializeToString()
        if reason := fault_of(key, value, future.timerId, self._channel.partitions):
            raise RequestError(f"workers would refuse this request of {future.timerId!r} ({reason}): correct it")
        publishing = self._channel.publish(key, value, future.timerId.encode(), headers)
        return await answers.answer(future, publishing, timeout_s)

    async def _known(self, timer_id: str, timeout_s: float) -> Answer:
        """Return the service's knowledge of *timer_id*, without a change."""
        home = partition_of(timer_id, self._channel.partitions)
        return await self.ask(question_of(timer_id, home), None, timeout_s)

    async def _move_in_time(self, timer_id: str, due_ms: int, request: str | None, timeout_s: float) -> Answer:
        """Replace the pending timer, or only that of *request*, by itself at *due_ms*."""
        meant, answer, moves = request, None, 0
        while True:
            if meant is None:
                answer = await self._known(timer_id, timeout_s)
                meant = answer.request
                if meant is None or not answer.waits:
                    return answer
            future = await self._future_of(meant, timer_id, answer, timeout_s)
            answer = await self.ask(only_if_pending(future, True, meant), due_ms, timeout_s)
            moves += 1
            # If others have moved it meanwhile, the answer names the timer that is pending now.
            if request is not None or not answer.waits or moves == _MOVES_MAX:
                return answer
            meant = answer.request

    async def _future_of(self, request: str, timer_id: str, known: Answer | None, timeout_s: float) -> Future:
        """Return the Future of the *request* of *timer_id*, which *known* names if given, without its condition."""
        future = None if known and known.kept else await self._channel.read(checked_request(request))
        if future is None:
            known = known or await self._known(timer_id, timeout_s)
            if known.request == request and known.kept:
                future = Future.FromString(known.kept)
        if future is None:
            raise RequestError(
                f"request {request} of {timer_id!r} is no longer on timer-request, so its callback is not known: give "
                "topic, key and value"
            )
        if future.timerId != timer_id:
            raise RequestError(f"request {request} is not one of {timer_id!r}")
        for field in ("copy", "condition", "ifRequest"):
            future.ClearField(field)
        return future

    def _future(self, callback: CallbackSpec) -> Future:
        return future_of(callback, self._reserved)

    async def _schedule(self, due_ms: int, future: Future) -> Timer:
        key = timed(future, due_ms)
        # One partition per timer id: only there have its records one order, on which a later request for the same id
        # relies.
        name = future.timerId.encode() or Shown.of(future).key or b""
        partition, offset = await self._channel.publish(key, future.SerializeToString(), name)
        return Timer(due_ms, partition, offset, future.timerId or None, future.token or None)
