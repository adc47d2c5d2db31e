"""What the owners of one process talk to, and share."""

from collections.abc import Callable
from dataclasses import dataclass

from kafka_timers.clock import Clock
from kafka_timers.core.wire import Topics
from kafka_timers.settings import WorkerSettings
from kafka_timers.worker.end_offsets import EndOffsets
from kafka_timers.worker.history import History
from kafka_timers.worker.metrics import WorkerMetrics
from kafka_timers.worker.ports import CallbackTopics, LogBounds, NewSender, ReplySender, SealLog, Stores
from kafka_timers.worker.prebuild import ByteBudget
from kafka_timers.worker.priority import PriorityGate
from kafka_timers.worker.reader import LogReader
from kafka_timers.worker.rejecting import Rejects


@dataclass(frozen=True, slots=True)
class Ports:
    """
    What the owners of one process talk to, and share.

    Attributes:
        settings: of the worker.
        names: of the service's topics.
        partitions: of `timer-request`.
        reader: feeds followers.
        bounds: where the request log begins and ends.
        ends: the same once per tick for all partitions.
        seals: the log of seals.
        new_sender: makes the sender of a partition.
        stores: of this worker.
        callback_topics: what is known of them.
        rejects: where refused requests go.
        history: where some callbacks are written once more.
        replies: the way to reply topics.
        budget: of prebuilt callbacks.
        gate: who goes first on the event loop.
        metrics: of the worker.
        clock: tells how late callbacks are and how long nothing has happened; never what is due.
        name: of this worker in seals.
        queries: the URL at which it answers questions; empty if it does not.
        format: returns the format of seals that every member of the group can read.
        give_up: ends the process, with a sentence.
    """

    settings: WorkerSettings
    names: Topics
    partitions: int
    reader: LogReader
    bounds: LogBounds
    ends: EndOffsets
    seals: SealLog
    new_sender: NewSender
    stores: Stores
    callback_topics: CallbackTopics
    rejects: Rejects
    history: History | None
    replies: ReplySender
    budget: ByteBudget
    gate: PriorityGate
    metrics: WorkerMetrics
    clock: Clock
    name: str
    queries: str
    format: Callable[[], int]
    give_up: Callable[[str], None]
