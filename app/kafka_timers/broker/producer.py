"""
A producer of batches. Each batch is in the log once and in order, in spite of lost requests. With transactions, all
batches of a transaction appear or none.

    start    become the producer of the transactional id
    begin    → send, as often as there are batches → send_offsets → commit, or abort; then begin again

Batches are sent in the background: one at a time for each partition, and one request for all partitions of a broker. An
unanswered request is sent again, to the leader at that time. Brokers recognise repeated records by their sequence
numbers.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from aiokafka.errors import KafkaError, ProducerFenced, for_code

from kafka_timers.broker import codes
from kafka_timers.broker.batches import Batch
from kafka_timers.broker.bounds import Bound
from kafka_timers.broker.cluster import Cluster, limited
from kafka_timers.broker.coordinator import Coordinator
from kafka_timers.broker.coordinator_calls import ExpiredIdError
from kafka_timers.broker.offsets import GroupOffsets
from kafka_timers.broker.refusals import Refusal, RefusedError
from kafka_timers.broker.requests import Produce, ProduceInTransaction

# How long a leader may wait for the other replicas: less than the limit of a request.
_REPLICAS_S = 3.0
_SOON_S, _LATER_S = 0.02, 0.1
# A compacted topic refuses records without a key.
_BARRIER_KEY = b"barrier"

_Place = tuple[str, int]


@dataclass(slots=True)
class _Partition:
    """Batches to send to one partition, in order."""

    place: _Place
    batches: deque[Batch] = field(default_factory=deque)
    # The number of this producer's records in the log in this epoch, and the offset of the last batch.
    sequence: int = 0
    offset: int = -1
    has_joined: bool = False
    # Why it does not take the first batch, as `codes.reason_of` tells it, and since when.
    delay: tuple[int, float] | None = None
    trouble: str = ""


class Producer:
    """
    Sends each batch exactly once; with a transactional id, in transactions.

    Its methods raise ProducerFenced if another producer has the transactional id, `ExpiredIdError` if that has expired,
    and another `aiokafka.errors.KafkaError` if a coordinator does not answer or refuses.

    Args:
        transactional_id: None for a producer without transactions.
        timeout_s: seconds after which brokers abort a transaction; also the limit of each method.
        batch_bytes_max: size limit of each batch in bytes.
        lane: lane of the requests. Producers may share it: it has more connections where one of them waits for long.
        group: consumer group whose offsets it commits; needs a transactional id.
        missing_s: a partition that brokers do not know for this time is refused. A new one becomes known everywhere
            sooner.
        gives_up_on: tells whether the partitions of a topic are refused when they are unavailable for long, as in
            `codes.UNAVAILABLE_AFTER_S`. Others are waited for.
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
        gives_up_on: Callable[[str], bool] = lambda _: False,
    ) -> None:
        coordination = f"{lane} coordination"
        self.coordinator = Coordinator(cluster, transactional_id, timeout_s, coordination)
        self._offsets = GroupOffsets(cluster, group, timeout_s, coordination)
        self._has_offsets = False
        self._unanswered = 0
        self._cluster = cluster
        self._name = transactional_id
        self._timeout_s = timeout_s
        self._batch_bytes_max = batch_bytes_max
        self._lane = lane
        self._missing_s = missing_s
        self._gives_up_on = gives_up_on
        self._partitions: dict[_Place, _Partition] = {}
        # Partitions with a batch to send, by leader; and the tasks that send, by leader.
        self._ready: dict[int, dict[_Place, _Partition]] = {}
        self._sending: dict[int, asyncio.Task[None]] = {}
        # A dict keeps their order, so that a seed of the simulation gives one history.
        self._waiting: dict[asyncio.Task[None], None] = {}
        self._joining = asyncio.Lock()
        self._unsent = 0
        self._settled = asyncio.Event()
        self._refused: list[Refusal] = []
        # Results of batches that a caller waits for.
        self._awaited: dict[Batch, asyncio.Future[int]] = {}
        # The exception itself is not kept: it would keep alive every object of the frames where it was raised.
        self._failed: tuple[type[KafkaError], str] | None = None

    async def start(self) -> None:
        """Become the producer of the transactional id, once or again. Raises as `Coordinator.init`."""
        await self.coordinator.init()
        self._partitions.clear()

    async def stop(self) -> None:
        """Send nothing more. Brokers abort an open transaction when the next producer starts, or after its timeout."""
        tasks = [*self._sending.values(), *self._waiting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def new_batch(self) -> Batch:
        """Return an empty batch. This works before `start`."""
        return Batch(self._batch_bytes_max, is_transactional=self._name is not None)

    def begin(self) -> None:
        """Begin a transaction. Brokers learn of it with the first batch."""
        self._refused = []

    def send(self, batch: Batch, topic: str, partition: int) -> None:
        """
        Queue *batch* for a partition, behind earlier batches for it.

        Raises:
            aiokafka.errors.KafkaError: an earlier batch has failed. This producer cannot be used any more.
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
        Send *batch* outside a transaction, and return once the broker has taken it, however long that takes.

        If you cancel this call, the batch is not sent, unless it is already on its way.

        Returns:
            The time at which the broker appended it, in UNIX milliseconds; -1 if the topic keeps the producer's
            timestamps.

        Raises:
            RefusedError: the topic refuses the batch.
            aiokafka.errors.KafkaError: sending failed. This producer cannot be used any more.
        """
        taken: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._awaited[batch] = taken
        try:
            self.send(batch, topic, partition)
            return await taken
        finally:
            self._awaited.pop(batch, None)
            to = self._partitions.get((topic, partition))
            # The first batch may be in the log already.
            if to and batch in list(to.batches)[1:]:
                to.batches.remove(batch)
                self._settle(1)

    async def send_offsets(self, topic: str, offsets: Mapping[int, int], epoch: int = -1) -> None:
        """
        Commit *offsets* of *topic*, by partition, for the group as part of the transaction.

        Once this returns, all in-sync replicas of the group's coordinator have them. They count when you commit.
        """
        self._raise_if_failed()
        coordinator = self.coordinator
        if not coordinator.joins_by_writing and not self._has_offsets:
            await coordinator.add_group(self._offsets.group)
        self._has_offsets = True
        joins, identity = coordinator.joins_by_writing, coordinator.identity
        await self._offsets.commit(self._name or "", identity, topic, offsets, epoch, joins=joins)

    async def committed(self, topic: str, number: int) -> Bound | None:
        """
        Return the committed offset of a partition. All commits of earlier producers are included.

        A coordinator that was cut off from the others gives old answers. So this commits an offset in a transaction,
        aborts it, which changes nothing, and believes only the broker that took the offset. A broker takes an offset
        once all in-sync replicas have it, so it also has all earlier ones. Call this between transactions only.

        Returns:
            The offset of the next record to read, and the leader epoch under which the ones before were read, or -1;
            None if none is committed.

        Raises:
            KafkaTimeoutError: no broker has given a proof in time.
        """
        what = f"the offset of group {self._offsets.group} for {topic} partition {number} is not proved"
        async with limited(self._timeout_s, lambda: f"{what} within {self._timeout_s:g} s: {self.trouble}"):
            while True:
                self.begin()
                await self.send_offsets(topic, {number: 0})
                taken_by = self._offsets.link.node
                await self.abort()
                offset = await self._offsets.committed(topic, number)
                if self._offsets.link.node == taken_by:
                    return offset

    async def flush(self) -> None:
        """
        Return once the brokers have all batches that were sent.

        Raises:
            RefusedError: a topic refuses a batch. You can abort the transaction and begin another one.
            aiokafka.errors.KafkaError: any other error. This producer cannot be used any more.
        """
        async with limited(self._timeout_s, lambda: f"not taken within {self._timeout_s:g} s: {self.trouble}"):
            while self._unsent and not self._failed:
                self._settled.clear()
                await self._settled.wait()
        self._raise_if_failed()
        if self._refused:
            raise RefusedError(self._refused)

    @property
    def trouble(self) -> str:
        """The reason why sending does not go on, as far as known; empty if it does."""
        troubles = [to.trouble for to in self._partitions.values() if to.trouble]
        return "; ".join(filter(None, [self.coordinator.link.trouble, self._offsets.link.trouble, *troubles[:3]]))

    async def commit(self) -> None:
        """Commit: all batches since `begin` appear at once. Raises as `flush` and `Coordinator.end`."""
        await self.flush()
        await self._end(is_commit=True)

    async def abort(self) -> None:
        """
        Abort: no batch since `begin` appears. You can send all of them again.

        Call this after `flush` or `commit` has ended, whether it raised or not. Raises as `Coordinator.end`.
        """
        await self._end(is_commit=False)

    async def is_held(self) -> bool:
        """
        Tell whether, at some moment after the call, no other producer had the transactional id.

        Call this between transactions only. Raises as `Coordinator.is_held`.
        """
        is_held = await self.coordinator.is_held()
        # Sequence numbers start again with each epoch.
        self._partitions.clear()
        return is_held

    async def barrier(self, topics: Sequence[str], partition: int, now_ms: int | None = None) -> list[int]:
        """
        Write a record to *partition* of each topic, abort it, so that no reader of committed records gets it, and
        return their offsets.

        A broker acknowledges them once all in-sync replicas have them, which a cut off broker cannot do: whoever reads
        a topic up to this offset has all that was committed before. If a broker has lost the end of the earlier
        transaction of this id, as a killed Kafka 4.3 may, this one ends it, so that readers do not wait for ever.
        *now_ms* is the brokers' time: they refuse a record an hour ahead where they do not stamp it themselves.

        Raises:
            RefusedError: a topic refuses the record.
            KafkaError: a record was not written, or was taken twice, and no broker tells where it lies.
        """
        self.begin()
        for topic in topics:
            batch = self.new_batch()
            batch.append(timestamp=now_ms, key=_BARRIER_KEY, value=b"")
            self.send(batch, topic, partition)
        await self.flush()
        offsets = [self.offset_of(topic, partition) for topic in topics]
        await self.abort()
        if min(offsets) < 0:
            raise KafkaError(f"brokers have taken a record of {self._name} twice, and do not tell where it lies")
        return offsets

    def offset_of(self, topic: str, partition: int) -> int:
        """Return the offset of the first record of the last batch that the partition took in this epoch."""
        return self._partitions[topic, partition].offset

    async def _end(self, *, is_commit: bool) -> None:
        before = self.coordinator.identity
        if self._name is not None and self._has_begun:
            await self.coordinator.end(is_commit=is_commit)
        for to in self._partitions.values():
            to.has_joined = False
        self._has_offsets = False
        if self.coordinator.identity != before:
            # Sequence numbers start again with each epoch.
            self._partitions.clear()
        elif self._offsets.link.unanswered > self._unanswered and not await self.is_held():
            # Offsets have no sequence numbers. An unanswered commit of offsets could arrive during a later transaction.
            # That one has a later epoch now, so it cannot.
            raise ProducerFenced(f"another producer has transactional id {self._name} by now")
        self._unanswered = self._offsets.link.unanswered

    @property
    def _has_begun(self) -> bool:
        """True if brokers may know of the transaction."""
        by_writing = self.coordinator.joins_by_writing
        return self._has_offsets or any(by_writing or to.has_joined for to in self._partitions.values())

    # --- on the way --------------------------------------------------------------------------------------------------

    def _route(self, to: _Partition) -> None:
        """Send the first batch of a partition to its leader."""
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
            # The partition became ready after the task's last look.
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
        """Add all ready partitions to the transaction. Partitions that are refused are not ready any more."""
        async with self._joining:
            new = {
                place: (to, ready) for ready in self._ready.values() for place, to in ready.items() if not to.has_joined
            }
            errors = await self.coordinator.add(new) if new else {}
            for place, (to, ready) in new.items():
                code = errors.get(place, 0)
                if code == codes.OPERATION_NOT_ATTEMPTED:
                    # Refused because of another partition, which will not be in the next attempt.
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
            answer = await self._cluster.send_in_turn(
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
                to.delay = to.delay or (0, _now_s())
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
        # Sequence numbers have 31 bits.
        to.sequence = (to.sequence + batch.record_count()) & 0x7FFF_FFFF
        if (taken := self._awaited.get(batch)) and not taken.done():
            taken.set_result(appended_ms)
        to.trouble, to.delay = "", None
        self._settle(1)
        if to.batches:
            self._route(to)

    def _not_taken(self, to: _Partition, code: int, words: str = "", *, by: str = "") -> None:
        to.trouble = f"{by}{_name(to.place)}: {codes.name_of(code)}"
        if code == codes.INVALID_PRODUCER_ID_MAPPING:
            self._fail(ExpiredIdError(self._name))
        elif code in codes.FENCED:
            self._fail(ProducerFenced(f"another producer has transactional id {self._name} by now"))
        elif code in codes.DELAYS_OF_LEADERS and not self._lasts(to, code):
            is_soon = code == codes.CONCURRENT_TRANSACTIONS
            self._later(to, _SOON_S if is_soon else _LATER_S, look=not is_soon)
        elif code in codes.OF_THE_PRODUCER:
            self._fail(for_code(code)(f"{to.trouble} {words}".rstrip()))
        else:
            self._refuse(to, code, words)

    def _lasts(self, to: _Partition, code: int) -> bool:
        """Tell whether the partition has not taken its batch for so long that *code* counts as a refusal."""
        reason, limit_s = codes.reason_of(code), math.inf
        if to.delay is None or to.delay[0] != reason:
            to.delay = reason, _now_s()
        if code == codes.UNKNOWN_TOPIC_OR_PARTITION:
            limit_s = self._missing_s
        elif self._gives_up_on(to.place[0]):
            limit_s = codes.UNAVAILABLE_AFTER_S.get(code, math.inf)
        return _now_s() - to.delay[1] >= limit_s

    def _refuse(self, to: _Partition, code: int, words: str) -> None:
        refusal = Refusal(*to.place, code, words)
        # Batches that callers wait for stand alone. Otherwise, later ones must not appear without this one.
        is_alone = any(batch in self._awaited for batch in to.batches)
        refused = [to.batches.popleft() for _ in range(1 if is_alone else len(to.batches))]
        awaited = [taken for batch in refused if (taken := self._awaited.get(batch)) and not taken.done()]
        for taken in awaited:
            taken.set_exception(RefusedError([refusal]))
        if not awaited:
            self._refused.append(refusal)
        to.trouble, to.delay = "", None
        self._settle(len(refused))
        if to.batches:
            self._route(to)

    def _settle(self, count: int) -> None:
        self._unsent -= count
        if not self._unsent:
            self._settled.set()

    def _later(self, to: _Partition, pause_s: float, *, look: bool) -> None:
        """Try again after a pause. With *look*, first look up the leader of the partition."""
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


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _name(place: _Place) -> str:
    return f"{place[0]} partition {place[1]}"
