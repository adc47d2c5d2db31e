"""
The coordinator of transactions, as the producer of one transactional id talks to it.

There are two protocols. In the first a partition joins the transaction by a question to the coordinator, and the
producer keeps its epoch until another one is let in. In the second (KIP-890, Kafka 4.0) it joins by being written to,
and the end of each transaction raises the epoch, so that what is still on its way can join no later one. The second is
spoken where the brokers have agreed on it.

Whoever is let in with a transactional id has a later epoch than the one before, which is shut out by that: what it has
open is aborted, what it still sends is refused.
"""

import asyncio
from collections.abc import Collection
from typing import Any, NamedTuple

from aiokafka.client import CoordinationType
from aiokafka.errors import ProducerFenced
from aiokafka.protocol.transaction import AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, EndTxnRequest

from kafka_timers.broker import codes
from kafka_timers.broker.asking import CoordinatorLink, gravest
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.transaction_requests import EndTransaction, InitProducerId

__all__ = ["Coordinator", "Identity"]

_SECOND_PROTOCOL = 2
# A broker that is silent is replaced within 9 s, and the next coordinator has read its log some seconds later. Where no
# transaction is open that can be waited for.
_ELECTION_S = 15.0


class Identity(NamedTuple):
    """What brokers know a producer by."""

    producer_id: int
    epoch: int


class Coordinator:
    """
    The questions of one producer to its coordinator, and what the answers make of it.

    Args:
        cluster: to ask.
        transactional_id: of the producer; None for one without transactions.
        timeout_s: after which the brokers abort a transaction; also the limit of each method but `is_held`.
        lane: of the questions.

    Attributes:
        identity: of the producer, since `init`; the next transaction may have another one.
        joins_by_writing: whether partitions join a transaction by being written to.
    """

    def __init__(self, cluster: Cluster, transactional_id: str | None, timeout_s: float, lane: str) -> None:
        self.identity = Identity(-1, -1)
        self.joins_by_writing = False
        self._cluster = cluster
        self._name = transactional_id
        self._timeout_s = timeout_s
        self._link = CoordinatorLink(cluster, CoordinationType.TRANSACTION, transactional_id, timeout_s, lane)

    @property
    def trouble(self) -> str:
        """Why it does not go on, as far as is known; empty when it does."""
        return self._link.trouble

    async def init(self) -> None:
        """
        Become the producer of the transactional id, and shut out the one before.

        Raises:
            InvalidTransactionTimeout: the brokers let no transaction last that long.
            aiokafka.errors.KafkaError: no broker answers, or it refuses.
        """
        request = InitProducerId(self._name, int(self._timeout_s * 1000))
        answer = await self._link.ask(request, lambda answer: answer.error_code, to="let in")
        if answer.error_code:
            self._link.refuse(answer.error_code, "let in")
        self.identity = Identity(answer.producer_id, answer.producer_epoch)
        if self._name is not None:
            async with asyncio.timeout(self._timeout_s):
                self.joins_by_writing = await self._cluster.transaction_version() >= _SECOND_PROTOCOL

    async def add(self, partitions: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """
        Have *partitions* join the transaction, and return those that have not, with the number of the error.

        Because of one that must not join, none does: all others are `OPERATION_NOT_ATTEMPTED` then.

        Raises:
            ProducerFenced: another producer was let in.
            aiokafka.errors.KafkaError: the coordinator does not answer, or refuses.
        """
        by_topic: dict[str, list[int]] = {}
        for topic, number in partitions:
            by_topic.setdefault(topic, []).append(number)

        def errors_in(answer: Any) -> dict[tuple[str, int], int]:
            return {(topic, number): code for topic, numbers in answer.errors for number, code in numbers if code}

        answer = await self._link.ask(
            AddPartitionsToTxnRequest(self._name, *self.identity, list(by_topic.items())),
            lambda answer: gravest(errors_in(answer).values()),
            to="add partitions to a transaction",
        )
        errors = errors_in(answer)
        if others := codes.OF_THE_PRODUCER.intersection(errors.values()):
            self._link.refuse(min(others), "add partitions to a transaction")
        return errors

    async def add_group(self, group: str) -> None:
        """
        Have the offsets of *group* join the transaction: the first protocol.

        Raises:
            ProducerFenced: another producer was let in.
            aiokafka.errors.KafkaError: the coordinator does not answer, or refuses.
        """
        what = f"add the offsets of group {group} to a transaction"
        request = AddOffsetsToTxnRequest(self._name or "", *self.identity, group)
        answer = await self._link.ask(request, lambda answer: answer.error_code, to=what)
        if answer.error_code:
            self._link.refuse(answer.error_code, what)

    async def end(self, *, is_commit: bool) -> None:
        """
        Commit the transaction, or abort it.

        Raises:
            ProducerFenced: another producer was let in, and the transaction is not committed.
            aiokafka.errors.KafkaError: anything else; the transaction may be committed or not.
        """
        what = "commit" if is_commit else "abort"
        name = self._name or ""
        request = EndTxnRequest(name, *self.identity, is_commit)
        if self.joins_by_writing:
            request = EndTransaction(name, *self.identity, is_commit=is_commit)
        answer = await self._link.ask(request, lambda answer: answer.error_code, to=what)
        if answer.error_code:
            self._link.refuse(answer.error_code, what)
        if self.joins_by_writing:
            self.identity = Identity(answer.producer_id, answer.producer_epoch)

    async def is_held(self) -> bool:
        """
        Tell whether no other producer had been let in yet, at some moment after this was asked; no transaction is open.

        The coordinator *writes* a later epoch for this. To be told alone would prove nothing: one that was cut off from
        the others does not know who was let in elsewhere. Another one may be let in right after the answer.

        Raises:
            aiokafka.errors.KafkaError: the coordinator does not answer, or refuses.
        """
        request = InitProducerId(self._name, int(self._timeout_s * 1000), *self.identity)
        limit_s = max(self._timeout_s, _ELECTION_S)
        answer = await self._link.ask(
            request, lambda answer: answer.error_code, to="write a later epoch", limit_s=limit_s
        )
        if answer.error_code:
            try:
                self._link.refuse(answer.error_code, "write a later epoch")
            except ProducerFenced:
                return False
        self.identity = Identity(answer.producer_id, answer.producer_epoch)
        return True
