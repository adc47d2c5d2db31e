"""
A client that asks for timers at a steady rate, and cancels and moves some of them.

A thread of its own with librdkafka, which keeps records that it cannot write until a broker takes them.
"""

import asyncio
import heapq
import random
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from confluent_kafka import Producer
from murmurhash2 import murmurhash2

from kafka_timers.v1.future_pb2 import Future

__all__ = ["ID_PREFIX", "Load", "partition_of"]

# Before the ids of all timers.
ID_PREFIX = "id-"

_STEP_S = 0.05
# Of all timers, those with an id; of these, those that are cancelled or moved; of moved ones, those that are again.
_WITH_ID, _ASKED, _AGAIN = 0.3, 0.7, 0.3
# Seconds ahead. Few, so that a fault of 20 s meets timers that were asked for in its middle.
_AHEAD_S = (2, 8)
# Relative to the timer's second: some cancels and moves come too late.
_ASKED_BEFORE_S = (-0.3, 3.0)


def partition_of(name: str, partitions: int) -> int:
    """Return where Kafka's default partitioner puts a record with this key."""
    return int(murmurhash2(name.encode(), 0x9747B28C) & 0x7FFF_FFFF) % partitions


class Load(threading.Thread):
    """
    Asks until `stop`, which returns once the brokers have taken everything.

    Attributes:
        replies: the topic of the answers.

    Args:
        bootstrap: addresses of the brokers.
        prefix: before the names of the service's topics.
        callbacks: the topic of the callbacks.
        partitions: how many `timer-request` has.
        rate: timers a second; cancels and moves come on top.
        seed: of all that is random here.
        millis: of the timers, the share that is due at any millisecond; the others are due at whole seconds.
    """

    def __init__(
        self,
        bootstrap: str,
        prefix: str,
        callbacks: str,
        partitions: int,
        rate: float,
        seed: int,
        millis: float = 0.0,
    ) -> None:
        super().__init__(name="load", daemon=True)
        self._requests, self.replies, self.callbacks = prefix + "timer-request", prefix + "timer-reply", callbacks
        self._partitions = partitions
        self._rate = rate
        self._millis = millis
        self._chance = random.Random(seed)
        self._prefix = f"{seed}-{time.time():.0f}"
        self._count = 0
        self._questions: list[tuple[float, str]] = []
        self._over = threading.Event()
        self._turn = threading.Lock()
        self._failed: list[str] = []
        self._settings = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 2_000_000,
            "message.timeout.ms": 600_000,
            # By default it waits 60 s for a broker that is silent, and nothing comes to the service meanwhile.
            "socket.timeout.ms": 5_000,
            # Told by the missing ones at the end.
            "log_level": 0,
        }
        self._producer = Producer(self._settings)

    def run(self) -> None:
        """Ask, in portions, as many as the time that has gone by says."""
        begin_s, asked = time.monotonic(), 0
        while not self._over.wait(_STEP_S):
            with self._turn:
                due = int((time.monotonic() - begin_s) * self._rate)
                for _ in range(due - asked):
                    self._ask()
                asked = due
                self._question()
                self._producer.poll(0)

    @asynccontextmanager
    async def anew(self, callbacks: str, replies: str) -> AsyncIterator[None]:
        """
        Ask for nothing in this block, and then for callbacks and answers on other topics, and nothing of timers before.

        So a log whose offsets are given again can be judged apart from the one before. All that was asked has been
        taken when the block begins.
        """
        await asyncio.to_thread(self._turn.acquire)
        try:
            await asyncio.to_thread(self._producer.flush, 120)
            yield
            self._questions.clear()
            self.callbacks, self.replies = callbacks, replies
            # A log that has lost records refuses the producer that had written them.
            self._producer = Producer(self._settings)
        finally:
            self._turn.release()

    @property
    def timers(self) -> int:
        """How many timers it has asked for so far; one that was moved is another one."""
        return self._count

    def stop(self, limit_s: float = 120) -> None:
        """
        End the thread and wait until all was taken.

        Raises:
            AssertionError: a broker refused a record, or some were not taken in time.
        """
        self._over.set()
        self.join()
        left = self._producer.flush(limit_s)
        assert not left, f"{left} requests were not taken within {limit_s:g} s"
        assert not self._failed, self._failed[:3]

    def burst(self, count: int, second: int, topic: str, size: int = 0) -> None:
        """Ask for *count* timers of one second on another topic, *size* bytes each at least; from any thread."""
        for number in range(count):
            name = f"{self._prefix}-burst-{number}"
            future = Future(callBackTopic=topic, callBackKey=name, callBack=random.randbytes(size) or name.encode())
            self._send(str(second), future, number % self._partitions)

    def _ahead_s(self) -> int:
        return self._chance.randint(*_AHEAD_S)

    def _ask(self) -> None:
        second = int(time.time()) + self._ahead_s()
        if self._chance.random() < _WITH_ID:
            timer_id = f"{ID_PREFIX}{self._prefix}-{self._count}"
            self._set(timer_id, second)
            if self._chance.random() < _ASKED:
                self._later(timer_id, second)
        else:
            self._send(str(second), self._future(), self._chance.randrange(self._partitions))

    def _question(self) -> None:
        """Cancel or move the timers whose turn it is."""
        now_s = time.time()
        while self._questions and self._questions[0][0] <= now_s:
            _, timer_id = heapq.heappop(self._questions)
            if self._chance.random() < 0.5:
                cancel = Future(cancel=True, timerId=timer_id, replyTopic=self.replies)
                self._send(timer_id, cancel, partition_of(timer_id, self._partitions))
                continue
            second = int(now_s) + self._ahead_s()
            self._set(timer_id, second)
            if self._chance.random() < _AGAIN:
                self._later(timer_id, second)

    def _later(self, timer_id: str, second: int) -> None:
        heapq.heappush(self._questions, (second - self._chance.uniform(*_ASKED_BEFORE_S), timer_id))

    def _set(self, timer_id: str, second: int) -> None:
        future = self._future()
        future.timerId, future.replyTopic = timer_id, self.replies
        self._send(str(second), future, partition_of(timer_id, self._partitions))

    def _future(self) -> Future:
        self._count += 1
        name = f"{self._prefix}-{self._count}"
        millis = self._chance.randrange(1_000) if self._millis and self._chance.random() < self._millis else 0
        return Future(callBackTopic=self.callbacks, callBackKey=name, callBack=name.encode(), millis=millis)

    def _send(self, key: str, future: Future, partition: int) -> None:
        self._producer.produce(
            self._requests, future.SerializeToString(), key, partition=partition, on_delivery=self._delivered
        )

    def _delivered(self, error: object, _: object) -> None:
        if error:
            self._failed.append(str(error))
