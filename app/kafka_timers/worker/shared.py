"""Objects that all owners of one process share."""

from collections.abc import Callable
from dataclasses import dataclass

from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.reading import TopicLog
from kafka_timers.broker.seals import SealLog
from kafka_timers.clock import Clock
from kafka_timers.core.wire import Topics
from kafka_timers.runtime.log_reader import LogReader
from kafka_timers.runtime.metrics import WorkerMetrics
from kafka_timers.runtime.outlet import Outlet
from kafka_timers.runtime.priority import PriorityGate
from kafka_timers.runtime.targets import TopicLookup
from kafka_timers.settings import WorkerSettings
from kafka_timers.worker.end_offsets import EndOffsets
from kafka_timers.worker.prebuild import ByteBudget
from kafka_timers.worker.replies import KafkaReplies
from kafka_timers.worker.sender import KafkaSender
from kafka_timers.worker.slices import History
from kafka_timers.worker.stores import StoreFolders


@dataclass(frozen=True, slots=True)
class Ports:
    """
    Objects that all owners of one process share.

    Attributes:
        partitions: number of served partitions of `timer-request`.
        ends: end offsets for all partitions, asked for once for each tick.
        log: `timer-request`, to be looked at; `reader` reads it.
        outlet: topics for refused requests, and for those that are sent on.
        history: etf1's history; None without one.
        clock: dates callbacks and measures lateness by the ticks; it never decides whether a timer is due.
        name: name of this worker in seals.
        queries: URL at which this worker answers questions; empty if it does not.
        format: returns the seal format that every member of the group can read.
        give_up: ends the process; takes a sentence with the reason.
    """

    settings: WorkerSettings
    names: Topics
    partitions: int
    reader: LogReader
    bounds: LogBounds
    ends: EndOffsets
    log: TopicLog
    seals: SealLog
    new_sender: Callable[[int], KafkaSender]
    stores: StoreFolders
    callback_topics: TopicLookup
    outlet: Outlet
    history: History | None
    replies: KafkaReplies
    budget: ByteBudget
    gate: PriorityGate
    metrics: WorkerMetrics
    clock: Clock
    name: str
    queries: str
    format: Callable[[], int]
    give_up: Callable[[str], None]
