"""
Private names of aiokafka and Faust that the service needs; no other module uses any.

A private name may change with any version without a sign: a value that we set may have no effect, and a value that we
read may mean something else. So all of them are here, each with the behaviour that we rely on.
tests/unit/test_internals.py, and of logins tests/integration/test_sessions.py, test it on the installed versions.
Faust itself is not imported, since a client of the service need not have it.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from itertools import count
from time import monotonic
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import client as client_module
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.admin import SaslAuthenticateRequest, SaslHandShakeRequest

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
    Return the transactional id of *producer*; None if it has none.

    aiokafka keeps it in the transaction manager. An idempotent producer has one too; other producers have none.
    """
    manager = producer._txn_manager
    return None if manager is None else manager.transactional_id


def connection_of(producer: AIOKafkaProducer) -> tuple[str, dict[str, Any]]:
    """
    Return how *producer* connects: its brokers (host:port, comma separated), and its TLS and SASL options.

    aiokafka's client keeps each option unchanged, under its name with a leading underscore. A consumer takes the same
    options.
    """
    client = producer.client
    brokers = client._bootstrap_servers
    where = brokers if isinstance(brokers, str) else ",".join(brokers)
    return where, {name: getattr(client, f"_{name}") for name in _CONNECTION}


# Share of a session after which to log in again. What was sent before, and waits behind other requests, must arrive in
# the session: a broker closes the connection of a request that it reads later. Kafka's own clients wait for 85 %.
_SESSION_SHARE = 0.7


class Connection(AIOKafkaConnection):  # type: ignore[misc]  # aiokafka has no types
    """
    A connection that logs in again before the broker ends its session (KIP-368); aiokafka's own ignores that end.

    It does so before the next request, however late that comes: a broker takes a login also after the end. Requests
    before it are answered first, and later ones wait for it.
    """

    _renew_at_s = math.inf
    _renewal: asyncio.Task[None] | None = None

    def send(self, request: Any, expect_response: bool = True) -> Awaitable[Any]:
        """Send *request*, and return what awaits its answer."""
        if isinstance(request, SaslAuthenticateRequest):
            return self._authenticated(super().send(request))
        if self._renewal is None and monotonic() >= self._renew_at_s:
            self._renew_at_s = math.inf
            self._renewal = asyncio.create_task(self._do_sasl_handshake())
            self._renewal.add_done_callback(self._renewed)
        if self._renewal is None or isinstance(request, SaslHandShakeRequest):
            answer: Awaitable[Any] = super().send(request, expect_response)
            return answer
        return self._send_after(self._renewal, request, expect_response)

    async def _authenticated(self, answering: Awaitable[Any]) -> Any:
        answer = await answering
        # Version 0 has no such field.
        if session_ms := getattr(answer, "session_lifetime_ms", 0):
            self._renew_at_s = monotonic() + _SESSION_SHARE * session_ms / 1000
        return answer

    async def _send_after(self, renewal: asyncio.Task[None], request: Any, expect_response: bool) -> Any:
        # A caller that gives up takes the login from no other one.
        await asyncio.shield(renewal)
        return await super().send(request, expect_response)

    def _renewed(self, renewal: asyncio.Task[None]) -> None:
        self._renewal = None
        if not renewal.cancelled() and (error := renewal.exception()):
            # Half a login is of no use. Those who wait for it are told why.
            self.close(exc=error)


async def connect(host: str, port: int, **options: Any) -> Connection:
    """Return a connection to a broker that has answered, as aiokafka's `create_conn` does."""
    connection = Connection(host, port, **options)
    await connection.connect()
    return connection


class ConnectionTo(Connection):
    """
    A connection to one *address* of its host. The certificate is that of the host all the same.

    aiokafka gives its event loop the name of the host, and the loop chooses.
    """

    def __init__(self, address: str, host: str, port: int, **options: Any) -> None:
        super().__init__(host, port, **options)
        self._loop: Any = _LoopTo(asyncio.get_running_loop(), address)


class _LoopTo:
    """The event *loop*, but for the address that it connects to."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str) -> None:
        self._loop, self._address = loop, address

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(self, protocol: Callable[[], Any], host: str, port: int, ssl: Any) -> Any:
        name = host if ssl else None
        return await self._loop.create_connection(protocol, self._address, port, ssl=ssl, server_hostname=name)


# A member must be back before its session ends. A new coordinator starts the session anew.
_LIMIT_MS = 4_000


def as_member(client: Any) -> None:
    """
    Limit *client* to 4 s for a connection or an answer, and make it ask another broker each time. It logs in again
    before its sessions end, as all of aiokafka's clients in this process do from now on: they have no setting for it.

    aiokafka makes one connection at a time, picks a random broker, and gives each request the same time. With the half
    minute that JoinGroup may take, a member whose coordinator was frozen was out of its group for a minute. The request
    can be repeated: the member sends its first id again.

    Args:
        client: the client of a member that has not been started.
    """
    client_module.create_conn = connect
    client._request_timeout_ms = _LIMIT_MS
    turns = count()

    def next_node() -> int | None:
        nodes = sorted(broker.nodeId for broker in client.cluster.brokers())
        return nodes[next(turns) % len(nodes)] if nodes else None

    client.get_random_node = next_node


class Member(AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's consumer as a mere group member: it gets partitions assigned and reads no records."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_client":
            as_member(value)
        if name == "_fetcher" and value is not None:
            # The values: fetches, positions to look up, their time, whether metadata is old, and other futures to wait
            # for.
            value._get_actions_per_node = lambda _: ([], {}, None, False, [])
        super().__setattr__(name, value)


def read_nothing(app: Any) -> None:
    """
    Turn the consumer of *app* into a `Member`; Faust has no setting for it. The app has not been started. Its thread
    will make a consumer of a class with the same fields.
    """
    # After five minutes Faust takes a consumer that has fetched nothing for one that hangs. It logs an error for each
    # partition every 12 s.
    app.consumer.verify_event_path = lambda now, tp: None

    def changed(consumer: Any) -> None:
        consumer.__class__ = Member
        as_member(consumer._client)

    _with_consumer(app, changed)


def have_read_committed(app: Any) -> None:
    """
    Make the consumer of *app* read committed records only; Faust has no setting for it outside its transactions. The
    app has not been started.
    """

    def changed(consumer: Any) -> None:
        # The fetcher is made when the consumer starts, and uses this value.
        consumer._isolation_level = "read_committed"

    _with_consumer(app, changed)


def _with_consumer(app: Any, change: Callable[[Any], None]) -> None:
    """Call *change* with the consumer of *app* once its thread has made it, before it starts."""
    thread = app.consumer._thread
    create = thread._create_consumer

    def created(loop: Any) -> Any:
        consumer = create(loop)
        change(consumer)
        return consumer

    thread._create_consumer = created


def topics_assigned(assignor: Any) -> list[str]:
    """Return the names that the last assignment of Faust's *assignor* gave a group to."""
    return [*assignor._topic_groups]


def member_id_of(app: Any) -> str:
    """
    Return the member id of the consumer of *app* in its group; empty before it has joined.

    Args:
        app: a Faust app with a started consumer, as is the case whenever partitions are assigned. The consumer keeps
            its id when it joins again, unless the coordinator has forgotten it.
    """
    return str(app.consumer._thread._consumer._coordinator.member_id)
