"""
Reads the end of `timer-sealed`: the last seals of each partition, for its next owner and for observers.

The last seals of a partition lie near the end of its log, but not at its last offsets: transaction markers, aborted
transactions and compacted records use up offsets too. So the last 64 offsets are read, then 16 times as many, and so
on, until a whole complete seal is among them or the log has no more:

    complete  slice  slice  aborted slice  marker │ end        latest() is the complete one; the slices belong to
                                                               the second that is being fired
"""

import asyncio
import logging
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from aiokafka.errors import KafkaError

from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.fetching import Fetched, Fetcher
from kafka_timers.broker.reading import TopicLog
from kafka_timers.broker.topics import counts, knowing
from kafka_timers.core.brief import filled
from kafka_timers.core.log_identity import is_other_log, of_last_log
from kafka_timers.core.sums import hash_of_seal
from kafka_timers.core.takeover import epoch_in
from kafka_timers.core.wire import Record, Sealed, Topics, is_brief, latest, partitions_in, sealed_from
from kafka_timers.errors import BrokerError, TopicsError, WireError

__all__ = ["SealLog", "Tail", "last_seals", "latest", "partitions_served", "seals_in", "served_counts"]

_FIRST_REACH = 64
_REACH_GROWTH = 16
_WAIT_MS = 50
_PAUSE_S = 0.02

log = logging.getLogger(__name__)


class Tail(NamedTuple):
    """
    The end of `timer-sealed` in one partition.

    Attributes:
        seals: the last seals in log order, of one `timer-request`. The latest complete seal is among them.
        last: `hash_of_seal` of the last seal; empty if there is none.
    """

    seals: list[Sealed]
    last: bytes

    @property
    def log(self) -> bytes:
        """Kafka's id, or the mark, of the `timer-request` that the seals are of; empty if they have none."""
        return self.seals[-1].log if self.seals else b""

    @property
    def fence(self) -> int:
        """The offset of `timer-request` below which the seals say what has fired."""
        return max((seal.fence for seal in self.seals), default=0)

    async def kept_in(self, requests: TopicLog, number: int) -> int | None:
        """
        Return the offset below which partition *number* of `timer-request` has what the seals were made of.

        It lies below `fence` where the log has lost requests that have fired. None if it is another log.
        """
        if is_other_log(self.log, requests.bounds.log_id):
            return None
        kept_to = await requests.bounds.kept(number, epoch_in(self.seals[-1]) if self.seals else -1)
        # A log that was cut may have another batch in place of the marked one.
        return kept_to if kept_to < self.fence or not await requests.is_other(number, self.log) else None

    async def is_of(self, requests: TopicLog, number: int) -> bool:
        """Tell whether the seals are of this `timer-request`, and it has all that has fired; see `kept_in`."""
        kept_to = await self.kept_in(requests, number)
        return kept_to is not None and kept_to >= self.fence


class SealLog:
    """
    Reads the seals of any partition.

    Args:
        cluster: the cluster to ask. It must have looked the topic up.
        topic: name of `timer-sealed`.
    """

    def __init__(self, cluster: Cluster, topic: str, limit_s: float = 10.0) -> None:
        self._bounds = LogBounds(cluster, topic, limit_s)
        self._fetcher = Fetcher(cluster, topic, "seals")
        self._topic = topic
        self._limit_s = limit_s

    async def seals(self, number: int, above: int | None = None) -> list[Sealed]:
        """Return the last committed seals of partition *number*; see `tail`."""
        return (await self.tail(number, above)).seals

    async def tail(self, number: int, above: int | None = None) -> Tail:
        """
        Return the last committed seals of partition *number* in log order.

        They include the latest complete seal and all later ones, and perhaps earlier ones. Reading stops at the offset
        that was the end at the time of the call. Records that are not seals are skipped and logged.

        Args:
            above: an offset after the last seal, which the leader must have. None: believe any broker that claims to
                lead.

        Raises:
            BrokerError: the end was not reached in time.
        """
        try:
            async with asyncio.timeout(self._limit_s) as limit:
                return await self._tail(number, above)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise BrokerError(
                f"the end of {self._topic} partition {number} could not be read within {self._limit_s:g} s",
                retriable=True,
            ) from error
        except KafkaError as error:
            raise BrokerError(
                f"the end of {self._topic} partition {number} could not be read: {error}", retriable=error.retriable
            ) from error

    async def _tail(self, number: int, above: int | None) -> Tail:
        end = await self._end(number, above)
        start = (await self._bounds.starts([number]))[number]
        tail = Tail([], b"")
        reach, read_from = _FIRST_REACH, end
        while read_from > start and latest(seal for seal in tail.seals if not is_brief(seal)) is None:
            read_from = max(start, end - reach)
            tail = await self._read(number, read_from, end, above)
            reach *= _REACH_GROWTH
        return tail

    async def _end(self, number: int, above: int | None) -> int:
        """Return the offset after the last seal."""
        while True:
            end = await self._bounds.end(number, above)
            if above is None or end > above:
                return end
            # The transaction marker after that offset is on its way; or another client has a transaction open, which it
            # should not.
            await asyncio.sleep(_PAUSE_S)

    async def _read(self, number: int, position: int, end: int, above: int | None) -> Tail:
        seals: list[Sealed] = []
        last = b""
        while position < end:
            part = await self._fetch(number, position)
            # A leader that has less would hide the latest seals.
            if part is None or part.end <= (-1 if above is None else above):
                await asyncio.sleep(_PAUSE_S)
                await self._fetcher.find_leaders()
                continue
            records = {each.offset: each for each in part.records if each.offset < end}
            found = seals_in(records.values(), self._topic, number)
            seals += found.values()
            last = next((records[offset].value or b"" for offset in reversed(found)), last)
            position = part.position
        return Tail(of_last_log(filled(seals)), hash_of_seal(last) if seals else b"")

    async def _fetch(self, number: int, position: int) -> Fetched | None:
        """Return the records at *position*; None if the partition's leader does not answer."""
        try:
            part = await self._fetcher.fetch_one(number, position, _WAIT_MS)
        except KafkaError as error:
            part = error
        if isinstance(part, Fetched):
            return part
        if not part.retriable:
            raise part
        return None


async def last_seals(kafka: Kafka, prefix: str) -> dict[int, list[Sealed]]:
    """
    Return the last seals of every partition, read over separate connections.

    Returns:
        By partition, see `SealLog.seals`, for the partitions that the service uses; an empty list for one without
        seals.

    Raises:
        TopicsError: `timer-sealed` does not exist.
    """
    topic = Topics.of(prefix).sealed
    count = (await counts(kafka, prefix)).get(topic)
    if count is None:
        raise TopicsError(f"topic {topic} is missing: create it with kafka-timers topics create")
    async with knowing(kafka, [topic]) as cluster:
        seals = SealLog(cluster, topic)
        tails = dict(enumerate(await asyncio.gather(*(seals.seals(number) for number in range(count)))))
    served = partitions_in(chain.from_iterable(tails.values())) or count
    return {number: tail for number, tail in tails.items() if number < served}


async def partitions_served(kafka: Kafka, prefix: str) -> int:
    """Return the number of partitions that the service uses, according to its last seals; 0 if there are no seals."""
    if Topics.of(prefix).sealed not in await counts(kafka, prefix):
        return 0
    tails = await last_seals(kafka, prefix)
    return partitions_in(chain.from_iterable(tails.values()))


async def served_counts(kafka: Kafka, prefix: str) -> dict[str, int]:
    """
    Return the number of partitions of each existing topic of the service, see `topics.counts`.

    Partitions that were added to `timer-request`, `oscillator` or `timer-sealed` after the service's start are not
    counted, since it does not use them.
    """
    topics, found = Topics.of(prefix), await counts(kafka, prefix)
    if topics.sealed in found:
        served = len(await last_seals(kafka, prefix))
        aligned = (topics.requests, topics.oscillator, topics.sealed)
        found |= {name: min(found[name], served) for name in aligned if name in found}
    return found


def seals_in(records: Iterable[Record], topic: str, partition: int) -> dict[int, Sealed]:
    """Return the seals in *records* of a partition, by offset. Records that are not seals are skipped and logged."""
    seals = {}
    for record in records:
        try:
            # An empty value would parse as a seal of second 0.
            seals[record.offset] = sealed_from(
                record.value or b"\0", topic=topic, partition=partition, offset=record.offset
            )
        except WireError as error:
            log.warning("skipped: %s", error)
    return seals
