"""
Asks the broker whether the epoch of a transactional producer is still the latest of its transactional id.

The broker gives each producer that starts with a transactional id a later epoch than the one before, which is shut out
by that, and learns it when it writes in a transaction. The question (DescribeTransactions, Kafka 3.0 and later) tells
it in one round trip and changes nothing. The answer reserves nothing: the next producer may start right after it.
aiokafka does not have this question; its client and protocol are used as they are.
"""

from typing import ClassVar

from aiokafka import AIOKafkaProducer
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.errors import for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

from kafka_timers.broker.internals import identity_of


class _DescribeTransactionsResponse(Response):  # type: ignore[misc]  # aiokafka tells no types
    API_KEY = 65
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "transaction_states",
            CompactArray(
                ("error_code", Int16),
                ("transactional_id", CompactString("utf-8")),
                ("transaction_state", CompactString("utf-8")),
                ("transaction_timeout_ms", Int32),
                ("transaction_start_time_ms", Int64),
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                (
                    "topics",
                    CompactArray(
                        ("topic", CompactString("utf-8")),
                        ("partitions", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _DescribeTransactionsRequest(RequestStruct):  # type: ignore[misc]  # aiokafka tells no types
    FLEXIBLE_VERSION: ClassVar[bool] = True
    API_KEY = 65
    API_VERSION = 0
    RESPONSE_TYPE = _DescribeTransactionsResponse
    SCHEMA = Schema(("transactional_ids", CompactArray(CompactString("utf-8"))), ("tags", TaggedFields))


class _DescribeTransactions(Request[_DescribeTransactionsRequest]):  # type: ignore[misc]  # aiokafka tells no types
    API_KEY = 65

    def __init__(self, transactional_id: str) -> None:
        self._transactional_id = transactional_id

    def build(self, request_struct_class: type[_DescribeTransactionsRequest]) -> _DescribeTransactionsRequest:
        return request_struct_class([self._transactional_id], {})


class EpochCheck:
    """
    Tells whether a producer has been shut out by a later one with its transactional id.

    Args:
        producer: started, transactional.
    """

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer
        self._node: int | None = None

    async def is_held(self) -> bool:
        """
        Tell whether no later producer had been started yet, at some moment after this was asked.

        Raises:
            aiokafka.errors.KafkaError: the transaction coordinator does not answer; it may be another node by now.
        """
        client, own = self._producer.client, identity_of(self._producer)
        if self._node is None:
            self._node = await client.coordinator_lookup(CoordinationType.TRANSACTION, own.transactional_id)
        node, self._node = self._node, None
        request = _DescribeTransactions(own.transactional_id)
        answer = await client.send(node, request, group=ConnectionGroup.COORDINATION)
        [(code, _, _, _, _, producer_id, epoch, *_)] = answer.transaction_states
        if code:
            raise for_code(code)(f"nothing is told of the transactional id {own.transactional_id}")
        self._node = node
        return bool((producer_id, epoch) == (own.producer_id, own.epoch))
