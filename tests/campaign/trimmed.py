"""
`python -m campaign.trimmed`: half an hour of timers whose log is swept and trimmed, on a broker of its own.

One in twenty waits for minutes, and a third of the ids have records with conditions. Beside them people put schedules,
and change them. A worker is killed each minute, and every fifth time its disk is deleted. Requests are kept for five
minutes and ids for two, so sweeps and trims come all the time. The oracles read the log as it grows: `promises` those
of the timers, by the seals too, and `recurrence_law` that of the schedules.
"""

import argparse
import asyncio
import heapq
import json
import random
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

from bench import plots
from confluent_kafka import Message
from promises import PromiseError, Terms, repeated_of
from recurrence_law import Written

from campaign import recurring, topics
from campaign.audited import audited
from campaign.load import Load
from campaign.oracle import Request
from campaign.run import is_of, judged
from campaign.shrunk import MEMORY_S
from campaign.stage import Stage
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.core.brief import filled
from kafka_timers.core.wire import KEPT_KEY, Condition, Future, Sealed
from kafka_timers.dev.broker import EmbeddedKafka
from kafka_timers.v1.reply_pb2 import Reply

_KILL_EVERY_S, _DISK_EVERY, _SAMPLE_EVERY_S = 60, 5, 10
# Of all timers, those that wait for long, and for how long at most.
_FAR, _FAR_S = 0.05, 900
# Of the ids one in so many has records with conditions; of these records, those that name a request.
_CONDITIONAL, _NAMED = 3, 0.5
# Of far timers, and of ids with conditions, those of which something is asked early, or once their hour may be over.
_EARLY, _LATE = 0.5, 0.3
_SCHEDULES, _CHANGES_EVERY_S = 200, 1.0


class TrimmedLoad(Load):
    """
    A load of which some timers wait for minutes, but not beyond `ends_s`, a UNIX second; and with conditions.

    Attributes:
        conditional: how many records had a condition.
    """

    ends_s = 0.0
    conditional = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # Where the last request lies of each id that has conditions.
        self._places: dict[str, str] = {}

    def _ahead_s(self) -> int:
        left_s = int(min(self.ends_s - time.time(), _FAR_S))
        if left_s > 60 and self._chance.random() < _FAR:
            return self._chance.randint(60, left_s)
        return super()._ahead_s()

    def _later(self, timer_id: str, second: int) -> None:
        super()._later(timer_id, second)
        now_s = time.time()
        if second - now_s > 60 and self._chance.random() < _EARLY:
            heapq.heappush(self._questions, (self._chance.uniform(now_s, second), timer_id))
        if _has_conditions(timer_id) and self._chance.random() < _LATE:
            heapq.heappush(self._questions, (second + self._chance.uniform(0, 1.5 * MEMORY_S), timer_id))

    def _send(self, key: str, future: Future, partition: int) -> None:
        if future.timerId and _has_conditions(future.timerId):
            absent = Condition.CONDITION_UNSPECIFIED if future.cancel else Condition.IF_ABSENT
            future.condition = self._chance.choice((Condition.CONDITION_UNSPECIFIED, absent, Condition.IF_PENDING))
            self.conditional += bool(future.condition)
            if future.condition and self._chance.random() < _NAMED:
                future.ifRequest = self._places.get(future.timerId, f"{partition}:0")
        super()._send(key, future, partition)

    def _delivered(self, error: object, message: Message) -> None:
        super()._delivered(error, message)
        future = Future.FromString(message.value() or b"")
        if not future.cancel and _has_conditions(future.timerId):
            self._places[future.timerId] = f"{message.partition()}:{message.offset()}"


def _has_conditions(timer_id: str) -> bool:
    return bool(timer_id) and int(timer_id.rpartition("-")[2]) % _CONDITIONAL == 0


class Followed(threading.Thread):
    """
    The records of `timer-request`, read before they are trimmed.

    Attributes:
        repeated: by partition and by the begin of a sweep, the offsets of the requests that it repeats.
        records_of_sweeps: how many records have them.
    """

    def __init__(self, stage: Stage) -> None:
        super().__init__(daemon=True)
        self._stage, self._over = stage, threading.Event()
        self.requests: list[Request] = []
        self.repeated: defaultdict[int, dict[int, set[int]]] = defaultdict(dict)
        self.records_of_sweeps = self.bytes_asked = self.bytes_repeated = 0
        # The records that one reader has found and not the other one, by their place: when they were appended.
        self._unmatched: dict[tuple[int, int], int] = {}

    def run(self) -> None:
        """Read on until `stop`."""
        where = self._stage.kafka.bootstrap, self._stage.prefix + "timer-request"
        with topics.reading(*where) as committed, topics.reading(*where, committed=False) as every:
            is_last = False
            while not is_last:
                is_last = self._over.wait(2)
                self.requests += filter(None, committed.more(self._seen))
                every.more(self._match)

    def _seen(self, message: Message) -> Request | None:
        self._match(message)
        size = len(message.value() or b"") + len(message.key() or b"")
        if message.key() == KEPT_KEY:
            self.records_of_sweeps += 1
            self.bytes_repeated += size
            record = Written(message.offset(), 0, message.key(), message.value())
            for begun, offsets in repeated_of([record]).items():
                self.repeated[message.partition()].setdefault(begun, set()).update(offsets)
            return None
        self.bytes_asked += size
        return topics.request_of(message)

    def _match(self, message: Message) -> None:
        place = message.partition(), message.offset()
        if self._unmatched.pop(place, None) is None:
            self._unmatched[place] = message.timestamp()[1]

    def stop(self) -> None:
        """Read what is there by now, and end."""
        self._over.set()
        self.join()

    @property
    def aborted_ms(self) -> dict[int, list[int]]:
        """When the aborted records of each partition were appended, ascending, once all is read."""
        found = defaultdict[int, list[int]](list)
        for (number, _), at_ms in sorted(self._unmatched.items()):
            found[number].append(at_ms)
        return found


async def trouble(stage: Stage, until_s: float, rng: random.Random) -> dict[str, int]:
    """Kill a worker each minute, every fifth time with its disk, until a UNIX second."""
    told = {"killed": 0, "without_disk": 0}
    while time.time() + _KILL_EVERY_S < until_s:
        await asyncio.sleep(_KILL_EVERY_S)
        worker = rng.choice(stage.workers)
        await worker.kill()
        told["killed"] += 1
        if told["killed"] % _DISK_EVERY == 0:
            shutil.rmtree(worker.data_dir)
            told["without_disk"] += 1
        await worker.start()
    return told


async def sizes(stage: Stage, until_s: float) -> list[list[int]]:
    """Return, every ten seconds, how many offsets `timer-request` has had so far, and how many it still has."""
    name, told, began_s = stage.prefix + "timer-request", [], time.time()
    async with Cluster.open(Kafka(stage.kafka.bootstrap)) as cluster:
        await cluster.look_up([name])
        bounds = LogBounds(cluster, name)
        while time.time() < until_s:
            ends, starts = await bounds.ends(bounds.numbers), await bounds.starts(bounds.numbers)
            every = sum(ends.values())
            told.append([int(time.time() - began_s), every, every - sum(starts.values())])
            await asyncio.sleep(_SAMPLE_EVERY_S)
    return told


async def changes(people: recurring.People, until_s: float) -> None:
    """Change a schedule each second, until a UNIX second."""
    while time.time() < until_s:
        await asyncio.sleep(_CHANGES_EVERY_S)
        people.change()


def verdict(stage: Stage, load: TrimmedLoad, log: Followed) -> dict[str, Any]:
    """Return what has become of the timers, once all of them are due."""
    # The seals first, so that all that they tell of is read.
    sealed = dict(recurring.written(stage, "timer-sealed"))
    seals = {number: filled(Sealed.FromString(each.value or b"") for each in found) for number, found in sealed.items()}
    log.stop()
    law = partial(
        audited,
        log.requests,
        terms=Terms(memory_s=MEMORY_S, is_forgetful=True),
        is_judged=partial(is_of, callbacks=load.callbacks, replies=load.replies),
    )
    broken = ""
    try:
        told = law(seals, log.repeated)
    except PromiseError as error:
        # Then as if all was read in time.
        broken, told = str(error), law({}, {})
    found = judged(stage, told, load.callbacks, load.replies, int(time.time() * 1000))
    return {
        "timers": found.timers, "questions": found.questions, "conditional": load.conditional,
        "ignored": sum(Reply.IGNORED in each for each in told.outcomes.values()),
        # The seals tell what was overruled.
        "faults": found.faults() | ({"overruled": found.overruled} if found.overruled else {}), "broken": broken,
        "late_p99_s": found.late_p99_s, "late_max_s": found.late_max_s,
        "seals": sum(map(len, seals.values())), "records_of_sweeps": log.records_of_sweeps,
        "bytes_asked": log.bytes_asked, "bytes_repeated": log.bytes_repeated,
    }  # fmt: skip


async def run(folder: Path, seconds: float, rate: float, keep_s: int, seed: int) -> dict[str, Any]:
    """Run it once."""
    kafka = EmbeddedKafka(folder / "kafka")
    await kafka.start()
    options = ("--keep-s", str(keep_s))
    try:
        async with Stage(kafka, "trimmed-", folder, options=(options, options), module="campaign.shrunk") as stage:
            runs = stage.prefix + "runs"
            await asyncio.to_thread(topics.make_topic, kafka.bootstrap, runs, stage.partitions)
            load = TrimmedLoad(kafka.bootstrap, stage.prefix, stage.callbacks, stage.partitions, rate, seed)
            log, until_s = Followed(stage), time.time() + seconds
            load.ends_s = until_s
            log.start()
            load.start()
            people = recurring.People(stage, runs, _SCHEDULES, seed)
            troubles, sampled, _ = await asyncio.gather(
                trouble(stage, until_s, random.Random(seed)), sizes(stage, until_s), changes(people, until_s)
            )
            await asyncio.to_thread(load.stop)
            unwritten = await asyncio.to_thread(people.finish)
            await asyncio.sleep(recurring.SETTLES_S)
            end_ms = int(time.time() * 1000)
            await asyncio.sleep(recurring.SETTLES_S)
            told = await asyncio.to_thread(verdict, stage, load, log)
            of_runs = await asyncio.to_thread(recurring.verdict, stage, runs, log.aborted_ms, end_ms)
            return {
                "seconds": seconds, "rate": rate, "keep_s": keep_s, **troubles, **told,
                "schedules": _SCHEDULES, "changes": dict(people.changes), "unwritten": unwritten, "runs": of_runs,
                "sizes": sampled,
            }  # fmt: skip
    finally:
        await kafka.kill()


def main() -> None:
    """Run it, and say what has become of the timers and of the log."""
    parser = argparse.ArgumentParser(prog="campaign.trimmed", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1_800)
    parser.add_argument("--rate", type=float, default=1_000, help="timers a second")
    parser.add_argument("--keep-s", type=int, default=300, help="of the workers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep logs and data here")
    parser.add_argument("--json", type=Path, help="write the figures here, and beside them the plot of the log")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="campaign-") as temporary:
        told = asyncio.run(run(given.folder or Path(temporary), given.seconds, given.rate, given.keep_s, given.seed))
    print(json.dumps(told | {"sizes": told["sizes"][-3:]}, indent=1))
    if given.json:
        given.json.write_text(json.dumps(told) + "\n")
        plots.draw_log(told["sizes"], given.json.with_suffix(".svg"))


if __name__ == "__main__":
    main()
