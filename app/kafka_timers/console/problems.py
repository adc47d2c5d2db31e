"""Answers of the console to what it does not do: a status, and a sentence that says why."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic.alias_generators import to_camel
from starlette.exceptions import HTTPException

from kafka_timers.client.request import Answer
from kafka_timers.console.access import problem
from kafka_timers.console.actions import TopicForbiddenError
from kafka_timers.console.bodies import Problem, at
from kafka_timers.console.replays import OtherBodyError, OtherTimerError
from kafka_timers.core.outcomes import State
from kafka_timers.core.wire import Future
from kafka_timers.errors import (
    AnswerError,
    KafkaTimersError,
    PublishError,
    QueryError,
    RequestError,
    ScheduleError,
    WhenError,
)
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
    """An answer with a *status* and a sentence in *detail*; *kind* where a status has several, see `problem`."""

    def __init__(self, status: int, detail: str, kind: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind


# --- timers ----------------------------------------------------------------------------------------------------------


def gone(timer_id: str, found: Found) -> ProblemError:
    """Return the reason that no timer is pending under *timer_id*."""
    last = found.stands
    if last is not None and last.state in (State.FIRED, State.REFUSED):
        return ProblemError(409, f"{timer_id!r} {_words(found)}: nothing has changed", "too-late")
    said = not_known(timer_id, found) if last is None else f"{timer_id!r} {_words(found)}"
    return ProblemError(404, said, "timer-unknown")


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

_NOT_SERVED = {
    400: "the body is no text that can be read",
    404: "there is no such address: /openapi.json has all of them",
    405: "this address does not do that: /openapi.json has what each does",
}
# The types that one field may have, which are no part of its name.
_TYPES = ("str", "float")
# What is expected, by the name that pydantic has for an error.
_WISHES = {
    "missing": "is needed",
    "extra_forbidden": "there is no such field",
    "json_invalid": "is not JSON",
    "model_attributes_type": "give a JSON object",
    "model_type": "give a JSON object",
    "dict_type": "give a JSON object",
    "list_type": "give a list",
    "string_type": "give a text",
    "string_unicode": "give a text",
    "float_type": "give a number",
    "float_parsing": "give a number",
    "finite_number": "give a number",
    "int_type": "give a whole number",
    "int_parsing": "give a whole number",
    "int_from_float": "give a whole number",
    "int_parsing_size": "give a smaller number",
    "bool_type": "give true or false",
    "bool_parsing": "give true or false",
    "string_too_short": "give {min_length} or more characters",
    "string_too_long": "give {max_length} characters at most",
    "string_pattern_mismatch": "give a text of the form {pattern}",
    "greater_than_equal": "give {ge:.0f} or more",
    "less_than_equal": "give {le:.0f} at most",
    "less_than": "give less than {lt:.0f}",
}


def answer_errors(app: FastAPI) -> None:
    """Make *app* answer each error with a problem (RFC 9457)."""
    handlers: list[tuple[type[Exception], Callable[[Request, Exception], Awaitable[JSONResponse]]]] = [
        (HTTPException, _not_served),
        (RequestValidationError, _not_understood),
        (KafkaTimersError, _failed),
        (ProblemError, _told),
        (Exception, _told),
    ]
    for kind, handler in handlers:
        app.add_exception_handler(kind, handler)


def _response(status: int, detail: str, kind: str = "") -> JSONResponse:
    code, body = problem(status, detail.encode(errors="replace").decode(), kind)
    return JSONResponse(body, code, media_type="application/problem+json")


async def _told(_request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, ProblemError):
        return _response(error.status, str(error), error.kind)
    # The server logs it, with its traceback.
    return _response(500, "an error of the console itself: its log has it")


async def _not_served(_request: Request, error: Exception) -> JSONResponse:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _response(status, _NOT_SERVED.get(status, "this request cannot be served"))


async def _not_understood(_request: Request, error: Exception) -> JSONResponse:
    found = error.errors() if isinstance(error, RequestValidationError) else []
    said: dict[str, list[str]] = {}
    # A field that may have several types is told of once for each.
    for each in found[:5]:
        said.setdefault(_place_of(each["loc"]), []).append(_wish_of(each))
    return _response(422, "; ".join(f"{place}: {' or '.join(wishes)}" for place, wishes in said.items())[:1_000])


def _place_of(loc: Sequence[int | str]) -> str:
    """Return the name of the parameter, or of the field of the body, that is wrong."""
    names = [each for each in loc[1:] if each not in _TYPES]
    if not names or isinstance(names[0], int):
        return str(loc[0])
    return ".".join(to_camel(str(each)) if loc[0] == "path" else str(each) for each in names)


def _wish_of(error: Mapping[str, Any]) -> str:
    """Return what was expected, but not the given value, which may be long or secret."""
    context = error.get("ctx") or {}
    if error["type"] == "value_error":
        return str(context["error"])
    return _WISHES.get(error["type"], "has another form").format(**context)


async def _failed(_request: Request, error: Exception) -> JSONResponse:
    kind = ""
    match error:
        case TopicForbiddenError():
            status, kind = 403, "topic-not-allowed"
        case OtherTimerError():
            status, kind = 409, "id-known"
        case OtherBodyError():
            status, kind = 422, "key-reused"
        case ScheduleError(field="schedule_id" | "instant"):
            status, kind = 409, "schedule-changed"
        case RequestError() | WhenError() | ScheduleError():
            status = 422
        case AnswerError():
            status = 504
        case QueryError():
            status = 502
        case PublishError():
            status = 503 if error.retriable else 502
        case _:
            status = 503
    return _response(status, str(error), kind)
