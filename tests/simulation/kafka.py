"""
The model of Kafka: three brokers, the logs of all topics, and the coordinator of transactions.

    init       shuts out whoever had the transactional id, and aborts what that one has open
    append     of a producer that was shut out is refused
    end        a commit is decided at once, and becomes readable a moment later, in each partition for itself; until
               then the next init of that id has to wait, so whoever is let in can read all that was committed before

What brokers are asked, and how long that takes, is in `network`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    ProducerFenced,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)

from kafka_timers.core.wire import Topics
from simulation.log import Log, Phase, Record, Transaction
from simulation.loop import SeededLoop

NODES = (1, 2, 3)
_INVALID_RECORD = 87
_ROOMY_BYTES = 1_048_588


@dataclass(slots=True)
class Topic:
    """
    A topic's settings.

    Attributes:
        bytes_max: of a batch.
        is_compacted: takes no record without a key.
        refuses: whether it refuses writes, though its settings look well.
        exists: topics come and go.
    """

    partitions: int
    bytes_max: int = _ROOMY_BYTES
    is_compacted: bool = False
    refuses: bool = False
    exists: bool = True


class Kafka:
    """
    A cluster.

    Args:
        loop: tells the time.
        partitions: of the service's own topics.
        marker_lag_s: draws how long after a commit each of its markers is written.

    Attributes:
        own: names of the service's own topics.
        topics: all topics.
        logs: by topic and partition.
        watchers: called whenever there may be more to read anywhere.
        coordinator: the broker that knows of transactional ids.
        timeout_s: the limit of the workers' transactions.
    """

    def __init__(self, loop: SeededLoop, partitions: int, marker_lag_s: Callable[[], float]) -> None:
        self._loop = loop
        self._marker_lag_s = marker_lag_s
        self.own = Topics()
        self.topics: dict[str, Topic] = {}
        self.logs: dict[tuple[str, int], Log] = {}
        self.watchers: dict[Callable[[], None], None] = {}
        self.coordinator = NODES[0]
        self.timeout_s = 10.0
        self._epochs: dict[str, int] = {}
        self._open: dict[str, Transaction] = {}
        for name in (self.own.requests, self.own.sealed):
            self.create(name, partitions)
        for name in (self.own.rejected, self.own.replies):
            self.create(name, 1)

    @property
    def now_ms(self) -> int:
        """The brokers' clock, in UNIX milliseconds."""
        return int(self._loop.wall_s * 1000)

    def create(self, name: str, partitions: int, **settings: bool | int) -> Topic:
        """Create a topic; its leaders are spread over the brokers."""
        topic = self.topics[name] = Topic(partitions, **settings)  # type: ignore[arg-type]
        for number in range(partitions):
            leader = NODES[(len(self.logs) + number) % len(NODES)]
            self.logs[name, number] = Log(name, number, leader, self._changed)
        return topic

    def requests(self, number: int) -> Log:
        """Return a partition of `timer-request`."""
        return self.logs[self.own.requests, number]

    def sealed(self, number: int) -> Log:
        """Return a partition of `timer-sealed`."""
        return self.logs[self.own.sealed, number]

    def _changed(self) -> None:
        for watcher in list(self.watchers):
            watcher()

    # --- transactions ------------------------------------------------------------------------------------------------

    def init(self, name: str) -> int | None:
        """Shut out whoever had the transactional id *name*; the new epoch, None while a commit is not complete yet."""
        transaction = self._open.get(name)
        if transaction is not None and transaction.phase is Phase.PREPARED:
            return None
        self._epochs[name] = self._epochs.get(name, 0) + 1
        if transaction is not None:
            self.abort(transaction)
        return self._epochs[name]

    def is_current(self, name: str, epoch: int) -> bool:
        """Tell whether nobody was let in after *epoch*."""
        return self._epochs.get(name) == epoch

    def begin(self, name: str) -> Transaction:
        """Return a new transaction of anybody; it lasts until it is ended."""
        transaction = self._open[name] = Transaction(name)
        return transaction

    def of(self, name: str, epoch: int) -> Transaction | None:
        """
        Return the open transaction of a producer, begun now if there is none; None while the last is not complete.

        Raises:
            ProducerFenced: another one was let in.
        """
        if not self.is_current(name, epoch):
            raise ProducerFenced
        transaction = self._open.get(name)
        if transaction is None:
            transaction = self.begin(name)
            self._loop.outside(self.timeout_s, self._expire, transaction, epoch)
        return None if transaction.phase is Phase.PREPARED else transaction

    def end(self, name: str, epoch: int) -> None:
        """
        Commit what the producer has open.

        Raises:
            ProducerFenced: another one was let in, or it took too long.
        """
        if not self.is_current(name, epoch):
            raise ProducerFenced
        if transaction := self._open.get(name):
            self.commit(transaction)

    def commit(self, transaction: Transaction) -> None:
        """Commit *transaction*: decided now, readable a moment later."""
        transaction.phase = Phase.PREPARED
        left = dict(transaction.logs)

        def mark(log: Log) -> None:
            log.mark(transaction, self.now_ms)
            del left[log]
            if not left:
                self._close(transaction, Phase.COMMITTED)

        for log in transaction.logs:
            self._loop.outside(self._marker_lag_s(), mark, log)
        if not left:
            self._close(transaction, Phase.COMMITTED)

    def abort(self, transaction: Transaction) -> None:
        """Abort *transaction*."""
        self._close(transaction, Phase.ABORTED)
        for log in transaction.logs:
            log.mark(transaction, self.now_ms)

    def _close(self, transaction: Transaction, phase: Phase) -> None:
        transaction.phase = phase
        if self._open.get(transaction.name) is transaction:
            del self._open[transaction.name]

    def _expire(self, transaction: Transaction, epoch: int) -> None:
        if transaction.phase is Phase.OPEN and self._open.get(transaction.name) is transaction:
            # The broker shuts the producer out with it.
            self._epochs[transaction.name] = epoch + 1
            self.abort(transaction)

    # --- writing -----------------------------------------------------------------------------------------------------

    def check(self, topic: str, number: int, size: int, records: list[Record]) -> Log:
        """
        Return the log that a batch of *size* bytes goes to.

        Raises:
            KafkaError: the topic does not take it.
        """
        found = self.topics.get(topic)
        if found is None or not found.exists or number >= found.partitions:
            raise UnknownTopicOrPartitionError
        if found.refuses:
            raise TopicAuthorizationFailedError
        if size > found.bytes_max:
            raise MessageSizeTooLargeError
        if found.is_compacted and any(record.key is None for record in records):
            raise _error_of(_INVALID_RECORD)
        return self.logs[topic, number]


def _error_of(code: int) -> KafkaError:
    """Return what aiokafka makes of *code*, which is its UnknownError where it does not know it."""
    error: KafkaError = for_code(code)()
    return error
