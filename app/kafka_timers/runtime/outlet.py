"""Where workers, doors and planners write: the topics for requests and refused records, and their transactional ids."""

from dataclasses import dataclass, replace

from kafka_timers.core.callbacks import Target
from kafka_timers.core.wire import instance_name
from kafka_timers.runtime.filling import BATCH_BYTES
from kafka_timers.runtime.targets import TopicLookup


@dataclass(slots=True)
class Outlet:
    """
    Names of the topics for requests and for refused records, and the limits of the two topics.

    The number of partitions in `requests_take` is that of the served ones, which decides the partition of a timer id.
    """

    requests: str
    requests_take: Target
    rejected: str
    rejected_takes: Target

    @property
    def batch_bytes(self) -> int:
        """Return the size limit of a batch in bytes. A larger batch has a single record."""
        return min(BATCH_BYTES, self.requests_take.batch_bytes_max, self.rejected_takes.batch_bytes_max)

    async def renew(self, lookup: TopicLookup) -> None:
        """Look the limits of both topics up again: one that has smaller ones now would refuse for ever."""
        found = await lookup.look_up([self.requests, self.rejected])
        takes, rejected_takes = found[self.requests], found[self.rejected]
        if isinstance(takes, Target):
            # The number of served partitions is fixed for life.
            self.requests_take = replace(takes, partitions=self.requests_take.partitions)
        if isinstance(rejected_takes, Target):
            self.rejected_takes = rejected_takes


def transactional_id(prefix: str, reader: str, topic: str, partition: int) -> str:
    """
    Return the transactional id for reading *partition* of *topic*. It begins with the name of the instance and a dot.

    Different arguments give different ids, because no topic has a slash in its name.

    Args:
        reader: `planner`, or `door.` and the name of the door.
    """
    return f"{instance_name(prefix)}.{reader}/{topic}/{partition}"
