"""
Has Faust's group assign partitions by `placement`: each member tells which stores it has when it joins.

A member also tells which format of seals it knows, and learns with its assignment which one all members know.

Faust's own assignor keeps what members have as long as they stay, and knows nothing of the disk of one that comes back.
"""

import json
import zlib
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from faust.assignor import PartitionAssignor
from faust.assignor.client_assignment import ClientAssignment, ClientMetadata

from kafka_timers.core.wire import FORMAT
from kafka_timers.worker.placement import Member, spread

__all__ = ["StoreAssignor"]

# Among the numbers that Faust tells all members with an assignment, by topic. No topic has a name with a space.
_FORMAT_KEY = "format of seals"


class StoreAssignor(PartitionAssignor):
    """Assigns the one topic that workers subscribe to; the stores lie in Faust's data folder, by partition."""

    @property
    def name(self) -> str:
        """What members of a group agree on."""
        return "kafka-timers-stores"

    @property
    def format(self) -> int:
        """The format of seals that every member of the group can read, as of the last assignment."""
        try:
            return self.group_for_topic(_FORMAT_KEY)
        except KeyError:
            # A member that knows nothing of formats has made the assignment.
            return 1

    def metadata(self, topics: set[str]) -> ConsumerProtocolMemberMetadata:
        """Return what this member tells the one that assigns."""
        conf = self.app.conf
        owns, stores = sorted(at.partition for at in self.assigned_actives()), _stores_in(Path(conf.datadir))
        told = {"url": str(conf.canonical_url), "owns": owns, "stores": stores, "format": FORMAT}
        return ConsumerProtocolMemberMetadata(self.version, list(topics), json.dumps(told).encode())

    def assign(
        self, cluster: Any, member_metadata: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> MutableMapping[str, ConsumerProtocolMemberAssignment]:
        """
        Return what each member of the group gets, in the form that Faust reads in `on_assignment`.

        Args:
            cluster: tells how many partitions a topic has.
            member_metadata: what each member has told of itself, by its id.
        """
        told = {name: json.loads(metadata.user_data) for name, metadata in member_metadata.items()}
        members = {
            name: Member(frozenset(each["owns"]), {int(number): at for number, at in each["stores"].items()})
            for name, each in told.items()
        }
        assigned = {name: ClientAssignment(actives={}, standbys={}) for name in members}
        topics = {topic for metadata in member_metadata.values() for topic in metadata.subscription}
        for topic in topics:
            # Partitions that were added by mistake are nobody's.
            count = min(len(cluster.partitions_for_topic(topic) or ()), self.app.conf.topic_partitions)
            for name, numbers in spread(count, members).items():
                assigned[name].actives[topic] = numbers
        formats = [each.get("format", 1) for each in told.values()]
        groups = dict.fromkeys(topics, 0) | {_FORMAT_KEY: min(formats)}
        return {
            name: ConsumerProtocolMemberAssignment(
                self.version,
                sorted(own.actives.items()),
                zlib.compress(ClientMetadata(own, told[name]["url"], {}, {}, groups).dumps()),
            )
            for name, own in assigned.items()
        }


def _stores_in(folder: Path) -> dict[str, float]:
    return {path.name: path.stat().st_mtime for path in folder.iterdir() if path.name.isdecimal() and path.is_dir()}
