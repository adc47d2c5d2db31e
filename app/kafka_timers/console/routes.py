"""The addresses of the console, and its answers to errors."""

import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from fastapi import FastAPI, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException

from kafka_timers import __version__
from kafka_timers.client.request import Outcome, only_if_pending
from kafka_timers.console.access import Caller
from kafka_timers.console.actions import Service
from kafka_timers.console.bodies import (
    AheadOut,
    AnswerOut,
    CallerOut,
    HistoryOut,
    PageOut,
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
from kafka_timers.console.dependencies import AskedService, Operator
from kafka_timers.console.etf1_gui import info_of, schedules_of
from kafka_timers.console.models import Change, Setting, When, Wish
from kafka_timers.console.pages import PAGES
from kafka_timers.console.problems import (
    CONFLICT,
    MISSING,
    PROBLEMS,
    ProblemError,
    answer_errors,
    gone,
    met,
    met_since,
    not_known,
)
from kafka_timers.console.replays import replay_of
from kafka_timers.console.schedule_routes import SCHEDULE_ROUTES
from kafka_timers.console.sharing import within
from kafka_timers.core.moments import second_of, when_of
from kafka_timers.core.pending import PLACE_PATTERN, UNITS_S
from kafka_timers.core.rejected import Rejected
from kafka_timers.core.wire import SECOND_LIMIT, Future
from kafka_timers.operate.again import callback_again, only_after
from kafka_timers.operate.documents import status_document
from kafka_timers.operate.find import Found
from kafka_timers.operate.redrive import Which

# The limit for every page; operations with a limit of their own give more details.
_LIMIT_S = 2.9
_BUCKETS_MAX = 10_000
_PAGE_MAX = 1_000

_T = TypeVar("_T")

_Instant = Annotated[str | None, Query(description="RFC 3339 with a zone, or UNIX seconds")]


class _AnyText(PathConvertor):
    # A path is one line, and an id may have several.
    regex = r"[\s\S]*"


register_url_convertor("any", _AnyText())


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
        responses=PROBLEMS,
    )
    app.state.service = service
    replayed: dict[int | str, dict[str, Any]] = {
        200: {"model": AnswerOut, "description": "An earlier request with this Idempotency-Key made the timer."}
    }
    routes: list[tuple[str, str, Callable[..., Any], Any, int, dict[int | str, dict[str, Any]]]] = [
        ("POST", "/v1/timers", create_timer, AnswerOut, 201, CONFLICT | replayed),
        ("GET", "/v1/timers", list_timers, PageOut, 200, {}),
        ("GET", "/v1/timers/{timer_id:any}", show_timer, HistoryOut, 200, MISSING),
        ("PUT", "/v1/timers/{timer_id:any}", set_timer, AnswerOut, 200, CONFLICT),
        ("PATCH", "/v1/timers/{timer_id:any}", move_timer, AnswerOut, 200, MISSING | CONFLICT),
        ("DELETE", "/v1/timers/{timer_id:any}", cancel_timer, AnswerOut, 200, MISSING | CONFLICT),
        ("GET", "/v1/requests/{place}", show_request, RequestOut, 200, MISSING),
        ("GET", "/v1/ahead", count_ahead, AheadOut, 200, {}),
        ("GET", "/v1/rejected", list_rejected, RejectedPage, 200, {}),
        ("POST", "/v1/rejected/{place}/redrive", redrive, AnswerOut, 200, CONFLICT),
        ("GET", "/v1/topics", list_topics, TopicsOut, 200, {}),
        *SCHEDULE_ROUTES,
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
    answer_errors(app)
    return app


def _in_time(does: Callable[..., Coroutine[Any, Any, _T]]) -> Callable[..., Coroutine[Any, Any, _T]]:
    """Return a route that does the same as *does*, or fails when the time limit has passed."""

    @wraps(does)
    async def answer(*args: Any, **given: Any) -> _T:
        return await within(does(*args, **given), "Kafka or its log", _LIMIT_S)

    return answer


# --- dependencies ----------------------------------------------------------------------------------------------------


_Id = Annotated[str, Path(min_length=1, max_length=4_096)]
_Version = Annotated[
    str | None,
    Query(
        pattern=r"^(0|[1-9][0-9]{0,8}):[0-9]{1,18}$",
        description="only if the timer of this request, partition:offset, stands under the id; otherwise 409",
    ),
]
_TopicFilter = Annotated[str | None, Query(description="only timers with this callback topic")]
_KeyFilter = Annotated[str | None, Query(description="only timers with this callback key")]


# --- timers ----------------------------------------------------------------------------------------------------------


async def create_timer(
    wish: Wish,
    service: AskedService,
    caller: Operator,
    response: Response,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=4_096)] = None,
) -> AnswerOut:
    """
    Create a timer, unless its id is already known.

    The Idempotency-Key, UTF-8, becomes the timer id. Until an hour after the timer's second, or its cancel, a repeated
    request with the same key and the same body is answered 200 with `replay` and the timer that stands. Another body
    with the same key is answered 422.
    """
    name = _utf8(idempotency_key)
    if name and wish.timer_id not in (None, name):
        raise ProblemError(422, "timerId and Idempotency-Key are two names for one thing: give one, or the same twice")
    timer_id = wish.timer_id or name or str(uuid.uuid4())
    future, due_ms = _future(Future(timerId=timer_id), wish, service), await _due_ms(wish, service)
    answer = await service.create(future, due_ms or 0, caller, wish.digest)
    if answer.outcome is Outcome.IGNORED:
        if name:
            response.status_code = 200
            return await replay_of(service, timer_id, answer, wish.digest)
        raise ProblemError(
            409,
            f"a timer is known as {timer_id!r}: request {answer.request}. Change it with PATCH, or set another with "
            "PUT; an id is known until an hour after its timer's second, or its cancel",
            "id-known",
        )
    response.headers["Location"] = f"/v1/timers/{quote(timer_id, safe='')}"
    return answer_out(timer_id, answer, service.clock.wall_s(), due_ms)


async def list_timers(
    service: AskedService,
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
    service: AskedService,
    history: Annotated[bool, Query(description="also return earlier records of its id; reads the log")] = True,
) -> HistoryOut:
    """
    Show the timer that stands under an id, and all records of the id, also those that changed nothing.

    A pending timer is shown at once, with `complete` true or false; others once the log is read.
    """
    found = await service.timer(timer_id, with_history=history)
    if not isinstance(found, Found):
        return waiting_out(timer_id, found)
    shown = history_out(timer_id, found)
    if shown is None:
        raise ProblemError(404, not_known(timer_id, found), "timer-unknown")
    return shown


async def set_timer(
    timer_id: _Id, setting: Setting, service: AskedService, caller: Operator, request: _Version = None
) -> AnswerOut:
    """
    Set a timer. It replaces the pending timer of its id. If that one is already firing, both fire.

    With `request`, nothing happens unless the timer of that request stands: the one to replace if it is pending, else
    the last one of the id. Without `topic`, the new timer has the callback of that one, which must not be pending.
    """
    if setting.timer_id not in (None, timer_id):
        raise ProblemError(422, "timerId is not the one in the address")
    if setting.topic is None and (request is None or not setting.model_fields_set <= {"at", "after", "timer_id"}):
        raise ProblemError(422, "topic: is needed. Without it, give `request` and no other part of a callback")
    due_ms = (await _due_ms(setting, service)) or 0
    if request is None:
        future = _future(Future(timerId=timer_id), setting, service)
    else:
        future = await _in_place_of(request, timer_id, setting, service)
    answer = await service.set(future, due_ms, caller)
    if answer.outcome is Outcome.IGNORED:
        raise met_since(timer_id, answer)
    return answer_out(timer_id, answer, service.clock.wall_s(), due_ms)


async def _in_place_of(request: str, timer_id: str, setting: Setting, service: Service) -> Future:
    """Return the Future of *setting*, which stands only if the timer of *request* still does."""
    known = await service.pending(timer_id)
    if not isinstance(known, Found):
        if known[0] != request or setting.topic is None:
            raise met(timer_id, request, known)
        return only_if_pending(_future(Future(timerId=timer_id), setting, service), True, request)
    asked = _future(Future(timerId=timer_id), setting, service) if setting.topic else callback_again(known)
    if asked is None or not only_after(asked, known, request, int(service.clock.wall_s() * 1000)):
        raise met(timer_id, request, known)
    return asked


async def move_timer(
    timer_id: _Id, change: Change, service: AskedService, caller: Operator, request: _Version = None
) -> AnswerOut:
    """Change a pending timer: its time or its callback. Omitted fields stay. If it is not pending, nothing happens."""
    due_ms = await _due_ms(change, service)
    waiting = await service.pending(timer_id)
    if isinstance(waiting, Found):
        raise met(timer_id, request, waiting) if request else gone(timer_id, waiting)
    waits_at, due_before_ms, future = waiting
    if request not in (None, waits_at):
        raise met(timer_id, request or "", waiting)
    answer = await service.move(_future(future, change, service), due_ms or due_before_ms, caller, waits_at)
    if answer.outcome is not Outcome.MOVED:
        raise met_since(timer_id, answer)
    return answer_out(timer_id, answer, service.clock.wall_s(), due_ms or due_before_ms)


async def cancel_timer(
    timer_id: _Id,
    service: AskedService,
    caller: Operator,
    request: _Version = None,
) -> AnswerOut:
    """Cancel a timer."""
    answer = await service.cancel(timer_id, caller, request)
    if answer.outcome is Outcome.UNKNOWN:
        said = f"no timer is known as {timer_id!r}: there was none, or it was due over an hour ago"
        raise ProblemError(404, said, "timer-unknown")
    if answer.outcome is Outcome.TOO_LATE:
        raise ProblemError(409, f"{timer_id!r} fires, has fired or was refused: request {answer.request}", "too-late")
    if answer.outcome is Outcome.IGNORED:
        raise met_since(timer_id, answer)
    return answer_out(timer_id, answer, service.clock.wall_s())


async def show_request(
    place: Annotated[str, Path(pattern=r"^[0-9]{1,9}:[0-9]{1,18}$", description="partition:offset on timer-request")],
    service: AskedService,
) -> RequestOut:
    """Show the content of a request, and whether its timer is pending."""
    found, waits = await service.request(place)
    if found.record is None:
        raise ProblemError(404, found.why, "timer-unknown")
    return request_out(place, found.record, waits, has_left=found.has_left)


async def list_topics(service: AskedService) -> TopicsOut:
    """List the callback topics of the timers that fire next, and of requests refused within an hour."""
    return topics_out(*await service.callback_topics())


async def count_ahead(
    service: AskedService,
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
        raise ProblemError(422, f"`to` is to be later than `from`, by {_BUCKETS_MAX} {unit}s at most")
    found = await (await service.workers()).ahead(start, end, unit)
    counts = [{"second": second, "count": count} for second, count in found.counts.items()]
    unknown = unknown_out(found.unknown)
    return AheadOut.model_validate(
        {"unit": unit, "counts": counts, "cut": found.is_cut, "unknown": unknown, "lake": found.lake}
    )


# --- refused requests ------------------------------------------------------------------------------------------------


async def list_rejected(
    service: AskedService,
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
    service: AskedService,
    caller: Operator,
) -> AnswerOut:
    """Send a refused request again, once. Its timer fires when it is due, or at once if that time is past."""
    async with service.rejected() as log:
        refused: Rejected = await log.whole(await log.at(place))
    workers = await service.workers()
    due_ms, now_ms = await _due_ms(when, service), await service.now_ms()
    again = refused.again(service.topics.requests, len(workers.addresses), now_ms, due_ms)
    answer = await service.redrive(again, caller)
    if answer.outcome is Outcome.IGNORED:
        raise ProblemError(
            409, f"{place} was sent again already, or its id has a later timer: request {answer.request}", "id-known"
        )
    return answer_out(again.future.timerId, answer, service.clock.wall_s(), again.due_ms)


async def show_status(service: AskedService) -> dict[str, Any]:
    """Show the state of the service `age_s` seconds ago and its problems, like `kafka-timers status --json`."""
    status, at_s = await service.status()
    return status_document(status) | {"age_s": round(max(service.clock.wall_s() - at_s, 0), 3)}


async def show_caller(request: Request) -> CallerOut:
    """Show the caller and its role."""
    caller: Caller = request.state.caller
    return CallerOut(name=caller.name, role=caller.role.name.lower())


async def follow(
    service: AskedService, topic: Annotated[str, Query(min_length=1, description="callback topic")]
) -> StreamingResponse:
    """Follow a callback topic: one event for each new callback, in the form of `kafka-timers watch --json`."""
    return StreamingResponse(await service.callbacks(topic), media_type="text/event-stream")


async def _show_info(request: Request, service: AskedService) -> dict[str, Any]:
    return await info_of(service, request.headers.get("host", ""))


async def _show_schedules(service: AskedService) -> list[dict[str, Any]]:
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
        raise ProblemError(422, str(error)) from error


def _utf8(header: str | None) -> str | None:
    """Return the text of a *header*, which arrives as Latin-1."""
    try:
        return header and header.encode("latin-1").decode()
    except UnicodeError as error:
        raise ProblemError(422, "Idempotency-Key is not UTF-8") from error


def _instant(text: str | None) -> int | None:
    if not text:
        return None
    try:
        return max(second_of(when_of(text)), 0)
    except ValueError as error:
        raise ProblemError(422, str(error)) from error
