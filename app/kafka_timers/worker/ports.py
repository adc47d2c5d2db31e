"""
Protocols for everything that the owner of a partition uses.

The worker passes in Kafka and RocksDB. The simulation passes in models of Kafka, so that it runs the same owner.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from kafka_timers.broker.batches import Batch
from kafka_timers.broker.seals import Tail
from kafka_timers.core.callbacks import Target
from kafka_timers.core.refused import Reason
from kafka_timers.core.versions import Letter
from kafka_timers.core.wire import Sealed
from kafka_timers.runtime.filling import Ready
from kafka_timers.worker.store import TimerStore


class LogBounds(Protocol):
    """First and last offsets of the request log."""

    async def starts(self, numbers: Collection[int]) -> dict[int, int]:
        """Return the first offset that each partition still has."""

    async def refresh(self) -> None:
        """Look the log's leaders up again."""

    async def end(self, number: int, above: int | None = None) -> int:
        """Return the offset after the last committed request, from a leader that has the offset *above*."""


class SealLog(Protocol):
    """Reads `timer-sealed`."""

    async def tail(self, number: int, above: int | None = None) -> Tail:
        """
        Return the last seals of partition *number*, including the latest complete one.

        Args:
            number: partition number.
            above: an offset after the last seal, which the leader must have.
        """


class Barrier(NamedTuple):
    """Offsets of `timer-sealed` and of `timer-request` that all in-sync replicas have."""

    sealed: int
    requests: int


class Sender(Protocol):
    """Sends the output of a partition, all or nothing."""

    async def start(self) -> None:
        """Connect, and fence the previous owner of the partition."""

    async def stop(self) -> None:
        """Disconnect. The next owner's start aborts an open transaction."""

    def new_batch(self) -> Batch:
        """Return an empty batch. This works before `begin`."""

    @property
    def trouble(self) -> str:
        """The reason why sending does not go on, as far as known; empty if it does."""

    async def barrier(self) -> Barrier | None:
        """
        Write a record to both logs, and abort the transaction; None without transactions.

        A broker that has the record also has everything that was acknowledged before the call.

        Raises:
            FencedError: another worker owns the partition.
            KafkaError: the record was not written. This sender cannot be used any more.
        """

    async def is_held(self) -> bool:
        """
        Tell whether, at some moment after the call, no other worker owned the partition. Waits for an open slice to
        end.

        Always True without fencing.

        Raises:
            KafkaError: the broker does not answer. This sender cannot be used any more.
        """

    async def begin(self) -> None:
        """Begin a slice."""

    def send_all(self, batches: Iterable[Ready]) -> None:
        """
        Send *batches* as part of the slice, in the background.

        Raises:
            FencedError: another worker owns the partition.
            KafkaError: this sender cannot be used any more.
        """

    async def commit(self, seal: Sealed, on_taken: Callable[[], None]) -> None:
        """
        End the slice with *seal*. Once this returns, receivers can see all of it.

        Args:
            seal: seal of the slice.
            on_taken: called once all in-sync replicas have the whole slice.

        Raises:
            FencedError: another worker owns the partition; nothing of the slice is visible.
            TopicsRefusedError: callback topics refuse; nothing of the slice is visible. Call `abort`.
            KafkaError: any other error. The seals tell whether the slice is visible. This sender cannot be used any
                more.
        """

    async def abort(self) -> None:
        """
        Give the slice up after `commit` has raised `TopicsRefusedError`. Another one can begin.

        Raises:
            FencedError: another worker owns the partition.
            KafkaError: any other error. This sender cannot be used any more.
        """


class Stores(Protocol):
    """The stores of this worker, one for each partition."""

    def check_room(self, number: int) -> None:
        """
        Check that the disk of partition *number* has room for its store.

        Raises:
            DiskFullError: it has no room.
        """

    def free_bytes(self, numbers: Iterable[int]) -> int:
        """Return the free bytes of the fullest disk that holds one of the partitions *numbers*."""

    def open(self, number: int) -> TimerStore:
        """
        Open the store of partition *number*, and create it if it is missing.

        Raises:
            Exception: RocksDB cannot open it.
        """

    async def close(self, store: TimerStore) -> None:
        """Close *store*. Once this returns or is cancelled, its folder may be opened again."""

    def destroy(self, number: int) -> None:
        """Remove the closed store of partition *number*, in any state."""

    def make_room(self, number: int) -> None:
        """Remove the closed store of partition *number*, and remember how much room it needs."""


class CallbackTopics(Protocol):
    """
    Knowledge about callback topics.

    `verdicts` has, by name, a target or a reason for refusing; `words` has the broker's message for a refused write.
    """

    verdicts: dict[str, Target | Reason]
    words: dict[str, str]

    def want(self, names: Iterable[str]) -> None:
        """Look *names* up soon."""

    async def resolve(self, names: Collection[str]) -> None:
        """Look *names* up now, so that each has a verdict."""

    def refuse(self, name: str, reason: Reason, words: str) -> None:
        """Note that the broker refused a write to *name*, with its message *words*."""

    def doubt(self) -> None:
        """Forget which topics are writable, and their limits."""


class ReplySender(Protocol):
    """Writes to reply topics."""

    async def send(self, topic: str, letters: Sequence[Letter]) -> None:
        """
        Send *letters* to *topic*. Return once the broker has them, or the topic has refused them.

        Raises:
            KafkaError: sending failed; send them again.
        """


# Makes a sender for a partition.
NewSender = Callable[[int], Sender]
