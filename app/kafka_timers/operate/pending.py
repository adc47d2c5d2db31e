"""
Ask the workers which timers wait. They are found by their seals, so whoever may read `timer-sealed` needs no addresses.

Each worker tells of the partitions that it owns. What nobody tells of within 2 s is unknown, and is said to be; the
rest is told all the same.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from kafka_timers.broker.seals import last_seals
from kafka_timers.core.pending import Place
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import age_of
from kafka_timers.errors import QueryError, SettingsError
from kafka_timers.settings import QuerySettings

__all__ = ["Ahead", "Page", "Told", "Workers", "addresses_of", "asking"]

# More than a worker looks for, and little enough that a page has its answer within 3 s.
_CONNECT_S, _ANSWER_S = 1.0, 2.0
_PAGE = 500
# As many as a worker tells at once; and more than lie in one of its rows.
_AT_ONCE, _ROW_MAX = 1_000, 10_000

# What a worker tells of a timer that waits, or answers: JSON, see `core.pending.Pending.document`.
Told = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """
    Timers that wait.

    Attributes:
        timers: in the order in which they fire, each as the workers tell it.
        after: behind which the rest comes; empty when there is no more.
        is_cut: whether there was no time to look at all of them.
        unknown: why nothing is known of a partition, by its number.
    """

    timers: list[Told]
    after: str
    is_cut: bool
    unknown: dict[int, str]


@dataclass(frozen=True, slots=True)
class Ahead:
    """
    How many timers wait.

    Attributes:
        counts: by the UNIX second in which a bucket begins, ascending; buckets without any are left out.
        is_cut: whether there was no time to count all of them.
        unknown: why nothing is known of a partition, by its number.
    """

    counts: dict[int, int]
    is_cut: bool
    unknown: dict[int, str]


class _Replies(NamedTuple):
    """The answers of workers, and why nothing is known of a partition."""

    answers: list[Told]
    unknown: dict[int, str]


class Workers:
    """
    The workers of one instance of the service.

    Args:
        session: to ask them with.
        addresses: see `addresses_of`.

    Attributes:
        addresses: as given, or as they were last put here.
    """

    def __init__(self, session: aiohttp.ClientSession, addresses: Mapping[int, str]) -> None:
        self._session = session
        self.addresses = addresses

    async def page(self, limit: int, *, with_values: bool = False, **wanted: object) -> Page:
        """
        Return the first *limit* timers that wait.

        Args:
            limit: at most; see `kafka_timers.worker.query_server.PAGE_MAX`.
            with_values: tell values and headers too.
            wanted: the other parameters of `/v1/timers`; None is left out.

        Raises:
            QueryError: a worker does not take the question, or wants to see another token.
        """
        timer_id = wanted.get("timer_id")
        numbers = [partition_of(str(timer_id), len(self.addresses))] if timer_id else self.addresses
        told = await self._ask(numbers, "/v1/timers", limit=limit, values=int(with_values), **wanted)
        timers = sorted((each for answer in told.answers for each in answer["timers"]), key=_place_of)
        # What one worker has not told yet may come before what another has.
        cuts = [Place.of(answer["next"]) for answer in told.answers if answer["next"]]
        after = min(cuts, default=None)
        if after is not None:
            timers = [each for each in timers if _place_of(each) <= after]
        if len(timers) > limit:
            timers = timers[:limit]
            after = _place_of(timers[-1])
        return Page(timers, str(after) if after else "", any(answer["cut"] for answer in told.answers), told.unknown)

    async def pages(self, limit: int, *, with_values: bool = False, **wanted: object) -> AsyncIterator[Page]:
        """
        Yield the first *limit* timers that wait, page by page; otherwise as `page`.

        What waits behind them is told by `Page.after` of the last page.
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
        Return how many timers wait from the UNIX second *from_s* on and before *to_s*.

        Args:
            from_s: first second.
            to_s: behind the last one.
            unit: of a bucket: second, minute or hour.

        Raises:
            QueryError: as `page`.
        """
        told = await self._ask(self.addresses, "/v1/counts", **{"from": from_s, "to": to_s, "unit": unit})
        counts = Counter[int]()
        for answer in told.answers:
            counts.update({each["second"]: each["count"] for each in answer["counts"]})
        return Ahead(dict(sorted(counts.items())), any(answer["cut"] for answer in told.answers), told.unknown)

    async def waits(self, request: str, second: int) -> bool | None:
        """
        Tell whether the timer of *request*, partition:offset, waits; None if no worker tells.

        Args:
            request: on `timer-request`.
            second: UNIX second that it is for.

        Raises:
            QueryError: as `page`.
        """
        partition, offset = map(int, request.split(":"))
        # Those in a row of many stand at the offset of the last one, and so behind this place.
        after = str(Place(second * 1000, partition, offset - 1, 0)) if offset else None
        while True:
            given = {"from": second, "to": second + 1, "after": after, "limit": _AT_ONCE}
            told = await self._ask([partition], "/v1/timers", values=0, **given)
            if told.unknown:
                return None
            [answer] = told.answers
            if any(each["request"] == request for each in answer["timers"]):
                return True
            after = answer["next"]
            if not after or (answer["timers"] and Place.of(answer["timers"][-1]["place"]).row > offset + _ROW_MAX):
                return None if answer["cut"] else False

    async def _ask(self, numbers: Iterable[int], path: str, **given: object) -> _Replies:
        """Ask each worker of the partitions *numbers* once."""
        # Another look at the seals may come in between.
        numbers, addresses = sorted(numbers), self.addresses
        asked = sorted({url for number in numbers if (url := addresses[number])})
        params = {name: str(value) for name, value in given.items() if value is not None}
        replies = await asyncio.gather(*(self._ask_one(url + path, params) for url in asked))
        by_url = dict(zip(asked, replies, strict=True))
        unknown = {}
        for number in numbers:
            reply = by_url.get(addresses[number])
            if reply is None:
                unknown[number] = "its worker answers no questions, or none has it: give workers --query-port"
            elif isinstance(reply, str):
                unknown[number] = reply
            elif number in reply["unknown"]:
                unknown[number] = f"{addresses[number]} has it no more, or not yet"
        return _Replies([reply for reply in replies if not isinstance(reply, str)], unknown)

    async def _ask_one(self, url: str, params: Mapping[str, str]) -> Told | str:
        """Return what a worker answers, or why it does not."""
        try:
            async with self._session.get(url, params=params) as response:
                if response.status == 200:
                    return dict(await response.json())
                said = (await response.text())[:500]
                if response.status in (400, 401, 403):
                    raise QueryError(f"{url}: {said}")
                return f"{url} answers {response.status}: {said}"
        except TimeoutError:
            return f"{url} does not answer within {_ANSWER_S:g} s"
        except (aiohttp.ClientError, ValueError) as error:
            return f"{url} cannot be asked: {error}"


def _place_of(timer: Mapping[str, Any]) -> Place:
    return Place.of(timer["place"])


@asynccontextmanager
async def asking(settings: QuerySettings) -> AsyncIterator[Workers]:
    """
    Find the workers, to be asked inside.

    Raises:
        SettingsError: the token or a certificate cannot be read.
        TopicsError: `timer-sealed` does not exist.
        BrokerError: no broker answers within some 10 s, or it refuses.
    """
    headers = {"Authorization": f"Bearer {token}"} if (token := _token(settings.query_token_file)) else {}
    connector = aiohttp.TCPConnector(ssl=_context(settings))
    limit = aiohttp.ClientTimeout(total=_ANSWER_S, connect=_CONNECT_S)
    async with aiohttp.ClientSession(headers=headers, connector=connector, timeout=limit) as session:
        yield Workers(session, await addresses_of(settings))


async def addresses_of(settings: QuerySettings) -> dict[int, str]:
    """
    Return where the owner of each partition answers, as the last seals tell it; empty where it does not.

    Raises:
        TopicsError: `timer-sealed` does not exist.
        BrokerError: no broker answers within some 10 s, or it refuses.
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
