"""
The way to the brokers and back: how long it takes, and the losses on it.

A question is answered by a broker at some moment, and the answer arrives at a later one. A question to a frozen broker
is answered when it wakes up, by the state at the time of the question, or never. The caller waits up to a limit.
"""

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar

from aiokafka.errors import KafkaConnectionError, RequestTimedOutError

from simulation.kafka import NODES, Kafka
from simulation.loop import SeededLoop

T = TypeVar("T")

# How long one way takes; most requests are answered at once.
_LAGS_S = (0.0, 0.0, 0.0, 0.001, 0.01, 0.05)
_SLOW_S = (0.0, 0.01, 0.1, 0.4)
# aiokafka has 40 s where the service sets nothing; a quarter of that shows the same and costs less.
REQUEST_TIMEOUT_S = 10.0


class Network:
    """
    Connections of all processes to all brokers.

    Args:
        loop: of the history.
        seed: of the lags; None has no lags.

    Attributes:
        frozen: brokers that do not answer, with the answers that they would have given.
        down: brokers that take no connections.
        slow: whether everything takes longer.
        loses: draws whether an answer is lost; the broker has carried out the request.
    """

    def __init__(self, loop: SeededLoop, seed: object = None) -> None:
        self.loop = loop
        self._rng = None if seed is None else random.Random(f"{seed}/network")
        self.frozen: dict[int, list[Callable[[], None]]] = {}
        self.down: set[int] = set()
        self.slow = False
        self.loses: Callable[[], bool] = lambda: False

    def lag_s(self) -> float:
        """Draw how long one way takes."""
        return self._rng.choice(_SLOW_S if self.slow else _LAGS_S) if self._rng else 0.0

    async def ask(
        self,
        node: int,
        answer: Callable[[], T],
        *,
        limit_s: float = REQUEST_TIMEOUT_S,
        poll: tuple[Kafka, Callable[[], bool], float] | None = None,
    ) -> T:
        """
        Return the answer of broker *node*.

        Args:
            node: number of the broker.
            answer: gives the answer, or raises it, at the broker and at its time.
            limit_s: of the waiting.
            poll: have the broker wait until there is something to tell, for so many seconds at most.

        Raises:
            RequestTimedOutError: no answer within the limit. The request may be carried out or not.
        """
        coming: asyncio.Future[T] = self.loop.create_future()
        if poll:
            self.loop.outside(self.lag_s(), self._poll, node, answer, coming, limit_s, *poll)
        else:
            self.loop.outside(self.lag_s(), self._answer, node, answer, coming, limit_s)
        return await coming

    def _poll(
        self,
        node: int,
        answer: Callable[[], T],
        coming: "asyncio.Future[T]",
        limit_s: float,
        kafka: Kafka,
        has_some: Callable[[], bool],
        wait_s: float,
    ) -> None:
        def end() -> None:
            if kafka.watchers.pop(look, end) is None:
                timer.cancel()
                self._answer(node, answer, coming, limit_s)

        def look() -> None:
            if has_some() or coming.done():
                end()

        kafka.watchers[look] = None
        timer = self.loop.outside(wait_s, end)
        look()

    def _answer(self, node: int, answer: Callable[[], T], coming: "asyncio.Future[T]", limit_s: float) -> None:
        value: T | None = None
        error: Exception | None = None
        try:
            if node in self.down:
                raise KafkaConnectionError(f"broker {node} takes no connection")
            value = answer()
        except Exception as raised:
            error = raised

        def arrive() -> None:
            if coming.done():
                return
            if error is not None:
                coming.set_exception(error)
            else:
                coming.set_result(value)  # type: ignore[arg-type]

        def give_up() -> None:
            if not coming.done():
                coming.set_exception(RequestTimedOutError(f"broker {node} does not answer"))

        if node in self.frozen:
            self.frozen[node].append(arrive)
            # A timer for each question would cost more than all else: nearly all are answered.
            self.loop.outside(limit_s, give_up)
        elif not self.loses():
            self.loop.outside(self.lag_s(), arrive)
        else:
            # The connection breaks; frozen brokers stand for a wait of the whole limit.
            error = KafkaConnectionError(f"the connection to broker {node} was lost")
            self.loop.outside(self.lag_s(), arrive)

    def freeze(self, node: int) -> None:
        """Have broker *node* answer nothing."""
        self.frozen.setdefault(node, [])

    def thaw(self, node: int, *, answers: bool = True) -> None:
        """Have broker *node* answer again, and first the questions of the meantime, if it *answers* that at all."""
        for arrive in self.frozen.pop(node, ()):
            if answers:
                self.loop.outside(self.lag_s(), arrive)

    def any_node(self) -> int:
        """Return a broker to ask where the leaders are: one that answers, as the client finds it after some tries."""
        return next((node for node in NODES if node not in self.frozen), NODES[0])
