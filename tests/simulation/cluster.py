"""
Stand-ins for connections to brokers: `broker.cluster.Cluster` runs on them, and all that asks it.

Requests are those of the shipped code and are answered as brokers do. So its handling of answers that are lost,
refused, late or out of date is tried too: numbers of records, epochs, leaders, ends of logs.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from zlib import crc32

from aiokafka.client import CoordinationType
from aiokafka.errors import (
    BrokerResponseError,
    InvalidTxnState,
    KafkaTimeoutError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
)
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)
from aiokafka.record.memory_records import MemoryRecords

from kafka_timers.broker import codes
from kafka_timers.broker.fetching import Fetched
from kafka_timers.broker.requests import (
    ApiVersions,
    EpochEnd,
    Fetch,
    ListOffsets,
    Metadata,
    Produce,
    ProduceInTransaction,
)
from kafka_timers.broker.transaction_requests import CommitOffsets, CommittedOffsets, EndTransaction, InitProducerId
from kafka_timers.core.log_identity import mark_of
from simulation.faults import Faults
from simulation.kafka import NODES, Kafka
from simulation.log import Log, Record, View
from simulation.network import Network
from simulation.sessions import Sessions

_INVALID_REQUEST, _NOT_ENOUGH_REPLICAS, _COORDINATOR_NOT_AVAILABLE, _NOT_COORDINATOR = 42, 19, 15, 16
_INVALID_TIMESTAMP = 32
# message.timestamp.after.max.ms, as it is by default.
_AHEAD_MS = 3_600_000
_OFFSETS = "__consumer_offsets"
# More than the shipped code waits, so that its own limit counts.
_LIMIT_S = 10.0
_CLOSE_S = 2.5


class Part(NamedTuple):
    """The answer to a fetch about one partition, instead of the bytes of batches: the fields of `Fetched`."""

    records: Iterator[Record]
    behind: int
    is_large: bool
    mark: bytes = b""


def parsed(data: Part | bytes, aborted: Sequence[Any], position: int, stable: int, end: int, epoch: int) -> Fetched:
    """Stand in for `broker.fetching.parsed`."""
    if isinstance(data, bytes):  # no records
        return Fetched(iter(()), position, False, stable, end, epoch)
    return Fetched(data.records, data.behind, data.is_large, stable, end, epoch, data.mark)


class Brokers:
    """
    The brokers, as one process reaches them; stands in for `broker.connection.Kafka`.

    Args:
        kafka: their logs and settings.
        network: the way there.
        faults: the faults of the history.
        seed: of how much lies in one answer; None gives all there is.

    Attributes:
        records_max: of requests in one answer.
    """

    def __init__(self, kafka: Kafka, network: Network, faults: Faults, seed: object = None) -> None:
        self._kafka, self._network, self._faults = kafka, network, faults
        self._rng = None if seed is None else random.Random(f"{seed}/fetches")
        self.records_max = 1 << 30
        self._sessions = Sessions()

    def client_options(self) -> dict[str, Any]:
        """Return the options of each connection."""
        return {"bootstrap_servers": [f"broker:{node}" for node in NODES], "brokers": self}

    async def ask(self, node: int, request: Any) -> Any:
        """Return the answer of broker *node*."""
        answer, poll = await self._answer(node, request)
        answered = await self._network.ask(node, answer, limit_s=_LIMIT_S, poll=poll)
        if isinstance(request, (EndTransaction, EndTxnRequest)):
            self._faults.maybe("commit_is_not_answered", KafkaTimeoutError)
        elif isinstance(request, (Produce, ProduceInTransaction)):
            self._faults.maybe("batch_is_not_answered")
        elif isinstance(request, ListOffsets) and request.topic == self._kafka.own.requests:
            await self._faults.delay("ends_are_slow")
        return answered

    async def greet(self, node: int) -> None:
        """Return once broker *node* has described itself, as each new connection begins."""
        await self._network.ask(node, lambda: None, limit_s=_LIMIT_S)

    def disconnect(self) -> "asyncio.Future[None] | None":
        """Return the call that closes a connection; None if it is closed."""
        if not self._faults.drawn("stop_is_slow"):
            return None
        closed: asyncio.Future[None] = self._network.loop.create_future()
        self._network.loop.outside(_CLOSE_S, closed.set_result, None)
        return closed

    async def _answer(self, node: int, request: Any) -> tuple[Callable[[], Any], Any]:
        """Return the function that gives the answer, and the condition that the broker waits for before it does."""
        faults = self._faults
        poll = None
        answer: Callable[[], Any]
        match request:
            case Metadata():
                answer = lambda: self._metadata(node, request)  # noqa: E731
            case DescribeConfigsRequest():
                faults.maybe("look_up_fails")
                answer = lambda: self._described(request)  # noqa: E731
            case ApiVersions():
                answer = self._versions
            case FindCoordinatorRequest():
                answer = lambda: self._found(node, *_fields(request))  # noqa: E731
            case InitProducerId():
                if request.producer_id < 0:
                    await faults.delay("start_is_slow")
                answer = lambda: self._let_in(request, 0)  # noqa: E731
                if request.transactional_id is not None:
                    answer = self._of_coordinator(node, lambda code: self._let_in(request, code))
            case AddPartitionsToTxnRequest():
                answer = self._of_coordinator(node, lambda code: self._join(_fields(request), code))
            case AddOffsetsToTxnRequest():
                answer = self._of_coordinator(node, lambda code: self._join_group(_fields(request), code))
            case TxnOffsetCommitRequest():
                name, group, _, epoch, [(topic, listed)] = _fields(request)
                offsets = {number: offset for number, offset, _ in listed}
                answer = lambda: self._commit(node, (name, epoch), group, topic, offsets, joins=False)  # noqa: E731
            case CommitOffsets():
                name, group, _, epoch, topic, offsets, _ = _fields(request)
                answer = lambda: self._commit(node, (name, epoch), group, topic, offsets, joins=True)  # noqa: E731
            case CommittedOffsets():
                answer = lambda: self._committed(node, request)  # noqa: E731
            case EndTransaction() | EndTxnRequest():
                await faults.delay("commit_is_slow")
                faults.maybe("commit_is_lost", KafkaTimeoutError)
                answer = self._of_coordinator(node, lambda code: self._end(_fields(request), code))
            case Produce() | ProduceInTransaction():
                answer = lambda: self._produce(node, request)  # noqa: E731
            case ListOffsets():
                faults.maybe("seals_fail" if request.topic == self._kafka.own.sealed else "ends_fail")
                answer = lambda: self._offsets(node, request)  # noqa: E731
            case EpochEnd():
                answer = lambda: self._epoch_end(node, request)  # noqa: E731
            case Fetch():
                if request.topic == self._kafka.own.requests:
                    faults.maybe("fetch_fails")
                answer = lambda: self._fetched(node, request)  # noqa: E731
                poll = (self._kafka, lambda: self._has_some(node, request), request.wait_ms / 1000)
            case _:
                raise AssertionError(f"nobody answers {request!r}")
        return answer, poll

    # --- members -----------------------------------------------------------------------------------------------------

    def _metadata(self, node: int, request: Metadata) -> Any:
        brokers = [(each, "broker", each, None, {}) for each in dict.fromkeys((*NODES, self._kafka.coordinator))]
        topics = [self._topic(node, name) for name in request.topics]
        return SimpleNamespace(cluster_id="simulated", brokers=brokers, topics=topics)

    def _topic(self, node: int, name: str) -> tuple[Any, ...]:
        found = self._kafka.topics.get(name)
        if found is None or not found.exists:
            return codes.UNKNOWN_TOPIC_OR_PARTITION, name, bytes(16), False, [], 0, {}
        partitions = []
        for number in range(found.partitions):
            log = self._kafka.logs[name, number]
            # One that was cut off has heard of nothing since.
            old = log.out_of_date.get(node)
            leader, epoch = (node, old.epoch) if old else (log.leader, log.epoch)
            in_sync = [leader] if found.is_short else [*NODES]
            partitions.append((0, number, leader, epoch, [*NODES], in_sync, [], {}))
        topic_id = b"%b %d" % (name.encode(), found.born) if self._kafka.tells_ids else bytes(16)
        return 0, name, topic_id, False, partitions, 0, {}

    def _described(self, request: DescribeConfigsRequest) -> Any:
        return SimpleNamespace(resources=[self._settings(name, names) for _, name, names in request._resources])

    def _settings(self, name: str, names: Sequence[str] | None) -> tuple[int, str, int, str, list[tuple[Any, ...]]]:
        topic = self._kafka.topics.get(name)
        if topic is None or not topic.exists:
            return codes.UNKNOWN_TOPIC_OR_PARTITION, "", 2, name, []
        if topic.refuses and topic.is_compacted:
            return codes.TOPIC_AUTHORIZATION_FAILED, "", 2, name, []
        policy = "compact" if topic.is_compacted else "delete"
        values = {"max.message.bytes": str(topic.bytes_max), "cleanup.policy": policy}
        values |= {"message.timestamp.type": "LogAppendTime", "min.insync.replicas": "2"}
        shown = values if names is None else names
        return 0, "", 2, name, [(key, values[key], False, 5, False, []) for key in shown]

    def _versions(self) -> Any:
        level = self._kafka.transaction_version
        name = b"transaction.version"
        feature = bytes((2, len(name) + 1)) + name + level.to_bytes(2, "big") * 2 + b"\0"
        return SimpleNamespace(tags={2: feature})

    def _found(self, node: int, _: str, kind: int) -> Any:
        coordinator = node if node == self._kafka.former_coordinator else self._kafka.coordinator
        if kind == CoordinationType.GROUP:
            offsets = self._kafka.offsets
            coordinator = node if node == offsets.former else offsets.coordinator
        return SimpleNamespace(error_code=0, coordinator_id=coordinator, host="broker", port=coordinator)

    # --- transactions ------------------------------------------------------------------------------------------------

    def _of_coordinator(self, node: int, answer: Callable[[int], Any]) -> Callable[[], Any]:
        """Return the function that gives the answer; it gets the number of the error if there is none."""

        def answered() -> Any:
            if node != self._kafka.coordinator:
                return answer(_NOT_COORDINATOR)
            return answer(_COORDINATOR_NOT_AVAILABLE if self._faults.drawn("coordinator_fails") else 0)

        return answered

    def _let_in(self, request: InitProducerId, code: int) -> Any:
        identity = (-1, -1)
        if not code:

            def let_in() -> None:
                nonlocal identity, code
                name = request.transactional_id
                if request.producer_id < 0:
                    given = self._kafka.init(name)
                else:
                    given = self._kafka.renew(name or "", (request.producer_id, request.epoch))
                identity, code = given or identity, 0 if given else codes.CONCURRENT_TRANSACTIONS

            code = _code_of(let_in) or code
        return SimpleNamespace(error_code=code, producer_id=identity[0], producer_epoch=identity[1])

    def _join(self, asked: Any, code: int) -> Any:
        name, _, epoch, topics = asked
        if not code:
            code = _code_of(lambda: self._kafka.join(name, epoch, topics))
        return SimpleNamespace(errors=[(topic, [(number, code) for number in numbers]) for topic, numbers in topics])

    def _end(self, asked: Any, code: int) -> Any:
        name, producer_id, epoch, is_commit = asked
        following = epoch
        if not code:

            def end() -> None:
                nonlocal following
                following = self._kafka.end(name, (producer_id, epoch), is_commit=is_commit)

            code = _code_of(end)
        return SimpleNamespace(error_code=code, producer_id=producer_id, producer_epoch=following)

    # --- offsets of groups -------------------------------------------------------------------------------------------

    def _join_group(self, asked: Any, code: int) -> Any:
        name, _, epoch, group = asked
        if not code:
            code = _code_of(lambda: self._kafka.of(name, epoch, joins=(_OFFSETS, group)))
        return SimpleNamespace(error_code=code)

    def _commit(
        self, node: int, producer: tuple[str, int], group: str, topic: str, offsets: dict[int, int], *, joins: bool
    ) -> Any:
        code = _COORDINATOR_NOT_AVAILABLE if node == self._kafka.offsets.former else _NOT_COORDINATOR
        if node == self._kafka.offsets.coordinator:

            def commit() -> None:
                place = (_OFFSETS, group)
                transaction = self._kafka.of(*producer, joins=place if joins else None)
                if place not in transaction.joined:
                    raise InvalidTxnState
                for number, offset in offsets.items():
                    self._kafka.offsets.write(transaction, (group, topic, number), offset)

            code = _code_of(commit)
        return SimpleNamespace(errors=[(topic, [(number, code, {}) for number in offsets], {})])

    def _committed(self, node: int, request: CommittedOffsets) -> Any:
        offsets, place, code = self._kafka.offsets, (request.group, request.topic, request.number), 0
        offset = offsets.committed(place)
        if node == offsets.former:
            offset = offsets.as_former_tells(place)
        elif node != offsets.coordinator:
            code = _NOT_COORDINATOR
        elif not offsets.is_stable(place):
            code = codes.UNSTABLE_OFFSET_COMMIT
        part = (request.number, -1 if code else offset, -1, "", code, {})
        return SimpleNamespace(error_code=0, topics=[(request.topic, [part], {})])

    # --- records -----------------------------------------------------------------------------------------------------

    def _produce(self, node: int, request: Produce | ProduceInTransaction) -> Any:
        topics = []
        for (topic, number), data in request.batches.items():
            code = self._append(node, request, topic, number, bytes(data))
            # Where the first record of the batch lies, if it was appended now.
            offset = -1 if code else self._kafka.logs[topic, number].end - _count(data)
            topics.append((topic, [(number, code, offset, self._kafka.now_at(node), 0, [], None, {})], {}))
        return SimpleNamespace(topics=topics)

    def _append(self, node: int, request: Produce | ProduceInTransaction, topic: str, number: int, data: bytes) -> int:
        if self._faults.drawn("write_fails"):
            return _INVALID_REQUEST
        if self._faults.drawn("replicas_are_missing"):
            return _NOT_ENOUGH_REPLICAS
        batch = MemoryRecords(data).next_batch()
        sent = list(batch)
        records = [Record(each.key, each.value, headers=tuple(each.headers)) for each in sent]
        own = self._kafka.own
        # Brokers stamp records of these themselves.
        if (
            topic not in (own.requests, own.oscillator, own.sealed, own.schedules)
            and max(each.timestamp for each in sent) > self._kafka.now_at(node) + _AHEAD_MS
        ):
            return _INVALID_TIMESTAMP
        if code := self._kafka.refusal(topic, number, len(data), records):
            if code == _NOT_ENOUGH_REPLICAS and isinstance(request, ProduceInTransaction):
                # The leader has the partition join before it looks at the replicas.
                with suppress(BrokerResponseError):
                    self._kafka.of(request.transactional_id, batch.producer_epoch, joins=(topic, number))
            return code
        log = self._kafka.logs[topic, number]
        if node != log.leader:
            # The others do not take records of a leader that was cut off.
            return _NOT_ENOUGH_REPLICAS if node in log.out_of_date else NotLeaderForPartitionError.errno
        transaction = None
        if name := request.transactional_id:
            try:
                joins = isinstance(request, ProduceInTransaction)
                transaction = self._kafka.of(name, batch.producer_epoch, joins=(topic, number) if joins else None)
            except BrokerResponseError as error:
                return error.errno
            if (topic, number) not in transaction.joined:
                return _INVALID_REQUEST
        if code := log.numbered((batch.producer_id, batch.producer_epoch), batch.base_sequence, len(records)):
            return code
        for record in records:
            record.transaction = transaction
            log.append(record, self._kafka.now_at(node))
        return 0

    def _offsets(self, node: int, request: ListOffsets) -> Any:
        return SimpleNamespace(topics=[(request.topic, [self._bound(node, request, at) for at in request.numbers], {})])

    def _epoch_end(self, node: int, request: EpochEnd) -> Any:
        log = self._kafka.logs[request.topic, request.number]
        view, code = log.view(node), 0
        if view is None:
            code = codes.NOT_LEADER
        elif request.current_epoch != view.epoch:
            is_old = request.current_epoch < view.epoch
            code = codes.FENCED_LEADER_EPOCH if is_old else codes.UNKNOWN_LEADER_EPOCH
        end = view.end if view and view.epoch < log.epoch else log.kept(request.epoch)
        return SimpleNamespace(topics=[(request.topic, [(code, request.number, request.epoch, end, {})], {})])

    def _bound(self, node: int, request: ListOffsets, number: int) -> tuple[Any, ...]:
        log = self._kafka.logs[request.topic, number]
        view = log.view(node)
        if view is None:
            return number, codes.NOT_LEADER, -1, -1, -1, {}
        offset, epoch = view.stable if request.is_committed else view.end, view.epoch
        if request.moment >= 0:
            records = log.records[view.start : offset]
            offset = next((each.offset for each in records if each.timestamp >= request.moment), -1)
        if request.moment == request.START:
            # The epoch is that of the first record.
            offset, epoch = self._start(request.topic, view), 0
        return number, 0, -1, offset, epoch, {}

    def _start(self, topic: str, view: View) -> int:
        """Return the first offset: of a compacted log `start` is how far that has come."""
        return 0 if topic == self._kafka.own.sealed else view.start

    def _has_some(self, node: int, request: Fetch) -> bool:
        for number, (_, position) in self._sessions.positions(node, request).items():
            view = self._kafka.logs[request.topic, number].view(node)
            if view is None or view.stable > position:
                return True
        return False

    def _fetched(self, node: int, request: Fetch) -> Any:
        if self._faults.drawn("sessions_are_lost"):
            self._sessions.forget()
        return self._sessions.answer(node, request, partial(self._part, node, request))

    def _part(self, node: int, request: Fetch, number: int, epoch: int, position: int) -> tuple[Any, ...]:
        log = self._kafka.logs[request.topic, number]
        view, code = log.view(node), 0
        if view is None:
            code = codes.NOT_LEADER
        elif epoch not in (-1, view.epoch):
            code = codes.FENCED_LEADER_EPOCH if epoch < view.epoch else codes.UNKNOWN_LEADER_EPOCH
        elif not self._start(request.topic, view) <= position <= view.end:
            code = OffsetOutOfRangeError.errno
        if code or view is None:
            return number, code, -1, -1, -1, None, -1, None, {}
        part = self._some(log, position, view.stable)
        data = part if part.behind > position else None
        return number, 0, view.end, view.stable, self._start(request.topic, view), None, -1, data, {}

    def _some(self, log: Log, position: int, stable: int) -> Part:
        if log.topic == self._kafka.own.sealed:
            return Part(iter(_left_by_compaction(log, position, stable)), max(stable, position), False)
        # A few records, so that a history has many fetches.
        count = self._rng.randint(1, 5) if self._rng else self.records_max
        behind = max(min(stable, position + count), position)
        is_large = self._rng is not None and behind < stable and self._rng.random() < 0.5
        mark = b""
        if behind > position:
            first = log.records[position]
            mark = mark_of(position, first.timestamp, crc32(first.value or b""))
        return Part(log.committed(position, behind), behind, is_large, mark)


class Connection:
    """Stands in for aiokafka's connection to one broker."""

    def __init__(self, node: int, brokers: Brokers) -> None:
        self._node, self._brokers = node, brokers

    @classmethod
    async def open(cls, _: str, port: int, *, brokers: Brokers, **__: Any) -> "Connection":
        """Stand in for `dial`."""
        await brokers.greet(port)
        return cls(port, brokers)

    async def send(self, request: Any) -> Any:
        """Return the broker's answer."""
        return await self._brokers.ask(self._node, request)

    def connected(self) -> bool:
        """Tell that it is."""
        return True

    def close(self) -> "asyncio.Future[None] | None":
        """Disconnect, which may take a while."""
        return self._brokers.disconnect()


def hosts_of(bootstrap_servers: list[str]) -> list[tuple[str, int, None]]:
    """Stand in for `collect_hosts`, which shuffles by no seed."""
    return [(host, int(port), None) for host, port in (each.split(":") for each in bootstrap_servers)]


def _left_by_compaction(log: Log, position: int, stable: int) -> list[Record]:
    """Return the readable rest of a compacted log; `start` is the end of the compaction so far."""
    later: set[bytes | None] = set()
    left = []
    for record in reversed(list(log.committed(0, stable))):
        if record.offset >= log.start or record.key not in later:
            left.append(record)
        later.add(record.key)
    return [record for record in reversed(left) if record.offset >= position]


def _count(data: Any) -> int:
    return len(list(MemoryRecords(bytes(data)).next_batch()))


def _fields(request: Any) -> tuple[Any, ...]:
    """Return the fields of *request* in the order of the message, for our classes and for aiokafka's."""
    return tuple(vars(request).values())


def _code_of(do: Callable[[], object]) -> int:
    try:
        do()
    except BrokerResponseError as error:
        return error.errno
    return 0
