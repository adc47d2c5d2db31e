"""
Connections to the brokers of a cluster, and the leaders of its partitions.

A broker may be silent without closing its connections, and a former leader may not know that it leads no more. So each
question has a limit in seconds. A broker that misses it loses its connection, and is asked last where other brokers can
answer too. A silent broker never delays a question to another broker.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, Self

from aiokafka.client import CoordinationType
from aiokafka.conn import AIOKafkaConnection, collect_hosts
from aiokafka.errors import (
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    RequestTimedOutError,
    StaleMetadata,
    for_code,
)
from aiokafka.protocol.api import Request
from aiokafka.protocol.coordination import FindCoordinatorRequest

from kafka_timers.broker import codes
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.dialing import dial
from kafka_timers.broker.lanes import SharedLanes
from kafka_timers.broker.requests import Metadata
from kafka_timers.errors import BrokerVersionError, LoginError

log = logging.getLogger(__name__)

# Limit of a question in seconds. It includes making the connection.
LIMIT_S = 4.0
# A question that any broker can answer goes to one more broker after this time.
_ASK_NEXT_S = 0.5
# Before this time nobody checks whether the right broker was asked.
_DOUBT_S = 1.0
# Time that a broker which was silent gets to open a connection.
_GREETING_S = 1.0
_CLOSE_S = 1.0
_THROTTLED_EVERY_S = 60.0
# The lane of questions that any broker can answer.
ANY_LANE = "any"


@asynccontextmanager
async def limited(limit_s: float, why: Callable[[], str]) -> AsyncIterator[None]:
    """
    Limit the time of a block that asks again and again.

    Raises:
        KafkaTimeoutError: the block took longer than *limit_s* seconds; its text comes from *why*.
    """
    try:
        async with asyncio.timeout(limit_s) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise KafkaTimeoutError(why()) from error


class _Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Leader(NamedTuple):
    """The broker `node` that leads a partition, and its leader epoch."""

    node: int
    epoch: int


class Cluster:
    """
    Connections to all brokers of a cluster. Use `open` to make one.

    Questions of one *lane* to one broker are answered one after the other, so a slow question needs a lane of its own.
    Or several take turns on a lane, which has more connections if need be: see `send_in_turn`.
    All questions, and `open`, raise `aiokafka.errors.KafkaError` if no broker answers.

    Args:
        options: connection options. They override those of *kafka*.

    Attributes:
        id: cluster id; empty if the cluster has none.
    """

    def __init__(self, kafka: Kafka, limit_s: float = LIMIT_S, **options: Any) -> None:
        options = kafka.client_options() | options
        self.limit_s = limit_s
        self.id = ""
        self._entries = [_Address(host, port) for host, port, _ in collect_hosts(options.pop("bootstrap_servers"))]
        # Longer than our own limit, so that ours applies.
        self._options = options | {"request_timeout_ms": int(limit_s * 2000), "max_idle_ms": None}
        self._brokers: dict[int, _Address] = {}
        # Topic ids, and the error of each topic that has none.
        self._topics: dict[str, bytes] = {}
        self._wrong: dict[str, int] = {}
        # Broker -1 means that the partition has no leader. Such an entry has a leader epoch too.
        self._leaders: dict[tuple[str, int], Leader] = {}
        self._replicas: dict[tuple[str, int], tuple[int, ...]] = {}
        # Set when a leader of the topic changes.
        self._moves: dict[str, asyncio.Future[None]] = {}
        self._connections: dict[tuple[_Address, str], asyncio.Task[AIOKafkaConnection]] = {}
        self._shared = SharedLanes[tuple[int, str]](lambda key, number: self._hang_up(_name_of(*key, number)))
        self._refreshing: asyncio.Task[None] | None = None
        # Asked last.
        self._silent: set[_Address] = set()
        self._turn = -1
        self._tell_throttled_s = 0.0

    @classmethod
    @asynccontextmanager
    async def open(cls, kafka: Kafka, limit_s: float = LIMIT_S, **options: Any) -> AsyncIterator[Self]:
        """Connect, and close all connections at the end."""
        cluster = cls(kafka, limit_s, **options)
        try:
            await cluster.refresh()
            yield cluster
        finally:
            await cluster.close()

    async def close(self) -> None:
        """Close all connections. Questions that are still open end with an error."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])
        await _closed(self._close(list(self._connections)))

    async def close_lane(self, lane: str) -> None:
        """Close the connections of *lane*."""
        await _closed(self._hang_up(lane))

    def _hang_up(self, lane: str) -> list["asyncio.Future[Any]"]:
        return self._close(key for key in list(self._connections) if key[1] == lane)

    def _close(self, keys: Iterable[tuple[_Address, str]]) -> list["asyncio.Future[Any]"]:
        """Close connections, and return what is done once they are closed."""
        closing: list[asyncio.Future[Any]] = []
        for key in keys:
            opening = self._connections.pop(key)
            if not opening.done():
                opening.cancel()
                # The task closes its socket itself, and the end of the event loop would not wait for that.
                closing.append(opening)
            elif not _has_failed(opening) and (closed := opening.result().close()):
                closing.append(closed)
        return closing

    # --- leaders ------------------------------------------------------------------------------------------------------

    def name_of(self, node: int) -> str:
        """Return a name of broker *node* for messages, with its address if known."""
        address = self._brokers.get(node)
        return f"broker {node} at {address}" if address else f"broker {node}"

    async def look_up(self, topics: Iterable[str]) -> None:
        """Ask for the leaders of *topics* now, and again with each later `refresh`."""
        for topic in topics:
            self._topics.setdefault(topic, b"")
        if self._refreshing is not None:
            # The question in flight was sent without these topics.
            await asyncio.wait([self._refreshing])
        await self.refresh()

    def leader(self, topic: str, partition: int) -> Leader | None:
        """Return the leader of a partition as far as known; None before the first `refresh` that finds one."""
        self._topics.setdefault(topic, b"")
        leader = self._leaders.get((topic, partition))
        return None if leader is None or leader.node < 0 else leader

    def led(self, topic: str, numbers: Iterable[int]) -> dict[int, list[int]]:
        """
        Return the partitions *numbers* of *topic* by the node that leads them. Partitions without a known leader are
        left out.
        """
        by_node: dict[int, list[int]] = {}
        for number in numbers:
            leader = self.leader(topic, number)
            if leader is not None:
                by_node.setdefault(leader.node, []).append(number)
        return by_node

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of *topic*, as far as known."""
        return sorted(number for name, number in self._replicas if name == topic)

    def replicas(self, topic: str, partition: int) -> tuple[int, ...]:
        """Return the brokers that have a replica of a partition, and so may lead it, as far as known."""
        return self._replicas.get((topic, partition), ())

    def why_no_leader(self, topic: str, partition: int) -> int:
        """Return the error number that explains why `leader` returned None; 0 before a `refresh`."""
        if topic in self._wrong:
            return self._wrong[topic]
        if not self._topics.get(topic):
            return 0
        is_known = (topic, partition) in self._leaders
        return codes.LEADER_NOT_AVAILABLE if is_known else codes.UNKNOWN_TOPIC_OR_PARTITION

    async def moved(self, topic: str) -> None:
        """Return once a partition of *topic* has another leader than at the time of the call, as far as known."""
        move = self._moves.get(topic)
        if move is None:
            move = self._moves[topic] = asyncio.get_running_loop().create_future()
        await asyncio.shield(move)

    async def refresh(self) -> None:
        """Look up the brokers again, and the leaders of all topics that were asked for."""
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._refresh())
            self._refreshing.add_done_callback(self._refreshed)
        await asyncio.shield(self._refreshing)

    def _refreshed(self, task: "asyncio.Task[None]") -> None:
        self._refreshing = None
        _look_at(task)

    async def _refresh(self) -> None:
        answer = await self.ask_any(Metadata(list(self._topics)))
        self.id = answer.cluster_id or ""
        self._brokers = {node: _Address(host, port) for node, host, port, *_ in answer.brokers}
        for code, topic, topic_id, _, partitions, *_ in answer.topics:
            if code:
                self._wrong[topic], self._topics[topic] = code, b""
                self._leaders = {at: leader for at, leader in self._leaders.items() if at[0] != topic}
                continue
            if self._topics[topic] != topic_id:
                # The topic was recreated. Its epochs start again, and it may have fewer partitions.
                self._leaders = {at: leader for at, leader in self._leaders.items() if at[0] != topic}
                self._replicas = {at: nodes for at, nodes in self._replicas.items() if at[0] != topic}
            self._topics[topic] = topic_id
            self._wrong.pop(topic, None)
            for _, number, node, epoch, replicas, *_ in partitions:
                self._replicas[topic, number] = tuple(replicas)
                self.learn(topic, number, Leader(node, epoch))

    def topic_id(self, topic: str) -> bytes:
        """
        Return the id of *topic*, which a recreated topic does not share; empty if it is not known. It is sixteen zeros
        where brokers tell no ids.
        """
        return self._topics.get(topic, b"")

    def learn(self, topic: str, partition: int, leader: Leader) -> None:
        """Note the *leader* that a broker reports. A leader of an earlier epoch than the known one is ignored."""
        known = self._leaders.get((topic, partition))
        if known == leader or (known and known.epoch > leader.epoch):
            return
        self._leaders[topic, partition] = leader
        if move := self._moves.pop(topic, None):
            move.set_result(None)

    async def coordinator(self, kind: CoordinationType, name: str) -> int:
        """Return the broker that coordinates the transactional id *name*, or the group of that name."""
        answer = await self.ask_any(FindCoordinatorRequest(name, kind))
        if answer.error_code:
            raise for_code(answer.error_code)(
                f"no coordinator of {name} is told of: {codes.name_of(answer.error_code)}"
            )
        node: int = answer.coordinator_id
        self._brokers.setdefault(node, _Address(answer.host, answer.port))
        return node

    def any_node(self) -> int:
        """
        Return a broker, preferably one that answers.

        Raises:
            StaleMetadata: no broker is known.
        """
        if not self._brokers:
            raise StaleMetadata("no broker is known")
        return min(self._brokers, key=lambda node: self._brokers[node] in self._silent)

    # --- questions ---------------------------------------------------------------------------------------------------

    async def send(
        self, node: int, request: Request[Any], *, lane: str, has_moved: Callable[[], Awaitable[bool]] | None = None
    ) -> Any:
        """
        Return the answer of broker *node*.

        Args:
            lane: the question waits behind earlier ones of this lane.
            has_moved: returns True if another broker should be asked by now. Called once a second while there is no
                answer.

        Raises:
            StaleMetadata: another broker should be asked, or *node* is not known. A broker that was asked may have
                obeyed.
            RequestTimedOutError: no answer within the limit. The broker may have obeyed.
            KafkaConnectionError: the broker cannot be reached, or broke the connection.
            aiokafka.errors.KafkaError: the broker does not know this kind of request.
        """
        address = self._brokers.get(node)
        if address is None:
            raise StaleMetadata(f"broker {node} is not known")
        if has_moved is None:
            return await self._ask(address, request, lane)
        asking = asyncio.create_task(self._ask(address, request, lane))
        asking.add_done_callback(_look_at)
        try:
            while not (await asyncio.wait([asking], timeout=_DOUBT_S))[0]:
                if await has_moved() and not asking.done():
                    self._silent.add(address)
                    raise StaleMetadata(
                        f"{self.name_of(node)} has not answered {type(request).__name__}, and is not the one to ask now"
                    )
            return asking.result()
        finally:
            asking.cancel()

    async def send_in_turn(
        self, node: int, request: Request[Any], *, lane: str, has_moved: Callable[[], Awaitable[bool]] | None = None
    ) -> Any:
        """
        Return the answer of broker *node*, as `send` does, on a *lane* that others use too.

        A connection has one question at a time. So long as each is answered within a quarter second, one connection to
        a broker is enough for all; otherwise, there are more for a while.
        """
        async with self._shared.one((node, lane)) as number:
            name = _name_of(node, lane, number)
            try:
                return await self.send(node, request, lane=name, has_moved=has_moved)
            except BaseException:
                # The next question would wait behind this one, if that is still open.
                self._hang_up(name)
                raise

    async def has_lost(self, node: int, places: Iterable[tuple[str, int]]) -> bool:
        """
        Look the leaders up again, and tell whether another broker than *node* leads any of the partitions *places*.
        """
        with suppress(KafkaError):
            await self.refresh()
        return any(leader.node != node for place in places if (leader := self.leader(*place)) is not None)

    async def ask_any(self, request: Request[Any]) -> Any:
        """
        Return the first answer of any broker.

        Raises:
            LoginError: there are no credentials to log in with.
            BrokerVersionError: no broker answers, and one of them does not know it in a version that is used.
        """
        return (await self._ask_some(request, 1, [*dict.fromkeys((*self._brokers.values(), *self._entries))]))[0]

    async def ask_two(self, request: Request[Any]) -> list[Any]:
        """Return the answers of two brokers, since one may have been cut off; of one if only one answers."""
        return await self._ask_some(request, 2, [*(self._brokers.values() or self._entries)])

    async def ask_all(self, request: Request[Any]) -> list[Any]:
        """Return the answers of all brokers except silent ones."""
        known = [*(self._brokers.values() or self._entries)]
        return await self._ask_some(request, len(known), known)

    async def _ask_some(self, request: Request[Any], count: int, known: list[_Address]) -> list[Any]:
        """Return the first *count* answers of brokers at the addresses *known*, or as many as there are."""
        # A broker that was cut off from the others gives old answers, so each question begins with another broker.
        self._turn = (self._turn + 1) % len(known)
        left = sorted(known[self._turn :] + known[: self._turn], key=lambda address: address in self._silent)
        asked: dict[asyncio.Task[Any], _Address] = {}
        answers: list[Any] = []
        why: list[str] = []
        lasting: LoginError | BrokerVersionError | None = None
        try:
            while left or asked:
                if left:
                    address = left.pop(0)
                    asked[asyncio.create_task(self._ask(address, request, ANY_LANE))] = address
                done, _ = await asyncio.wait(
                    asked, timeout=_ASK_NEXT_S if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                # In the order of the questions, so that a seed of the simulation gives one history.
                for task in [task for task in asked if task in done]:
                    del asked[task]
                    if (error := task.exception()) is None:
                        answers.append(task.result())
                        if len(answers) == count:
                            return answers
                        continue
                    if not isinstance(error, KafkaError):
                        raise error
                    if isinstance(error, LoginError | BrokerVersionError):
                        lasting = error
                    why.append(str(error))
        finally:
            # This includes a broker that is merely slow.
            self._silent.update(asked.values())
            for task in asked:
                task.cancel()
        if answers:
            return answers
        raise lasting or KafkaConnectionError(f"no broker answers: {'; '.join(why)}")

    async def _ask(self, address: _Address, request: Request[Any], lane: str) -> Any:
        key, what = (address, lane), type(request).__name__
        where = str(address)
        opening = self._opening(key)
        # A broker that stays silent also on a new connection is given up early.
        greeting_s = min(_GREETING_S, self.limit_s) if address in self._silent else self.limit_s
        greeting = asyncio.timeout(greeting_s)
        try:
            async with asyncio.timeout(self.limit_s):
                async with greeting:
                    connection = await asyncio.shield(opening)
                answer = await connection.send(request)
        except TimeoutError as error:
            self._silent.add(address)
            await self._drop(key, opening)
            waited_s = greeting_s if greeting.expired() else self.limit_s
            raise RequestTimedOutError(f"{where} has not answered {what} within {waited_s:g} s") from error
        except asyncio.CancelledError as error:
            # Another question that waited for the same connection was cancelled. This one was not.
            task = asyncio.current_task()
            if not opening.cancelled() or (task and task.cancelling()):
                raise
            raise KafkaConnectionError(f"{where} cannot be asked for {what}: it does not answer") from error
        except LoginError:
            # The broker is fine.
            await self._drop(key, opening)
            raise
        except (IncompatibleBrokerVersion, NotImplementedError) as error:
            # aiokafka's own requests raise the second one.
            raise BrokerVersionError(f"the broker at {where} is too old, or lacks a part of Kafka: {error}") from error
        except (OSError, KafkaConnectionError) as error:
            self._silent.add(address)
            await self._drop(key, opening)
            is_new = isinstance(error, KafkaConnectionError) and _has_failed(opening)
            why = ", before its first answer: has it a limit on connections, or does it want TLS?" if is_new else ""
            raise KafkaConnectionError(f"{where} cannot be asked for {what}: {error}{why}") from error
        self._silent.discard(address)
        now_s, throttled_ms = asyncio.get_running_loop().time(), getattr(answer, "throttle_time_ms", 0)
        if throttled_ms and now_s >= self._tell_throttled_s:
            self._tell_throttled_s, client = now_s + _THROTTLED_EVERY_S, self._options.get("client_id")
            log.warning("broker %s throttles client %s by %d ms: it is above a quota", where, client, throttled_ms)
        return answer

    def _opening(self, key: tuple[_Address, str]) -> "asyncio.Task[AIOKafkaConnection]":
        opening = self._connections.get(key)
        if opening and opening.done() and (_has_failed(opening) or not opening.result().connected()):
            opening = None
        if opening is None:
            (host, port), _ = key
            opening = self._connections[key] = asyncio.create_task(dial(host, port, **self._options))
            opening.add_done_callback(_look_at)
        return opening

    async def _drop(self, key: tuple[_Address, str], opening: "asyncio.Task[AIOKafkaConnection]") -> None:
        """Close a connection, unless another one has replaced it."""
        if self._connections.get(key) is opening:
            await _closed(self._close([key]))


def _name_of(node: int, lane: str, number: int) -> str:
    """Return the name of the lane of one connection among those that share *lane*."""
    return f"{lane} of {node}, {number}"


async def _closed(closing: Collection["asyncio.Future[Any]"]) -> None:
    if closing:
        await asyncio.wait(closing, timeout=_CLOSE_S)


def _has_failed(task: "asyncio.Task[Any]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _look_at(task: "asyncio.Task[Any]") -> None:
    # The caller that waited may be gone, and asyncio logs an exception that was never retrieved.
    with suppress(asyncio.CancelledError):
        task.exception()
