"""
What the owner of a partition talks to, as small protocols.

The worker hands in Kafka and RocksDB. The simulation hands in models of Kafka, so that it runs the same owner.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aiokafka.errors import KafkaError

from kafka_timers.broker.batches import Batch
from kafka_timers.broker.fetching import Fetched
from kafka_timers.broker.seals import Tail
from kafka_timers.core.callbacks import Target
from kafka_timers.core.refused import Reason
from kafka_timers.core.versions import Letter
from kafka_timers.core.wire import Sealed

if TYPE_CHECKING:
    # The oscillator reads its log as workers read theirs, and has no RocksDB.
    from kafka_timers.worker.store import TimerStore

# A batch, and the topic and partition that it is for.
Ready = tuple[Batch, str, int]


class RequestLog(Protocol):
    """Reads records of `timer-request` from the nodes that lead its partitions."""

    def leaders(self, numbers: Iterable[int]) -> dict[int, list[int]]:
        """Return the partitions *numbers* by the node that leads them, without those of which none is known."""

    async def find_leaders(self) -> None:
        """Ask anew which node leads which partition."""

    async def moved(self) -> None:
        """Return once some partition has another leader."""

    async def fetch(self, node: int, positions: Mapping[int, int], wait_ms: int) -> dict[int, Fetched | KafkaError]:
        """Return what partitions have from their *positions* on, or why they cannot be read."""


class LogBounds(Protocol):
    """Where the request log begins and ends."""

    async def starts(self, numbers: Collection[int]) -> dict[int, int]:
        """Return the first offset that is left in the log of each partition."""

    async def refresh(self) -> None:
        """Ask anew who leads the log."""

    async def end(self, number: int, above: int | None = None) -> int:
        """Return the offset behind the last committed request, as one tells who has what lies at *above*."""


class SealLog(Protocol):
    """Reads `timer-sealed`."""

    async def tail(self, number: int, above: int | None = None) -> Tail:
        """
        Return the last seals of partition *number*, with the latest complete one among them.

        Args:
            number: of the partition.
            above: an offset behind the last seal, which whoever is read from must have.
        """


class Barrier(NamedTuple):
    """Offsets of `timer-sealed` and of `timer-request` that all replicas in sync have."""

    sealed: int
    requests: int


class Sender(Protocol):
    """Sends what leaves a partition, all or nothing."""

    async def start(self) -> None:
        """Connect, and shut out whoever owned the partition before."""

    async def stop(self) -> None:
        """Disconnect; what was not committed is aborted by the next owner's start."""

    def new_batch(self) -> Batch:
        """Return an empty batch; may be called before `begin`."""

    @property
    def trouble(self) -> str:
        """Why it does not go on, as far as is known; empty when it does."""

    async def barrier(self) -> Barrier | None:
        """
        Write a record of its own to each of both logs, and take it back; None where no transaction can.

        Whoever shows it has all that was acknowledged before this was called.

        Raises:
            FencedError: another worker owns the partition.
            KafkaError: it was not written. This sender is of no more use.
        """

    async def is_held(self) -> bool:
        """
        Tell whether nobody else owned the partition at some moment after this was asked; waits until no slice is open.

        Always true where nothing shuts an owner out.

        Raises:
            KafkaError: the broker does not tell. This sender is of no more use.
        """

    async def begin(self) -> None:
        """Begin a slice."""

    def send_all(self, batches: Iterable[Ready]) -> None:
        """
        Send *batches* as part of the slice, in the background.

        Raises:
            FencedError: another worker owns the partition.
            KafkaError: this sender is of no more use.
        """

    async def commit(self, seal: Sealed, on_taken: Callable[[], None]) -> None:
        """
        End the slice with *seal*; all of it is visible once this returns.

        Args:
            seal: of the slice.
            on_taken: called when all replicas in sync have all of it.

        Raises:
            FencedError: another worker owns the partition; nothing of the slice is visible.
            TopicsRefusedError: callback topics refuse; nothing of the slice is visible. It is to be given up (`abort`).
            KafkaError: anything else. The slice may be visible or not: the seals tell. This sender is of no more use.
        """

    async def abort(self) -> None:
        """
        Give the slice up after `commit` has raised `TopicsRefusedError`; another one can begin.

        Raises:
            FencedError: another worker owns the partition.
            KafkaError: anything else. This sender is of no more use.
        """


class Stores(Protocol):
    """The stores of this worker, one per partition."""

    def check_room(self, number: int) -> None:
        """
        Check that the disk of partition *number* has room for its store.

        Raises:
            DiskFullError: it has not.
        """

    def free_bytes(self, numbers: Iterable[int]) -> int:
        """Return how much is free on the fullest of the disks that the partitions *numbers* are on."""

    def open(self, number: int) -> "TimerStore":
        """
        Open the store of partition *number*; it is made when missing.

        Raises:
            Exception: RocksDB cannot open it.
        """

    async def close(self, store: "TimerStore") -> None:
        """Close *store*; its folder may be opened again once this returns, or is cancelled."""

    def destroy(self, number: int) -> None:
        """Remove the store of partition *number*, which is closed, whatever state it is in."""

    def make_room(self, number: int) -> None:
        """Remove it too, and remember how much room it needs."""


class CallbackTopics(Protocol):
    """
    What is known of callback topics.

    `verdicts` has a target, or a reason to refuse, by name; `words` what the broker has said where it refuses.
    """

    verdicts: dict[str, Target | Reason]
    words: dict[str, str]

    def want(self, names: Iterable[str]) -> None:
        """Have *names* looked up soon."""

    async def resolve(self, names: Collection[str]) -> None:
        """Look *names* up, so that each has a verdict."""

    def refuse(self, name: str, reason: Reason, words: str) -> None:
        """Take note that the broker refused a write to *name*, and of its words."""

    def doubt(self) -> None:
        """Forget which topics are writable and what they take."""


class ReplySender(Protocol):
    """The way to reply topics."""

    async def send(self, topic: str, letters: Sequence[Letter]) -> None:
        """
        Send *letters* to *topic*, and return once the broker has them, or the topic has refused them.

        Raises:
            KafkaError: they are to be sent again.
        """


# Makes a sender for a partition.
NewSender = Callable[[int], Sender]
