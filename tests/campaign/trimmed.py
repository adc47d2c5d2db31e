"""
`python -m campaign.trimmed`: half an hour of timers whose log is swept and trimmed, on a broker of its own.

One in twenty waits for minutes. A worker is killed each minute, and every fifth time its disk is deleted. Requests are
kept for five minutes and ids for two, so sweeps and trims come all the time. The oracle reads the log as it grows.
"""

import argparse
import asyncio
import json
import random
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from bench import plots
from confluent_kafka import Message

from campaign import topics
from campaign.load import Load
from campaign.oracle import Request, expected
from campaign.run import judged
from campaign.stage import Stage
from kafka_timers.broker.bounds import LogBounds
from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.core.wire import KEPT_KEY
from kafka_timers.dev.broker import EmbeddedKafka

_KEEP_S = 300
_KILL_EVERY_S, _DISK_EVERY, _SAMPLE_EVERY_S = 60, 5, 10
# Of all timers, those that wait for long, and for how long at most.
_FAR, _FAR_S = 0.05, 900


class FarLoad(Load):
    """A load of which some wait for minutes, but not beyond `ends_s`, a UNIX second."""

    ends_s = 0.0

    def _ahead_s(self) -> int:
        left_s = int(min(self.ends_s - time.time(), _FAR_S))
        if left_s > 60 and self._chance.random() < _FAR:
            return self._chance.randint(60, left_s)
        return super()._ahead_s()


class Followed(threading.Thread):
    """The records of `timer-request`, read before they are trimmed; `repeated` counts those of sweeps."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(daemon=True)
        self._stage, self._over = stage, threading.Event()
        self.requests: list[Request] = []
        self.repeated = self.bytes_asked = self.bytes_repeated = 0

    def run(self) -> None:
        """Read on until `stop`."""
        with topics.reading(self._stage.kafka.bootstrap, self._stage.prefix + "timer-request") as reader:
            is_last = False
            while not is_last:
                is_last = self._over.wait(2)
                self.requests += filter(None, reader.more(self._seen))

    def _seen(self, message: Message) -> Request | None:
        size = len(message.value() or b"") + len(message.key() or b"")
        if message.key() == KEPT_KEY:
            self.repeated += 1
            self.bytes_repeated += size
            return None
        self.bytes_asked += size
        return topics.request_of(message)

    def stop(self) -> None:
        """Read what is there by now, and end."""
        self._over.set()
        self.join()


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


def verdict(stage: Stage, load: Load, log: Followed) -> dict[str, Any]:
    """Return what has become of the timers."""
    log.stop()
    of_load = judged(stage, expected(log.requests), load.callbacks, load.replies, int(time.time() * 1000))
    return {
        "timers": of_load.timers, "questions": of_load.questions, "faults": of_load.faults(),
        "late_p99_s": of_load.late_p99_s, "late_max_s": of_load.late_max_s,
        "records_of_sweeps": log.repeated, "bytes_asked": log.bytes_asked, "bytes_repeated": log.bytes_repeated,
    }  # fmt: skip


async def run(folder: Path, seconds: float, rate: float, seed: int) -> dict[str, Any]:
    """Run it once."""
    kafka = EmbeddedKafka(folder / "kafka")
    await kafka.start()
    options = ("--keep-s", str(_KEEP_S))
    try:
        async with Stage(kafka, "trimmed-", folder, options=(options, options), module="campaign.shrunk") as stage:
            load = FarLoad(kafka.bootstrap, stage.prefix, stage.callbacks, stage.partitions, rate, seed)
            log, until_s = Followed(stage), time.time() + seconds
            load.ends_s = until_s
            log.start()
            load.start()
            troubles, sampled = await asyncio.gather(
                trouble(stage, until_s, random.Random(seed)), sizes(stage, until_s)
            )
            await asyncio.to_thread(load.stop)
            told = await asyncio.to_thread(verdict, stage, load, log)
            return {"seconds": seconds, "rate": rate, "keep_s": _KEEP_S} | troubles | told | {"sizes": sampled}
    finally:
        await kafka.kill()


def main() -> None:
    """Run it, and say what has become of the timers and of the log."""
    parser = argparse.ArgumentParser(prog="campaign.trimmed", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1_800)
    parser.add_argument("--rate", type=float, default=1_000, help="timers a second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep logs and data here")
    parser.add_argument("--json", type=Path, help="write the figures here, and beside them the plot of the log")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="campaign-") as temporary:
        told = asyncio.run(run(given.folder or Path(temporary), given.seconds, given.rate, given.seed))
    print(json.dumps(told | {"sizes": told["sizes"][-3:]}, indent=1))
    if given.json:
        given.json.write_text(json.dumps(told) + "\n")
        plots.draw_log(told["sizes"], given.json.with_suffix(".svg"))


if __name__ == "__main__":
    main()
