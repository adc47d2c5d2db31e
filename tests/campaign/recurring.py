"""
`python -m campaign.recurring`: thousands of schedules through faults, on three brokers of its own.

A worker is killed every 20 s, a broker is cut off from the others for a minute, a tick an hour ahead comes every 30 s,
and people change, pause, resume and delete schedules. The oracle is `recurrence_law`.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Message, Producer
from partable import PartableCluster
from recurrence_law import law_of, plans_in

from campaign import topics
from campaign.load import partition_of
from campaign.stage import Stage
from kafka_timers.core.plan_history import Written, versions_in
from kafka_timers.core.planning import OWN_KEYS
from kafka_timers.core.schedules import HOLD_PREFIX, CatchUp, Hold, Schedule, instant_text

_KILL_EVERY_S, _TICK_EVERY_S, _CUT_S = 20, 30, 60
# A planner that wrote in both of these, before a run is due, has worked in between.
_WORKED_MS = ((5_000, 3_500), (2_500, 1_000))
# For so long the transaction of a planner that was killed may hide what lies behind it: until its successor fences it.
_HIDDEN_MS = 10_000
# For so long a run takes at most that is due, and what is written now.
SETTLES_S = 40
# How many schedules with wrong runs to tell all of.
_SHOWN = 3


class People:
    """Those who put schedules, with callbacks on the topic *callbacks*, and change them."""

    def __init__(self, stage: Stage, callbacks: str, count: int, seed: int) -> None:
        self._stage, self._callbacks, self._rng = stage, callbacks, random.Random(seed)
        self._producer = Producer(
            {
                "bootstrap.servers": stage.kafka.bootstrap,
                "enable.idempotence": True,
                "socket.timeout.ms": 10_000,
                # Told by `finish`.
                "log_level": 0,
            }
        )
        self._names = [f"s{number}" for number in range(count)]
        self._jitter_ms = {name: self._rng.choice((0, 0, 1_000, 10_000)) for name in self._names}
        self._holds: dict[str, Hold] = defaultdict(Hold)
        self.changes = Counter[str]()
        for name in self._names:
            self._put(name, "put")

    def _write(self, name: str, key: bytes, value: bytes | None) -> None:
        topic, number = f"{self._stage.prefix}timer-schedule", partition_of(name, self._stage.partitions)
        self._producer.produce(topic, value, key, number)
        self._producer.poll(0)

    def _put(self, name: str, what: str) -> None:
        schedule = Schedule(catch_up=CatchUp.CATCH_UP_ALL, jitter_ms=self._jitter_ms[name])
        schedule.interval.every_ms = self._rng.randint(1, 60) * 1000
        schedule.callback.callBackTopic = self._callbacks
        self._write(name, name.encode(), schedule.SerializeToString())
        self.changes[what] += 1

    def change(self) -> None:
        """Change one schedule at random."""
        name, dice = self._rng.choice(self._names), self._rng.random()
        hold = self._holds[name]
        if dice < 0.4:
            hold.paused = not hold.paused
            self._write(name, HOLD_PREFIX + name.encode(), hold.SerializeToString())
            self.changes["pause" if hold.paused else "resume"] += 1
        elif dice < 0.5:
            soon = (int(time.time()) + self._rng.randrange(90)) * 1000
            hold.skipped_ms[:] = sorted({*hold.skipped_ms, *range(soon, soon + 5_000, 1000)})
            self._write(name, HOLD_PREFIX + name.encode(), hold.SerializeToString())
            self.changes["skip"] += 1
        elif dice < 0.6:
            self._write(name, name.encode(), None)
            self.changes["delete"] += 1
        else:
            self._put(name, "change")

    def tick_ahead(self) -> None:
        """Write a tick as an oscillator does whose clock is an hour ahead."""
        for number in range(self._stage.partitions):
            key = b"%d" % (int(time.time()) + 3_600)
            self._producer.produce(f"{self._stage.prefix}oscillator", b"1", key, number)

    def finish(self) -> int:
        """Wait until the brokers have all of it, and return how many records they have not taken in three minutes."""
        return int(self._producer.flush(180))


async def trouble(stage: Stage, seconds: float, rng: random.Random) -> Counter[str]:
    """Kill workers, and cut one broker off."""
    done, end_s, cut_at_s = Counter[str](), time.monotonic() + seconds, time.monotonic() + seconds / 4
    mend_at_s = cut_at_s + _CUT_S
    while time.monotonic() < end_s:
        await asyncio.sleep(_KILL_EVERY_S)
        worker = rng.choice(stage.workers)
        await worker.kill()
        await worker.start()
        done["kills"] += 1
        if cut_at_s and time.monotonic() > cut_at_s:
            cut_at_s = 0.0
            await stage.cluster.hold(await stage.leader_of("timer-schedule"))
            done["brokers cut off"] += 1
        if mend_at_s and time.monotonic() > mend_at_s:
            mend_at_s = 0.0
            await stage.cluster.mend()
    await stage.cluster.mend()
    return done


def written(stage: Stage, name: str) -> Iterator[tuple[int, list[Written]]]:
    """Yield the records of each partition of an own topic."""
    found: dict[int, list[Written]] = defaultdict(list)

    def take(message: Message) -> None:
        number, at, offset = message.partition(), message.timestamp()[1], message.offset()
        assert number is not None
        assert offset is not None
        key, value = message.key(), message.value()
        found[number].append(Written(offset, at, bytes(key or b""), None if value is None else bytes(value)))

    with topics.reading(stage.kafka.bootstrap, stage.prefix + name) as reader:
        reader.more(take)
    for number, records in found.items():
        yield number, sorted(records)


def _aborted_ms(stage: Stage) -> dict[int, list[int]]:
    """Return when the aborted records of each partition of `timer-request` were appended, ascending."""
    found: dict[int, dict[int, int]] = defaultdict(dict)

    def take(message: Message) -> None:
        found[message.partition() or 0][message.offset() or 0] = message.timestamp()[1]

    def drop(message: Message) -> None:
        # Planners go on, so some are not among those that were read before.
        found[message.partition() or 0].pop(message.offset() or 0, None)

    for committed, each in ((False, take), (True, drop)):
        with topics.reading(stage.kafka.bootstrap, stage.prefix + "timer-request", committed=committed) as reader:
            reader.more(each)
    return {number: sorted(aborted.values()) for number, aborted in found.items()}


def verdict(stage: Stage, callbacks: str, aborted_ms: Mapping[int, Sequence[int]], end_ms: int) -> dict[str, Any]:
    """
    Return how many runs have fired, and which were lost, doubled or wrong.

    Args:
        callbacks: the topic of all runs, and of nothing else.
        aborted_ms: by partition, when aborted records of `timer-request` were appended, ascending.
        end_ms: up to when runs are judged. Moments are UNIX milliseconds.
    """
    fired: Counter[tuple[str, str]] = Counter()
    late_ms, dues_ms = list[int](), dict[tuple[str, str], int]()

    def take(message: Message) -> None:
        headers: dict[str, Any] = dict(message.headers() or [])
        run = headers["timer-schedule"].decode(), headers["timer-schedule-instant"].decode()
        fired[run] += 1
        dues_ms[run] = due = int(headers["timer-expiry"]) * 1000 + int(headers.get("timer-millis", 0))
        late_ms.append(message.timestamp()[1] - due)

    with topics.reading(stage.kafka.bootstrap, callbacks) as reader:
        reader.more(take)
    came: dict[str, set[str]] = defaultdict(set)
    for name, instant in fired:
        if instant <= instant_text(end_ms):
            came[name].add(instant)
    plans = dict(written(stage, "timer-planned"))

    def is_hidden(run: tuple[str, str]) -> bool:
        aborted = aborted_ms.get(partition_of("@".join(run), stage.partitions), [])
        at = bisect_left(aborted, dues_ms[run] - _HIDDEN_MS)
        return at < len(aborted) and aborted[at] < dues_ms[run]

    told: dict[str, Any] = {"fired": fired.total(), "must": 0, "held_up_by_a_killed_planner": 0}
    lost, wrong = list[tuple[str, str]](), list[tuple[str, str]]()
    for number, records in written(stage, "timer-schedule"):
        is_held_up = partial(_is_held_up, [each.appended_ms for each in plans[number] if each.key[:1] != OWN_KEYS])
        planned = plans_in(plans[number])
        for key, versions in versions_in(records).items():
            name = key.decode()
            must, may = law_of(key, versions, planned[key], end_ms, is_held_up)
            told["must"] += len(must)
            lacks, has = set(map(instant_text, must)) - came[name], came[name] - set(map(instant_text, may))
            hidden = {each for each in has if is_hidden((name, each))}
            told["held_up_by_a_killed_planner"] += len(hidden)
            has -= hidden
            for found, instants in ((lost, lacks), (wrong, has)):
                found += [(name, each) for each in sorted(instants)]
                if instants and len(found) <= _SHOWN:
                    print(name, "lacks" if found is lost else "has", sorted(instants))
                    print(*versions, *planned[key], sep="\n")
    twice = [run for run, count in fired.items() if count > 1]
    late_ms.sort()
    told |= {"lost": len(lost), "doubled": len(twice), "wrong": len(wrong), "early": sum(each < 0 for each in late_ms)}
    told |= {"late_p50_ms": late_ms[len(late_ms) // 2], "late_p99_ms": late_ms[len(late_ms) * 99 // 100]}
    return told


def _is_held_up(wrote_ms: Sequence[int], due: int) -> bool:
    for begin, end in _WORKED_MS:
        at = bisect_left(wrote_ms, due - begin)
        if at == len(wrote_ms) or wrote_ms[at] > due - end:
            return True
    return False


async def run(folder: Path, seconds: float, count: int, rate_per_min: float, seed: int) -> dict[str, Any]:
    """Run it once, and return what has become of the runs."""
    kafka, rng = PartableCluster(folder / "kafka"), random.Random(seed)
    await kafka.start()
    try:
        async with Stage(kafka, "recurring-", folder, options=((), (), ())) as stage:
            people = People(stage, stage.callbacks, count, seed)
            await asyncio.sleep(20)
            troubles = asyncio.create_task(trouble(stage, seconds, rng))
            number, begin_s = 0, time.monotonic()
            while not troubles.done():
                await asyncio.sleep(0.1)
                passed_s = time.monotonic() - begin_s
                while number < passed_s * rate_per_min / 60:
                    people.change()
                    number += 1
                    if number % max(int(rate_per_min * _TICK_EVERY_S / 60), 1) == 0:
                        people.tick_ahead()
            unwritten = await asyncio.to_thread(people.finish)
            await asyncio.sleep(SETTLES_S)
            end_ms = int(time.time() * 1000)
            await asyncio.sleep(SETTLES_S)
            aborted_ms = await asyncio.to_thread(_aborted_ms, stage)
            told = await asyncio.to_thread(verdict, stage, stage.callbacks, aborted_ms, end_ms)
            lost = [each.name for each in stage.processes if "never retrieved" in each.log.read_text()]
            return {
                "schedules": count, "seconds": seconds, **troubles.result(), "changes": dict(people.changes), **told,
                "unwritten": unwritten, "exceptions_unseen": lost,
            }  # fmt: skip
    finally:
        await kafka.kill()


def main() -> None:
    """Run it, and say what has become of the runs."""
    parser = argparse.ArgumentParser(prog="campaign.recurring", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--schedules", type=int, default=2_000)
    parser.add_argument("--changes", type=float, default=200, help="a minute")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep logs and data here")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="campaign-") as temporary:
        folder = given.folder or Path(temporary)
        told = asyncio.run(run(folder, given.seconds, given.schedules, given.changes, given.seed))
    print(json.dumps(told, indent=1))
    if given.json:
        given.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
