"""
`TimerClient` for programs without asyncio: Django, Flask, Celery, scripts.

    timers = TimerClient("kafka:9092")                   # connects with the first call
    timers.after(1800, topic="deadlines", key="order-7", timer_id="deadline-7")
    timers.cancel("deadline-7")

Each method is that of `kafka_timers.TimerClient`, waits until it is done, and returns or raises the same.
"""

import asyncio
import atexit
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from kafka_timers.broker.connection import Kafka
from kafka_timers.client.timer_client import TimerClient as _AsyncClient
from kafka_timers.clock import Clock
from kafka_timers.errors import ClientStateError

__all__ = ["TimerClient"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _closed() -> ClientStateError:
    return ClientStateError("the client was closed: make another one")


class _Loop:
    """
    An event loop in a thread of its own, with a client that it starts.

    A start that fails ends the loop and its thread, and so does `end`.

    Args:
        client: to be started.

    Attributes:
        started: done when the client is started or has failed to. Many threads wait for it, so none may cancel it.
    """

    def __init__(self, client: _AsyncClient) -> None:
        self.client = client
        self.started: Future[None] = Future()
        self._ending = asyncio.Event()
        # Between a look at `_ending` and what relies on it.
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        # Made before the thread, so that it has begun when `_begin_end` comes to cancel it.
        self._life = self._loop.create_task(self._live())
        # A daemon: whoever forgets to close the client can still end the program.
        self._thread = threading.Thread(target=self._serve, name="kafka-timers", daemon=True)
        self._thread.start()

    @property
    def has_failed(self) -> bool:
        """Whether the client could not be started."""
        return self.started.done() and self.started.exception() is not None

    def run(self, work: Coroutine[Any, Any, _R]) -> _R:
        """
        Return what *work* returns; when the caller is interrupted, *work* is cancelled.

        Raises:
            ClientStateError: the client was closed before *work* was done.
        """
        with self._lock:
            if self._ending.is_set():
                work.close()
                raise _closed()
            waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result()
        except CancelledError:
            if self._ending.is_set():
                raise _closed() from None
            raise
        except BaseException:
            waiting.cancel()
            raise

    def end(self) -> None:
        """
        Have the client stopped, or its start given up, and the thread ended; `join` waits for that.

        It takes no lock and waits for nothing: the garbage collector calls it in any thread, be it this loop's own.
        """
        # Raised by a loop that has ended, as after a start that failed.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._begin_end)

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _begin_end(self) -> None:
        with self._lock:
            self._ending.set()
        if not self.started.done():
            self._life.cancel()

    def _serve(self) -> None:
        failure: BaseException | None = None
        try:
            self._loop.run_until_complete(self._life)
        except asyncio.CancelledError:
            failure = _closed()
        except BaseException as error:
            failure = error
        self._loop.close()
        if failure is not None and not self.started.done():
            self.started.set_exception(failure)

    async def _live(self) -> None:
        try:
            await self.client.start()
            self.started.set_result(None)
            await self._ending.wait()
            await self.client.stop()
        finally:
            # What `stop` does not wait for, such as a request that is being read. Whatever `run` has let in is a task
            # by now: it was handed to the loop before `_ending` was set.
            left = asyncio.all_tasks() - {self._life}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)


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
    It is closed at the end of the program, or by `close`, or by `with`, or when nothing refers to it any more.

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
        # Ends the loop when this client is collected. Its thread would keep it otherwise.
        self._end: weakref.finalize[[], TimerClient] | None = None
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
        """
        Wait until what is under way is accepted or has failed, and disconnect; twice does no harm.

        Calls of other threads that still wait then, for a connection or for what they read, end in `ClientStateError`.
        """
        with self._lock:
            self._is_closed = True
            loop = self._detached()
        if loop is not None:
            loop.end()
            loop.join()

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
                raise _closed()
            if self._loop is None:
                self._loop = _Loop(self._make())
                self._end = weakref.finalize(self, self._loop.end)
                # `_at_exit` does it, and waits.
                self._end.atexit = False
            loop = self._loop
        # Without the lock: all threads that come meanwhile wait for the same attempt, and `close` can end it.
        try:
            loop.started.result()
        except BaseException:
            # An attempt goes on where only the wait for it was interrupted.
            if loop.has_failed:
                self._forget(loop)
            raise
        return loop

    def _forget(self, loop: _Loop) -> None:
        """Have the next call try anew, unless another thread that waited for *loop* has done so."""
        with self._lock:
            if self._loop is loop:
                self._detached()

    def _detached(self) -> _Loop | None:
        """Return the loop, which is this client's no more."""
        if self._end is not None:
            self._end.detach()
        loop, self._loop, self._end = self._loop, None, None
        return loop

    def _forked(self) -> None:
        """Forget what the parent has: its thread is not here, and its lock may be held by one that is not either."""
        if (loop := self._detached()) is not None:
            # Kept, since whatever it did on its way out it would do to the parent's sockets.
            _of_parents.append(loop)
        self._lock = threading.Lock()


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
