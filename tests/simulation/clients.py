"""
Clients that ask for timers: requests, cancels and moves, records that nobody should write, open transactions.

A record's meaning is kept beside it as a `Wish`, so that checks need not parse the bytes that the worker parses.
"""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kafka_timers.core.routing import hash_of
from kafka_timers.core.wire import Callback, Copy, Forwarded, Future
from simulation.kafka import Kafka
from simulation.log import Log, Record, Transaction
from simulation.loop import EPOCH_S, SeededLoop

# Always there · comes, goes, refuses · takes little · takes no record without a key · was never there · the service's.
CALM, MOODY, SMALL, COMPACTED, NOWHERE, OWN = "calm", "moody", "small", "compacted", "nowhere", "timer-sealed"
_SMALL_BYTES = 600


@dataclass(frozen=True, slots=True)
class Wish:
    """
    The meaning of a record on `timer-request`.

    Attributes:
        second: in which it is due; 0 for a cancel, and for a record that is to be refused.
        millis: within that second.
        topic: of the callback.
        payload: of the callback; None for a tombstone.
        key: of the callback; None for none.
        shape: the fields of `Callback` that say where the callback goes; None has fields 1 to 3 ask for it.
        timer_id: empty without one.
        is_cancel: takes back the timer of its id.
        asks: wants an answer.
        is_refused: no worker may accept it.
        first_ms: UNIX milliseconds of its first append, if a worker has sent it on from there.
        instead_of: offset of the first request of the timer, if a worker has asked for it again.
    """

    second: int = 0
    millis: int = 0
    topic: str = CALM
    payload: bytes | None = b""
    key: bytes | None = None
    shape: Mapping[str, Any] | None = None
    timer_id: bytes = b""
    is_cancel: bool = False
    asks: bool = False
    is_refused: bool = False
    first_ms: int | None = None
    instead_of: int | None = None

    @property
    def due_ms(self) -> int:
        """UNIX milliseconds at which it is due."""
        return self.second * 1000 + self.millis

    def partition_of(self, partitions: int) -> int | None:
        """Return the partition of the callback, of a topic with so many; None leaves it to the worker."""
        if self.shape and "partition" in self.shape:
            return int(self.shape["partition"])
        hashed = (self.shape or {}).get("partitionKey", self.key)
        return None if hashed is None else hash_of(hashed) % partitions


@dataclass(frozen=True, slots=True)
class Stray:
    """The wish of a record that does not lie in the partition of its timer id."""

    wish: Wish


def create_topics(kafka: Kafka) -> None:
    """Create the callback topics."""
    kafka.create(CALM, 2)
    kafka.create(MOODY, 1)
    kafka.create(SMALL, 1, bytes_max=_SMALL_BYTES)
    kafka.create(COMPACTED, 1, is_compacted=True)


def ask(kafka: Kafka, number: int, wish: Wish, *, transaction: Transaction | None = None, **more: Any) -> Record:
    """Append a record for *wish* to a partition of `timer-request`; *more* are fields of the Future."""
    log = kafka.requests(number)
    if wish.shape is None:
        more |= {"callBackTopic": wish.topic, "callBackKey": (wish.key or b"").decode(), "callBack": wish.payload}
    else:
        more["callBackRecord"] = Callback(topic=wish.topic, key=wish.key, value=wish.payload, **wish.shape)
    future = Future(
        millis=wish.millis,
        timerId=wish.timer_id.decode(),
        cancel=wish.is_cancel,
        replyTopic=kafka.own.replies if wish.asks else "",
        **more,
    )
    is_stray = bool(wish.timer_id) and hash_of(wish.timer_id) % kafka.topics[kafka.own.requests].partitions != number
    about = Stray(wish) if is_stray else wish
    return write(kafka, log, b"%d" % (wish.second or 1), future.SerializeToString(), about, transaction)


def write(
    kafka: Kafka,
    log: Log,
    key: bytes | None,
    value: bytes | None,
    wish: Wish | Stray,
    transaction: Transaction | None = None,
) -> Record:
    """Append any record."""
    record = Record(key, value, transaction=transaction, about=wish)
    log.append(record, kafka.now_ms)
    return record


def hostile(kafka: Kafka, number: int, kind: int) -> tuple[bytes | None, bytes | None]:
    """Return key and value of a record that has to be refused, of one of `HOSTILE` kinds."""
    now_s, partitions = kafka.now_ms // 1000, kafka.topics[kafka.own.requests].partitions
    due, good = b"%d" % now_s, Future(callBackTopic=CALM, callBack=b"hostile")
    foreign = next((f"x{n}" for n in range(50) if hash_of(b"x%d" % n) % partitions != number), "")
    bad: list[tuple[bytes | None, bytes | Future | None]] = [
        (None, good),
        (b"soon", good),
        (b"%d" % (10**12 + now_s), good),
        (b"9" * 5_000, good),
        (due, None),
        (due, b"\xff\xff\xff"),
        (due, Future(callBackTopic=CALM, millis=1000)),
        (due, Future(callBackTopic="")),
        (due, Future(cancel=True)),
        (due, Future(callBackTopic=CALM, timerId=foreign or "x", forwarded=Forwarded(fromPartition=99))),
        (due, Future(callBackTopic=CALM, copy=Copy(offset=1 << 40, decidedOffset=1))),
        (due, Future(callBackTopic=CALM, copy=Copy(offset=0, decidedOffset=1 << 40))),
        (due, Future(callBackTopic=CALM, timerId="a", cancel=True, copy=Copy(decidedOffset=1))),
    ]
    key, value = bad[kind]
    return key, value.SerializeToString() if isinstance(value, Future) else value


HOSTILE = 13
# Of no topic that there is.
BEYOND = 7


class Clients:
    """
    Random clients of one history.

    Args:
        loop: that they run on.
        kafka: that they write to.
        seed: decides their requests.

    Attributes:
        foreign: their open transactions.
        reach_s: how far ahead they ask.
    """

    def __init__(self, loop: SeededLoop, kafka: Kafka, seed: object) -> None:
        self._loop, self._kafka = loop, kafka
        self._rng = rng = random.Random(f"{seed}/clients")
        self._shapes = random.Random(f"{seed}/shapes")
        self._shaped = self._shapes.choice((0.0, 0.1, 0.5))
        self._strays = self._shapes.choice((0.0, 0.0, 0.3))
        self.foreign: dict[Transaction, None] = {}
        self._partitions = kafka.topics[kafka.own.requests].partitions
        self._named = rng.choice((0.0, 0.5, 0.9))
        # How many wait long enough to be repeated by a sweep.
        self._patient = self._shapes.choice((0.0, 0.0, 0.4))
        self._opens = rng.choice((0.0, 0.05, 0.15))
        self._hostile = rng.choice((0.0, 0.05, 0.2))
        self._strange = rng.choice((0.0, 0.1, 0.3))
        self._pause_s = rng.choice((0.1, 0.3, 0.6))
        self._whole = rng.choice((0.2, 0.8, 1.0))
        self._count = 0
        self._ids = {
            number: [
                b"%s" % name
                for name in (b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h")
                if hash_of(name) % self._partitions == number
            ][:2]
            for number in range(self._partitions)
        }

    async def run(self, until_s: float) -> None:
        """Ask for timers, until a moment of the loop's time."""
        while self._loop.time() < until_s:
            await asyncio.sleep(self._rng.expovariate(1 / self._pause_s))
            dice = self._rng.random()
            if dice < self._opens:
                self._open()
            elif dice < 0.85:
                self._some_record(None)
            else:
                # Some for one second, so that it has slices.
                second = self._now_s + self._rng.randint(1, 3)
                for _ in range(self._rng.randint(2, 6)):
                    self._some_record(None, second)

    def end(self) -> None:
        """End all open transactions."""
        for transaction in list(self.foreign):
            self._close(transaction, commits=True)

    @property
    def _now_s(self) -> int:
        return int(self._loop.wall_s)

    def _open(self) -> None:
        """Write inside a transaction, which stays open for a while, and hang in some."""
        self._count += 1
        transaction = self._kafka.begin(f"client {self._count}")
        self.foreign[transaction] = None
        for _ in range(self._rng.randint(1, 3)):
            self._some_record(transaction)
        open_s = self._rng.choice((0.3, 1.0, 2.5, 6.0))
        self._loop.outside(open_s, self._close, transaction, self._rng.random() < 0.7)

    def _close(self, transaction: Transaction, commits: bool) -> None:
        if transaction in self.foreign:
            del self.foreign[transaction]
            (self._kafka.commit if commits else self._kafka.abort)(transaction)

    def _some_record(self, transaction: Transaction | None, second: int = 0) -> None:
        rng = self._rng
        number = rng.randrange(self._partitions)
        if rng.random() < self._hostile:
            key, value = hostile(self._kafka, number, rng.randrange(HOSTILE))
            write(self._kafka, self._kafka.requests(number), key, value, Wish(is_refused=True), transaction)
            return
        self._count += 1
        topic = rng.choice((MOODY, MOODY, SMALL, COMPACTED, NOWHERE, OWN)) if rng.random() < self._strange else CALM
        payload = b"payload %d" % self._count + (b"x" * _SMALL_BYTES if topic == SMALL and rng.random() < 0.5 else b"")
        second = second or self._now_s + rng.choice((-2, 0, 1, 1, 1, 2, 2, 3, 5))
        if self._shapes.random() < self._patient:
            second += self._shapes.randrange(3, 12)
        timer_id = rng.choice(self._ids[number]) if self._ids[number] and rng.random() < self._named else b""
        is_cancel = bool(timer_id) and rng.random() < 0.3
        wish = Wish(
            0 if is_cancel else second,
            0 if is_cancel or rng.random() < self._whole else rng.choice((1, 250, 500, 505, rng.randrange(1000))),
            topic,
            payload,
            b"k" if topic == COMPACTED else rng.choice((None, b"k")),
            timer_id=timer_id,
            is_cancel=is_cancel,
            asks=bool(timer_id) and rng.random() < 0.8,
        )
        wish = self._shape(wish)
        ask(self._kafka, self._astray(number, wish), wish, transaction=transaction)
        if timer_id and not is_cancel and rng.random() < 0.4:
            # Near its moment is where it is decided whether it was in time.
            near_s = wish.due_ms / 1000 - EPOCH_S - self._loop.time() - rng.choice((0.4, 0.1, 0.02, 0.002, -0.05))
            if near_s > 0:
                self._loop.outside(near_s, self._second_thoughts, number, wish)

    def cancel_late(self, number: int, readable_s: float) -> None:
        """Ask for a timer, and cancel it in time in a transaction that is committed after *readable_s*."""
        if not self._ids[number]:
            return
        self._count += 2
        timer_id = self._rng.choice(self._ids[number])
        second = self._now_s + 2
        ask(self._kafka, number, Wish(second, 0, CALM, b"payload %d" % self._count, timer_id=timer_id))

        def cancel() -> None:
            transaction = self._kafka.begin(f"client {self._count} late")
            self.foreign[transaction] = None
            wish = Wish(timer_id=timer_id, is_cancel=True, asks=True)
            ask(self._kafka, number, wish, transaction=transaction)
            self._loop.outside(readable_s - 0.5, self._close, transaction, True)

        self._loop.outside(0.5, cancel)

    def _astray(self, number: int, wish: Wish) -> int:
        """Return the partition to which a client writes that does not know that *number* is the one of the id."""
        is_astray = wish.timer_id and self._shapes.random() < self._strays
        return self._shapes.randrange(self._partitions) if is_astray else number

    def _shape(self, wish: Wish) -> Wish:
        """Have some ask for callbacks that do not fit fields 1 to 3."""
        rng = self._shapes
        if wish.is_cancel or rng.random() >= self._shaped:
            return wish
        shapes: tuple[dict[str, Any], ...] = ({}, {"partition": 0}, {"partition": BEYOND}, {"partitionKey": b"\xfe"})
        key = rng.choice((b"", b"\xff\x00", wish.key))
        return replace(wish, key=key, payload=rng.choice((None, wish.payload)), shape=rng.choice(shapes))

    def _second_thoughts(self, number: int, wish: Wish) -> None:
        self._count += 1
        is_cancel = self._rng.random() < 0.6
        second = 0 if is_cancel else wish.second + self._rng.randint(0, 2)
        later = Wish(
            *(second, 0 if is_cancel else self._rng.choice((0, 0, wish.millis, 700)), CALM),
            b"payload %d" % self._count,
            timer_id=wish.timer_id,
            is_cancel=is_cancel,
            asks=True,
        )
        ask(self._kafka, self._astray(number, later), later)
