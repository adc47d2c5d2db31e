"""
`TimerClient` for programs without asyncio: Django, Flask, Celery, scripts.

    timers = TimerClient("kafka:9092")                   # connects with the first call
    timers.after(1800, topic="deadlines", key="order-7", timer_id="deadline-7")
    timers.cancel("deadline-7")

Each method does the same as in `kafka_timers.TimerClient`, and blocks until it is done.
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
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from kafka_timers.broker.connection import Kafka
from kafka_timers.client.timer_client import TimerClient as _AsyncClient
from kafka_timers.clock import Clock
from kafka_timers.errors import ClientStateError

if TYPE_CHECKING:
    from kafka_timers.client.sync_schedules import Schedules

__all__ = ["TimerClient"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _closed() -> ClientStateError:
    return ClientStateError("the client was closed: make another one")


class _Loop:
    """
    An event loop in a thread of its own, with a client that it starts.

    Both `end` and a start that fails end the loop and its thread.

    Attributes:
        started: done when the client is started or has failed to start. Many threads wait for it, so none may cancel
            it.
    """

    def __init__(self, client: _AsyncClient) -> None:
        self.client = client
        self.started: Future[None] = Future()
        self._ending = asyncio.Event()
        # Held from a look at `_ending` to the end of the code that relies on it.
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        # Created before the thread, so that `_begin_end` cannot cancel it before it has begun.
        self._life = self._loop.create_task(self._live())
        # A daemon thread, so that the program can end even if you forget to close the client.
        self._thread = threading.Thread(target=self._serve, name="kafka-timers", daemon=True)
        self._thread.start()

    @property
    def has_failed(self) -> bool:
        """Whether the client could not be started."""
        return self.started.done() and self.started.exception() is not None

    def run(self, work: Coroutine[Any, Any, _R]) -> _R:
        """
        Return the result of *work*. An exception in the waiting thread, such as an interrupt, cancels *work*.

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
        Stop the client, or give up its start, and end the thread; `join` waits for that.

        This takes no lock and waits for nothing, since the garbage collector calls it in any thread, even in this
        loop's own.
        """
        # A loop that has ended, as after a failed start, raises it.
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
            # `stop` does not wait for everything, for example for a request that is being read. All work that `run` has
            # let in is a task by now: it was handed to the loop before `_ending` was set.
            left = asyncio.all_tasks() - {self._life}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)


def _waiting(
    method: Callable[Concatenate[_AsyncClient, _P], Coroutine[Any, Any, _R]],
) -> Callable[Concatenate["TimerClient", _P], _R]:
    """Return a method that calls *method* and blocks until it is done."""

    @functools.wraps(method)
    def call(self: "TimerClient", /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self._call(lambda client: method(client, *args, **kwargs))

    return call


class TimerClient:
    """
    Publishes, cancels and moves timers, and blocks until each call is done.

    Create one for the whole process. Threads may share it, and simultaneous calls of many threads travel in few
    batches. It connects with the first call, and again in a forked process, so a module may create it at import. It is
    closed by `close`, by `with`, at the end of the program, or when nothing refers to it any more.

    The arguments are those of `kafka_timers.TimerClient`, which takes a producer too.
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
        # Ends the loop when this client is collected. The loop's thread would keep running otherwise.
        self._end: weakref.finalize[[], TimerClient] | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        _clients.add(self)

    @classmethod
    def over(cls, client: _AsyncClient) -> Self:
        """Return a client that blocks on the calls of *client*, which must not be started yet."""
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

    @property
    def schedules(self) -> "Schedules":
        """Recurring timers, as `kafka_timers.TimerClient.schedules`."""
        try:
            from kafka_timers.client.sync_schedules import Schedules
        except ImportError as error:
            raise ImportError("recurring timers need more: pip install 'kafka-timers[schedules]'") from error
        return Schedules(self._call)

    def _call(self, ask: Callable[[_AsyncClient], Coroutine[Any, Any, _R]]) -> _R:
        loop = self._opened()
        return loop.run(ask(loop.client))

    def start(self) -> None:
        """
        Connect now, instead of with the first call. Raises as `kafka_timers.TimerClient.start`, and `ClientStateError`
        if the client was closed.
        """
        self._opened()

    def close(self) -> None:
        """
        Wait until all calls under way are accepted or have failed, and disconnect. You may call it twice.

        Calls of other threads that still wait for a connection or for data end in `ClientStateError`.
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> _Loop:
        with self._lock:
            if self._is_closed:
                raise _closed()
            if self._loop is None:
                self._loop = _Loop(self._make())
                self._end = weakref.finalize(self, self._loop.end)
                # `_at_exit` does that instead, and waits.
                self._end.atexit = False
            loop = self._loop
        # Without the lock, so that all other threads wait for the same attempt and `close` can end it.
        try:
            loop.started.result()
        except BaseException:
            # If only the wait was interrupted, the attempt goes on.
            if loop.has_failed:
                self._forget(loop)
            raise
        return loop

    def _forget(self, loop: _Loop) -> None:
        """Make the next call try again, unless another thread that waited for *loop* has done so."""
        with self._lock:
            if self._loop is loop:
                self._detached()

    def _detached(self) -> _Loop | None:
        """Return the loop, and forget it."""
        if self._end is not None:
            self._end.detach()
        loop, self._loop, self._end = self._loop, None, None
        return loop

    def _forked(self) -> None:
        """Forget the parent's loop: its thread does not exist here, and a missing thread may hold its lock."""
        if (loop := self._detached()) is not None:
            # Kept alive: its clean-up would act on the parent's sockets.
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
