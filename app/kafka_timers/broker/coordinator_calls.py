"""
Questions to a coordinator, of transactions or of a consumer group.

A coordinator may be silent, may have moved to another broker, or may not be ready yet. So each question is repeated
until the answer is final. After each failure the coordinator is looked up again.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NoReturn

from aiokafka.client import CoordinationType
from aiokafka.errors import KafkaError, ProducerFenced, for_code
from aiokafka.protocol.api import Request

from kafka_timers.broker import codes
from kafka_timers.broker.cluster import ANY_LANE, Cluster, limited

# The first pause is for a transaction that is about to complete: milliseconds, or minutes where a topic lacks replicas,
# so it grows. The second is for a broker.
_SOON_S, _LATER_S = 0.02, 0.1
_WORDS = {CoordinationType.TRANSACTION: "transactional id", CoordinationType.GROUP: "group"}


class PerhapsFencedError(KafkaError):  # type: ignore[misc]  # aiokafka tells no types
    """
    Another producer has taken over, or an earlier request of our own, whose answer was lost, has raised the epoch.
    """


class ExpiredIdError(KafkaError):  # type: ignore[misc]  # aiokafka tells no types
    """
    Brokers have forgotten the transactional id, as nothing was written under it for long, or another producer has it.
    """

    def __init__(self, name: str | None) -> None:
        super().__init__(
            f"transactional id {name} has expired: nothing was written under it for as long as the brokers' "
            "transactional.id.expiration.ms says, or another producer has it since"
        )

    def __str__(self) -> str:
        return str(self.args[0])


class CoordinatorLink:
    """
    A connection to one coordinator.

    Args:
        name: transactional id or group name. None: ask any broker, because there is nothing to coordinate.
        timeout_s: limit of each question in seconds, repetitions included.

    Attributes:
        node: the broker that answered last, or that is asked next; None when it must be looked up.
        trouble: why questions are not answered, as far as known; empty when they are.
        unanswered: number of requests without an answer. Each of them may still take effect later.
    """

    def __init__(self, cluster: Cluster, kind: CoordinationType, name: str | None, timeout_s: float, lane: str) -> None:
        self.node: int | None = None
        self.trouble = ""
        self.unanswered = 0
        self._cluster = cluster
        self._kind = kind
        self._name = name
        self._timeout_s = timeout_s
        self._lane = lane
        # True if the last answered request had been sent before without an answer, and so may have taken effect
        # already.
        self._is_repeated = False

    async def ask(
        self, request: Request[Any], code_of: Callable[[Any], int], *, to: str, limit_s: float | None = None
    ) -> Any:
        """
        Return the first final answer to *request*.

        Args:
            code_of: returns the error number in an answer.
            to: the purpose of the question in words, for messages.
            limit_s: limit of this question in seconds, if it differs from that of the link.

        Raises:
            KafkaTimeoutError: there was no final answer within the limit.
            aiokafka.errors.KafkaError: the connection fails, and would fail again.
        """
        unanswered, limit_s, soon_s = self.unanswered, limit_s or self._timeout_s, _SOON_S
        async with limited(limit_s, lambda: f"asked to {to} for {limit_s:g} s: {self.trouble}"):
            while True:
                pause_s = _LATER_S
                try:
                    node = await self._look_up()
                    self.unanswered += 1
                    if self._name:
                        answer = await self._cluster.send_in_turn(
                            node, request, lane=self._lane, has_moved=partial(self._has_moved, node)
                        )
                    else:
                        answer = await self._cluster.send(node, request, lane=ANY_LANE)
                    self.unanswered -= 1
                except KafkaError as error:
                    if not error.retriable:
                        raise
                    self.trouble, self.node = str(error), None
                else:
                    code = code_of(answer)
                    if code not in codes.DELAYS_OF_COORDINATORS:
                        self.trouble = ""
                        self._is_repeated = self.unanswered > unanswered
                        return answer
                    self.trouble = f"{self._where()} answers {codes.name_of(code)}"
                    if code in codes.ELSEWHERE:
                        self.node = None
                    elif code in codes.COMPLETING:
                        pause_s, soon_s = soon_s, min(1.05 * soon_s, 10 * _LATER_S)
                await asyncio.sleep(pause_s)

    async def obeyed(
        self, request: Request[Any], code_of: Callable[[Any], int], what: str, limit_s: float | None = None
    ) -> Any:
        """Return the answer to *request*, which asks to do *what*, unless it is a refusal; see `ask` and `refuse`."""
        answer = await self.ask(request, code_of, to=what, limit_s=limit_s)
        if code := code_of(answer):
            self.refuse(code, what)
        return answer

    def refuse(self, code: int, what: str) -> NoReturn:
        """
        Raise the error that stands for the answer *code* to the request *what*.

        Raises:
            ProducerFenced: another producer has taken over.
            ExpiredIdError: brokers know the transactional id no more, or under another producer id.
            PerhapsFencedError: another producer has taken over, or the request was sent twice and the first one took
                effect.
            aiokafka.errors.KafkaError: any other error.
        """
        refusal = f"{self._where()} was asked to {what} and answers {codes.name_of(code)}"
        if code == codes.INVALID_PRODUCER_ID_MAPPING:
            raise ExpiredIdError(self._name)
        if code not in codes.FENCED:
            raise for_code(code)(refusal)
        if self._is_repeated:
            # A coordinator that has replaced another one cannot know whether that one's answer arrived. Kafka's
            # transaction log holds the epoch, but not the epoch before it.
            raise PerhapsFencedError(f"{refusal}: another producer was let in, or its answer before was lost")
        raise ProducerFenced(f"another producer was let in: {refusal}")

    async def _look_up(self) -> int:
        if self.node is None:
            self.trouble = f"looking for the coordinator of {_WORDS[self._kind]} {self._name}"
            self.node = (
                await self._cluster.coordinator(self._kind, self._name) if self._name else self._cluster.any_node()
            )
            self.trouble = f"{self._where()} has not answered yet"
        return self.node

    async def _has_moved(self, node: int) -> bool:
        try:
            return self._name is not None and await self._cluster.coordinator(self._kind, self._name) != node
        except KafkaError:
            return False

    def _where(self) -> str:
        node = "no broker" if self.node is None else self._cluster.name_of(self.node)
        return f"{node}, the coordinator of {_WORDS[self._kind]} {self._name}," if self._name else node


def gravest(errors: Iterable[int]) -> int:
    """Return the error that decides the next step: a final error comes before a delay."""
    return min(errors, key=lambda code: (code in codes.DELAYS_OF_COORDINATORS, code), default=0)
