"""The addresses of the console, and its answers to errors."""

import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from fastapi import Depends, FastAPI, Header, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from kafka_timers import __version__
from kafka_timers.client.request import Outcome
from kafka_timers.console.access import Caller, Role, problem
from kafka_timers.console.actions import Service, TopicForbiddenError
from kafka_timers.console.bodies import (
    AheadOut,
    AnswerOut,
    CallerOut,
    HistoryOut,
    PageOut,
    Problem,
    RejectedOut,
    RejectedPage,
    RequestOut,
    TopicsOut,
    answer_out,
    history_out,
    page_out,
    request_out,
    topics_out,
    unknown_out,
    waiting_out,
)
from kafka_timers.console.etf1_gui import info_of, schedules_of
from kafka_timers.console.models import Change, When, Wish
from kafka_timers.console.pages import PAGES
from kafka_timers.console.sharing import within
from kafka_timers.core.moments import second_of, when_of
from kafka_timers.core.outcomes import State
from kafka_timers.core.pending import PLACE_PATTERN, UNITS_S
from kafka_timers.core.rejected import Rejected
from kafka_timers.core.wire import SECOND_LIMIT, Future
from kafka_timers.errors import AnswerError, KafkaTimersError, PublishError, QueryError, RequestError, WhenError
from kafka_timers.operate.documents import status_document
from kafka_timers.operate.find import Found
from kafka_timers.operate.redrive import Which

# The limit for every page; operations with a limit of their own give more details.
_LIMIT_S = 2.9
_BUCKETS_MAX = 10_000
_PAGE_MAX = 1_000

_PROBLEMS: dict[int | str, dict[str, Any]] = {
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
_MISSING: dict[int | str, dict[str, Any]] = {404: _PROBLEMS[400] | {"description": "No such timer is known."}}
_CONFLICT: dict[int | str, dict[str, Any]] = {
    409: _PROBLEMS[400] | {"description": "It is too late, or another timer is known."}
}

_T = TypeVar("_T")

_Instant = Annotated[str | None, Query(description="RFC 3339 with a zone, or UNIX seconds")]


class _ProblemError(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def app_of(service: Service) -> FastAPI:
    """Return the application that serves *service*. `access` checks the caller's permissions before it."""

    @asynccontextmanager
    async def living(_app: FastAPI) -> AsyncIterator[None]:
        async with service:
            yield

    app = FastAPI(
        title="kafka-timers",
        version=__version__,
        description="Durable timers on Kafka. Ask for a callback, look at pending timers, move them, cancel them.",
        docs_url=None,
        redoc_url=None,
        lifespan=living,
        responses=_PROBLEMS,
    )
    app.state.service = service
    routes: list[tuple[str, str, Callable[..., Any], Any, int, dict[int | str, dict[str, Any]]]] = [
        ("POST", "/v1/timers", create_timer, AnswerOut, 201, _CONFLICT),
        ("GET", "/v1/timers", list_timers, PageOut, 200, {}),
        ("GET", "/v1/timers/{timer_id:path}", show_timer, HistoryOut, 200, _MISSING),
        ("PUT", "/v1/timers/{timer_id:path}", set_timer, AnswerOut, 200, {}),
        ("PATCH", "/v1/timers/{timer_id:path}", move_timer, AnswerOut, 200, _MISSING | _CONFLICT),
        ("DELETE", "/v1/timers/{timer_id:path}", cancel_timer, AnswerOut, 200, _MISSING | _CONFLICT),
        ("GET", "/v1/requests/{place}", show_request, RequestOut, 200, _MISSING),
        ("GET", "/v1/ahead", count_ahead, AheadOut, 200, {}),
        ("GET", "/v1/rejected", list_rejected, RejectedPage, 200, {}),
        ("POST", "/v1/rejected/{place}/redrive", redrive, AnswerOut, 200, _CONFLICT),
        ("GET", "/v1/topics", list_topics, TopicsOut, 200, {}),
        ("GET", "/v1/status", show_status, None, 200, {}),
        ("GET", "/v1/me", show_caller, CallerOut, 200, {}),
    ]
    for method, path, does, model, status, more in routes:
        answers = _in_time(does) if method == "GET" else does
        app.add_api_route(path, answers, methods=[method], response_model=model, status_code=status, responses=more)
    stream: dict[int | str, dict[str, Any]] = {
        200: {"description": "Server-sent events.", "content": {"text/event-stream": {}}}
    }
    app.add_api_route("/v1/events", _in_time(follow), response_class=Response, responses=stream)
    for path, shows in (("/info", _show_info), ("/schedules", _show_schedules)):
        app.add_api_route(path, _in_time(shows), include_in_schema=False)
    for path in ("/livez", "/liveness"):
        app.add_api_route(path, _is_alive, include_in_schema=False)
    app.add_api_route("/", _page, include_in_schema=False)
    app.add_api_route("/static/{name}", _page, include_in_schema=False)
    app.add_exception_handler(HTTPException, _not_served)
    app.add_exception_handler(RequestValidationError, _not_understood)
    app.add_exception_handler(KafkaTimersError, _failed)
    app.add_exception_handler(_ProblemError, _told)
    return app


def _in_time(does: Callable[..., Coroutine[Any, Any, _T]]) -> Callable[..., Coroutine[Any, Any, _T]]:
    """Return a route that does the same as *does*, or fails when the time limit has passed."""

    @wraps(does)
    async def answer(*args: Any, **given: Any) -> _T:
        return await within(does(*args, **given), "Kafka or its log", _LIMIT_S)

    return answer


# --- dependencies ----------------------------------------------------------------------------------------------------


def _service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


def _operator(request: Request) -> Caller:
    caller: Caller = request.state.caller
    if caller.role < Role.OPERATE:
        raise _ProblemError(403, f"{caller.name} may look, and change nothing")
    return caller


_Asked = Annotated[Service, Depends(_service)]
_Operator = Annotated[Caller, Depends(_operator)]
_Id = Annotated[str, Path(min_length=1, max_length=4_096)]
_TopicFilter = Annotated[str | None, Query(description="only timers with this callback topic")]
_KeyFilter = Annotated[str | None, Query(description="only timers with this callback key")]


# --- timers ----------------------------------------------------------------------------------------------------------


async def create_timer(
    wish: Wish,
    service: _Asked,
    caller: _Operator,
    response: Response,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=4_096)] = None,
) -> AnswerOut:
    """
    Create a timer, unless its id is already known.

    The Idempotency-Key becomes the timer id. Until an hour after the timer's second, or its cancel, a repeated request
    with the same key is answered 200 with the timer of the first request.
    """
    if idempotency_key and wish.timer_id not in (None, idempotency_key):
        raise _ProblemError(422, "timerId and Idempotency-Key are two names for one thing: give one, or the same twice")
    timer_id = wish.timer_id or idempotency_key or str(uuid.uuid4())
    future, due_ms = _future(Future(timerId=timer_id), wish, service), await _due_ms(wish, service)
    answer = await service.create(future, due_ms or 0, caller)
    if answer.outcome is Outcome.IGNORED:
        if idempotency_key:
            response.status_code = 200
            return answer_out(timer_id, answer, service.clock.wall_s())
        raise _ProblemError(
            409,
            f"a timer is known as {timer_id!r}: request {answer.request}. Change it with PATCH, or set another with "
            "PUT; an id is known until an hour after its timer's second, or its cancel",
        )
    response.headers["Location"] = f"/v1/timers/{quote(timer_id, safe='')}"
    return answer_out(timer_id, answer, service.clock.wall_s(), due_ms)


async def list_timers(
    service: _Asked,
    topic: _TopicFilter = None,
    key: _KeyFilter = None,
    prefix: Annotated[str | None, Query(description="only timers whose id begins so")] = None,
    from_: Annotated[str | None, Query(alias="from", description="only timers that fire at this time or later")] = None,
    to: Annotated[str | None, Query(description="only timers that fire before this time")] = None,
    cursor: Annotated[str | None, Query(pattern=PLACE_PATTERN, description="`cursor` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=_PAGE_MAX)] = 50,
    values: Annotated[bool, Query(description="return values and headers too")] = False,
) -> PageOut:
    """List pending timers, in the order in which they fire."""
    workers = await service.workers()
    wanted = {"topic": topic, "key": key, "id_prefix": prefix, "after": cursor}
    times = {"from": _instant(from_), "to": _instant(to)}
    return page_out(await workers.page(limit, with_values=values, **wanted, **times))


async def show_timer(
    timer_id: _Id,
    service: _Asked,
    history: Annotated[bool, Query(description="also return earlier records of its id; reads the log")] = True,
) -> HistoryOut:
    """Show a timer. A pending one is shown at once, with `complete` true or false; others once the log is read."""
    found = await service.timer(timer_id, with_history=history)
    if not isinstance(found, Found):
        return waiting_out(timer_id, found)
    shown = history_out(timer_id, found)
    if shown is None:
        raise _ProblemError(404, _not_known(timer_id, found))
    return shown


async def set_timer(timer_id: _Id, wish: Wish, service: _Asked, caller: _Operator) -> AnswerOut:
    """Set a timer. It replaces the pending timer of its id. If that one is already firing, both fire."""
    if wish.timer_id not in (None, timer_id):
        raise _ProblemError(422, "timerId is not the one in the address")
    due_ms = (await _due_ms(wish, service)) or 0
    answer = await service.set(_future(Future(timerId=timer_id), wish, service), due_ms, caller)
    return answer_out(timer_id, answer, service.clock.wall_s(), due_ms)


async def move_timer(timer_id: _Id, change: Change, service: _Asked, caller: _Operator) -> AnswerOut:
    """Change a pending timer: its time or its callback. Omitted fields stay. If it is not pending, nothing happens."""
    due_ms = await _due_ms(change, service)
    waiting = await service.pending(timer_id)
    if isinstance(waiting, Found):
        raise _gone(timer_id, waiting)
    request, due_before_ms, future = waiting
    answer = await service.move(_future(future, change, service), due_ms or due_before_ms, caller, request)
    if answer.outcome is not Outcome.MOVED:
        raise _ProblemError(409, f"{timer_id!r} was moved, cancelled or fired meanwhile: nothing has changed")
    return answer_out(timer_id, answer, service.clock.wall_s(), due_ms or due_before_ms)


async def cancel_timer(
    timer_id: _Id,
    service: _Asked,
    caller: _Operator,
    request: Annotated[str | None, Query(description="only the timer of this request, partition:offset")] = None,
) -> AnswerOut:
    """Cancel a timer."""
    answer = await service.cancel(timer_id, caller, request)
    if answer.outcome is Outcome.UNKNOWN:
        raise _ProblemError(404, f"no timer is known as {timer_id!r}: there was none, or it was due over an hour ago")
    if answer.outcome is Outcome.TOO_LATE:
        raise _ProblemError(409, f"{timer_id!r} fires or has fired: request {answer.request}")
    if answer.outcome is Outcome.IGNORED:
        raise _ProblemError(409, f"request {request} waits no more under {timer_id!r}; known is {answer.request}")
    return answer_out(timer_id, answer, service.clock.wall_s())


async def show_request(
    place: Annotated[str, Path(pattern=r"^[0-9]{1,9}:[0-9]{1,18}$", description="partition:offset on timer-request")],
    service: _Asked,
) -> RequestOut:
    """Show the content of a request, and whether its timer is pending."""
    found, waits = await service.request(place)
    if found.record is None:
        raise _ProblemError(404, found.why)
    return request_out(place, found.record, waits, has_left=found.has_left)


async def list_topics(service: _Asked) -> TopicsOut:
    """List the callback topics of the timers that fire next, and of requests refused within an hour."""
    return topics_out(*await service.callback_topics())


async def count_ahead(
    service: _Asked,
    unit: Annotated[str, Query(pattern="^(second|minute|hour)$")] = "minute",
    from_: Annotated[str | None, Query(alias="from", description="now, if left out")] = None,
    to: Annotated[str | None, Query(description="60 units later, if left out")] = None,
) -> AheadOut:
    """Count pending timers by second, minute or hour."""
    unit_s = UNITS_S[unit]
    start, end = _instant(from_), _instant(to)
    start = int(service.clock.wall_s()) if start is None else start
    start -= start % unit_s
    end = min(start + 60 * unit_s if end is None else end, SECOND_LIMIT)
    if not start < end <= start + _BUCKETS_MAX * unit_s:
        raise _ProblemError(422, f"`to` is to be later than `from`, by {_BUCKETS_MAX} {unit}s at most")
    found = await (await service.workers()).ahead(start, end, unit)
    counts = [{"second": second, "count": count} for second, count in found.counts.items()]
    unknown = unknown_out(found.unknown)
    return AheadOut.model_validate(
        {"unit": unit, "counts": counts, "cut": found.is_cut, "unknown": unknown, "lake": found.lake}
    )


# --- refused requests ------------------------------------------------------------------------------------------------


async def list_rejected(
    service: _Asked,
    reason: Annotated[list[str] | None, Query(description="only those with one of these")] = None,
    topic: _TopicFilter = None,
    timer_id: Annotated[str | None, Query(alias="timerId")] = None,
    since: _Instant = None,
    limit: Annotated[int, Query(ge=1, le=_PAGE_MAX)] = 50,
) -> RejectedPage:
    """List refused requests, the latest one last."""
    which = Which(tuple(reason or ()), topic or "", timer_id or "")
    found, count = await service.last_refused(which, (_instant(since) or 0) * 1000, limit)
    return RejectedPage(rejected=[RejectedOut.of(each) for each in found], left_out=count - len(found))


async def redrive(
    place: Annotated[str, Path(description="partition:offset on timer-rejected")],
    when: When,
    service: _Asked,
    caller: _Operator,
) -> AnswerOut:
    """Send a refused request again, once. Its timer fires when it is due, or at once if that time is past."""
    async with service.rejected() as log:
        refused: Rejected = await log.whole(await log.at(place))
    workers = await service.workers()
    due_ms, now_ms = await _due_ms(when, service), await service.now_ms()
    again = refused.again(service.topics.requests, len(workers.addresses), now_ms, due_ms)
    answer = await service.redrive(again, caller)
    if answer.outcome is Outcome.IGNORED:
        raise _ProblemError(
            409, f"{place} was sent again already, or its id has a later timer: request {answer.request}"
        )
    return answer_out(again.future.timerId, answer, service.clock.wall_s(), again.due_ms)


async def show_status(service: _Asked) -> dict[str, Any]:
    """Show the state of the service `age_s` seconds ago and its problems, like `kafka-timers status --json`."""
    status, at_s = await service.status()
    return status_document(status) | {"age_s": round(max(service.clock.wall_s() - at_s, 0), 3)}


async def show_caller(request: Request) -> CallerOut:
    """Show the caller and its role."""
    caller: Caller = request.state.caller
    return CallerOut(name=caller.name, role=caller.role.name.lower())


async def follow(
    service: _Asked, topic: Annotated[str, Query(min_length=1, description="callback topic")]
) -> StreamingResponse:
    """Follow a callback topic: one event for each new callback, in the form of `kafka-timers watch --json`."""
    return StreamingResponse(await service.callbacks(topic), media_type="text/event-stream")


async def _show_info(request: Request, service: _Asked) -> dict[str, Any]:
    return await info_of(service, request.headers.get("host", ""))


async def _show_schedules(service: _Asked) -> list[dict[str, Any]]:
    return await schedules_of(service)


async def _is_alive() -> Response:
    return Response("ok")


async def _page(name: str = "index.html") -> Response:
    if name not in PAGES:
        raise HTTPException(404)
    content, kind = PAGES[name]
    return Response(content, media_type=kind)


# --- helpers ---------------------------------------------------------------------------------------------------------


def _future(future: Future, change: Change, service: Service) -> Future:
    change.applied_to(future, service.reserved)
    return future


async def _due_ms(when: When, service: Service) -> int | None:
    try:
        # "At once" is by ticks, so that it holds whatever this host's clock shows.
        return await service.now_ms() if when.after == 0 else when.due_ms(service.clock.wall_s())
    except ValueError as error:
        raise _ProblemError(422, str(error)) from error


def _instant(text: str | None) -> int | None:
    if not text:
        return None
    try:
        return max(second_of(when_of(text)), 0)
    except ValueError as error:
        raise _ProblemError(422, str(error)) from error


def _gone(timer_id: str, found: Found) -> _ProblemError:
    """Return the reason that no timer is pending under *timer_id*."""
    if found.outcomes and found.outcomes[-1].state in (State.FIRED, State.TOO_LATE):
        return _ProblemError(409, f"{timer_id!r} fires or has fired: nothing has changed")
    return _ProblemError(404, _not_known(timer_id, found))


def _not_known(timer_id: str, found: Found) -> str:
    return f"no timer is known as {timer_id!r} in partition {found.partition}, from offset {found.start} to {found.end}"


# --- errors ----------------------------------------------------------------------------------------------------------


def _response(status: int, detail: str) -> JSONResponse:
    code, body = problem(status, detail)
    return JSONResponse(body, code, media_type="application/problem+json")


async def _told(_request: Request, error: Exception) -> JSONResponse:
    return _response(error.status if isinstance(error, _ProblemError) else 500, str(error))


async def _not_served(_request: Request, error: Exception) -> JSONResponse:
    status = error.status_code if isinstance(error, HTTPException) else 500
    said = {404: "there is no such address: /openapi.json has all of them", 405: "this address does not do that"}
    return _response(status, said.get(status, str(getattr(error, "detail", error))))


async def _not_understood(_request: Request, error: Exception) -> JSONResponse:
    found = error.errors() if isinstance(error, RequestValidationError) else []
    # The place and the expected form, but not the given value, which may be long or secret.
    said = "; ".join(f"{'.'.join(map(str, each['loc'][1:])) or each['loc'][0]}: {each['msg']}" for each in found[:5])
    return _response(422, said[:1_000].encode(errors="replace").decode())


async def _failed(_request: Request, error: Exception) -> JSONResponse:
    match error:
        case TopicForbiddenError():
            status = 403
        case RequestError() | WhenError():
            status = 422
        case AnswerError():
            status = 504
        case QueryError():
            status = 502
        case PublishError():
            status = 503 if error.retriable else 502
        case _:
            status = 503
    return _response(status, str(error).encode(errors="replace").decode())
