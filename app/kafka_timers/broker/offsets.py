"""
Commits offsets of a consumer group in a producer's transactions, and reads them.

A coordinator's answer proves nothing: one that was cut off from the others does not know of later commits.
`broker.producer.Producer.committed` reads after a commit of its own, and so has a proof.

Offsets may outlive their topic, and another topic may get the name. So the topic's id is stored beside each offset:

    id A, offset 900     the topic is recreated, with id B     900 is no offset of B, which is read from 0

It is the topic id at the first question or commit of this object, and does not change. So an offset that was read
before the topic was recreated is committed for the old topic, however late.

The leader epoch under which the topic was read is there too, since an unclean election cuts a log and lets it grow
again. It is not in the field that Kafka has for it, which the first protocol of transactions does not write.
"""

from collections.abc import Mapping
from typing import Any

from aiokafka.client import CoordinationType
from aiokafka.errors import UnknownTopicOrPartitionError
from aiokafka.protocol.transaction import TxnOffsetCommitRequest

from kafka_timers.broker.bounds import Bound
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.coordinator import Identity
from kafka_timers.broker.coordinator_calls import CoordinatorLink, gravest
from kafka_timers.broker.transaction_requests import CommitOffsets, CommittedOffsets


class GroupOffsets:
    """
    Offsets of one group, for one reader of topics. Make a new object when you read a topic from scratch.

    Args:
        group: name of the group. The caller need not be a member.

    Attributes:
        link: the connection to the group's coordinator. A commit among its unanswered requests may still take effect.
    """

    def __init__(self, cluster: Cluster, group: str, timeout_s: float, lane: str) -> None:
        self.group = group
        self._cluster = cluster
        self.link = CoordinatorLink(cluster, CoordinationType.GROUP, group, timeout_s, lane)
        # Topic ids by topic name.
        self._ids: dict[str, bytes] = {}

    async def committed(self, topic: str, number: int) -> Bound | None:
        """
        Return the committed offset of a partition, and the leader epoch under which it was read, or -1; None if there
        is none, or if it belongs to an earlier topic of that name.

        Waits for a transaction that commits an offset. Believes any broker that claims to be the coordinator.

        Raises:
            KafkaTimeoutError: no coordinator has answered in time, or a transaction is still open.
            UnknownTopicOrPartitionError: the topic's id is not known now, so the offset cannot be matched to the topic.
        """
        what = f"tell the offset of {topic} partition {number}"

        def code_of(answer: Any) -> int:
            of_partitions = [code for _, numbers, _ in answer.topics for _, _, _, _, code, _ in numbers]
            return gravest(filter(None, (answer.error_code, *of_partitions)))

        answer = await self.link.obeyed(CommittedOffsets(self.group, topic, number), code_of, what)
        [(_, [(_, offset, _, note, *_)], _)] = answer.topics
        if offset < 0:
            return None
        topic_id, _, epoch = note.partition("/")
        if topic_id:
            known = self._id_of(topic)
            if not known:
                # Otherwise one broker's error would cause the whole topic to be read again.
                raise UnknownTopicOrPartitionError(f"the id of topic {topic} is not known: cannot {what}")
            if topic_id != known:
                return None
        return Bound(int(offset), int(epoch or -1))

    def _id_of(self, topic: str) -> str:
        """Return the topic's id in hex; empty if it is not known, or if brokers tell none."""
        if topic not in self._ids and any(found := self._cluster.topic_id(topic)):
            self._ids[topic] = found
        return self._ids.get(topic, b"").hex()

    async def commit(
        self,
        transactional_id: str,
        identity: Identity,
        topic: str,
        offsets: Mapping[int, int],
        epoch: int,
        *,
        joins: bool,
    ) -> None:
        """
        Commit *offsets* of *topic*, by partition, in the producer's open transaction.

        Once this returns, all in-sync replicas of the coordinator's log have the offsets.

        Args:
            offsets: the offset of the next record to read, by partition.
            epoch: leader epoch under which they were read; -1 if it is not known.
            joins: True if this request adds the group to the transaction; False if the group was added before.

        Raises:
            ProducerFenced: another producer has taken over.
        """
        what = f"commit offsets of {topic}, partitions {', '.join(map(str, offsets))}"
        request: Any
        note = f"{self._id_of(topic)}/{epoch}"
        if joins:
            request = CommitOffsets(transactional_id, self.group, *identity, topic, offsets, note)
        else:
            listed = [(number, offset, note) for number, offset in offsets.items()]
            request = TxnOffsetCommitRequest(transactional_id, self.group, *identity, [(topic, listed)])

        def code_of(answer: Any) -> int:
            return gravest(code for _, numbers, *_ in answer.errors for _, code, *_ in numbers if code)

        await self.link.obeyed(request, code_of, what)
