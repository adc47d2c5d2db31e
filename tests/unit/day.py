"""
Live one day of a fresh instance, and keep it with the outcome of each record as `find` tells it: day.json.gz.

The core's own owner lives it (`walk`), in two partitions of four; the first one has a lake. `test_day.py` tells what
the file holds. Run `python tests/unit/day.py` to live the day again: as long as the rules are the same, so is the file.
"""

import gzip
import json
import random
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import ANY

import walk as core
from test_day import FILE, NOON_S, START_S, Day, Partition, shown
from walk import Record, Terms, Walk, Wish

from kafka_timers.core import accepting, partition
from kafka_timers.core.outcomes import State
from kafka_timers.core.routing import partition_of
from kafka_timers.core.verdicts import Reason, judged
from kafka_timers.core.wire import Callback, Condition, Forwarded, Future, Header

PARTITIONS, IDS, HORIZON_S, DAY_S = 4, 500, 7200, 86_400
SEED = 45


class _Walk(Walk):
    """A walk in which rows may differ from records: owners take framing away, and write down what they send on."""

    def value_of(self, offset: int) -> Any:
        return ANY


class Place:
    """One partition: its log, its owner, and the records to come, by their moments."""

    def __init__(self, number: int, horizon_s: int) -> None:
        self.number = number
        self.random = random.Random(f"{SEED}/{number}")
        self.walk = _Walk(
            SEED + number,
            terms=Terms(horizon_s=horizon_s),
            partition_class=lambda _, horizon_s: partition.Partition(number, horizon_s),  # type: ignore[arg-type]
        )
        self.walk.at(START_S)
        self.walk.instants, self.walk.slice_rows, self.walk.seal_every_s = 0.3, 3, 60
        self.coming: list[tuple[int, Callable[[], None]]] = []

    def add(self, future: Future, second: int | None, *, framing: bytes = b"") -> int:
        """Append a record; for no second one whose key is none. Return its offset."""
        log, at = self.walk.log, len(self.walk.log.records)
        key = b"soon" if second is None else b"%d" % second
        record = Record(at, log.now_ms, key, framing + future.SerializeToString())
        log.records.append(record)
        log.wishes[at] = Wish(
            *(second or 0, future.millis, log.now_ms, future.timerId.encode()),
            is_cancel=future.cancel,
            is_refused=isinstance(judged(record, self.number, PARTITIONS), Reason),
        )
        if self.random.random() < 0.01:
            self.walk.unsendable.add(at)
        return at

    def at(self, second: float, what: Callable[[], None]) -> None:
        """Have *what* happen at *second* of the day."""
        if second < DAY_S:
            self.coming.append((round((START_S + second) * 1000), what))

    def live(self, until_s: int) -> None:
        """Live up to a second of the day."""
        walk, some, end_ms = self.walk, self.random, (START_S + until_s) * 1000
        if not walk.owner.is_up:
            walk.owner.take_over()
        self.coming.sort(key=lambda each: each[0])
        while walk.log.now_ms < end_ms:
            now_ms = walk.log.now_ms + some.choice([1000, 2000, 5000, 10_000, 20_000])
            while self.coming and self.coming[0][0] <= now_ms:
                when_ms, what = self.coming.pop(0)
                walk.log.now_ms = max(walk.log.now_ms, when_ms)
                what()
            walk.log.now_ms = now_ms
            self._trouble()
            walk.lake.append()
            walk.tick(now_ms // 1000)
            walk.settle_down(walk.owner)

    def _trouble(self) -> None:
        walk, some, log = self.walk, self.random, self.walk.log
        dice = some.random()
        if dice < 0.1:
            # A client's transaction: what it has written is read once it ends.
            log.pinned = len(log.records) if log.pinned is None else None
        elif dice < 0.2:
            log.pinned = None
        elif dice < 0.201:
            log.records.append(None)
        elif dice < 0.202:
            walk.take_over(some.choice(walk.owners), is_empty=some.random() < 0.5)
            walk.owner.tick = len(log.ticks)
        elif dice < 0.22 and walk.terms.horizon_s:
            before = len(walk.lake.on_their_way)
            walk.lake.promote()
            for at, (when_ms, copy) in enumerate(walk.lake.on_their_way[before:], before):
                late_ms = some.choice([0, 0, 0, 60_000, 600_000, 1_900_000])
                walk.lake.on_their_way[at] = (when_ms + late_ms, copy)


def plot(place: Place, foreign: Place, timer_id: str) -> None:
    """Have some records of *timer_id* come to *place*, a few of them by way of a *foreign* partition."""
    some, offsets = place.random, list[int]()
    second = some.random() * DAY_S
    due_s = second

    def write(second: float, future: Future, due: int | None, way: float) -> None:
        if way < 0.12:
            lain: list[Forwarded] = []

            def stray() -> None:
                at = foreign.add(future, due)
                lain.append(Forwarded(fromPartition=foreign.number, fromOffset=at, appendedMs=foreign.walk.log.now_ms))

            def send_on() -> None:
                if not lain:
                    return
                future.forwarded.CopyFrom(lain[0])
                offsets.append(place.add(future, due))

            foreign.at(second, stray)
            place.at(second + some.choice([0.1, 1, 5]), send_on)
        else:
            is_near = due is None or due - START_S - second < HORIZON_S
            framing = b"\0\0\0\0\7\0" if is_near and way > 0.95 else b""
            place.at(second, lambda: named(future, lambda: offsets.append(place.add(future, due, framing=framing))))

    def named(future: Future, then: Callable[[], None]) -> None:
        if future.ifRequest == "known":
            at = offsets[-1] if offsets and some.random() < 0.7 else (offsets[0] if offsets else 0)
            future.ifRequest = f"{place.number}:{at}"
        then()

    for number in range(some.choice([1, 1, 2, 2, 3, 4, 5])):
        if number:
            # Close to the moment of the timer before, or anywhere.
            near_s = due_s + some.choice([-2, -0.5, -0.2, 0, 0.3, 0.6, 1, 30, 600, 3_500, 3_700])
            second = max(second + 0.05, some.choice([second + some.random() * 60, near_s, near_s]))
        condition = some.choice([0, 0, 0, Condition.IF_PENDING, Condition.IF_ABSENT])
        if some.random() < (0.35 if number else 0.05):
            if_pending = condition and Condition.IF_PENDING
            future = Future(timerId=timer_id, cancel=True, condition=if_pending)
            due = None
        else:
            ahead_s = some.choice([-5, 1, 3, 20, 300, 3_000, 9_000, 20_000])
            if condition:
                ahead_s = min(ahead_s, 3_000)
            due_s = int(second) + ahead_s + some.choice([0, 0, 0.25, 0.5, 0.999])
            due = START_S + int(due_s)
            future = asked(some, timer_id, condition, round(due_s % 1 * 1000))
            if some.random() < 0.03:
                due = None
        if condition and not future.HasField("copy") and some.random() < 0.5:
            future.ifRequest = "known"
        # What names a request waits for its offset, so it is not sent on.
        write(second, future, due, 0.5 if future.ifRequest else some.random())


def asked(some: random.Random, timer_id: str, condition: int, millis: int) -> Future:
    """Return a request, in one of the forms that clients have."""
    future = Future(timerId=timer_id, condition=condition, millis=millis)  # type: ignore[arg-type]
    dice = some.random()
    if dice < 0.2:
        future.callBackRecord.CopyFrom(Callback(topic="calls", key=b"\0\xff" + timer_id.encode(), value=b"v"))
    elif dice < 0.25:
        future.callBackRecord.CopyFrom(Callback(topic="people", key=b"k", partition=1))
    elif dice < 0.27:
        future.callBackRecord.CopyFrom(Callback(topic="calls", partition=-1))
    elif dice < 0.29:
        future.callBackKey = "no topic"
    else:
        future.callBackTopic, future.callBackKey, future.callBack = "calls", "k", b"v"
    if dice > 0.9:
        future.token, future.replyTopic = "7", "replies"
        future.headers.append(Header(key="trace", value=b"1"))
    if dice > 0.98:
        future.millis = 1000
    return future


def ids(number: int) -> Iterator[str]:
    """Yield ids of a partition."""
    names = (f"order-{at}" for at in range(1_000_000))
    mine = (name for name in names if partition_of(name, PARTITIONS) == number)
    return (next(mine) for _ in range(IDS))


def cut(place: Place, names: list[str]) -> Partition:
    """Return what lies in a partition now, with the outcomes."""
    log = place.walk.log
    records = [each for each in log.records if each and b"order-" in (each.value or b"")]
    made = Partition(
        number=place.number,
        names=names,
        records=[
            (each.offset, each.timestamp, (each.key or b"").decode(), b64encode(each.value or b"").decode())
            for each in records[: _end(log.stable, records)]
        ],
        seals=[
            (
                *(each.end_ms, each.fence, each.restore_from, each.horizon_s),
                *(b64encode(each.through).decode() if each.HasField("through") else None, list(each.ignored)),
            )
            for each in log.seals
        ],
        rejected=sorted(each.offset for each in log.callbacks if each.offset in place.walk.unsendable),
    )
    all_found = made.find_all()
    made = made._replace(
        outcomes=[shown(found) for found in all_found],
        recent=[shown(found) for found in made.find_all(recent=True)],
    )
    fired = {each.offset for found in all_found for each in found if each.state is State.FIRED}
    sent = {each.offset for each in log.callbacks if not each.is_reject}
    assert fired == sent, sorted(fired ^ sent)
    return made


def _end(stable: int, records: list[Any]) -> int:
    return sum(each.offset < stable for each in records)


def main() -> None:
    """Live the day."""
    # The walk has one partition, and these are two of four.
    core.accept = lambda records, now, _, versions: accepting.accept(records, now, PARTITIONS, versions)  # type: ignore[attr-defined]
    places = [Place(2, HORIZON_S), Place(3, 0)]
    for place, foreign in zip(places, reversed(places), strict=True):
        for name in ids(place.number):
            plot(place, foreign, name)
    parts = list[Partition]()
    for until_s in (NOON_S, DAY_S):
        for second in range(places[0].walk.log.now_ms // 1000 - START_S, until_s, 60):
            for place in places:
                place.live(min(until_s, second + 60))
        parts += [cut(place, list(ids(place.number))) for place in places]
    day = Day(parts)
    FILE.write_bytes(gzip.compress(json.dumps(day, separators=(",", ":")).encode(), mtime=0))
    print(f"{FILE.stat().st_size:,} bytes; {day.counts()}")


if __name__ == "__main__":
    main()
