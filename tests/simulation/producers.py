"""
What stands in for AIOKafkaProducer: the transactional one of a partition's owner, and the plain one for answers.

The worker's own `KafkaSender`, `EpochCheck` and `KafkaReplies` run on these, so what they make of errors is tried too.
As with aiokafka 0.14 a batch is queued by `send_batch` and its outcome comes later, a commit of a transaction of which
a batch has failed raises, and whoever was shut out hears of it with the next question.
"""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from aiokafka.errors import (
    CoordinatorNotAvailableError,
    IllegalOperation,
    KafkaError,
    KafkaTimeoutError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    ProducerFenced,
)
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from simulation.faults import Faults
from simulation.kafka import Kafka
from simulation.log import Record, Transaction
from simulation.network import Network

_BATCH_BYTES = 512 << 10
_RETRY_S = 0.02
_CODES = {CoordinatorNotAvailableError: 15, NotCoordinatorError: 16}


class Producer:
    """
    A producer.

    Args:
        kafka: where it writes to.
        network: the way there.
        faults: what goes wrong.
        options: of AIOKafkaProducer; `transactional_id` and `request_timeout_ms` count.
    """

    def __init__(self, kafka: Kafka, network: Network, faults: Faults, **options: Any) -> None:
        self._kafka, self._network, self._faults = kafka, network, faults
        self._name: str | None = options.get("transactional_id")
        self._limit_s = options["request_timeout_ms"] / 1000
        self._epoch = -1
        self._is_open = False
        self._fenced = False
        # Not the error itself: its traceback would keep alive whatever the worker has read.
        self._failed = False
        self._last: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.client = self

    # --- what KafkaSender calls --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Shut out whoever had the transactional id."""
        await self._faults.delay("start_is_slow")
        if self._name is None:
            return
        name = self._name
        while True:
            self._faults.maybe("coordinator_fails", CoordinatorNotAvailableError)
            epoch = await self._network.ask(self._kafka.coordinator, lambda: self._kafka.init(name))
            if epoch is not None:
                self._epoch = epoch
                return
            await asyncio.sleep(_RETRY_S)

    async def stop(self) -> None:
        """Disconnect."""
        await self._faults.delay("stop_is_slow")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._last, self._tasks = None, []

    def create_batch(self) -> BatchBuilder:
        """Return an empty batch."""
        return BatchBuilder(_BATCH_BYTES, 0, is_transactional=int(self._name is not None))

    async def begin_transaction(self) -> None:
        """Begin; the coordinator hears of it with the first batch."""
        if self._fenced:
            raise ProducerFenced
        self._is_open, self._failed, self._last, self._tasks = True, False, None, []

    async def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> "asyncio.Task[None]":
        """Queue *batch*; what is returned tells when it was taken."""
        if self._fenced:
            raise ProducerFenced
        if self._name is not None and (not self._is_open or self._failed):
            raise IllegalOperation("Can't send messages while not in transaction")
        batch.close()
        data = bytes(batch._build())
        task = asyncio.create_task(self._deliver(self._last, data, topic, partition))
        self._last = task
        self._tasks.append(task)
        return task

    async def commit_transaction(self) -> None:
        """Commit."""
        if self._fenced:
            raise ProducerFenced
        if self._failed:
            raise IllegalOperation("the transaction has failed")
        await self._faults.delay("commit_is_slow")
        self._faults.maybe("commit_is_lost", KafkaTimeoutError)
        name = self._name or ""
        try:
            await self._network.ask(
                self._kafka.coordinator, lambda: self._kafka.end(name, self._epoch), limit_s=self._limit_s
            )
        except ProducerFenced:
            self._fenced = True
            raise
        self._is_open = False
        self._faults.maybe("commit_is_not_answered", KafkaTimeoutError)

    # --- what EpochCheck calls ---------------------------------------------------------------------------------------

    @property
    def _txn_manager(self) -> Any:
        return SimpleNamespace(transactional_id=self._name, producer_id=1, producer_epoch=self._epoch)

    async def coordinator_lookup(self, _: object, name: str) -> int:
        """Return the broker that knows of *name*."""
        return await self._network.ask(self._network.any_node(), lambda: self._kafka.coordinator)

    async def send(self, node: int, _request: object, *, group: object) -> Any:
        """Answer DescribeTransactions, the only question that is asked so."""
        name = self._name or ""

        def answer() -> Any:
            code = self._faults.drawn("coordinator_fails") and _CODES[CoordinatorNotAvailableError]
            if node != self._kafka.coordinator:
                code = _CODES[NotCoordinatorError]
            # The epoch of whoever was let in last; its producer id never changes.
            epoch = self._epoch if self._kafka.is_current(name, self._epoch) else self._epoch + 1
            return SimpleNamespace(transaction_states=[(code or 0, name, "Ongoing", 0, 0, 1, epoch, [], {})])

        return await self._network.ask(node, answer)

    # --- on the way --------------------------------------------------------------------------------------------------

    async def _deliver(self, before: "asyncio.Task[None] | None", data: bytes, topic: str, partition: int) -> None:
        """Deliver a batch once the one *before* is delivered: one producer's batches keep their order."""
        try:
            if before is not None:
                await asyncio.wait([before])
            await self._write(_records_in(data), len(data), topic, partition)
        except ProducerFenced:
            self._fenced = True
            raise
        except Exception:
            self._failed = True
            raise

    async def _write(self, records: Sequence[Record], size: int, topic: str, partition: int) -> None:
        self._faults.maybe("write_fails", NotEnoughReplicasError)
        try:
            async with asyncio.timeout(self._limit_s):
                while not await self._try_to_write(list(records), size, topic, partition):  # noqa: ASYNC110  # as aiokafka
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError as error:
            raise KafkaTimeoutError from error

    async def _try_to_write(self, records: list[Record], size: int, topic: str, partition: int) -> bool:
        log = self._kafka.logs.get((topic, partition))
        node = log.leader if log else self._network.any_node()
        try:
            return await self._network.ask(node, lambda: self._append(node, records, size, topic, partition))
        except NotLeaderForPartitionError:
            return False

    def _append(self, node: int, records: list[Record], size: int, topic: str, partition: int) -> bool:
        """Append at broker *node*; False when the transaction before this one is not complete yet."""
        transaction: Transaction | None = None
        if self._name is not None:
            transaction = self._kafka.of(self._name, self._epoch)
            if transaction is None:
                return False
        log = self._kafka.check(topic, partition, size, records)
        if node != log.leader:
            # Also a broker that does not know it yet: the others do not take what it hands on.
            raise NotLeaderForPartitionError
        for record in records:
            record.transaction = transaction
            log.append(record, self._kafka.now_ms)
        return True


class Answers(Producer):
    """The producer for answers; knows which were not taken."""

    def __init__(self, kafka: Kafka, network: Network, faults: Faults, **options: Any) -> None:
        super().__init__(kafka, network, faults, **options)
        self.lost: list[Record] = []

    async def _write(self, records: Sequence[Record], size: int, topic: str, partition: int) -> None:
        try:
            self._faults.maybe("answers_are_lost", KafkaTimeoutError)
            await super()._write(records, size, topic, partition)
        except KafkaError:
            self.lost += records
            raise


def _records_in(data: bytes) -> list[Record]:
    parser = MemoryRecords(data)
    records = []
    while parser.has_next():
        records += [Record(each.key, each.value, headers=tuple(each.headers)) for each in parser.next_batch()]
    return records
