"""
What the owner of a partition talks to, as small protocols.

The worker hands in Kafka and RocksDB. The simulation hands in models of Kafka, so that it runs the same owner.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from aiokafka.errors import KafkaError
from aiokafka.producer.message_accumulator import BatchBuilder

from kafka_timers.broker.fetching import Fetched
from kafka_timers.core.callbacks import Target
from kafka_timers.core.verdicts import Reason
from kafka_timers.core.versions import Answer
from kafka_timers.core.wire import Sealed
from kafka_timers.worker.store import TimerStore

# A batch, and the topic and partition that it is for.
Ready = tuple[BatchBuilder, str, int]


class RequestLog(Protocol):
    """Reads records of `timer-request` from the nodes that lead its partitions."""

    def leaders(self, numbers: Iterable[int]) -> dict[int, list[int]]:
        """Return the partitions *numbers* by the node that leads them, without those of which none is known."""

    async def find_leaders(self) -> None:
        """Ask anew which node leads which partition."""

    async def fetch(self, node: int, positions: Mapping[int, int], wait_ms: int) -> dict[int, Fetched | KafkaError]:
        """Return what partitions have from their *positions* on, or why they cannot be read."""


class LogBounds(Protocol):
    """Where the request log begins and ends."""

    async def starts(self, numbers: Collection[int]) -> dict[int, int]:
        """Return the first offset that is left in the log of each partition."""

    async def ends(self, numbers: Collection[int]) -> dict[int, int]:
        """Return the offset behind the last committed request of each partition."""


class SealLog(Protocol):
    """Reads `timer-sealed`."""

    async def seals(self, number: int) -> list[Sealed]:
        """Return the last seals of partition *number*, with the latest complete one among them."""


class EpochCheck(Protocol):
    """Asks the broker whether a producer was shut out."""

    async def is_held(self) -> bool:
        """Tell whether the producer was still the one of its transactional id at some moment after this was asked."""


class Sender(Protocol):
    """Sends what leaves a partition, all or nothing."""

    @property
    def epoch_check(self) -> EpochCheck | None:
        """What tells whether another owner has shut this one out; None where none does."""

    async def start(self) -> None:
        """Connect, and shut out whoever owned the partition before."""

    async def stop(self) -> None:
        """Disconnect; what was not committed is aborted by the next owner's start."""

    def new_batch(self) -> BatchBuilder:
        """Return an empty batch; may be called before `begin`."""

    async def begin(self) -> None:
        """Begin a slice."""

    async def send_all(self, batches: Iterable[Ready]) -> None:
        """Send *batches* as part of the slice."""

    async def commit(self, seal: Sealed) -> None:
        """
        End the slice with *seal*; all of it is visible once this returns.

        Raises:
            FencedError: another worker owns the partition; nothing of the slice is visible.
            TopicsRefusedError: callback topics refuse; nothing of the slice is visible.
            KafkaError: anything else. The slice may be visible or not: the seals tell. This sender is of no more use.
        """


class Stores(Protocol):
    """The stores of this worker, one per partition."""

    def open(self, number: int) -> TimerStore:
        """
        Open the store of partition *number*; it is made when missing.

        Raises:
            Exception: RocksDB cannot open it.
        """

    def destroy(self, number: int) -> None:
        """Remove the store of partition *number*, which is closed, whatever state it is in."""


class CallbackTopics(Protocol):
    """What is known of callback topics: `verdicts` has a target, or a reason to refuse, by name."""

    verdicts: dict[str, Target | Reason]

    def want(self, names: Iterable[str]) -> None:
        """Have *names* looked up soon."""

    async def resolve(self, names: Collection[str]) -> None:
        """Look *names* up, so that each has a verdict."""

    def refuse(self, name: str, reason: Reason) -> None:
        """Take note that the broker refused a write to *name*."""

    def doubt(self) -> None:
        """Forget which topics are writable and what they take."""


class ReplySender(Protocol):
    """The way to reply topics."""

    async def send(self, number: int, answers: Iterable[Answer]) -> None:
        """Send *answers* to records of partition *number*, and return once the broker has them."""


# Makes a sender for a partition.
NewSender = Callable[[int], Sender]
