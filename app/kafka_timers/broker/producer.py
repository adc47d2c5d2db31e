"""
A producer of batches: each is in the log once and in its order, whatever is lost on the way, and in transactions all
of them or none.

    start    become the producer of the transactional id
    begin    → send, as often as there are batches → send_offsets → commit, or abort; then begin again

Batches leave in the background, one at a time for each partition, all partitions of a broker in one request. A request
that is not answered is sent again, to whoever leads by then; brokers know by their numbers which records they have.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from aiokafka.errors import KafkaError, KafkaTimeoutError, ProducerFenced, for_code

from kafka_timers.broker import codes
from kafka_timers.broker.batches import Batch
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.coordinator import Coordinator
from kafka_timers.broker.offsets import GroupOffsets
from kafka_timers.broker.refusals import Refusal, RefusedError
from kafka_timers.broker.requests import Produce, ProduceInTransaction

__all__ = ["Producer"]

# How long a leader may wait for the other replicas: less than a request may take.
_REPLICAS_S = 3.0
_SOON_S, _LATER_S = 0.02, 0.1

_Place = tuple[str, int]


@dataclass(slots=True)
class _Partition:
    """What is to be sent to one partition, the first batch first."""

    place: _Place
    batches: deque[Batch] = field(default_factory=deque)
    # How many records of this producer the log has, in this epoch, and where the last batch lies.
    sequence: int = 0
    offset: int = -1
    has_joined: bool = False
    missing_since_s: float | None = None
    trouble: str = ""


class Producer:
    """
    Sends batches, each once, and in transactions if it has a transactional id.

    Args:
        cluster: to write to.
        transactional_id: None for no transactions.
        timeout_s: after which the brokers abort a transaction; also the limit of each method.
        batch_bytes_max: of each batch.
        lane: of the requests, which no other producer has.
        group: the consumer group whose offsets it commits, if it has a transactional id.
        missing_s: a partition that no broker knows for so long is refused; a new one is known everywhere within less.
    """

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str | None,
        timeout_s: float,
        batch_bytes_max: int,
        lane: str,
        group: str = "",
        missing_s: float = 1.0,
    ) -> None:
        self.coordinator = Coordinator(cluster, transactional_id, timeout_s, f"{lane} coordination")
        self._offsets = GroupOffsets(cluster, group, timeout_s, f"{lane} offsets")
        self._has_offsets = False
        self._unanswered = 0
        self._cluster = cluster
        self._name = transactional_id
        self._timeout_s = timeout_s
        self._batch_bytes_max = batch_bytes_max
        self._lane = lane
        self._missing_s = missing_s
        self._partitions: dict[_Place, _Partition] = {}
        # What is ready to leave, by the broker that leads it, and who sends it there.
        self._ready: dict[int, dict[_Place, _Partition]] = {}
        self._sending: dict[int, asyncio.Task[None]] = {}
        # In their order, so that a seed of the simulation has one history.
        self._waiting: dict[asyncio.Task[None], None] = {}
        self._joining = asyncio.Lock()
        self._unsent = 0
        self._settled = asyncio.Event()
        self._refused: list[Refusal] = []
        # Batches of which somebody wants to know.
        self._awaited: dict[Batch, asyncio.Future[int]] = {}
        # No exception is kept, since each holds on to what was alive where it was raised.
        self._failed: tuple[type[KafkaError], str] | None = None

    async def start(self) -> None:
        """
        Become the producer of the transactional id.

        Raises:
            aiokafka.errors.KafkaError: as `Coordinator.init`.
        """
        await self.coordinator.init()

    async def stop(self) -> None:
        """Disconnect; the brokers abort what is open when the next producer starts, or after a while."""
        tasks = [*self._sending.values(), *self._waiting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in (self._lane, f"{self._lane} coordination", f"{self._lane} offsets"):
            await self._cluster.close_lane(lane)

    def new_batch(self) -> Batch:
        """Return an empty batch; `start` need not have been called."""
        return Batch(self._batch_bytes_max, is_transactional=self._name is not None)

    def begin(self) -> None:
        """Begin a transaction; the brokers hear of it with what is sent."""
        self._refused = []

    def send(self, batch: Batch, topic: str, partition: int) -> None:
        """
        Have *batch* sent, behind what was handed in before for that partition.

        Raises:
            ProducerFenced: another producer has the transactional id.
            aiokafka.errors.KafkaError: what was handed in before has failed, and this producer is of no more use.
        """
        self._raise_if_failed()
        place = (topic, partition)
        to = self._partitions.get(place)
        if to is None:
            to = self._partitions[place] = _Partition(place)
        to.batches.append(batch)
        self._unsent += 1
        if len(to.batches) == 1:
            self._route(to)

    async def deliver(self, batch: Batch, topic: str, partition: int) -> int:
        """
        Send *batch* and return once it is taken, however long that takes; for what is in no transaction.

        Whoever cancels this does not have it sent, unless it is on its way.

        Returns:
            When the broker has appended it, in UNIX milliseconds; -1 where the topic keeps the producer's timestamps.

        Raises:
            RefusedError: the topic does not take it.
            aiokafka.errors.KafkaError: it was not taken, and this producer is of no more use.
        """
        taken: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._awaited[batch] = taken
        try:
            self.send(batch, topic, partition)
            return await taken
        finally:
            self._awaited.pop(batch, None)
            to = self._partitions.get((topic, partition))
            # The first one may be in the log already.
            if to and batch in list(to.batches)[1:]:
                to.batches.remove(batch)
                self._settle(1)

    async def send_offsets(self, topic: str, offsets: Mapping[int, int]) -> None:
        """
        Have *offsets* of *topic*, by partition, committed for the group with the transaction.

        All replicas in sync of the group's coordinator have them once this returns; they count when it is committed.

        Raises:
            ProducerFenced: another producer has the transactional id.
            aiokafka.errors.KafkaError: the coordinator of the transaction, or of the group, does not answer or refuses.
        """
        self._raise_if_failed()
        coordinator = self.coordinator
        if not coordinator.joins_by_writing and not self._has_offsets:
            await coordinator.add_group(self._offsets.group)
        self._has_offsets = True
        joins, identity = coordinator.joins_by_writing, coordinator.identity
        await self._offsets.commit(self._name or "", identity, topic, offsets, joins=joins)

    async def committed(self, topic: str, number: int) -> int | None:
        """
        Return the offset that is committed for a partition, with all that any producer before has committed.

        A coordinator that was cut off from the others tells what was committed before. So an offset is committed in a
        transaction that is aborted, which changes nothing, and only the broker that has taken it is believed: it takes
        it when all replicas in sync have it, so it has all that was taken before. To be asked between transactions.

        Returns:
            The offset of the next record to be read; None if none is committed.

        Raises:
            ProducerFenced: another producer has the transactional id.
            KafkaTimeoutError: no broker has given a proof in time.
            aiokafka.errors.KafkaError: the coordinator of the transaction, or of the group, refuses.
        """
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                while True:
                    self.begin()
                    await self.send_offsets(topic, {number: 0})
                    taken_by = self._offsets.answered_by
                    await self.abort()
                    offset = await self._offsets.committed(topic, number)
                    if self._offsets.answered_by == taken_by:
                        return offset
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise KafkaTimeoutError(
                f"the offset of group {self._offsets.group} for {topic} partition {number} is not proved within "
                f"{self._timeout_s:g} s: {self.trouble}"
            ) from error

    async def flush(self) -> None:
        """
        Return once the brokers have all that was handed in.

        Raises:
            RefusedError: a topic does not take it. The transaction can be aborted, and another one begun.
            ProducerFenced: another producer has the transactional id.
            aiokafka.errors.KafkaError: anything else; this producer is of no more use.
        """
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                while self._unsent and not self._failed:
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise KafkaTimeoutError(f"not taken within {self._timeout_s:g} s: {self.trouble}") from error
        self._raise_if_failed()
        if self._refused:
            raise RefusedError(self._refused)

    @property
    def trouble(self) -> str:
        """Why it does not go on, as far as is known; empty when it does."""
        troubles = [to.trouble for to in self._partitions.values() if to.trouble]
        return "; ".join(filter(None, [self.coordinator.trouble, self._offsets.trouble, *troubles[:3]]))

    async def commit(self) -> None:
        """
        Have all that was sent since `begin` appear at once.

        Raises:
            aiokafka.errors.KafkaError: as `flush` and `Coordinator.end`.
        """
        await self.flush()
        await self._end(is_commit=True)

    async def abort(self) -> None:
        """
        Have nothing appear of what was sent since `begin`; all of it can be sent again.

        To be called when `flush` or `commit` has ended, however it did.

        Raises:
            aiokafka.errors.KafkaError: as `Coordinator.end`.
        """
        await self._end(is_commit=False)

    async def is_held(self) -> bool:
        """
        Tell whether no other producer of the transactional id had been let in, at some moment after this was asked.

        To be asked between transactions.

        Raises:
            aiokafka.errors.KafkaError: as `Coordinator.is_held`.
        """
        is_held = await self.coordinator.is_held()
        # Their records are counted by epoch.
        self._partitions.clear()
        return is_held

    def offset_of(self, topic: str, partition: int) -> int:
        """Return where the first record lies of the last batch of this epoch that was sent there and taken."""
        return self._partitions[topic, partition].offset

    async def _end(self, *, is_commit: bool) -> None:
        before = self.coordinator.identity
        if self._name is not None and self._has_begun:
            await self.coordinator.end(is_commit=is_commit)
        for to in self._partitions.values():
            to.has_joined = False
        self._has_offsets = False
        if self.coordinator.identity != before:
            # Their records are counted by epoch.
            self._partitions.clear()
        elif self._offsets.unanswered > self._unanswered and not await self.is_held():
            # Offsets have no numbers. A commit of them that was not answered could arrive in a later transaction, which
            # has a later epoch now.
            raise ProducerFenced(f"another producer has transactional id {self._name} by now")
        self._unanswered = self._offsets.unanswered

    @property
    def _has_begun(self) -> bool:
        """Whether the brokers may have heard of the transaction."""
        by_writing = self.coordinator.joins_by_writing
        return self._has_offsets or any(by_writing or to.has_joined for to in self._partitions.values())

    # --- on the way --------------------------------------------------------------------------------------------------

    def _route(self, to: _Partition) -> None:
        """Have the first batch for a partition sent to who leads it."""
        leader = self._cluster.leader(*to.place)
        if leader is not None:
            self._ready.setdefault(leader.node, {})[to.place] = to
            if leader.node not in self._sending:
                self._send_all(leader.node)
        elif code := self._cluster.why_no_leader(*to.place):
            self._not_taken(to, code)
        else:
            self._later(to, 0, look=True)

    def _send_all(self, node: int) -> None:
        task = self._sending[node] = asyncio.create_task(self._send_to(node))
        task.add_done_callback(partial(self._sent, node))

    def _sent(self, node: int, task: "asyncio.Task[None]") -> None:
        del self._sending[node]
        if task.cancelled():
            return
        if error := task.exception():
            self._fail(error)
        elif self._ready[node] and not self._failed:
            # It became ready when the task had found no more and was not done yet.
            self._send_all(node)

    def _fail(self, error: BaseException) -> None:
        if self._failed is None:
            kind, text = (type(error), error.args) if isinstance(error, KafkaError) else (KafkaError, [repr(error)])
            self._failed = (kind, " ".join(map(str, text)))
        for taken in self._awaited.values():
            if not taken.done():
                taken.set_exception(self._failed[0](self._failed[1]))
        self._settled.set()

    def _raise_if_failed(self) -> None:
        if self._failed:
            kind, text = self._failed
            raise kind(text)

    async def _send_to(self, node: int) -> None:
        has_to_join = self._name is not None and not self.coordinator.joins_by_writing
        while (ready := self._ready[node]) and not self._failed:
            if has_to_join:
                await self._join()
            sent = {place: to for place, to in ready.items() if to.has_joined or not has_to_join}
            for place in sent:
                del ready[place]
            if sent:
                await self._send(node, sent)

    async def _join(self) -> None:
        """Have all partitions that are ready join the transaction; those that must not are ready no more."""
        async with self._joining:
            new = {
                place: (to, ready) for ready in self._ready.values() for place, to in ready.items() if not to.has_joined
            }
            errors = await self.coordinator.add(new) if new else {}
            for place, (to, ready) in new.items():
                code = errors.get(place, 0)
                if code == codes.OPERATION_NOT_ATTEMPTED:
                    # Because of another one, which is asked for no more.
                    continue
                if code:
                    del ready[place]
                    self._not_taken(to, code)
                else:
                    to.has_joined = True

    async def _send(self, node: int, ready: dict[_Place, _Partition]) -> None:
        identity = self.coordinator.identity
        batches = {place: to.batches[0].encoded(*identity, to.sequence) for place, to in ready.items()}
        kind = ProduceInTransaction if self.coordinator.joins_by_writing else Produce
        try:
            answer = await self._cluster.send(
                node,
                kind(self._name, int(_REPLICAS_S * 1000), batches),
                lane=self._lane,
                has_moved=partial(self._cluster.has_lost, node, ready),
            )
        except KafkaError as error:
            if not error.retriable:
                raise
            for to in ready.values():
                to.trouble = f"{_name(to.place)}: {error}"
                self._later(to, _LATER_S, look=True)
            return
        for topic, partitions, *_ in answer.topics:
            for number, code, offset, appended_ms, _, _, words, *_ in partitions:
                to = ready.pop((topic, number))
                if code in (0, codes.DUPLICATE_SEQUENCE_NUMBER):
                    self._taken(to, offset, appended_ms)
                else:
                    self._not_taken(to, code, words or "", by=f"{self._cluster.name_of(node)}, ")

    def _taken(self, to: _Partition, offset: int, appended_ms: int) -> None:
        batch = to.batches.popleft()
        to.offset = offset
        # It has 31 bits.
        to.sequence = (to.sequence + batch.record_count()) & 0x7FFF_FFFF
        if (taken := self._awaited.get(batch)) and not taken.done():
            taken.set_result(appended_ms)
        to.trouble, to.missing_since_s = "", None
        self._settle(1)
        if to.batches:
            self._route(to)

    def _not_taken(self, to: _Partition, code: int, words: str = "", *, by: str = "") -> None:
        to.trouble = f"{by}{_name(to.place)}: {codes.name_of(code)}"
        if code in codes.FENCED:
            self._fail(ProducerFenced(f"another producer has transactional id {self._name} by now"))
        elif code == codes.UNKNOWN_TOPIC_OR_PARTITION and self._is_missing(to):
            self._refuse(to, code, words)
        elif code in codes.DELAYS_OF_LEADERS:
            is_soon = code == codes.CONCURRENT_TRANSACTIONS
            self._later(to, _SOON_S if is_soon else _LATER_S, look=not is_soon)
        elif code in codes.OF_THE_PRODUCER:
            self._fail(for_code(code)(f"{to.trouble} {words}".rstrip()))
        else:
            self._refuse(to, code, words)

    def _is_missing(self, to: _Partition) -> bool:
        now_s = asyncio.get_running_loop().time()
        if to.missing_since_s is None:
            to.missing_since_s = now_s
        return now_s - to.missing_since_s >= self._missing_s

    def _refuse(self, to: _Partition, code: int, words: str) -> None:
        refusal = Refusal(*to.place, code, words)
        awaited = [taken for batch in to.batches if (taken := self._awaited.get(batch)) and not taken.done()]
        for taken in awaited:
            taken.set_exception(RefusedError([refusal]))
        if not awaited:
            self._refused.append(refusal)
        to.trouble, to.missing_since_s = "", None
        # What follows for this partition would appear without this.
        count = len(to.batches)
        to.batches.clear()
        self._settle(count)

    def _settle(self, count: int) -> None:
        self._unsent -= count
        if not self._unsent:
            self._settled.set()

    def _later(self, to: _Partition, pause_s: float, *, look: bool) -> None:
        """Try again after a pause, and with *look* ask before who leads the partition by now."""
        task = asyncio.create_task(self._retry(to, pause_s, look=look))
        self._waiting[task] = None
        task.add_done_callback(self._waited)

    def _waited(self, task: "asyncio.Task[None]") -> None:
        del self._waiting[task]
        if not task.cancelled() and (error := task.exception()):
            self._fail(error)

    async def _retry(self, to: _Partition, pause_s: float, *, look: bool) -> None:
        await asyncio.sleep(pause_s)
        if look:
            try:
                await self._cluster.refresh()
            except KafkaError as error:
                if not error.retriable:
                    raise
                to.trouble = f"{_name(to.place)}: {error}"
        if not self._failed:
            self._route(to)


def _name(place: _Place) -> str:
    return f"{place[0]} partition {place[1]}"
