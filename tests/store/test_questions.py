"""Pending timers, read over HTTP from real stores: filters, pages, counts, and access."""

import asyncio
import itertools
import json
import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
from aiohttp import web
from aiohttp.test_utils import TestServer
from at_once import at_once
from law_cases import Record

from kafka_timers.clock import HostClock
from kafka_timers.core.changes import Swept
from kafka_timers.core.partition import Partition
from kafka_timers.core.pending import Place, Wanted
from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Future
from kafka_timers.dev.broker import free_port
from kafka_timers.errors import QueryError, SettingsError
from kafka_timers.operate.waiting import Page, Workers
from kafka_timers.runtime.metrics import WorkerMetrics
from kafka_timers.runtime.priority import PriorityGate
from kafka_timers.settings import WorkerSettings
from kafka_timers.testing import ManualClock
from kafka_timers.worker.follower import Follower
from kafka_timers.worker.held import Held
from kafka_timers.worker.query_server import QueryServer
from kafka_timers.worker.questions import Questions
from kafka_timers.worker.stores import StoreFolders

PARTITIONS = 3
BEGIN_S = 1_900_000_000
# Long before anything is due.
APPENDED_MS = 5_000


async def nobody_asks(epoch: int) -> int:
    raise AssertionError(f"what is kept of epoch {epoch}?")


async def nobody_tells(known: bytes) -> bool:
    return False


class NoTopics:
    """Stands for the knowledge of callback topics, which nobody asks for here."""

    def want(self, names: Any) -> None:
        pass


def never() -> float:
    """Return when the last tick came: long ago."""
    return 0.0


class Service:
    """The partitions of one or more workers, with the records read from `timer-request`."""

    def __init__(self, folder: Path) -> None:
        self.stores = StoreFolders(folder, "cluster/timer-request", 0)
        self.followers = [self._follower(number) for number in range(PARTITIONS)]
        for follower in self.followers:
            at_once(follower.open([], 0, 1_000_000, None))

    def _follower(self, number: int) -> Follower:
        return Follower(
            Partition(number),
            partitions=PARTITIONS,
            topic="timer-request",
            stores=self.stores,
            topics=NoTopics(),  # type: ignore[arg-type]
            metrics=WorkerMetrics(),
            clock=ManualClock(1_000.0),
            kept=nobody_asks,
            is_other=nobody_tells,
            on_read=lambda changes: None,
        )

    def ask(self, *timers: tuple[int, dict[str, Any]], partition: int | None = None) -> list[str]:
        """Read requests, each for a second and with fields of its Future, in one go; return their names."""
        names, records = [], dict[int, list[Record]]()
        for second, more in timers:
            future = Future(**({"callBackTopic": "callbacks"} | more))
            number = partition if partition is not None else 0
            if future.timerId:
                number = partition_of(future.timerId, PARTITIONS)
            read = records.setdefault(number, [])
            offset = self.followers[number].partition.position + len(read)
            read.append(Record(b"%d" % second, future.SerializeToString(), offset, APPENDED_MS))
            names.append(f"{number}:{offset}")
        for number, read in records.items():
            self.followers[number].ingest(read, read[-1].offset + 1)
        return names

    def held(self, *numbers: int) -> dict[int, Held]:
        return {number: Held((each := self.followers[number]).partition, each.store) for number in numbers}

    def questions(self, *numbers: int) -> Questions:
        return Questions(lambda: self.held(*numbers), PARTITIONS, PriorityGate(), never, HostClock())


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    opened = Service(tmp_path)
    yield opened
    for follower in opened.followers:
        asyncio.run(follower.close())


@asynccontextmanager
async def serving(questions: Questions | None, **settings: Any) -> AsyncIterator[QueryServer]:
    server = QueryServer(WorkerSettings(query_port=free_port(), **settings), lambda: questions, str)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def answering(status: int, text: str) -> AsyncIterator[str]:
    """Answer each question so, and yield the address."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text, content_type="application/json")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        yield f"http://{server.host}:{server.port}"


@asynccontextmanager
async def workers(service: Service, *owned: tuple[int, ...]) -> AsyncIterator[Workers]:
    """Serve the partitions of each worker in *owned*, and yield the one that asks them."""
    addresses = dict.fromkeys(range(PARTITIONS), "")
    async with aiohttp.ClientSession() as session:
        servers = []
        try:
            for numbers in owned:
                asks = partial(service.questions, *numbers)
                server = QueryServer(WorkerSettings(query_port=free_port()), asks, str)
                await server.start()
                servers.append(server)
                addresses |= dict.fromkeys(numbers, server.address)
            yield Workers(session, addresses)
        finally:
            for server in servers:
                await server.stop()


def named(page: Page) -> list[str]:
    return [timer["request"] for timer in page.timers]


async def all_of(asked: Workers, limit: int, **wanted: object) -> list[str]:
    """Return the names of all timers that are *wanted*, page by page."""
    names, after = list[str](), ""
    while True:
        page = await asked.page(limit, after=after or None, **wanted)
        assert not page.unknown
        assert len(page.timers) <= limit
        names += named(page)
        after = page.after
        if not after:
            return names


async def test_timers_of_all_workers_come_in_the_order_in_which_they_fire(service: Service) -> None:
    late = service.ask((BEGIN_S + 9, {}), partition=0)
    soon = service.ask((BEGIN_S + 1, {}), partition=2)
    same = service.ask((BEGIN_S + 5, {"millis": 20}), (BEGIN_S + 5, {"millis": 10}), partition=1)
    async with workers(service, (0, 1), (2,)) as asked:
        assert named(await asked.page(10)) == [*soon, same[1], same[0], *late]


async def test_a_timer_is_told_with_all_that_was_asked_for(service: Service) -> None:
    fields = {"callBackKey": "k", "callBack": b"\xffhello", "timerId": "order-1", "token": "t", "millis": 250}
    (name,) = service.ask((BEGIN_S, fields | {"headers": [{"key": "h", "value": b"v"}, {"key": "none"}]}))
    async with workers(service, (0, 1, 2)) as asked:
        (short,) = (await asked.page(1)).timers
        (full,) = (await asked.page(1, with_values=True)).timers
    number, offset = name.split(":")
    assert short == {
        "place": f"{BEGIN_S}250.{number}.{offset}.{offset}",
        "request": name,
        "second": BEGIN_S,
        "due_ms": BEGIN_S * 1000 + 250,
        "topic": "callbacks",
        "key": "k",
        "partition": None,
        "partition_key": None,
        "timer_id": "order-1",
        "token": "t",
        "value_bytes": 6,
    }
    headers = [{"name": "h", "value": "v"}, {"name": "none", "value": None}]
    assert full == short | {"value_base64": "/2hlbGxv", "headers": headers}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, [0, 1, 2, 3]),
        ({"from": BEGIN_S + 2}, [2, 3]),
        ({"to": BEGIN_S + 2}, [0, 1]),
        ({"from": BEGIN_S + 1, "to": BEGIN_S + 3}, [1, 2]),
        ({"topic": "other"}, [1]),
        ({"topic": "call"}, []),
        ({"key": "a"}, [0]),
        ({"key": "b"}, [1, 3]),
        ({"key": ""}, [2]),
        ({"key": "b", "topic": "callbacks"}, [3]),
        ({"timer_id": "order-1"}, [0]),
        ({"timer_id": "order-1", "from": BEGIN_S + 1}, []),
        ({"timer_id": "order"}, []),
        ({"id_prefix": "order-"}, [0, 2]),
        ({"id_prefix": "order-", "key": "a"}, [0]),
        ({"id_prefix": "r"}, []),
        ({"contains": "RDER-"}, [0, 2]),
        ({"contains": "Other"}, [1]),
        ({"contains": "B"}, [0, 1, 2, 3]),
        ({"contains": "b", "topic": "other"}, [1]),
        ({"contains": "order-1 r"}, []),
    ],
)
async def test_filters(service: Service, wanted: dict[str, object], found: list[int]) -> None:
    names = service.ask(
        (BEGIN_S, {"callBackKey": "a", "timerId": "order-1"}),
        (BEGIN_S + 1, {"callBackKey": "b", "callBackTopic": "other"}),
        (BEGIN_S + 2, {"timerId": "order-2"}),
        (BEGIN_S + 3, {"callBackKey": "b", "callBack": b"a order-1 r"}),
    )
    async with workers(service, (0,), (1, 2)) as asked:
        assert named(await asked.page(10, **wanted)) == [names[each] for each in found]


async def test_a_cancelled_or_replaced_timer_is_not_pending(service: Service) -> None:
    service.ask((BEGIN_S, {"timerId": "a"}), (BEGIN_S, {"timerId": "b"}), (BEGIN_S, {"timerId": "c"}))
    service.ask((1, {"timerId": "a", "cancel": True}))
    (moved,) = service.ask((BEGIN_S + 5, {"timerId": "b"}))
    async with workers(service, (0, 1, 2)) as asked:
        assert len(named(await asked.page(10))) == 2
        assert named(await asked.page(10, timer_id="a")) == []
        assert named(await asked.page(10, timer_id="b")) == [moved]
        assert (await asked.ahead(BEGIN_S, BEGIN_S + 60, "second")).counts == {BEGIN_S: 1, BEGIN_S + 5: 1}


def test_of_what_waits_and_may_have_left_the_log_the_future_is_told(service: Service) -> None:
    """As the row has it, of one request or of several, and without those that were withdrawn."""
    ids = [timer_id for number in range(30) if partition_of(timer_id := f"id-{number}", PARTITIONS) == 0][:7]
    service.ask(*[(BEGIN_S, {"timerId": each}) for each in ids[:4]], (BEGIN_S + 1, {"timerId": ids[4]}))
    service.ask(*[(BEGIN_S, {"timerId": each}) for each in ids[5:]])
    versions = list(service.followers[0].store.versions([each.encode() for each in ids]))

    def kept(below: int) -> list[str]:
        partition = service.followers[0].partition
        partition.head = replace(partition.head, sweeps=(Swept(below=below),))
        (held,) = service.held(0).values()
        return [Future.FromString(held.kept(version)).timerId for version in versions if version]

    assert kept(7) == ids
    assert kept(5) == [*ids[:5], "", ""]
    # The first and the last one of a batch, whose key stays, and one that has a row of its own.
    for gone in (ids[0], ids[3], ids[4]):
        service.ask((1, {"timerId": gone, "cancel": True}))
    assert kept(7) == ["", *ids[1:3], "", "", *ids[5:]]


async def test_a_refused_request_is_not_pending(service: Service) -> None:
    service.followers[0].ingest(
        [Record(b"never", Future(callBackTopic="callbacks").SerializeToString(), 0, APPENDED_MS)], 1
    )
    async with workers(service, (0, 1, 2)) as asked:
        assert named(await asked.page(10)) == []
        assert (await asked.ahead(0, 60, "second")).counts == {}


@pytest.mark.parametrize("seed", range(5))
async def test_pages_of_any_size_tell_each_timer_once_and_counts_agree(service: Service, seed: int) -> None:
    chance = random.Random(seed)
    due_s: dict[str, int] = {}
    matching = set[str]()
    ids = list[str]()
    for _ in range(30):
        asked = []
        for _ in range(chance.randrange(1, 20)):
            more = {"callBackKey": chance.choice("ab"), "millis": chance.choice((0, 0, 7))}
            if chance.random() < 0.3:
                more |= {"timerId": f"id-{len(ids)}"}
                ids.append(more["timerId"])
            asked.append((BEGIN_S + chance.randrange(20), more))
        names = service.ask(*asked, partition=chance.randrange(PARTITIONS))
        due_s |= {name: second for name, (second, _) in zip(names, asked, strict=True)}
        matching |= {name for name, (_, more) in zip(names, asked, strict=True) if more["callBackKey"] == "a"}
    gone = chance.sample(ids, len(ids) // 3)
    async with workers(service, (0, 2), (1,)) as asked:
        before = await all_of(asked, 1_000)
        service.ask(*[(1, {"timerId": each, "cancel": True}) for each in gone])
        left = await all_of(asked, 1_000)
        assert len(left) == len(before) - len(gone)
        assert [due_s[name] for name in before] == sorted(due_s[name] for name in before)
        assert set(before) == due_s.keys()
        for limit in (chance.randrange(5, 20), chance.randrange(20, 90)):
            assert await all_of(asked, limit) == left
            assert await all_of(asked, limit, key="a") == [name for name in left if name in matching]
            assert len(await all_of(asked, limit, id_prefix="id-")) == len(ids) - len(gone)
        seconds = Counter(due_s[name] for name in left)
        assert (await asked.ahead(BEGIN_S, BEGIN_S + 20, "second")).counts == seconds
        assert (await asked.ahead(BEGIN_S + 5, BEGIN_S + 7, "second")).counts == {
            second: count for second, count in seconds.items() if BEGIN_S + 5 <= second < BEGIN_S + 7
        }
        hour = BEGIN_S - BEGIN_S % 3600
        assert sum((await asked.ahead(hour, hour + 7200, "hour")).counts.values()) == len(left)


async def test_many_ids_of_one_prefix_are_found_too(service: Service) -> None:
    names = service.ask(*[(BEGIN_S + number, {"timerId": f"many-{number}"}) for number in range(1_200)])
    async with workers(service, (0, 1, 2)) as asked:
        assert await all_of(asked, 100, id_prefix="many-") == names


async def test_a_partition_that_nobody_tells_of_is_unknown_and_the_rest_is_told(service: Service) -> None:
    names = [service.ask((BEGIN_S, {}), partition=number)[0] for number in range(PARTITIONS)]
    async with workers(service, (0,), (1,)) as asked:
        page = await asked.page(10)
        assert named(page) == names[:2]
        assert "--query-port" in page.unknown[2]
        await service.followers[1].close()
        page = await asked.page(10)
        assert named(page) == names[:1]
        assert page.unknown.keys() == {1, 2}


async def test_a_worker_that_is_gone_hides_no_more_than_its_own_timers(service: Service) -> None:
    (name,) = service.ask((BEGIN_S, {}), partition=0)
    async with serving(service.questions(0)) as server, aiohttp.ClientSession() as session:
        addresses = {0: server.address, 1: f"http://127.0.0.1:{free_port()}", 2: server.address}
        page = await Workers(session, addresses).page(10)
        assert named(page) == [name]
        assert "cannot be asked" in page.unknown[1]
        assert "has it no more, or not yet" in page.unknown[2]


@pytest.mark.parametrize(
    ("status", "answer", "told"),
    [
        (400, "unknown: 'limit'", "unknown: 'limit'"),
        (404, "", "answers 404"),
        (200, '{"rows": []}', "another version"),
        (200, "[1]", "another version"),
        (200, "{", "cannot be asked"),
    ],
)
async def test_a_worker_of_another_version_hides_no_more_than_its_own_timers(
    service: Service, status: int, answer: str, told: str
) -> None:
    (name,) = service.ask((BEGIN_S, {}), partition=0)
    own, session = serving(service.questions(0)), aiohttp.ClientSession()
    async with own as server, answering(status, answer) as other, session:
        asked = Workers(session, {0: server.address, 1: other})
        page, ahead = await asked.page(10), await asked.ahead(BEGIN_S, BEGIN_S + 1, "second")
        assert (named(page), ahead.counts) == ([name], {BEGIN_S: 1})
        assert told in page.unknown[1]
        assert told in ahead.unknown[1]
        assert 0 not in page.unknown | ahead.unknown


async def test_a_partition_that_is_given_up_while_it_is_read_is_unknown(service: Service) -> None:
    for number in range(PARTITIONS):
        service.ask(*[(BEGIN_S + each, {"millis": each % 1000}) for each in range(3_000)], partition=number)
    gate = PriorityGate()
    questions = Questions(lambda: service.held(0, 1, 2), PARTITIONS, gate, never, HostClock())
    with gate.firing():
        # It waits for callbacks that are being fired, after the first rows.
        asking = asyncio.create_task(questions.page(Wanted(key=b"nobody"), 10))
        await asyncio.sleep(0.1)
        await service.followers[1].close()
    page = await asking
    assert page.unknown == [1]


async def test_nobody_looks_on_from_shortly_before_a_tick_until_it_has_come(service: Service) -> None:
    class Stepping(HostClock):
        """Moves on by a millisecond each time it is asked."""

        now_s = 1_000.0

        def elapsed_s(self) -> float:
            self.now_s += 0.001
            return self.now_s

    for number in range(PARTITIONS):
        service.ask(*[(BEGIN_S + each, {}) for each in range(3_000)], partition=number)
    clock = Stepping()
    ticked_s = clock.now_s - 0.985
    questions = Questions(lambda: service.held(0, 1, 2), PARTITIONS, PriorityGate(), lambda: ticked_s, clock)
    asking = asyncio.create_task(questions.page(Wanted(key=b"nobody"), 10))
    await asyncio.sleep(0.2)
    assert not asking.done()
    ticked_s = clock.now_s
    assert (await asking).unknown == []


async def test_a_long_look_is_cut_and_goes_on_from_there(service: Service) -> None:
    looks = itertools.count()

    class Slow(HostClock):
        def elapsed_s(self) -> float:
            # From one look at the clock to the next.
            return next(looks) * 0.2

    service.ask(*[(BEGIN_S + each, {"callBackKey": f"{each}"}) for each in range(2_000)], partition=0)
    questions = Questions(lambda: service.held(0, 1, 2), PARTITIONS, PriorityGate(), never, Slow())
    pages, after = 0, None
    while True:
        page = await questions.page(Wanted(key=b"1999", after=after), 10)
        pages += 1
        if not page.after:
            break
        assert page.is_cut
        assert after is None or page.after > after
        after = page.after
    assert pages > 1
    assert [each.request.callBackKey for each in page.timers] == [b"1999"]
    assert (await questions.counts(BEGIN_S * 1000, (BEGIN_S + 3_000) * 1000, 60)).is_cut


# --- access, and valid questions --------------------------------------------------------------------------------------


async def got(url: str, **more: Any) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as session, session.get(url, **more) as answer:
        return answer.status, json.loads(await answer.text())


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/timers?limit=0", "from 1 to 1000"),
        ("/v1/timers?limit=1001", "from 1 to 1000"),
        ("/v1/timers?from=-1", "whole number"),
        ("/v1/timers?from=1e9", "whole number"),
        ("/v1/timers?to=" + "9" * 5_000, "whole number"),
        ("/v1/timers?after=1.2", "no place"),
        ("/v1/timers?after=1.2.3.x", "no place"),
        ("/v1/timers?topics=a", "unknown: 'topics'"),
        ("/v1/counts?unit=day", "second, minute, hour"),
        ("/v1/counts?unit=second&from=1&to=10000000", "shorter time"),
    ],
)
async def test_an_invalid_question_is_answered_with_a_valid_one(service: Service, path: str, words: str) -> None:
    async with serving(service.questions(0)) as server:
        status, told = await got(server.address + path)
    assert status == 400
    assert words in told["error"]


async def test_a_place_beyond_all_and_bytes_that_are_no_text_do_no_harm(service: Service) -> None:
    service.ask((BEGIN_S, {}))
    async with serving(service.questions(0, 1, 2)) as server:
        for path in (f"after={'9' * 14}.0.{2**63 - 1}.0", "key=%ff%fe", "timer_id=%ff", "id_prefix=%00", "to=0"):
            assert (await got(f"{server.address}/v1/timers?{path}"))[1]["timers"] == []


async def test_without_its_token_nothing_is_told(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    async with serving(service.questions(0), query_token_file=str(file)) as server:
        url = server.address + "/v1/timers"
        for headers in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "s3cret"}, {"Authorization": "é"}):
            assert (await got(url, headers=headers))[0] == 401, headers
        assert (await got(url, headers={"Authorization": "Bearer s3cret"}))[0] == 200
        async with aiohttp.ClientSession() as session:
            with pytest.raises(QueryError, match="token"):
                await Workers(session, {0: server.address}).page(1)


async def test_a_web_page_may_not_ask_even_if_its_name_leads_to_the_worker(service: Service) -> None:
    async with serving(service.questions(0)) as server:
        url = server.address + "/v1/timers"
        assert (await got(url, headers={"Origin": server.address}))[0] == 403
        for host in ("evil.example", "127.0.0.1.evil.example", "", "[", "a b"):
            assert (await got(url, headers={"Host": host}))[0] in (400, 403), host
        for host in ("localhost:8073", "127.0.0.1", "[::1]:8073"):
            assert (await got(url, headers={"Host": host}))[0] == 200, host


async def test_with_tls_a_client_without_our_certificate_is_not_let_in(service: Service, tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "worker.pem"))
    settings = {
        "query_certificate": str(tmp_path / "worker.pem"),
        "query_client_ca": str(tmp_path / "ca.pem"),
    }

    def shown(by: trustme.CA | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        if by:
            by.issue_cert("who.asks").configure_cert(context)
        return context

    async with serving(service.questions(0), **settings) as server:
        url = server.address + "/v1/timers"
        assert url.startswith("https://")
        assert (await got(url, ssl=shown(authority)))[0] == 200
        for by in (None, other):
            with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
                await got(url, ssl=shown(by))


async def test_before_the_worker_knows_its_kafka_it_says_so() -> None:
    async with serving(None) as server:
        status, told = await got(server.address + "/v1/timers")
    assert status == 503
    assert "not connected" in told["error"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"query_host": "0.0.0.0"}, "query_token_file"),
        ({"query_host": "10.0.0.1"}, "query_token_file"),
        ({"query_host": "0.0.0.0", "query_token_file": "t"}, "query_address"),
        ({"query_client_ca": "ca.pem"}, "query_certificate"),
        ({"query_port": 65_530, "processes": 10}, "query_port 65530"),
        ({"query_port": 8_070, "port": 8_072, "processes": 4}, "further apart"),
    ],
)
def test_settings_that_would_leave_it_open_or_out_of_reach_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        WorkerSettings(**({"query_port": 8_073} | given))


def test_a_token_that_is_missing_or_empty_is_told(tmp_path: Path) -> None:
    for file in (tmp_path / "none", tmp_path / "empty"):
        (tmp_path / "empty").write_text("\n")
        with pytest.raises(SettingsError, match="query_token_file"):
            QueryServer(WorkerSettings(query_port=8_073, query_token_file=str(file)), lambda: None, str)


def test_a_place_is_told_as_text_and_read_again() -> None:
    place = Place(1_900_000_000_250, 3, 2**63, 17)
    assert Place.of(str(place)) == place
