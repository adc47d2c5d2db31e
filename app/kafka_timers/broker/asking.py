"""
Questions to a coordinator: of the transactions of a producer, or of a consumer group.

A coordinator may be silent, another broker by now, or not ready yet. So a question is asked again until there is an
answer that is no mere delay, and each time it has failed it is looked up anew who coordinates.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NoReturn

from aiokafka.client import CoordinationType
from aiokafka.errors import KafkaError, KafkaTimeoutError, ProducerFenced, for_code
from aiokafka.protocol.api import Request

from kafka_timers.broker import codes
from kafka_timers.broker.cluster import Cluster

__all__ = ["CoordinatorLink", "PerhapsFencedError", "gravest"]

# What waits for a transaction to be complete, which takes milliseconds, and what waits for a broker.
_SOON_S, _LATER_S = 0.02, 0.1
_WORDS = {CoordinationType.TRANSACTION: "transactional id", CoordinationType.GROUP: "group"}


class PerhapsFencedError(KafkaError):  # type: ignore[misc]  # aiokafka tells no types
    """Another producer was let in, or a question of our own whose answer was lost has raised the epoch."""


class CoordinatorLink:
    """
    The way to one coordinator.

    Args:
        cluster: to ask.
        kind: of the coordinator.
        name: of what it coordinates; None for any broker, where nothing is coordinated.
        timeout_s: the limit of each question, with all its repetitions.
        lane: of the questions.

    Attributes:
        node: the broker that has answered last, or is asked next; None when it has to be looked up.
        trouble: why it does not go on, as far as is known; empty when it does.
        unanswered: how many times something was asked and not answered, and so may be done later.
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
        # Whether what was answered last had been asked before without an answer, and so may have been done.
        self._is_repeated = False

    async def ask(
        self, request: Request[Any], code_of: Callable[[Any], int], *, to: str, limit_s: float | None = None
    ) -> Any:
        """
        Return the first answer to *request* that is no mere delay.

        Args:
            request: what is asked.
            code_of: returns the number of the error in an answer.
            to: what is asked for, in words.
            limit_s: of this question, if it has one of its own.

        Raises:
            KafkaTimeoutError: none within the limit.
            aiokafka.errors.KafkaError: the connection fails, and would fail again.
        """
        unanswered, limit_s = self.unanswered, limit_s or self._timeout_s
        try:
            async with asyncio.timeout(limit_s) as limit:
                while True:
                    pause_s = _LATER_S
                    try:
                        node = await self._look_up()
                        self.unanswered += 1
                        answer = await self._cluster.send(
                            node, request, lane=self._lane, has_moved=partial(self._has_moved, node)
                        )
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
                            pause_s = _SOON_S
                    await asyncio.sleep(pause_s)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise KafkaTimeoutError(f"asked to {to} for {limit_s:g} s: {self.trouble}") from error

    def refuse(self, code: int, what: str) -> NoReturn:
        """
        Raise the error that the answer *code* to *what* was asked for stands for.

        Raises:
            ProducerFenced: another producer was let in.
            PerhapsFencedError: either that, or it was asked twice, and the first time had its effect.
            aiokafka.errors.KafkaError: any other.
        """
        told = f"{self._where()} was asked to {what} and answers {codes.name_of(code)}"
        if code not in codes.FENCED:
            raise for_code(code)(told)
        if self._is_repeated:
            # A coordinator that stood in for the one before does not know what that one has answered, or not: Kafka's
            # log of transactions has the epoch, and not the one before it.
            raise PerhapsFencedError(f"{told}: another producer was let in, or its answer before was lost")
        raise ProducerFenced(f"another producer was let in: {told}")

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
    """Return the one of *errors* that says what to do: one that is no mere delay before one that is."""
    return min(errors, key=lambda code: (code in codes.DELAYS_OF_COORDINATORS, code), default=0)
