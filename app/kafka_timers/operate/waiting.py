"""
Ask the workers for pending timers. The seals name the workers, so a reader of `timer-sealed` needs no addresses.

Each worker answers for the partitions that it owns. A partition without an answer within 2 s is reported as unknown,
and the other answers are returned all the same.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from kafka_timers.broker.seals import last_seals
from kafka_timers.core.pending import Place
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import age_of
from kafka_timers.errors import QueryError, SettingsError
from kafka_timers.settings import QuerySettings

# Longer than a worker searches, and short enough that a page is answered within 3 s.
_CONNECT_S, _ANSWER_S = 1.0, 2.0
_PAGE = 500
# Most timers that a worker returns at once, and more than lie in one of its rows.
_AT_ONCE, _ROW_MAX = 1_000, 10_000
# What an answer must have, by path.
_ALWAYS = {"cut", "unknown", "lake"}
_FIELDS = {"/v1/timers": {"timers", "next", *_ALWAYS}, "/v1/counts": {"counts", *_ALWAYS}}

# A worker's JSON for a pending timer, or its whole answer; see `core.pending.Pending.document`.
Told = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """
    A page of pending timers.

    Attributes:
        timers: timers in the order in which they fire, each as its worker returned it.
        after: place behind which the next page begins; empty when there are no more.
        is_cut: whether the workers ran out of time before they had looked at all of them.
        unknown: reason by partition, for the partitions that are unknown.
        lake: why timers that the lake should have promoted may be missing; empty if none is.
    """

    timers: list[Told]
    after: str
    is_cut: bool
    unknown: dict[int, str]
    lake: str = ""


@dataclass(frozen=True, slots=True)
class Ahead:
    """
    Numbers of pending timers.

    Attributes:
        counts: number by the UNIX second at which a bucket begins, ascending; empty buckets are left out.
        is_cut: whether the workers ran out of time before they had counted all of them.
        unknown: reason by partition, for the partitions that are unknown.
        lake: see `Page`.
    """

    counts: dict[int, int]
    is_cut: bool
    unknown: dict[int, str]
    lake: str = ""


class Workers:
    """
    The workers of one instance of the service. A question that all of them refuse raises QueryError.

    Args:
        addresses: see `addresses_of`.

    Attributes:
        addresses: as given, until somebody sets newer ones here.
    """

    def __init__(self, session: aiohttp.ClientSession, addresses: Mapping[int, str]) -> None:
        self._session = session
        self.addresses = addresses

    async def page(self, limit: int, *, with_values: bool = False, **wanted: object) -> Page:
        """
        Return the first *limit* pending timers.

        Args:
            limit: maximum; see `kafka_timers.worker.query_server.PAGE_MAX`.
            with_values: also return values and headers.
            wanted: the other parameters of `/v1/timers`; those that are None are left out.

        Raises:
            QueryError: all workers refuse the query, or expect another token.
        """
        timer_id = wanted.get("timer_id")
        numbers = [partition_of(str(timer_id), len(self.addresses))] if timer_id else self.addresses
        answers, unknown = await self._ask(numbers, "/v1/timers", limit=limit, values=int(with_values), **wanted)
        timers = sorted((each for answer in answers for each in answer["timers"]), key=_place_of)
        # A timer that one worker has not returned yet may come before a timer of another worker.
        cuts = [Place.of(answer["next"]) for answer in answers if answer["next"]]
        after = min(cuts, default=None)
        if after is not None:
            timers = [each for each in timers if _place_of(each) <= after]
        if len(timers) > limit:
            timers = timers[:limit]
            after = _place_of(timers[-1])
        is_cut = any(answer["cut"] for answer in answers)
        return Page(timers, str(after) if after else "", is_cut, unknown, _of_the_lake(answers))

    async def pages(self, limit: int, *, with_values: bool = False, **wanted: object) -> AsyncIterator[Page]:
        """
        Yield the first *limit* pending timers, page by page; otherwise like `page`.

        `Page.after` of the last page tells where the remaining timers begin.
        """
        after = ""
        while limit:
            page = await self.page(min(limit, _PAGE), with_values=with_values, after=after or None, **wanted)
            yield page
            limit, after = limit - len(page.timers), page.after
            if not after:
                return

    async def ahead(self, from_s: int, to_s: int, unit: str) -> Ahead:
        """
        Return the number of pending timers from the UNIX second *from_s* on and before *to_s*. A bucket has the size
        *unit*: second, minute or hour.
        """
        answers, unknown = await self._ask(self.addresses, "/v1/counts", **{"from": from_s, "to": to_s, "unit": unit})
        counts = Counter[int]()
        for answer in answers:
            counts.update({each["second"]: each["count"] for each in answer["counts"]})
        is_cut = any(answer["cut"] for answer in answers)
        return Ahead(dict(sorted(counts.items())), is_cut, unknown, _of_the_lake(answers))

    async def waits(self, request: str, second: int) -> bool | None:
        """
        Tell whether the timer of *request* is pending; None if no worker knows. *request* is partition:offset on
        `timer-request`.
        """
        partition, offset = map(int, request.split(":"))
        # Requests in a batch have the offset of its last request, so they come after this place.
        after = str(Place(second * 1000, partition, offset - 1, 0)) if offset else None
        while True:
            given = {"from": second, "to": second + 1, "after": after, "limit": _AT_ONCE}
            answers, unknown = await self._ask([partition], "/v1/timers", values=0, **given)
            if unknown:
                return None
            [answer] = answers
            if any(each["request"] == request for each in answer["timers"]):
                return True
            after = answer["next"]
            if not after or (answer["timers"] and Place.of(answer["timers"][-1]["place"]).row > offset + _ROW_MAX):
                return None if answer["cut"] else False

    async def _ask(self, numbers: Iterable[int], path: str, **given: object) -> tuple[list[Told], dict[int, str]]:
        """
        Ask each worker that owns one of the partitions *numbers* once. Return the answers, and the reason for each
        partition that is unknown.
        """
        # Newer addresses may be set while the workers answer.
        numbers, addresses = sorted(numbers), self.addresses
        asked = sorted({url for number in numbers if (url := addresses[number])})
        params = {name: str(value) for name, value in given.items() if value is not None}
        replies = await asyncio.gather(*(self._ask_one(url + path, params) for url in asked))
        refusals = [reply for reply in replies if isinstance(reply, QueryError)]
        # A worker of another version may refuse what the others answer.
        if refusals and len(refusals) == len(replies):
            raise refusals[0]
        by_url = dict(zip(asked, replies, strict=True))
        unknown = {}
        for number in numbers:
            reply = by_url.get(addresses[number])
            if reply is None:
                unknown[number] = "its worker answers no questions, or none has it: give workers --query-port"
            elif not isinstance(reply, dict):
                unknown[number] = str(reply)
            elif number in reply["unknown"]:
                unknown[number] = f"{addresses[number]} has it no more, or not yet"
        return [reply for reply in replies if isinstance(reply, dict)], unknown

    async def _ask_one(self, url: str, params: Mapping[str, str]) -> Told | QueryError | str:
        """Return the worker's answer, or the reason that there is none; an error if the query is refused."""
        try:
            async with self._session.get(url, params=params) as response:
                if response.status == 200:
                    answer = await response.json()
                    if isinstance(answer, dict) and answer.keys() >= _FIELDS[response.url.path]:
                        return answer
                    return f"{url} answers in a form that is not known here: is it a worker of another version?"
                said = (await response.text())[:500]
                if response.status in (400, 401, 403):
                    return QueryError(f"{url}: {said}")
                return f"{url} answers {response.status}: {said}"
        except TimeoutError:
            return f"{url} does not answer within {_ANSWER_S:g} s"
        except (aiohttp.ClientError, ValueError) as error:
            return f"{url} cannot be asked: {error}"


def _of_the_lake(answers: Iterable[Told]) -> str:
    return next((answer["lake"] for answer in answers if answer["lake"]), "")


def _place_of(timer: Mapping[str, Any]) -> Place:
    return Place.of(timer["place"])


@asynccontextmanager
async def asking(settings: QuerySettings) -> AsyncIterator[Workers]:
    """
    Find the workers, and yield them for queries inside the block.

    Raises:
        SettingsError: the token or a certificate cannot be read.
        TopicsError: `timer-sealed` does not exist.
    """
    headers = {"Authorization": f"Bearer {token}"} if (token := _token(settings.query_token_file)) else {}
    connector = aiohttp.TCPConnector(ssl=_context(settings))
    limit = aiohttp.ClientTimeout(total=_ANSWER_S, connect=_CONNECT_S)
    async with aiohttp.ClientSession(headers=headers, connector=connector, timeout=limit) as session:
        yield Workers(session, await addresses_of(settings))


async def addresses_of(settings: QuerySettings) -> dict[int, str]:
    """
    Return the query address of each partition's owner, from the last seals; empty if the owner has none.

    Raises:
        TopicsError: `timer-sealed` does not exist.
    """
    tails = await last_seals(settings.kafka, settings.topic_prefix)
    last = {number: max(tail, key=age_of, default=None) for number, tail in tails.items()}
    return {number: seal.queries if seal else "" for number, seal in last.items()}


def _token(file: str) -> str:
    if not file:
        return ""
    try:
        return Path(file).read_text().strip()
    except (OSError, ValueError) as error:
        raise SettingsError(f"query_token_file {file} cannot be read: {error}") from error


def _context(settings: QuerySettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.query_ca or None)
        if settings.query_certificate:
            context.load_cert_chain(settings.query_certificate, settings.query_key or None)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"the certificates to ask workers with cannot be read: {error}") from error
    return context
