"""
The transaction coordinator, as the producer of one transactional id uses it.

There are two protocols. In the first, the producer asks the coordinator to add each partition to the transaction, and
keeps its epoch until another producer takes over. In the second (KIP-890, Kafka 4.0), a write adds the partition, and
the end of each transaction raises the epoch, so that a delayed write cannot join a later transaction. We use the second
where the brokers have agreed on it.

A new producer with the same transactional id gets a later epoch and fences the one before: the brokers abort its open
transaction and refuse its writes.
"""

import asyncio
from collections.abc import Collection
from operator import attrgetter
from typing import Any, NamedTuple

from aiokafka.client import CoordinationType
from aiokafka.errors import InvalidTransactionTimeout, ProducerFenced
from aiokafka.protocol.api import Request
from aiokafka.protocol.transaction import AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, EndTxnRequest

from kafka_timers.broker import codes
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.coordinator_calls import CoordinatorLink, gravest
from kafka_timers.broker.requests import ApiVersions, transaction_version_in
from kafka_timers.broker.transaction_requests import EndTransaction, InitProducerId
from kafka_timers.errors import SettingsError

_SECOND_PROTOCOL = 2
# A silent broker is replaced within 9 s, and the next coordinator needs some seconds to read its log. Without an open
# transaction there is time to wait for that.
_ELECTION_S = 15.0


class Identity(NamedTuple):
    """Producer id and epoch, by which brokers know a producer."""

    producer_id: int
    epoch: int


class Coordinator:
    """
    One producer's requests to its coordinator, and the producer's identity.

    Each raises ProducerFenced if another producer has taken over, and another `aiokafka.errors.KafkaError` if the
    coordinator does not answer or refuses.

    Args:
        transactional_id: id of the producer; None for one without transactions.
        timeout_s: seconds after which brokers abort a transaction; also the limit of each method except `is_held`.

    Attributes:
        identity: producer id and epoch, set by `init`. It may change with each transaction.
        link: the connection to the coordinator.
        joins_by_writing: True if a write adds a partition to the transaction (the second protocol).
    """

    def __init__(self, cluster: Cluster, transactional_id: str | None, timeout_s: float, lane: str) -> None:
        self.identity = Identity(-1, -1)
        self.joins_by_writing = False
        self._cluster = cluster
        self._name = transactional_id
        self._timeout_s = timeout_s
        self.link = CoordinatorLink(cluster, CoordinationType.TRANSACTION, transactional_id, timeout_s, lane)

    async def init(self) -> None:
        """
        Become the producer of the transactional id, and fence the one before.

        Raises:
            SettingsError: the brokers allow no transaction to last that long.
        """
        request = InitProducerId(self._name, int(self._timeout_s * 1000))
        try:
            self._is_now(await self._obeyed(request, "let in"))
        except InvalidTransactionTimeout as error:
            # Only the broker knows its limit, and its error names only a setting of the broker.
            raise SettingsError(
                f"transaction_timeout_s {self._timeout_s}: the broker takes at most its own "
                "transaction.max.timeout.ms: give less, or raise that one"
            ) from error
        if self._name is not None:
            async with asyncio.timeout(self._timeout_s):
                agreed = transaction_version_in(await self._cluster.ask_any(ApiVersions()))
            self.joins_by_writing = agreed >= _SECOND_PROTOCOL

    async def add(self, partitions: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """
        Add *partitions* to the transaction, and return those that were refused, with the error number.

        If one partition is refused, none is added: all others have `OPERATION_NOT_ATTEMPTED` then.
        """
        by_topic: dict[str, list[int]] = {}
        for topic, number in partitions:
            by_topic.setdefault(topic, []).append(number)

        def errors_in(answer: Any) -> dict[tuple[str, int], int]:
            return {(topic, number): code for topic, numbers in answer.errors for number, code in numbers if code}

        answer = await self.link.ask(
            AddPartitionsToTxnRequest(self._name, *self.identity, list(by_topic.items())),
            lambda answer: gravest(errors_in(answer).values()),
            to="add partitions to a transaction",
        )
        errors = errors_in(answer)
        if others := codes.OF_THE_PRODUCER.intersection(errors.values()):
            self.link.refuse(min(others), "add partitions to a transaction")
        return errors

    async def add_group(self, group: str) -> None:
        """Add the offsets of *group* to the transaction; needed in the first protocol only."""
        what = f"add the offsets of group {group} to a transaction"
        await self._obeyed(AddOffsetsToTxnRequest(self._name or "", *self.identity, group), what)

    async def end(self, *, is_commit: bool) -> None:
        """
        Commit or abort the transaction.

        Raises:
            ProducerFenced: another producer has taken over; the transaction is not committed.
            aiokafka.errors.KafkaError: any other error; the transaction may be committed or not.
        """
        what = "commit" if is_commit else "abort"
        name = self._name or ""
        request = EndTxnRequest(name, *self.identity, is_commit)
        if self.joins_by_writing:
            request = EndTransaction(name, *self.identity, is_commit=is_commit)
        answer = await self._obeyed(request, what)
        if self.joins_by_writing:
            self._is_now(answer)

    async def is_held(self) -> bool:
        """
        Tell whether, at some moment after the call, no other producer had taken over. No transaction may be open.

        The coordinator *writes* a later epoch for this. A mere answer would prove nothing, since a coordinator that was
        cut off from the others does not know of a later producer. Another producer may take over right after the
        answer.
        """
        request: Request[Any]
        if self.joins_by_writing:
            # An abort of nothing. If its answer is lost together with the coordinator, the next one knows the repeated
            # request by its epoch. It would take a repeated InitProducerId for that of another producer, since the
            # transaction log has no place for the epoch before (KAFKA-20357).
            request = EndTransaction(self._name or "", *self.identity, is_commit=False)
        else:
            request = InitProducerId(self._name, int(self._timeout_s * 1000), *self.identity)
        limit_s = max(self._timeout_s, _ELECTION_S)
        try:
            self._is_now(await self._obeyed(request, "write a later epoch", limit_s))
        except ProducerFenced:
            return False
        return True

    async def _obeyed(self, request: Request[Any], what: str, limit_s: float | None = None) -> Any:
        return await self.link.obeyed(request, attrgetter("error_code"), what, limit_s)

    def _is_now(self, answer: Any) -> None:
        self.identity = Identity(answer.producer_id, answer.producer_epoch)
