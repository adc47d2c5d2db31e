"""
The model of Kafka: three brokers, the logs of all topics, and the coordinator of transactions.

    init       shuts out the last producer of the transactional id, and aborts its open transaction
    append     of a producer that was shut out is refused
    short      a topic that lacks replicas takes no markers either: the transactions that it has joined end with it
    end        a commit is decided at once, and becomes readable a moment later, in each partition for itself; until
               then the next init of that id has to wait, so the new one can read all that was committed before

With version 2 of transactions each end of one raises the epoch.

Questions to brokers, and the time that they take, are in `network`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aiokafka.errors import ConcurrentTransactions, InvalidProducerEpoch, InvalidProducerIdMapping, InvalidTxnState

from kafka_timers.broker import codes
from kafka_timers.core.wire import Topics
from simulation.log import Log, Phase, Record, Transaction
from simulation.loop import SeededLoop
from simulation.offsets import Offsets

NODES = (1, 2, 3)
_INVALID_RECORD, _NOT_ENOUGH_REPLICAS = 87, 19
_ROOMY_BYTES = 1_048_588
_MARKED_AGAIN_S = 0.1


@dataclass(slots=True)
class Topic:
    """
    A topic's settings.

    Attributes:
        bytes_max: of a batch.
        is_compacted: takes no record without a key.
        refuses: whether it refuses writes, though its settings look well.
        exists: topics come and go.
        is_unheard_of: whether its leaders have not heard of it yet, and all others have.
        is_short: of replicas, and takes nothing for now.
        born: which topic of its name it is.
    """

    partitions: int
    bytes_max: int = _ROOMY_BYTES
    is_compacted: bool = False
    refuses: bool = False
    exists: bool = True
    is_unheard_of: bool = False
    is_short: bool = False
    born: int = 0


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
        former_coordinator: one that was cut off from the others and believes that it still is.
        offsets: of consumer groups, whose coordinator may be another broker.
        timeout_s: the limit of the workers' transactions.
        transaction_version: of the protocol of transactions.
        tells_ids: whether brokers tell the ids of topics.
        identities: producer id and epoch by transactional id.
    """

    def __init__(self, loop: SeededLoop, partitions: int, marker_lag_s: Callable[[], float]) -> None:
        self._loop = loop
        self._marker_lag_s = marker_lag_s
        self.own = Topics()
        self.topics: dict[str, Topic] = {}
        self.logs: dict[tuple[str, int], Log] = {}
        self.watchers: dict[Callable[[], None], None] = {}
        self._coordinator = NODES[0]
        self.former_coordinator = 0
        self.offsets = Offsets(NODES[0])
        self.timeout_s = 10.0
        self.transaction_version = 2
        self.tells_ids = True
        self.ahead_s: dict[int, float] = {}
        self.identities: dict[str, tuple[int, int]] = {}
        self._given = 0
        # How each producer has ended its last transaction: in which epoch, and whether by a commit.
        self._ended: dict[str, tuple[int, bool]] = {}
        self._open: dict[str, Transaction] = {}
        # From which identity the present one was given to the same producer: it may not have heard of it.
        self._renewed: dict[str, tuple[int, int]] = {}
        for name in (self.own.requests, self.own.sealed):
            self.create(name, partitions)
        for name in (self.own.rejected, self.own.replies):
            self.create(name, 1)
        self.create(self.own.oscillator, partitions)

    @property
    def coordinator(self) -> int:
        """The broker that knows of transactional ids; one that takes over knows no epoch but the present one."""
        return self._coordinator

    @coordinator.setter
    def coordinator(self, node: int) -> None:
        self._coordinator = node
        self._renewed.clear()

    @property
    def now_ms(self) -> int:
        """The brokers' clock, in UNIX milliseconds."""
        return int(self._loop.wall_s * 1000)

    def now_at(self, node: int) -> int:
        """The clock of broker *node*, in UNIX milliseconds."""
        return self.now_ms + int(self.ahead_s.get(node, 0.0) * 1000)

    def create(self, name: str, partitions: int, **settings: bool | int) -> Topic:
        """Create a topic, or make it anew; its leaders are spread over the brokers."""
        born = self.topics[name].born + 1 if name in self.topics else 0
        topic = self.topics[name] = Topic(partitions, **settings, born=born)  # type: ignore[arg-type]
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

    def ticks(self, number: int) -> Log:
        """Return a partition of `oscillator`."""
        return self.logs[self.own.oscillator, number]

    def _changed(self) -> None:
        for watcher in list(self.watchers):
            watcher()

    # --- transactions ------------------------------------------------------------------------------------------------

    def init(self, name: str | None) -> tuple[int, int] | None:
        """
        Shut out the last producer of the transactional id *name*, and return producer id and epoch of the new one.

        Without a name it is a producer without transactions; None while a commit is not complete yet.
        """
        transaction = self._open.get(name or "")
        if transaction is not None and transaction.phase is not Phase.OPEN:
            return None
        if name not in self.identities:
            self._given += 1
            identity = (self._given, 0)
        else:
            producer_id, epoch = self.identities[name]
            identity = (producer_id, epoch + 1)
        if name is not None:
            self.identities[name] = identity
            self._renewed.pop(name, None)
        if transaction is not None:
            self.abort(transaction)
            if name in self._open:
                return None
        return identity

    def expire(self, name: str) -> None:
        """Forget a transactional id, as one under which nothing was written for days."""
        del self.identities[name]
        self._renewed.pop(name, None)

    def _identity(self, name: str) -> tuple[int, int]:
        if name not in self.identities:
            raise InvalidProducerIdMapping
        return self.identities[name]

    def renew(self, name: str, identity: tuple[int, int]) -> tuple[int, int] | None:
        """
        Return a later epoch for the producer that has *identity*; None while its commit is not complete yet.

        Raises:
            InvalidProducerEpoch: another one was let in.
        """
        if self._renewed.get(name) == identity:
            return self.identities[name]
        # One that has expired is given out anew.
        if self.identities.get(name, identity) != identity:
            raise InvalidProducerEpoch
        renewed = self.init(name)
        if renewed is not None:
            self._renewed[name] = identity
        return renewed

    def begin(self, name: str) -> Transaction:
        """Return a new transaction of anybody; it lasts until it is ended."""
        transaction = self._open[name] = Transaction(name)
        return transaction

    def of(self, name: str, epoch: int, *, joins: tuple[str, int] | None = None) -> Transaction:
        """
        Return the open transaction of a producer, begun now if there is none and a partition *joins* it.

        Raises:
            InvalidProducerEpoch: another one was let in.
            ConcurrentTransactions: the last one is not complete yet.
            InvalidTxnState: there is none.
            InvalidProducerIdMapping: the id has expired.
        """
        if self._identity(name)[1] != epoch:
            raise InvalidProducerEpoch
        transaction = self._open.get(name)
        if transaction is not None and transaction.phase is not Phase.OPEN:
            raise ConcurrentTransactions
        if transaction is None:
            if joins is None:
                raise InvalidTxnState
            transaction = self.begin(name)
            self._loop.outside(self.timeout_s, self._expire, transaction)
        if joins:
            transaction.joined.add(joins)
        return transaction

    def join(self, name: str, epoch: int, topics: Iterable[tuple[str, Iterable[int]]]) -> None:
        """
        Have partitions join the producer's transaction.

        Raises:
            BrokerResponseError: as `of`.
        """
        for topic, numbers in topics:
            for number in numbers:
                self.of(name, epoch, joins=(topic, number))

    def end(self, name: str, identity: tuple[int, int], *, is_commit: bool) -> int:
        """
        Commit or abort the open transaction of the producer, and return the epoch of its next transaction.

        Raises:
            InvalidProducerIdMapping: another one was let in, with another id, or the id has expired.
            InvalidProducerEpoch: another one was let in, or it took too long.
            ConcurrentTransactions: it was asked before, and is not complete yet.
            InvalidTxnState: nothing is open. In the second protocol, nothing can be aborted all the same.
        """
        (producer_id, current), (asks, epoch) = self._identity(name), identity
        if asks != producer_id:
            raise InvalidProducerIdMapping
        asked, raises = (epoch, is_commit), self.transaction_version > 1
        if raises and epoch == current - 1 and self._ended.get(name) == asked:
            return current
        if epoch != current:
            raise InvalidProducerEpoch
        transaction = self._open.get(name)
        if transaction is not None and transaction.phase is not Phase.OPEN:
            raise ConcurrentTransactions
        if transaction is not None:
            (self.commit if is_commit else self.abort)(transaction)
        elif raises and not is_commit:
            nothing = self.begin(name)
            nothing.phase = Phase.PREPARED
            self._loop.outside(self._marker_lag_s(), self._close, nothing, Phase.ABORTED)
        elif self._ended.get(name) != asked:
            raise InvalidTxnState
        self._ended[name] = asked
        self._renewed.pop(name, None)
        self.identities[name] = (producer_id, epoch + raises)
        return epoch + raises

    def commit(self, transaction: Transaction) -> None:
        """Commit *transaction*: decided now, readable a moment later."""
        transaction.phase = Phase.PREPARED
        self._mark(transaction, Phase.COMMITTED, self._marker_lag_s)

    def abort(self, transaction: Transaction) -> None:
        """Abort *transaction*."""
        transaction.phase = Phase.ABORTED
        self._mark(transaction, Phase.ABORTED, lambda: 0.0)

    def _mark(self, transaction: Transaction, phase: Phase, lag_s: Callable[[], float]) -> None:
        """Write the markers of *transaction*; it has ended once all are there."""
        left = {self.logs[at]: None for at in sorted(transaction.joined & self.logs.keys())} | transaction.logs

        def mark(log: Log) -> None:
            if self.topics[log.topic].is_short and self.topics[log.topic].exists:
                self._loop.outside(_MARKED_AGAIN_S, mark, log)
                return
            log.mark(transaction, self.now_ms)
            del left[log]
            if not left:
                self._close(transaction, phase)

        for log in list(left):
            lagging_s = lag_s()
            if lagging_s or phase is Phase.COMMITTED:
                self._loop.outside(lagging_s, mark, log)
            else:
                mark(log)
        if not left:
            self._close(transaction, phase)

    def _close(self, transaction: Transaction, phase: Phase) -> None:
        transaction.phase = phase
        if self._open.get(transaction.name) is transaction:
            del self._open[transaction.name]

    def _expire(self, transaction: Transaction) -> None:
        if transaction.phase is Phase.OPEN and self._open.get(transaction.name) is transaction:
            # The broker shuts the producer out with it.
            producer_id, epoch = self.identities[transaction.name]
            self.identities[transaction.name] = (producer_id, epoch + 1)
            self.abort(transaction)

    # --- writing -----------------------------------------------------------------------------------------------------

    def refusal(self, topic: str, number: int, size: int, records: list[Record]) -> int:
        """Return the number of the error for which a batch of *size* bytes is not taken; 0 for none."""
        found = self.topics.get(topic)
        if found is None or not found.exists or found.is_unheard_of or number >= found.partitions:
            return codes.UNKNOWN_TOPIC_OR_PARTITION
        if found.is_short:
            return _NOT_ENOUGH_REPLICAS
        if found.refuses:
            return codes.TOPIC_AUTHORIZATION_FAILED
        if size > found.bytes_max:
            return codes.MESSAGE_TOO_LARGE
        if found.is_compacted and any(record.key is None for record in records):
            return _INVALID_RECORD
        return 0
