"""
The committed offsets of a consumer group, written in the transactions of a producer, and read.

What a coordinator tells proves nothing: one that was cut off from the others does not know what was committed
elsewhere. `broker.producer.Producer.committed` reads behind a commit of its own, and so has a proof.

An offset may outlive its topic, and another one may have the name by then. So the topic's id is committed beside it:

    id A, offset 900     the topic is deleted and made anew, with id B     900 is no offset of B, which is read from 0

It is the id that the topic had when these offsets were first asked for or committed, and stays that: what was read
before the topic was made anew is committed for the one it was read of, however late that is.
"""

from collections.abc import Mapping
from typing import Any

from aiokafka.client import CoordinationType
from aiokafka.errors import UnknownTopicOrPartitionError
from aiokafka.protocol.transaction import TxnOffsetCommitRequest

from kafka_timers.broker.asking import CoordinatorLink, gravest
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.coordinator import Identity
from kafka_timers.broker.transaction_requests import CommitOffsets, CommittedOffsets

__all__ = ["GroupOffsets"]


class GroupOffsets:
    """
    The offsets of one group, by one who reads topics with them; who reads a topic anew makes another one of these.

    Args:
        cluster: to ask.
        group: name of the group; whoever asks need be no member of it.
        timeout_s: the limit of each method.
        lane: of the questions.
    """

    def __init__(self, cluster: Cluster, group: str, timeout_s: float, lane: str) -> None:
        self.group = group
        self._cluster = cluster
        self._link = CoordinatorLink(cluster, CoordinationType.GROUP, group, timeout_s, lane)
        # By the topic's name.
        self._ids: dict[str, bytes] = {}

    @property
    def trouble(self) -> str:
        """Why it does not go on, as far as is known; empty when it does."""
        return self._link.trouble

    @property
    def answered_by(self) -> int | None:
        """The broker that has given the last answer; None if it is not known any more."""
        return self._link.node

    @property
    def unanswered(self) -> int:
        """How many questions were not answered: a commit among them may still be on its way."""
        return self._link.unanswered

    async def committed(self, topic: str, number: int) -> int | None:
        """
        Return the offset that is committed for a partition; None without one, or where it was committed for a topic
        that had the same name before.

        Waits while a transaction that commits one is not complete. Whoever says that it coordinates is believed.

        Raises:
            KafkaTimeoutError: no coordinator has answered in time, or a transaction is still open.
            UnknownTopicOrPartitionError: the topic's id is not known now, so whether the offset is of it is not either.
            aiokafka.errors.KafkaError: it refuses.
        """
        what = f"tell the offset of {topic} partition {number}"

        def code_of(answer: Any) -> int:
            of_partitions = [code for _, numbers, _ in answer.topics for _, _, _, _, code, _ in numbers]
            return gravest(filter(None, (answer.error_code, *of_partitions)))

        answer = await self._link.ask(CommittedOffsets(self.group, topic, number), code_of, to=what)
        if code := code_of(answer):
            self._link.refuse(code, what)
        [(_, [(_, offset, _, note, *_)], _)] = answer.topics
        if offset < 0:
            return None
        if note:
            known = self._note(topic)
            if not known:
                # One broker's error would have the whole topic read anew.
                raise UnknownTopicOrPartitionError(f"the id of topic {topic} is not known: cannot {what}")
            if note != known:
                return None
        return int(offset)

    def _note(self, topic: str) -> str:
        """Return what is committed beside an offset: of which topic it is; empty if that is not known."""
        if topic not in self._ids and (found := self._cluster.topic_id(topic)):
            self._ids[topic] = found
        return self._ids.get(topic, b"").hex()

    async def commit(
        self, transactional_id: str, identity: Identity, topic: str, offsets: Mapping[int, int], *, joins: bool
    ) -> None:
        """
        Commit *offsets* of *topic*, by partition, with the transaction that a producer has open.

        All replicas in sync of the coordinator's log have them once this returns.

        Args:
            transactional_id: of the producer.
            identity: of the producer.
            topic: name.
            offsets: by partition: that of the next record to be read.
            joins: whether the group joins the transaction by this; else it has joined.

        Raises:
            ProducerFenced: another producer was let in.
            aiokafka.errors.KafkaError: the coordinator does not answer, or refuses.
        """
        what = f"commit offsets of {topic}, partitions {', '.join(map(str, offsets))}"
        request: Any
        if joins:
            request = CommitOffsets(transactional_id, self.group, *identity, topic, offsets, self._note(topic))
        else:
            listed = [(number, offset, self._note(topic)) for number, offset in offsets.items()]
            request = TxnOffsetCommitRequest(transactional_id, self.group, *identity, [(topic, listed)])

        def code_of(answer: Any) -> int:
            return gravest(code for _, numbers, *_ in answer.errors for _, code, *_ in numbers if code)

        answer = await self._link.ask(request, code_of, to=what)
        if code := code_of(answer):
            self._link.refuse(code, what)
