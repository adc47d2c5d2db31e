"""
One partition of a topic as readers of committed records meet it: offsets, open transactions, markers.

A transaction's records lie in the log from the moment they are sent, and hold back the last stable offset until a
marker behind them says how it ended. Markers take offsets too, so offsets have gaps as they do in Kafka.
"""

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from kafka_timers.broker import codes

_OUT_OF_ORDER = 45

Headers = Sequence[tuple[str, bytes | None]]


class Phase(Enum):
    """How far a transaction has come; a prepared one will be committed, even if its producer is gone."""

    OPEN = auto()
    PREPARED = auto()
    COMMITTED = auto()
    ABORTED = auto()


@dataclass(eq=False, slots=True)
class Transaction:
    """A transaction, the logs that it has written to, and the partitions added to it; `name` is its producer's."""

    name: str
    phase: Phase = Phase.OPEN
    logs: dict["Log", None] = field(default_factory=dict)
    joined: set[tuple[str, int]] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Record:
    """
    A record of any topic, as the parser of aiokafka gives it.

    Attributes:
        transaction: that it was sent in, if any.
        is_marker: whether it only says how the transaction has ended.
        about: the wish of its writer, for the checks.
    """

    key: bytes | None
    value: bytes | None
    offset: int = 0
    timestamp: int = 0
    headers: Headers = ()
    transaction: Transaction | None = None
    is_marker: bool = False
    about: object = None

    @property
    def is_committed(self) -> bool:
        """Whether a reader of committed records gets it, once no transaction is open below it."""
        if self.is_marker:
            return False
        return self.transaction is None or self.transaction.phase in (Phase.PREPARED, Phase.COMMITTED)


@dataclass(frozen=True, slots=True)
class View:
    """
    The belief of a broker, which answers as leader, about a log.

    Its first offset, its last stable one, its end, and in which leader epoch it leads.
    """

    start: int
    stable: int
    end: int
    epoch: int


class Log:
    """
    One partition of a topic.

    Args:
        topic: name.
        number: of the partition.
        leader: number of the broker that leads it first.
        changed: called when there may be more to read.

    Attributes:
        epoch: of the leader.
        records: markers among them; records deleted by retention are still here.
        start: the first offset that is left.
        open: the first offset of each transaction that has not ended here.
        out_of_date: brokers that lead it no more and do not know it, with their beliefs.
        was_cut_off: whether there ever was one.
    """

    def __init__(self, topic: str, number: int, leader: int, changed: Callable[[], None]) -> None:
        self.topic, self.number = topic, number
        self._leader, self.epoch = leader, 0
        # The first offset of each later epoch.
        self._begins: dict[int, int] = {}
        self.records: list[Record] = []
        self.start = 0
        self.open: dict[Transaction, int] = {}
        self.out_of_date: dict[int, View] = {}
        self.was_cut_off = False
        self._changed = changed
        # The last stable offset, and when it was reached, in UNIX milliseconds.
        self._stable_at: list[tuple[int, int]] = []
        # By producer id: the latest epoch, and in it the numbers of the last batch and of the next record.
        self._numbers: dict[int, tuple[int, int, int]] = {}

    @property
    def leader(self) -> int:
        """The broker that leads it; another one does in another epoch."""
        return self._leader

    @leader.setter
    def leader(self, node: int) -> None:
        if node != self._leader:
            self.epoch += 1
            self._begins[self.epoch] = self.end
        self._leader = node

    def kept(self, epoch: int) -> int:
        """Return the offset behind the records of *epoch* and of those before."""
        return min([first for later, first in self._begins.items() if later > epoch], default=self.end)

    def cut(self, end: int, successor: int) -> None:
        """Have broker *successor* lead it, which was not in sync: it has the records below offset *end*."""
        del self.records[end:], self._stable_at[end:]
        self.open = {transaction: first for transaction, first in self.open.items() if first < end}
        # Epochs of which nothing is left end where they began.
        self._begins = {epoch: min(first, end) for epoch, first in self._begins.items()}
        self.leader = successor
        self._changed()

    @property
    def end(self) -> int:
        """The offset behind the last record."""
        return len(self.records)

    @property
    def stable(self) -> int:
        """The last stable offset: no transaction is open below it."""
        return min(self.open.values(), default=self.end)

    def view(self, node: int) -> View | None:
        """Return the view of broker *node* of this log; None if it knows that another one leads it."""
        if node == self.leader:
            return View(self.start, self.stable, self.end, self.epoch)
        return self.out_of_date.get(node)

    def cut_off(self, node: int, successor: int) -> None:
        """Have broker *successor* lead it without the one that does, *node*, knowing of that."""
        view = self.view(node)
        assert view
        self.out_of_date[node], self.was_cut_off = view, True
        self.leader = successor

    def numbered(self, producer: tuple[int, int], first: int, count: int) -> int:
        """
        Take note of a batch, and return the number of the error if it is here already, or not the next.

        Args:
            producer: id and epoch.
            first: number of its first record.
            count: of its records.
        """
        producer_id, epoch = producer
        latest, last, following = self._numbers.get(producer_id, (-1, -1, 0))
        if epoch > latest:
            last, following = -1, 0
        if first == last:
            return codes.DUPLICATE_SEQUENCE_NUMBER
        if first != following:
            return _OUT_OF_ORDER
        self._numbers[producer_id] = (epoch, first, first + count)
        return 0

    def append(self, record: Record, now_ms: int) -> int:
        """Append *record*, as part of its transaction if it has one, and return its offset."""
        record.offset, record.timestamp = self.end, now_ms
        if record.transaction is not None:
            record.transaction.logs[self] = None
            self.open.setdefault(record.transaction, record.offset)
        self.records.append(record)
        self._stable_at.append((self.stable, now_ms))
        self._changed()
        return record.offset

    def mark(self, transaction: Transaction, now_ms: int) -> None:
        """Append the marker that says how *transaction* has ended; its records here can be read, or never will be."""
        if self.open.pop(transaction, None) is not None:
            self.append(Record(None, None, is_marker=True), now_ms)

    def readable_ms(self, offset: int) -> int:
        """Return the moment from which on readers of committed records get the record at *offset*."""
        return self._stable_at[bisect(self._stable_at, offset, key=lambda at: at[0])][1]

    def committed(self, start: int = 0, before: int | None = None) -> Iterator[Record]:
        """Yield the committed records from *start* on and below *before*, by default all of them."""
        stable = self.stable if before is None else before
        return (record for record in self.records[start:stable] if record.is_committed)
