"""One run of a fault under load, and its verdict."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from partable import PartableCluster
from prometheus import Prometheus

from campaign import topics
from campaign.clocks import Clocks
from campaign.faults import Fault
from campaign.load import ID_PREFIX, Load
from campaign.oracle import Callback, Expected, Request, Verdict, expected, judge, strange_among
from campaign.stage import Stage
from kafka_timers.dev.broker import EmbeddedKafka

__all__ = ["Outcome", "is_of", "judged", "run", "run_on"]

# How long timers may take once the fault is over and nothing is asked any more.
_DRAIN_S = 90.0
# Then a process that repeats something has had the time for it.
_AFTER_S = 3.0
# How many strange callbacks to tell.
_SHOWN = 5


@dataclass(frozen=True)
class Outcome:
    """
    A verdict, and the fault's own report.

    Attributes:
        note: for the table.
        broken: a promise of the fault's own that did not hold; empty if all did.
        alarms: those that have rung.
    """

    verdict: Verdict
    note: str = ""
    broken: str = ""
    alarms: Sequence[str] = ()

    def problems(self) -> list[str]:
        """Return the broken promises."""
        counted = [f"{count} {name}" for name, count in self.verdict.faults().items()]
        return counted + ([self.broken] if self.broken else [])

    def document(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return asdict(self.verdict) | {"note": self.note, "broken": self.broken, "alarms": [*self.alarms]}


async def run(
    fault: Fault,
    kafka: EmbeddedKafka | PartableCluster,
    prefix: str,
    folder: Path,
    *,
    rate: float,
    seed: int,
    short: bool = False,
    clocks: Clocks | None = None,
    prometheus: Prometheus | None = None,
) -> Outcome:
    """
    Run the service under load, break something, mend it, and judge the result.

    Args:
        fault: the fault to make.
        kafka: runs, and runs afterwards.
        prefix: before the names of topics and group; not used before.
        folder: of logs and stores.
        rate: timers a second.
        seed: of the load.
        short: a fault of 20 s at most.
        clocks: of all processes; the brokers have theirs already.
        prometheus: has the chart's alarms, and scrapes nothing yet; without it no alarm is looked at.
    """
    async with Stage(
        kafka,
        prefix,
        folder,
        options=fault.options,
        clocks=clocks,
        cuttable=fault.cuttable,
        prometheus=prometheus,
    ) as stage:
        return await run_on(stage, fault, rate=rate, seed=seed, short=short)


async def run_on(stage: Stage, fault: Fault, *, rate: float, seed: int, short: bool = False) -> Outcome:
    """Do the same on a stage whose processes run."""
    load = Load(stage.kafka.bootstrap, stage.prefix, stage.callbacks, stage.partitions, rate, seed, fault.millis)
    load.start()
    note = broken = ""
    try:
        await asyncio.sleep(3 if short else 10)
        fault_ms = int(time.time() * 1000)
        try:
            note = await fault.run(stage, load, short)
        except AssertionError as error:
            broken = str(error)
        await asyncio.sleep(3 if short else 20)
    finally:
        await asyncio.to_thread(load.stop)
    verdict = await asyncio.to_thread(_verdict, stage, load, fault_ms)
    if fault.afterwards:
        try:
            note = f"{note}; {await fault.afterwards(stage)}"
        except AssertionError as error:
            broken = broken or str(error)
    rang = await stage.prometheus.rang() if stage.prometheus else set()
    lost = [process.name for process in stage.processes if "never retrieved" in process.log.read_text()]
    told = [broken] if broken else []
    if lost:
        told.append(f"exceptions that nobody has looked at, in the logs of {', '.join(lost)}")
    if wrong := rang - fault.alarms - stage.awaited:
        told.append(f"alarms rang that tell of something else: {', '.join(sorted(wrong))}")
    if not short:
        told += _too_slow(fault, verdict)
    return Outcome(verdict, note, "; ".join(told), sorted(rang))


def _too_slow(fault: Fault, verdict: Verdict) -> list[str]:
    """Return the limits that were exceeded."""
    told = []
    # A partition fires once a second.
    if fault.silence_s is not None and verdict.silence_s > fault.silence_s + 1:
        told.append(f"a partition was silent for {verdict.silence_s:.1f} s, and may be for {fault.silence_s:g} + 1")
    if fault.late_s is not None and verdict.late_max_s > fault.late_s:
        told.append(f"a timer was {verdict.late_max_s:.1f} s late, and may be {fault.late_s:g}")
    return told


def _verdict(stage: Stage, load: Load, fault_ms: int) -> Verdict:
    with topics.reading(stage.kafka.bootstrap, stage.prefix + "timer-request") as reader:
        log = reader.more(topics.request_of)
    requests = [*stage.left, *log]
    told = expected(one for one in requests if is_of(one, load.callbacks, load.replies))
    for one in requests:
        if one.appended_ms in stage.unanswered_ms:
            told.outcomes.pop(one.name, None)
    verdict = judged(stage, told, load.callbacks, load.replies, fault_ms)
    if former := stage.former:
        # A worker writes a timer again whose topic lacks replicas, as while two brokers were away.
        before, there = ({(one.name, one.appended_ms) for one in each} for each in (former.requests, log))
        names = {one.name for one in former.requests}
        again = [
            replace(one, is_anew=one.name in names)
            for one in log
            if one.future.HasField("insteadOf") and (one.name, one.appended_ms) not in before
        ]
        told = expected(one for one in [*former.requests, *again] if is_of(one, former.callbacks, former.replies))
        for one in former.requests:
            if one.due_ms > former.since_ms and (one.name, one.appended_ms) not in there:
                told.destroyed(one.name)
        verdict += judged(stage, told, former.callbacks, former.replies, fault_ms)
    return verdict


def is_of(request: Request, callbacks: str, replies: str) -> bool:
    """Tell whether a load with these topics has asked for it; a fault judges requests on its own topics itself."""
    future = request.future
    if future.cancel:
        # Commands have their answers on that topic too.
        return future.replyTopic == replies and future.timerId.startswith(ID_PREFIX)
    return future.callBackTopic == callbacks


def judged(stage: Stage, told: Expected, callback_topic: str, reply_topic: str, fault_ms: int) -> Verdict:
    """Return the verdict on what comes in time. A fault began at *fault_ms*, in UNIX milliseconds."""
    bootstrap = stage.kafka.bootstrap
    last_s = max(request.asked_ms for request in told.timers.values()) / 1000
    with (
        topics.reading(bootstrap, callback_topic) as callback_reader,
        topics.reading(bootstrap, reply_topic) as reply_reader,
    ):
        callbacks: list[Callback] = []
        answers = [*stage.answers]
        unfired, unanswered = told.must_fire(), told.outcomes.keys() - {answer.asked for answer in answers}
        while (unfired or unanswered) and time.time() < last_s + _DRAIN_S:
            fired = [*map(told.of, callback_reader.more(topics.callback_of))]
            given = reply_reader.more(topics.answer_of)
            unfired -= {callback.request for callback in fired}
            unanswered -= {answer.asked for answer in given}
            callbacks += fired
            answers += given
        time.sleep(_AFTER_S)
        callbacks += map(told.of, callback_reader.more(topics.callback_of))
        answers += reply_reader.more(topics.answer_of)
    for callback in strange_among(callbacks, told)[:_SHOWN]:
        print("strange:", callback, "asked for:", told.timers.get(callback.request))
    return judge(told, callbacks, answers, fault_ms, int(time.time() * 1000), _skew(stage))


def _skew(stage: Stage) -> Callable[[int, int, int], int]:
    """Return by how many milliseconds a callback may seem early, as `judge` asks for it."""
    clocks = stage.clocks
    if clocks is None:
        return lambda *_: 0
    bootstrap, numbers = stage.kafka.bootstrap, range(stage.partitions)
    ticks, callbacks = (
        [topics.leader_of(bootstrap, topic, number) for number in numbers]
        for topic in (stage.prefix + "oscillator", stage.callbacks)
    )
    return lambda asked, fired, appended_ms: clocks.skew_ms(ticks[asked], callbacks[fired], appended_ms)
