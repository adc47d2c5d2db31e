"""
The private names of aiokafka and Faust that the service cannot do without; no other module touches any.

A private name may change with any version, and nothing would tell: one that is set would be set in vain, one that is
read could mean something else. So they are all here, each with what is relied on, and tests/unit/test_internals.py
tries that on the installed versions. Faust itself is not imported, since a client of the service need not have it.
"""

from collections.abc import Callable
from itertools import count
from types import FunctionType, MethodType
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.consumer.fetcher import Fetcher

from kafka_timers.broker.odd_batches import AnyRecords

__all__ = [
    "Consumer",
    "Member",
    "PromptConsumer",
    "connection_of",
    "have_read_committed",
    "hurry",
    "member_id_of",
    "read_nothing",
    "transactional_id_of",
]

_CONNECTION = (
    "security_protocol",
    "ssl_context",
    "sasl_mechanism",
    "sasl_plain_username",
    "sasl_plain_password",
    "sasl_kerberos_service_name",
    "sasl_kerberos_domain_name",
    "sasl_oauth_token_provider",
)


def transactional_id_of(producer: AIOKafkaProducer) -> str | None:
    """
    Return the transactional id that *producer* was made with; None without one.

    aiokafka keeps it in the transaction manager, which an idempotent producer has as well, and any other has not.
    """
    manager = producer._txn_manager
    return None if manager is None else manager.transactional_id


def connection_of(producer: AIOKafkaProducer) -> tuple[str, dict[str, Any]]:
    """
    Return how *producer* connects: its brokers, host:port, comma separated, and the options of TLS and SASL.

    aiokafka's client keeps each option as it was given, under its name with an underscore before it. A consumer takes
    the same options.
    """
    client = producer.client
    brokers = client._bootstrap_servers
    where = brokers if isinstance(brokers, str) else ",".join(brokers)
    return where, {name: getattr(client, f"_{name}") for name in _CONNECTION}


def _with_any_records(method: Callable[..., Any]) -> Callable[..., Any]:
    known: Any = method
    return FunctionType(known.__code__, known.__globals__ | {"MemoryRecords": AnyRecords}, known.__name__)


# Makes records of a broker's answer, and finds its parser as a global of aiokafka's module. Replaced there, every
# consumer of the process would have another parser, those of our users' own too; so it is a function of its own here.
_TAKE_ANSWER = _with_any_records(Fetcher._proc_fetch_request)


class Consumer(AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka has no types
    """
    aiokafka's consumer, for records whose headers have names of any bytes; `odd_batches` says how they are told.

    aiokafka's own raises on such a record, whoever looks at its headers, and then never comes past it.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        # `start` makes the fetcher, and that begins to fetch before `start` returns.
        if name == "_fetcher" and value is not None:
            value._proc_fetch_request = MethodType(_TAKE_ANSWER, value)
        super().__setattr__(name, value)


# A member has to be back before its session ends, which begins anew with a new coordinator.
_LIMIT_MS = 4_000


def hurry(client: Any) -> None:
    """
    Have *client* wait no longer than 4 s for a connection or an answer, and ask another broker each time.

    aiokafka makes one connection at a time, asks a broker that it draws, and gives each request the same time. So a
    member whose coordinator is frozen was out of its group for a minute with the half minute that JoinGroup may take,
    and a producer whose leader is frozen had the whole time of its caller gone with one request. Both can be asked
    again: the member tells the id that it was given first, the producer the number of the batch.

    Args:
        client: of a consumer or an idempotent producer that has not been started.
    """
    client._request_timeout_ms = _LIMIT_MS
    turns = count()

    def next_node() -> int | None:
        nodes = sorted(broker.nodeId for broker in client.cluster.brokers())
        return nodes[next(turns) % len(nodes)] if nodes else None

    client.get_random_node = next_node


class PromptConsumer(Consumer):
    """A `Consumer` in a hurry, for who reads what is written now: 4 s may be too short for a large answer."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_client":
            hurry(value)
        super().__setattr__(name, value)


class Member(AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's consumer as a member of its group, which gets partitions assigned and reads nothing of them."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_client":
            hurry(value)
        if name == "_fetcher" and value is not None:
            # Fetches, looks for positions, their time, whether metadata is old, and what else to wait for.
            value._get_actions_per_node = lambda _: ([], {}, None, False, [])
        super().__setattr__(name, value)


def read_nothing(app: Any) -> None:
    """
    Have the consumer of *app* be a `Member`; Faust has no setting for it.

    Args:
        app: of Faust; not started. It makes its consumer, of a class that has the same fields, when its thread starts.
    """

    def changed(consumer: Any) -> None:
        consumer.__class__ = Member
        hurry(consumer._client)

    _with_consumer(app, changed)


def have_read_committed(app: Any) -> None:
    """
    Have the consumer of *app* read committed records; Faust ties that to its transactions.

    Args:
        app: of Faust; not started.
    """

    def changed(consumer: Any) -> None:
        # The fetcher, which is made when the consumer starts, asks with it.
        consumer._isolation_level = "read_committed"

    _with_consumer(app, changed)


def _with_consumer(app: Any, change: Callable[[Any], None]) -> None:
    """Have *change* called with the consumer of *app* once its thread has made it, and before it starts."""
    thread = app.consumer._thread
    create = thread._create_consumer

    def created(loop: Any) -> Any:
        consumer = create(loop)
        change(consumer)
        return consumer

    thread._create_consumer = created


def member_id_of(app: Any) -> str:
    """
    Return the id by which the group's coordinator knows the consumer of *app*; empty before it has joined.

    Args:
        app: of Faust; its consumer has been started, as it is whenever partitions are assigned. It keeps its id when it
            joins again, unless the coordinator had forgotten it.
    """
    return str(app.consumer._thread._consumer._coordinator.member_id)
