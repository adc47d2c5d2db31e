"""Stand-ins of several tests for the broker and the knowledge of it."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from kafka_timers.broker.batches import Batch
from kafka_timers.clock import Clock
from kafka_timers.core.accepting import Accepted, accept
from kafka_timers.core.callbacks import Target
from kafka_timers.core.partition import Partition
from kafka_timers.core.refused import Reason
from kafka_timers.core.versions import Version
from kafka_timers.core.wire import Future
from kafka_timers.runtime.filling import BATCH_BYTES
from kafka_timers.runtime.outlet import Outlet
from kafka_timers.testing import ManualClock
from kafka_timers.worker.slices import History, Slice

SECOND = 1_800_000_000
DUE_MS = SECOND * 1000
ROOMY = Target(partitions=7, batch_bytes_max=1_048_588)


@dataclass
class Record:
    """A record on the request log."""

    key: bytes | None
    value: bytes | None
    offset: int = 0
    timestamp: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()


def asked(offset: int = 0, key: bytes | None = b"%d" % SECOND, topic: str = "callbacks", **more: object) -> Record:
    """Return a record that asks for a callback; *more* are fields of the Future."""
    future = Future(callBackTopic=topic, **({"callBackKey": "k", "callBack": b"v"} | more))  # type: ignore[arg-type]
    return Record(key, future.SerializeToString(), offset)


def accepted(
    records: Sequence[Record], partition: Partition, known: dict[bytes, Version] | None = None, partitions: int = 1
) -> Accepted:
    """Return the result of *records* where no id but those *known* was met before."""
    return accept(records, partition, partitions, lambda ids: [(known or {}).get(each) for each in ids])


class Known:
    """The known topics: nothing is found out in addition."""

    def __init__(self, **verdicts: Target | Reason) -> None:
        self.verdicts = verdicts
        self.words: dict[str, str] = {}
        self.asked: list[str] = []
        self.wanted: list[str] = []

    def want(self, names: Iterable[str]) -> None:
        self.wanted += names

    async def resolve(self, names: Collection[str]) -> None:
        self.asked += names
        self.verdicts |= dict.fromkeys(names, Reason.TOPIC_UNKNOWN)

    def refuse(self, name: str, reason: Reason) -> None:
        self.verdicts[name] = reason

    def doubt(self) -> None:
        raise AssertionError("nothing is looked up again")


def new_batch() -> Batch:
    """Return a batch as the sender makes them."""
    return Batch(BATCH_BYTES, is_transactional=True)


def slice_to(
    known: Known | None = None,
    *,
    rejected: Target = ROOMY,
    home: Target = ROOMY,
    wall_s: float = SECOND,
    rows_max: int = 1_000_000,
    bytes_max: int = 1 << 30,
    not_before_ms: int = 0,
    history: History | None = None,
    clock: Clock | None = None,
) -> Slice:
    """Return an empty slice of partition 3; the one topic known is `callbacks`."""
    outlet = Outlet("timer-request", home, "timer-rejected", rejected)
    limits = {"rows_max": rows_max, "bytes_max": bytes_max, "not_before_ms": not_before_ms}
    return Slice(3, new_batch, known or Known(callbacks=ROOMY), outlet, history, clock or ManualClock(wall_s), **limits)
