"""
The private names and the layouts of aiokafka and Faust that the service relies on, tried on the installed versions.

If a test fails here after an upgrade, `broker/internals.py`, or the module that the test names, no longer does what it
says. No test needs a broker.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.protocol import fetch

from kafka_timers.broker.epoch import _DescribeTransactions
from kafka_timers.broker.internals import connection_of, identity_of, set_fetch_wait, transactional_id_of
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


async def test_a_producer_tells_the_id_and_the_epoch_that_the_broker_gave_it(make: Make) -> None:
    producer = make(AIOKafkaProducer, transactional_id="worker.3")
    assert identity_of(producer) == ("worker.3", -1, -1)
    # As the part of it does that asks the broker, when the answer comes.
    producer._sender._txn_manager.set_pid_and_epoch(1_000_007, 5)
    assert identity_of(producer) == ("worker.3", 1_000_007, 5)


# --- Faust's consumer ------------------------------------------------------------------------------------------------


class Started:
    """A worker's Faust app, and the consumer of its thread, as both are when partitions are assigned."""

    def __init__(self, folder: Path) -> None:
        async def ignore(*_: object) -> None:
            pass

        settings = WorkerSettings(data_dir=str(folder), session_timeout_s=2)
        self.app: Any = make_app(settings, 1, lambda *_: None, ignore, ignore)
        self.app.finalize()
        self.thread = cast(Any, self.app.consumer)._thread
        self.consumer = self.thread._create_consumer(loop=asyncio.get_running_loop())

    async def start(self) -> None:
        async def connect() -> None:
            pass

        # Instead of a broker.
        self.consumer._client.bootstrap = connect
        self.thread._create_consumer = lambda loop: self.consumer
        # What it does first in its own thread.
        await type(self.thread).on_start(self.thread)

    def fetch_wait_ms(self) -> int:
        """Return how long the next fetch asks the broker to wait."""
        fetcher = self.consumer._fetcher
        fetcher._select_read_replica = lambda _: 1
        state = SimpleNamespace(has_valid_position=True, paused=False, position=7)
        assignment = SimpleNamespace(tps=[AT], state_value=lambda _: state)
        [(_, request)] = fetcher._get_actions_per_node(assignment)[0]
        built = request.build(fetch.FetchRequest_v4)
        return int(built.to_object()["max_wait_time"])


@pytest.fixture
async def started(tmp_path: Path) -> AsyncIterator[Started]:
    """A consumer that is started, of an app that is not."""
    made = Started(tmp_path)
    await made.start()
    yield made
    await made.consumer.stop()
    # Its thread would have closed it.
    made.thread.thread_loop.close()


async def test_the_wait_of_the_next_fetch_is_the_one_that_was_set(started: Started) -> None:
    assert started.fetch_wait_ms() == 1500
    set_fetch_wait(started.app, 200)
    assert started.fetch_wait_ms() == 200


async def test_the_group_assigns_partitions_by_the_stores_of_its_members(started: Started) -> None:
    """Faust takes the assignor of the app only where tables may have standbys, as by its default."""
    assert [type(each) for each in started.consumer._partition_assignment_strategy] == [StoreAssignor]


# --- layouts of public names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4, 12))
def test_a_fetched_partition_has_its_fields_where_the_fetcher_takes_them_from(version: int) -> None:
    """`broker/fetching.py` counts from the ends, since versions differ in between."""
    response = getattr(fetch, f"FetchResponse_v{version}")
    schema = response.SCHEMA
    topics = schema.fields[schema.names.index("topics")].array_of
    names = topics.fields[topics.names.index("partitions")].array_of.names
    assert names[:4] == ("partition", "error_code", "highwater_offset", "last_stable_offset")
    assert names[-1] == "message_set"
    assert names[-3 if version >= 11 else -2] == "aborted_transactions"


def test_no_fetch_has_a_later_version() -> None:
    assert max(struct.API_VERSION for struct in fetch.FetchRequest._CLASSES) == 11


def test_the_question_after_a_transaction_is_what_kafka_reads() -> None:
    """`broker/epoch.py` adds the request DescribeTransactions to those of aiokafka."""
    request = _DescribeTransactions("t.3").prepare({65: (0, 0)})
    assert request.encode() == b"\x02" + b"\x04t.3" + b"\x00"
    answer = (
        b"\x00\x00\x00\x00"  # throttled for 0 ms
        b"\x02\x00\x00\x04t.3\x06Empty"  # one transaction, no error, its id and state
        b"\x00\x00\x27\x10" + b"\xff" * 8  # 10,000 ms, begun at no time
    )
    answer += (1_000_007).to_bytes(8, "big") + (5).to_bytes(2, "big") + b"\x01" + b"\x00\x00"
    told = request.RESPONSE_TYPE.decode(BytesIO(answer))
    [(code, name, state, _, _, producer_id, epoch, *_)] = told.transaction_states
    assert (code, name, state, producer_id, epoch) == (0, "t.3", "Empty", 1_000_007, 5)
