"""Read the records of one timer id from the topics. `core.outcomes` decides the outcome of each record."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.lake_group import lake_progress
from kafka_timers.broker.reading import TopicLog
from kafka_timers.broker.seals import Tail, last_seals, seals_in
from kafka_timers.broker.topics import knowing
from kafka_timers.clock import HostClock
from kafka_timers.core.changes import to_take
from kafka_timers.core.lake_progress import LakeProgress
from kafka_timers.core.outcomes import Outcome, State, outcomes_of, records_of, standing, uncertain, with_rejected
from kafka_timers.core.routing import partition_of
from kafka_timers.core.sweep import repeated_in, sweeps_in
from kafka_timers.core.wire import (
    Future,
    Record,
    Sealed,
    Topics,
    future_from,
    is_complete,
    latest,
    number_in,
    refused_request,
    rejection_in,
)
from kafka_timers.errors import TopicsError

# The seal that covers a moment follows within some seconds, unless no worker was running.
_SEALS_MAX = 256


@dataclass(frozen=True, slots=True)
class Found:
    """
    The records of one timer id, and their outcomes.

    Attributes:
        partition: partition of `timer-request` that holds all records of the id.
        start: first offset that was read. No request below it is pending in a worker.
        end: offset behind the last one that was read.
        seal: last complete seal of the partition, read before the log; None when nothing has been sealed.
        outcomes: outcome of each record, in the order of the log. A copy from the lake counts as its original.
        records: the records as they lie in the log.
        lake: progress of the lake, if a request is parked.
    """

    partition: int
    start: int
    end: int
    seal: Sealed | None
    outcomes: list[Outcome]
    records: Sequence[Record] = ()
    lake: LakeProgress | None = None

    @property
    def stands(self) -> Outcome | None:
        """The timer that stands, whether it waits or not; see `core.outcomes.standing`."""
        return standing(self.outcomes)

    @property
    def waiting(self) -> tuple[str, int, Future] | None:
        """The pending or parked timer: partition:offset of its request, its UNIX millisecond and its Future."""
        last = self.stands
        if last is None or last.due_ms is None or last.state not in (State.PENDING, State.PARKED):
            return None
        return self.place_of(last), last.due_ms, self.request_of(last)

    @property
    def problem(self) -> str:
        """Why the parked timer is late or will be, in a sentence with the step to take; empty if it is not."""
        last = self.stands
        if self.lake is None or last is None or last.due_ms is None or last.state is not State.PARKED:
            return ""
        return self.lake.problem_of(self.place_of(last), last.due_ms)

    def place_of(self, outcome: Outcome) -> str:
        """Return partition:offset of the request of *outcome*."""
        return f"{self.partition}:{outcome.offset}"

    def request_of(self, outcome: Outcome) -> Future:
        """Return the Future that the record of *outcome* asks for."""
        futures = {record.offset: future_from(record.value or b"") for record in self.records}
        copies = (each for each in futures.values() if each.HasField("copy") and each.copy.offset == outcome.offset)
        future = futures.get(outcome.offset) or next(copies)
        future.ClearField("copy")
        return future


async def find(kafka: Kafka, prefix: str, timer_id: str) -> Found:
    """
    Return the outcomes of the timers of *timer_id*.

    Reading starts at the oldest request of the partition that may still be pending. Where far requests are left to a
    lake, it starts at the beginning of the log, because those are not pending in a worker.

    Raises:
        TopicsError: a topic of the service does not exist; or `timer-request` is not the log that the seals are of.
    """
    topics = Topics.of(prefix)
    tails = await last_seals(kafka, prefix)
    partition = partition_of(timer_id, len(tails))
    tail = tails[partition]
    seal = latest(tail)
    names = (topics.requests, topics.sealed, topics.rejected)
    async with knowing(kafka, names) as cluster:
        requests, sealed, rejected = (TopicLog(cluster, name) for name in names)
        if not await Tail(tail, b"").is_of(requests, partition):
            raise TopicsError(
                f"partition {partition} of {requests.topic} was made anew, restored or cut, so nobody knows what has "
                "fired of it: see kafka-timers log show, and say what it is"
            )
        end = await requests.bounds.end(partition)
        start = (await requests.bounds.starts([partition]))[partition]
        if seal and not seal.horizon_s:
            start = max(start, seal.restore_from)
        sweeps = to_take(sweeps_in(seal), start) if seal else []
        records: list[Record] = []
        async for page in requests.pages(partition, start, end):
            for swept, offsets in sweeps:
                for repeated in repeated_in(page, swept.begun_us, offsets):
                    records += records_of(repeated, timer_id)
            records += records_of(page, timer_id)
        # What a sweep repeats lay before all of these.
        records.sort(key=lambda record: record.offset)
        dues_ms = uncertain(records, partition, len(tails))
        seals = [*await _seals_over(sealed, partition, dues_ms), *tail]
        outcomes = outcomes_of(records, seals, partition, len(tails), whole=start == 0)
        read = {record.offset for record in records if record.offset >= start}
        outcomes = [
            each if {each.offset, each.copied_at} & read else replace(each, appended_ms=None) for each in outcomes
        ]
        if any(each.state is State.FIRED for each in outcomes):
            outcomes = with_rejected(outcomes, await _rejected(rejected, topics.requests, partition, outcomes))
        lake = None
        if any(each.state is State.PARKED for each in outcomes):
            last = {number: latest(each) for number, each in tails.items()}
            lake = await lake_progress(cluster, prefix, last, HostClock().wall_s())
    return Found(partition, start, end, seal, outcomes, records, lake)


async def _seals_over(log: TopicLog, partition: int, dues_ms: Iterable[int]) -> list[Sealed]:
    """Return the complete seals that cover *dues_ms*, and the slices of their scans, in the order of the log."""
    found: dict[int, Sealed] = {}
    end = await log.bounds.end(partition)
    for due_ms in sorted(set(dues_ms)):
        start = await log.bounds.since(partition, due_ms)
        if start is None:
            continue
        async for records in log.pages(partition, start, min(end, start + _SEALS_MAX)):
            found |= seals_in(records, log.topic, partition)
            if any(is_complete(seal) and seal.end_ms > due_ms for seal in found.values()):
                break
    return [seal for _, seal in sorted(found.items())]


async def _rejected(log: TopicLog, requests: str, partition: int, outcomes: Iterable[Outcome]) -> Mapping[int, str]:
    """Return the fired requests that lie on `timer-rejected`: the reason by offset."""
    since_ms = min(max(each.due_ms or 0, each.appended_ms or 0) for each in outcomes if each.state is State.FIRED)
    if not log.numbers:
        return {}
    number = partition % len(log.numbers)
    start = await log.bounds.since(number, since_ms - since_ms % 1000)
    if start is None:
        return {}
    found: dict[int, str] = {}
    async for records in log.pages(number, start, await log.bounds.end(number)):
        for record in records:
            rejection = rejection_in(record.headers)
            asked_in, _, place = (refused_request(rejection, requests) or b"").partition(b":")
            offset = number_in(place)
            if offset is not None and asked_in == b"%d" % partition:
                found[offset] = rejection.get("reason", b"").decode(errors="replace")
    return found
