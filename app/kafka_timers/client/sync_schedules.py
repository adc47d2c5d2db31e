"""`Schedules` for programs without asyncio; `kafka_timers.sync` has it."""

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from kafka_timers.client import recurring
from kafka_timers.client.timer_client import TimerClient

_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Call(Protocol):
    def __call__(self, ask: Callable[[TimerClient], Coroutine[Any, Any, _R]], /) -> _R: ...


def _waiting(
    method: Callable[Concatenate[recurring.Schedules, _P], Coroutine[Any, Any, _R]],
) -> Callable[Concatenate["Schedules", _P], _R]:
    """Return a method that calls *method* and blocks until it is done."""

    @functools.wraps(method)
    def call(self: "Schedules", /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self._call(lambda client: method(client.schedules, *args, **kwargs))

    return call


class Schedules:
    """
    Recurring timers. Each method is that of `TimerClient.schedules`, and blocks until it is done.

    Args:
        call: calls a function of an asynchronous client, and returns its result.
    """

    def __init__(self, call: _Call) -> None:
        self._call = call

    put = _waiting(recurring.Schedules.put)
    write = _waiting(recurring.Schedules.write)
    change = _waiting(recurring.Schedules.change)
    get = _waiting(recurring.Schedules.get)
    list = _waiting(recurring.Schedules.list)
    pause = _waiting(recurring.Schedules.pause)
    resume = _waiting(recurring.Schedules.resume)
    skip = _waiting(recurring.Schedules.skip)
    unskip = _waiting(recurring.Schedules.unskip)
    delete = _waiting(recurring.Schedules.delete)
    run_now = _waiting(recurring.Schedules.run_now)
    next = _waiting(recurring.Schedules.next)
