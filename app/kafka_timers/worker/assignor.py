"""
Makes Faust's group assign partitions by `placement`: each member reports its stores when it joins, and which of them
have requests that the log has lost.

The members of a group serve one topic. A worker of another instance, which was given the same group by mistake, gets no
partition, and learns with its assignment which topic the others serve.

A member also reports the seal format that it knows, and learns with its assignment the format that all members know.

Faust's own assignor only keeps the partitions of members that stay. It ignores the disk of a member that comes back.
"""

import json
import zlib
from collections import Counter
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from faust.assignor import PartitionAssignor
from faust.assignor.client_assignment import ClientAssignment, ClientMetadata

from kafka_timers.broker.internals import topics_assigned
from kafka_timers.core.wire import FORMAT
from kafka_timers.worker.placement import Member, spread
from kafka_timers.worker.stores import stores_in

# A key beside the topics, in the numbers that Faust sends to all members. No topic name contains a space.
_FORMAT_KEY = "format of seals"

_T = TypeVar("_T")


class StoreAssignor(PartitionAssignor):
    """
    Assigns the one topic that workers subscribe to. Stores are folders in Faust's data folder, named by partition.

    Attributes:
        alone: see `StoreFolders`, whose attribute it is.
    """

    alone: Mapping[int, int] = MappingProxyType({})

    @property
    def name(self) -> str:
        """Name of the assignment protocol, on which all members of a group agree."""
        return "kafka-timers-stores"

    @property
    def format(self) -> int:
        """The seal format that every member of the group could read at the last assignment."""
        return self.group_for_topic(_FORMAT_KEY)

    @property
    def topic(self) -> str:
        """The topic that the group served at the last assignment; empty if there is none."""
        return next((name for name in topics_assigned(self) if name != _FORMAT_KEY), "")

    def metadata(self, topics: set[str]) -> ConsumerProtocolMemberMetadata:
        """Return the data that this member sends to the assigning member."""
        conf = self.app.conf
        owns, stores = sorted(at.partition for at in self.assigned_actives()), stores_in(Path(conf.datadir))
        facts = {"url": str(conf.canonical_url), "owns": owns, "stores": stores, "format": FORMAT}
        facts["alone"] = dict(self.alone)
        return ConsumerProtocolMemberMetadata(self.version, list(topics), json.dumps(facts).encode())

    def assign(
        self, cluster: Any, member_metadata: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> MutableMapping[str, ConsumerProtocolMemberAssignment]:
        """Return the assignment of each member of the group, in the form that Faust reads in `on_assignment`."""
        facts = {name: json.loads(metadata.user_data) for name, metadata in member_metadata.items()}
        members = {
            name: Member(frozenset(each["owns"]), _by_number(each["stores"]), _by_number(each["alone"]))
            for name, each in facts.items()
        }
        assigned = {name: ClientAssignment(actives={}, standbys={}) for name in members}
        wanted = {name: topic for name, metadata in member_metadata.items() for topic in metadata.subscription}
        topic = _served(wanted, members)
        ours = {name: member for name, member in members.items() if wanted.get(name) == topic}
        # Partitions that were added by mistake are not assigned.
        count = min(len(cluster.partitions_for_topic(topic) or ()), self.app.conf.topic_partitions)
        for name, numbers in spread(count, ours).items():
            assigned[name].actives[topic] = numbers
        groups = {topic: 0, _FORMAT_KEY: min(facts[name]["format"] for name in ours)}
        return {
            name: ConsumerProtocolMemberAssignment(
                self.version,
                sorted(own.actives.items()),
                zlib.compress(ClientMetadata(own, facts[name]["url"], {}, {}, groups).dumps()),
            )
            for name, own in assigned.items()
        }


def _served(wanted: Mapping[str, str], members: Mapping[str, Member]) -> str:
    """Return the topic of the members that own the most partitions, which a newcomer cannot; of as many, the first."""
    owned = Counter(dict.fromkeys(sorted(wanted.values()), 0))
    for name, topic in wanted.items():
        owned[topic] += len(members[name].owns)
    return max(owned, key=owned.__getitem__)


def _by_number(told: Mapping[str, _T]) -> dict[int, _T]:
    return {int(number): each for number, each in told.items()}
