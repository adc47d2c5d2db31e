"""
Has Faust's group assign partitions by `placement`: each member tells which stores it has when it joins.

A member also tells which format of seals it knows, and learns with its assignment which one all members know.

Faust's own assignor keeps what members have as long as they stay, and knows nothing of the disk of one that comes back.
"""

import json
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from faust.assignor import PartitionAssignor
from faust.assignor.client_assignment import ClientAssignment

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
        # An assignment by a member that knows nothing of formats has none.
        return self._topic_groups.get(_FORMAT_KEY, 1)

    def metadata(self, topics: set[str]) -> ConsumerProtocolMemberMetadata:
        """Return what this member tells the one that assigns."""
        owns = [number for numbers in self._assignment.actives.values() for number in numbers]
        stores = _stores_in(Path(self.app.conf.datadir))
        told = {"url": str(self._url), "owns": owns, "stores": stores, "format": FORMAT}
        return ConsumerProtocolMemberMetadata(self.version, list(topics), json.dumps(told).encode())

    def _perform_assignment(
        self, cluster: Any, member_metadata: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> MutableMapping[str, ConsumerProtocolMemberAssignment]:
        told = {name: json.loads(metadata.user_data) for name, metadata in member_metadata.items()}
        members = {
            name: Member(frozenset(each["owns"]), {int(number): at for number, at in each["stores"].items()})
            for name, each in told.items()
        }
        self._member_urls = {name: each["url"] for name, each in told.items()}
        assigned = {name: ClientAssignment(actives={}, standbys={}) for name in members}
        topics = {topic for metadata in member_metadata.values() for topic in metadata.subscription}
        for topic in topics:
            for name, numbers in spread(len(cluster.partitions_for_topic(topic) or ()), members).items():
                assigned[name].actives[topic] = numbers
        formats = [each.get("format", 1) for each in told.values()]
        return self._protocol_assignments(assigned, {}, {}, dict.fromkeys(topics, 0) | {_FORMAT_KEY: min(formats)})


def _stores_in(folder: Path) -> dict[str, float]:
    return {path.name: path.stat().st_mtime for path in folder.iterdir() if path.name.isdecimal() and path.is_dir()}
