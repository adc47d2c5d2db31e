"""
`TimerClient` for programs without asyncio: Django, Flask, Celery, scripts.

    timers = TimerClient("kafka:9092")                   # connects with the first call
    timers.after(1800, topic="deadlines", key="order-7", timer_id="deadline-7")
    timers.cancel("deadline-7")

Each method is that of `kafka_timers.TimerClient`, waits until it is done, and returns or raises the same.
"""

import asyncio
import atexit
import functools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from kafka_timers.broker.connection import Kafka
from kafka_timers.client.timer_client import TimerClient as _AsyncClient
from kafka_timers.clock import Clock
from kafka_timers.errors import ClientStateError

__all__ = ["TimerClient"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Loop:
    """
    An event loop in a thread of its own, with a started client.

    Args:
        client: to be started.
    """

    def __init__(self, client: _AsyncClient) -> None:
        self._loop = asyncio.new_event_loop()
        # A daemon: whoever forgets to close the client can still end the program.
        self._thread = threading.Thread(target=self._loop.run_forever, name="kafka-timers", daemon=True)
        self._thread.start()
        self.client = client
        try:
            self.run(client.start())
        except BaseException:
            self._end()
            raise

    def run(self, work: Coroutine[Any, Any, _R]) -> _R:
        """Return what *work* returns; when the caller is interrupted, *work* is cancelled."""
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()
            raise

    def close(self) -> None:
        """Stop the client and end the thread."""
        try:
            self.run(self.client.stop())
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _waiting(
    method: Callable[Concatenate[_AsyncClient, _P], Coroutine[Any, Any, _R]],
) -> Callable[Concatenate["TimerClient", _P], _R]:
    """Return *method* as one that returns when it is done."""

    @functools.wraps(method)
    def call(self: "TimerClient", /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        loop = self._opened()
        return loop.run(method(loop.client, *args, **kwargs))

    return call


class TimerClient:
    """
    Publishes timers, cancels and moves them, and waits for each to be done.

    One for the whole process. Threads may share it, and calls of many threads at once travel in few batches. It
    connects with the first call, and anew in a process that was forked, so a module may make it when it is imported.
    It is closed at the end of the program, or by `close`, or by `with`.

    Args:
        bootstrap: Kafka brokers, host:port, comma separated, or a `Kafka` that says how to log in.
        topic_prefix: put before the names of the service's own topics, as its workers have it.
        reply_topic: where `cancel`, `move` and `create` are answered; by default the service's own `timer-reply`.
        timeout_s: longest wait for the broker to accept a request.
        clock: what `after` counts from; this host's by default.
    """

    def __init__(
        self,
        bootstrap: str | Kafka = "127.0.0.1:9092",
        *,
        topic_prefix: str = "",
        reply_topic: str | None = None,
        timeout_s: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        self._make: Callable[[], _AsyncClient] = functools.partial(
            _AsyncClient,
            bootstrap,
            topic_prefix=topic_prefix,
            reply_topic=reply_topic,
            timeout_s=timeout_s,
            clock=clock,
        )
        self._loop: _Loop | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        _clients.add(self)

    @classmethod
    def over(cls, client: _AsyncClient) -> Self:
        """Return a client that does what *client* does, which is not started yet, and waits for it."""
        waiting = cls()
        waiting._make = lambda: client
        return waiting

    at = _waiting(_AsyncClient.at)
    after = _waiting(_AsyncClient.after)
    send_later = _waiting(_AsyncClient.send_later)
    create = _waiting(_AsyncClient.create)
    cancel = _waiting(_AsyncClient.cancel)
    move = _waiting(_AsyncClient.move)
    get = _waiting(_AsyncClient.get)
    retry = _waiting(_AsyncClient.retry)

    def start(self) -> None:
        """
        Connect, which the first call does otherwise.

        Raises:
            BrokerError: no broker answers at the address, or it refuses this client.
            TopicsError: `timer-request` does not exist, or this client may not see it.
            ClientStateError: the client was closed.
        """
        self._opened()

    def close(self) -> None:
        """Wait until what is under way is accepted or has failed, and disconnect; twice does no harm."""
        with self._lock:
            self._is_closed = True
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self) -> _Loop:
        with self._lock:
            if self._is_closed:
                raise ClientStateError("the client was closed: make another one")
            if self._loop is None:
                self._loop = _Loop(self._make())
            return self._loop

    def _forked(self) -> None:
        """Forget what the parent has: its thread is not here, and its lock may be held by one that is not either."""
        if self._loop is not None:
            # Kept, since whatever it did on its way out it would do to the parent's sockets.
            _of_parents.append(self._loop)
        self._loop, self._lock = None, threading.Lock()


_clients: "weakref.WeakSet[TimerClient]" = weakref.WeakSet()
_of_parents: list[_Loop] = []


def _after_fork() -> None:
    for client in list(_clients):
        client._forked()


def _at_exit() -> None:
    for client in list(_clients):
        client.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
