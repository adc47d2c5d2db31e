"""
The private names and the layouts of aiokafka and Faust that the service relies on, tried on the installed versions.

If a test fails here after an upgrade, `broker/internals.py`, or the module that the test names, no longer works as it
says. No test needs a broker.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import faust
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.client import CoordinationType
from aiokafka.errors import RequestTimedOutError

from kafka_timers.broker.internals import (
    Member,
    connection_of,
    have_read_committed,
    member_id_of,
    transactional_id_of,
)
from kafka_timers.settings import WorkerSettings
from kafka_timers.worker.assignor import StoreAssignor
from kafka_timers.worker.membership import make_app

AT = TopicPartition("oscillator", 0)


class NoTokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """Gives no token; nobody asks."""

    async def token(self) -> str:
        raise AssertionError("nothing connects")


CONNECTIONS: list[dict[str, Any]] = [
    {"bootstrap_servers": "a:1,b:2"},
    {"bootstrap_servers": ["a:1", "b:2"]},
    {"security_protocol": "SSL", "ssl_context": ssl.create_default_context()},
    {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "user",
        "sasl_plain_password": "password",
    },
    {
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(),
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": NoTokens(),
    },
    {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "user",
        "sasl_plain_password": "password",
        "sasl_kerberos_service_name": "service",
        "sasl_kerberos_domain_name": "domain",
    },
]


Make = Callable[..., Any]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Make a client of a class, not started, and end it with the test."""
    made = []

    def make(kind: type, **options: Any) -> Any:
        made.append(kind(**options))
        return made[-1]

    yield make
    for client in made:
        await client.stop()


# --- aiokafka's producer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", CONNECTIONS, ids=lambda given: "-".join(given))
async def test_a_producer_tells_how_it_connects(make: Make, given: dict[str, Any]) -> None:
    producer = make(AIOKafkaProducer, **given)
    where, options = connection_of(producer)
    assert where == ("a:1,b:2" if "bootstrap_servers" in given else "localhost")
    assert {name: options[name] for name in given if name != "bootstrap_servers"} == {
        name: value for name, value in given.items() if name != "bootstrap_servers"
    }
    # A consumer takes all of them, and connects in the same way.
    consumer = make(AIOKafkaConsumer, bootstrap_servers=where, **options)
    own, others = vars(consumer._client), vars(producer.client)
    connection = [name for name in others if name.startswith(("_sasl", "_ssl", "_security"))]
    assert {name.removeprefix("_") for name in connection} == set(options)
    assert {name: own[name] for name in connection} == {name: others[name] for name in connection}


async def test_a_producer_tells_its_transactional_id(make: Make) -> None:
    assert transactional_id_of(make(AIOKafkaProducer, transactional_id="worker.3")) == "worker.3"
    assert transactional_id_of(make(AIOKafkaProducer, enable_idempotence=True)) is None
    assert transactional_id_of(make(AIOKafkaProducer)) is None


# --- Faust's consumer ------------------------------------------------------------------------------------------------


class Started:
    """A worker's Faust app, and the consumer of its thread, as both are when partitions are assigned."""

    def __init__(self, folder: Path) -> None:
        async def ignore(*_: object) -> None:
            pass

        settings = WorkerSettings(data_dir=str(folder), session_timeout_s=2)
        self.app: Any = make_app(settings, 1, "http://w", ignore, ignore, lambda _: None)
        self.thread = cast(Any, self.app.consumer)._thread
        self.consumer = self.thread._create_consumer(loop=asyncio.get_running_loop())

    async def start(self) -> None:
        async def connect() -> None:
            pass

        # Instead of a broker.
        self.consumer._client.bootstrap = connect
        self.thread._create_consumer = lambda loop: self.consumer
        # Its first work in its own thread.
        await type(self.thread).on_start(self.thread)


@pytest.fixture
async def started(tmp_path: Path) -> AsyncIterator[Started]:
    """A consumer that is started, of an app that is not."""
    made = Started(tmp_path)
    await made.start()
    yield made
    await made.consumer.stop()
    # Its thread would have closed it.
    made.thread.thread_loop.close()


async def test_a_worker_is_a_member_of_its_group_and_reads_nothing_by_that(started: Started) -> None:
    """Its ticks are read by `worker/ticks.py`; the orders to the fetcher have the form that it expects."""
    assert isinstance(started.consumer, Member)
    fetcher = started.consumer._fetcher
    fetches, resets, _, is_stale, paused = type(fetcher)._get_actions_per_node(fetcher, SimpleNamespace(tps=[]))
    assert fetcher._get_actions_per_node(SimpleNamespace(tps=[AT])) == (fetches, resets, None, is_stale, paused)


async def test_a_worker_that_reads_nothing_by_its_membership_is_not_told_to_hang(
    started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    """Faust looks for that every 12 s, and says so of each partition from the fifth minute on."""
    faust_consumer = started.app.consumer
    started.consumer.assign([AT])
    faust_consumer.assignment = lambda: {AT}
    started.thread.time_started -= 600
    await faust_consumer.verify_all_partitions_active()
    assert "faust" not in {record.name.split(".")[0] for record in caplog.records}
    del faust_consumer.verify_event_path
    await faust_consumer.verify_all_partitions_active()
    assert "has not sent fetch request" in caplog.text


@pytest.mark.parametrize("committed", [True, False])
async def test_agents_of_a_user_read_committed_records_once_they_are_told_to(committed: bool) -> None:
    app: Any = faust.App("receivers", broker="kafka://127.0.0.1:9")
    if committed:
        have_read_committed(app)
    thread = app.consumer._thread
    consumer = thread._create_consumer(loop=asyncio.get_running_loop())

    async def connect() -> None:
        pass

    consumer._client.bootstrap = connect
    await consumer.start()
    # The isolation level of each fetch: 1 is committed.
    assert consumer._fetcher._isolation_level == int(committed)
    await consumer.stop()
    # Its thread would have closed it.
    thread.thread_loop.close()


async def test_a_member_asks_one_broker_after_the_other_for_the_coordinator_and_waits_for_none_for_long(
    started: Started,
) -> None:
    """A frozen one among them costs one question, also where its connection is open."""
    client = started.consumer._client
    assert client._request_timeout_ms == 4_000
    client.cluster.brokers = lambda: [SimpleNamespace(nodeId=node) for node in (3, 1, 2)]
    asked: list[int] = []

    async def send(node: int, request: object) -> object:
        asked.append(node)
        raise RequestTimedOutError

    client.send = send
    for _ in range(6):
        with pytest.raises(RequestTimedOutError):
            await client.coordinator_lookup(CoordinationType.GROUP, "g")
    assert sorted(asked[:3]) == [1, 2, 3]
    assert asked[3:] == asked[:3]


async def test_a_consumer_tells_the_id_of_its_membership(started: Started) -> None:
    assert member_id_of(started.app) == ""
    started.consumer._coordinator.member_id = "a-1"
    assert member_id_of(started.app) == "a-1"


async def test_the_group_assigns_partitions_by_the_stores_of_its_members(started: Started) -> None:
    """Faust takes the assignor of the app only where tables may have standbys, as by its default."""
    assert [type(each) for each in started.consumer._partition_assignment_strategy] == [StoreAssignor]
