"""Answers of the console to what it does not do: a status, and a sentence that says why."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from kafka_timers.client.request import Answer
from kafka_timers.console.access import problem
from kafka_timers.console.actions import TopicForbiddenError
from kafka_timers.console.bodies import Problem, at
from kafka_timers.console.replays import OtherBodyError, OtherTimerError
from kafka_timers.core.outcomes import State
from kafka_timers.core.wire import Future
from kafka_timers.errors import AnswerError, KafkaTimersError, PublishError, QueryError, RequestError, WhenError
from kafka_timers.operate.find import Found

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"description": what, "content": {"application/problem+json": {"schema": Problem.model_json_schema()}}}
    for status, what in {
        400: "The request cannot be read.",
        401: "A token is needed.",
        403: "This caller, page or topic has no permission.",
        413: "The request is too large.",
        422: "A parameter or a field is wrong.",
        502: "Kafka or a worker refuses.",
        503: "Kafka is not there, topics are missing, or there is no answer yet: ask again.",
        504: "The request was accepted, and no answer came.",
    }.items()
}
MISSING: dict[int | str, dict[str, Any]] = {404: PROBLEMS[400] | {"description": "No such timer is known."}}
CONFLICT: dict[int | str, dict[str, Any]] = {
    409: PROBLEMS[400] | {"description": "It is too late, or another timer is known."}
}

# The pending timer of an id: partition:offset of its request, its UNIX millisecond, and its Future.
Waiting = tuple[str, int, Future]


_SAID: dict[str, str] = {
    State.PENDING: "waits",
    State.PARKED: "waits in the lake",
    State.FIRED: "has fired",
    State.CANCELLED: "was cancelled",
    State.MOVED: "was moved",
    State.REFUSED: "was refused",
}


class ProblemError(Exception):
    """An answer with a *status* and a sentence in *detail*."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


# --- timers ----------------------------------------------------------------------------------------------------------


def gone(timer_id: str, found: Found) -> ProblemError:
    """Return the reason that no timer is pending under *timer_id*."""
    last = found.stands
    if last is not None and last.state in (State.FIRED, State.REFUSED):
        return ProblemError(409, f"{timer_id!r} {_words(found)}: nothing has changed")
    return ProblemError(404, not_known(timer_id, found) if last is None else f"{timer_id!r} {_words(found)}")


def not_known(timer_id: str, found: Found) -> str:
    """Return a sentence that no timer is known as *timer_id*, and where it was looked for."""
    looked = f"in partition {found.partition}, from offset {found.start} to {found.end}"
    beside = f"; {len(found.outcomes)} records there changed nothing" if found.outcomes else ""
    return f"no timer is known as {timer_id!r} {looked}{beside}"


def met(timer_id: str, request: str, known: Waiting | Found) -> ProblemError:
    """Return that what is *known* of *timer_id* is not what an action on *request* was meant for."""
    return ProblemError(
        409, f"nothing has changed: the action was for request {request}, and {timer_id!r} {_words(known)}"
    )


def met_since(timer_id: str, answer: Answer) -> ProblemError:
    """Return that workers have ignored a change of *timer_id* by the *answer*, since another one came before it."""
    known = "no timer is known" if answer.request is None else f"known is request {answer.request}"
    due = "" if answer.due_ms is None else f" for {at(answer.due_ms)}"
    return ProblemError(409, f"nothing has changed: {timer_id!r} was moved, cancelled or fired meanwhile; {known}{due}")


def _words(known: Waiting | Found) -> str:
    if not isinstance(known, Found):
        request, due_ms, _ = known
        return f"waits for {at(due_ms)}, as request {request}"
    last = known.stands
    if last is None:
        return "is not known"
    reason = f" ({last.reason})" if last.reason else ""
    due = "" if last.due_ms is None else f" for {at(last.due_ms)}"
    return f"{_SAID[last.state]}{reason}{due}, as request {known.place_of(last)}"


# --- errors ----------------------------------------------------------------------------------------------------------


def answer_errors(app: FastAPI) -> None:
    """Make *app* answer each error with a problem (RFC 9457)."""
    handlers: list[tuple[type[Exception], Callable[[Request, Exception], Awaitable[JSONResponse]]]] = [
        (HTTPException, _not_served),
        (RequestValidationError, _not_understood),
        (KafkaTimersError, _failed),
        (ProblemError, _told),
    ]
    for kind, handler in handlers:
        app.add_exception_handler(kind, handler)


def _response(status: int, detail: str) -> JSONResponse:
    code, body = problem(status, detail.encode(errors="replace").decode())
    return JSONResponse(body, code, media_type="application/problem+json")


async def _told(_request: Request, error: Exception) -> JSONResponse:
    return _response(error.status if isinstance(error, ProblemError) else 500, str(error))


async def _not_served(_request: Request, error: Exception) -> JSONResponse:
    status = error.status_code if isinstance(error, HTTPException) else 500
    said = {404: "there is no such address: /openapi.json has all of them", 405: "this address does not do that"}
    return _response(status, said.get(status, str(getattr(error, "detail", error))))


async def _not_understood(_request: Request, error: Exception) -> JSONResponse:
    found = error.errors() if isinstance(error, RequestValidationError) else []
    # The place and the expected form, but not the given value, which may be long or secret.
    said = "; ".join(f"{'.'.join(map(str, each['loc'][1:])) or each['loc'][0]}: {each['msg']}" for each in found[:5])
    return _response(422, said[:1_000])


async def _failed(_request: Request, error: Exception) -> JSONResponse:
    match error:
        case TopicForbiddenError():
            status = 403
        case OtherTimerError():
            status = 409
        case RequestError() | WhenError() | OtherBodyError():
            status = 422
        case AnswerError():
            status = 504
        case QueryError():
            status = 502
        case PublishError():
            status = 503 if error.retriable else 502
        case _:
            status = 503
    return _response(status, str(error))
