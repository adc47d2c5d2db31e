"""
One landing at a time for an instance of the service, on any machine.

A landing has the instance's transactional id for the lake, as the owner of a partition has one:

    start        the coordinator of transactions lets it in, and shuts out the landing before it, which may still run
    each batch   it asks whether it still has the id; if not, it commits nothing more and ends

No file is locked and no clock is compared. Question and commit are two steps, and the landing may be shut out between
them. Then the next landing repeats the very batch, because the checkpoint names its records. Both commits carry its
number, so Delta takes one of them: see `land`.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.coordinator import Coordinator, Identity
from kafka_timers.broker.lake_group import lake_group
from kafka_timers.broker.topics import answering

# The coordinator may have to be elected, and to read its log.
_LIMIT_S = 30.0
# No transaction is ever opened, so this is the limit of an answer.
_TRANSACTION_S = 10.0

_T = TypeVar("_T")


class Fence:
    """
    The transactional id of one landing, for callers of any thread.

    Attributes:
        is_lost: True once it was seen that another landing has taken over.
    """

    def __init__(self, kafka: Kafka, prefix: str) -> None:
        self.is_lost = False
        self._kafka, self._id = kafka, lake_group(prefix)
        self._known = Identity(-1, -1), False
        # The queries of several topics ask at once, and each answer changes the identity.
        self._asking = threading.Lock()

    def take_over(self) -> None:
        """
        Become the landing of the instance, and shut out the one before.

        Raises:
            BrokerError: no broker answers, or a broker refuses: the right to write with the transactional id may be
                missing.
        """
        self._answer(Coordinator.init)
        self.is_lost = False

    def is_held(self) -> bool:
        """Tell whether, at some moment after the call, no other landing had taken over. It raises as `take_over`."""
        self.is_lost = self.is_lost or not self._answer(Coordinator.is_held)
        return not self.is_lost

    def _answer(self, question: Callable[[Coordinator], Awaitable[_T]]) -> _T:
        async def ask() -> _T:
            async with answering(self._kafka, timeout_s=_LIMIT_S), Cluster.open(self._kafka) as cluster:
                coordinator = Coordinator(cluster, self._id, _TRANSACTION_S, "landing")
                coordinator.identity, coordinator.joins_by_writing = self._known
                answer = await question(coordinator)
                self._known = coordinator.identity, coordinator.joins_by_writing
                return answer

        with self._asking:
            return asyncio.run(ask())
