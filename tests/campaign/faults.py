"""
The faults, each a function of the stage that it breaks, of the load that runs meanwhile, and of whether it is short.

A function returns its report when all is whole again. Where its fault has a promise of its own that
the oracle does not know, it raises AssertionError.
"""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from brokers import kafka_configs, until_in_sync, until_replaced
from confluent_kafka import Producer

from campaign import destroyed, topics
from campaign.clocks import Clocks
from campaign.load import Load
from campaign.oracle import expected
from campaign.stage import Stage
from kafka_timers.core.wire import instance_name

__all__ = ["FAULTS", "Fault"]

# Alarms that ring while brokers or workers are away or slow, whatever has happened to them.
_SLOW = frozenset(
    (
        *("TimersNoTick", "TimersOneOscillator", "TimersTickDelay", "TimersNoWorker", "TimersWorkerSilent"),
        *("TimersPartitionUnowned", "TimersPartitionNotSealed", "TimersPartitionFails", "TimersPartitionDown"),
        *("TimersLate", "TimersOverdue", "TimersIngestLag", "TimersPlannerBehind"),
    )
)
_NONE = frozenset[str]()


@dataclass(frozen=True)
class Fault:
    """
    A fault and its needs.

    Attributes:
        title: for the table.
        run: breaks things and mends them.
        silence_s: how long a partition may fire nothing beyond the second that it may be silent anyway; None: for as
            long as the fault takes.
        late_s: how late a timer on a topic that nothing is wrong with may be; None likewise.
        brokers: 1 or 3; faults of workers do with one.
        options: of the workers, one sequence for each.
        millis: of the timers, the share that is due at any millisecond.
        clocks: of brokers, oscillators and workers, with files in the folder; right ones by default. Needs libfaketime.
        cuttable: an own topic that has two replicas only, as `Stage` says.
        alarms: those that may ring. One that has to is a matter of `run`, which waits for it.
        afterwards: looks at the instance when everything has fired.
        is_long: takes an hour, so that one run is enough.
    """

    title: str
    run: Callable[[Stage, Load, bool], Awaitable[str]]
    silence_s: float | None = None
    late_s: float | None = None
    brokers: int = 3
    options: Sequence[Sequence[str]] = field(default=((), ()))
    millis: float = 0.0
    clocks: Callable[[Path], Clocks] | None = None
    cuttable: str = ""
    alarms: Set[str] = _SLOW
    afterwards: Callable[[Stage], Awaitable[str]] | None = None
    is_long: bool = False


# --- three brokers ----------------------------------------------------------------------------------------------------


async def kill_leaders(stage: Stage, load: Load, short: bool) -> str:
    """Kill one broker after the other, first a leader of seals; each comes back when the others have taken over."""
    first = await stage.leader_of("timer-sealed")
    took = []
    for node in [first] if short else [first, first % 3 + 1, (first + 1) % 3 + 1]:
        await stage.cluster.nodes[node].kill()
        killed_s = time.monotonic()
        await until_replaced(stage.cluster, node)
        took_s = time.monotonic() - killed_s
        took.append(f"{took_s:.1f}")
        await asyncio.sleep((12 if short else 20) - took_s)
        await stage.cluster.nodes[node].start()
        await until_in_sync(stage.cluster)
    return f"Kafka had new leaders after {', '.join(took)} s"


async def restart_brokers(stage: Stage, load: Load, short: bool) -> str:
    """Stop one broker after the other and start it again, as an upgrade does."""
    first = await stage.leader_of("timer-sealed")
    for node in [first] if short else [first, first % 3 + 1, (first + 1) % 3 + 1]:
        await stage.cluster.nodes[node].stop()
        await stage.cluster.nodes[node].start()
        await until_in_sync(stage.cluster)
    return ""


def freeze(
    seconds: float, *, coordinator: bool = False, restarts: bool = False
) -> Callable[[Stage, Load, bool], Awaitable[str]]:
    """
    Return the fault that freezes a broker for *seconds*.

    It is the leader of seals, or with *coordinator* the one of transactions, of partition 0. With *restarts* a worker
    is started again meanwhile.
    """

    async def frozen(stage: Stage, load: Load, short: bool) -> str:
        number = await (stage.coordinator_of(0) if coordinator else stage.leader_of("timer-sealed"))
        node = stage.cluster.nodes[number]
        node.pause()
        if restarts:
            await asyncio.sleep(30)
            await stage.workers[0].stop()
            await stage.workers[0].start()
            await asyncio.sleep(seconds - 30)
            await stage.workers[0].until_ready()
        else:
            await asyncio.sleep(18 if short else seconds)
        node.resume()
        await until_in_sync(stage.cluster)
        return ""

    return frozen


async def part(stage: Stage, load: Load, short: bool) -> str:
    """Part the leader of seals from the other brokers, not from clients, and restart each worker meanwhile."""
    end_s = time.monotonic() + (20 if short else 120)
    await stage.cluster.hold(await stage.leader_of("timer-sealed"))
    # By then the others have replaced it.
    await asyncio.sleep(11 if short else 30)
    for worker in stage.workers[:1] if short else stage.workers:
        await worker.stop()
        await worker.start()
        await asyncio.sleep(0 if short else 30)
    await asyncio.sleep(max(end_s - time.monotonic(), 0))
    await stage.cluster.mend()
    await until_in_sync(stage.cluster)
    return ""


async def pause_worker(stage: Stage, load: Load, short: bool) -> str:
    """Freeze one of the workers at random for 1 to 15 s, again and again."""
    chance = random.Random(time.time())
    end_s = time.monotonic() + (20 if short else 300)
    pauses = 0
    while time.monotonic() < end_s or (not short and pauses < 30):
        child = chance.choice(stage.workers).child
        child.pause()
        await asyncio.sleep(chance.uniform(1, 5) if short else chance.uniform(1, 15))
        child.resume()
        pauses += 1
        await asyncio.sleep(chance.uniform(0, 4))
    return f"{pauses} pauses"


async def hold_transaction(stage: Stage, load: Load, short: bool) -> str:
    """Keep a transaction of somebody else open in a partition of the requests, and abort it."""
    settings = {"transactional.id": stage.prefix + "foreign", "transaction.timeout.ms": 300_000, "log_level": 0}
    producer = Producer({"bootstrap.servers": stage.kafka.bootstrap, **settings})
    await asyncio.to_thread(producer.init_transactions, 30)
    producer.begin_transaction()
    producer.produce(stage.prefix + "timer-request", b"", str(int(time.time())), partition=0)
    await asyncio.to_thread(producer.flush, 30)
    end_s = time.monotonic() + (15 if short else 120)
    try:
        blocked = "requests wait behind an open transaction"
        told = await stage.until_told(
            {"/readyz": blocked, "status": f"partition 0: {blocked}", "alarm": "TimersOverdue"}
        )
        await asyncio.sleep(end_s - time.monotonic())
        late = await asyncio.to_thread(_left, stage)
    finally:
        await asyncio.to_thread(producer.abort_transaction, 30)
    assert not late, f"{late} timers before the transaction did not fire while it was open"
    return told


def _left(stage: Stage) -> int:
    """Return how many timers that anybody can read have not fired 3 s after they were due."""
    now_ms = time.time() * 1000
    with topics.reading(stage.kafka.bootstrap, stage.prefix + "timer-request") as reader:
        told = expected(reader.more(topics.request_of))
    with topics.reading(stage.kafka.bootstrap, stage.callbacks) as reader:
        fired = {callback.request for callback in reader.more(topics.callback_of)}
    return sum(name not in fired and told.timers[name].due_ms < now_ms - 3_000 for name in told.must_fire())


async def delete_topic(stage: Stage, load: Load, short: bool) -> str:
    """Delete a callback topic while a burst of timers fires on it."""
    victim = stage.prefix + "deleted"
    bootstrap = stage.kafka.bootstrap
    await asyncio.to_thread(topics.make_topic, bootstrap, victim, stage.partitions)
    second = int(time.time()) + 8
    await asyncio.to_thread(load.burst, 20_000 if short else 200_000, second, victim)
    await asyncio.sleep(max(second + 0.3 - time.time(), 0))
    await asyncio.to_thread(topics.delete_topic, bootstrap, victim)
    end_s = time.monotonic() + 12
    told = await stage.until_told({"alarm": "TimersRejected"})
    await asyncio.sleep(max(end_s - time.monotonic(), 0))
    return told


def lose_topic(replicas: int) -> Callable[[Stage, Load, bool], Awaitable[str]]:
    """
    Return the fault that kills the leader of a callback topic, and starts it again.

    The topic has so many *replicas* and demands that all are in sync.
    """

    async def lost(stage: Stage, load: Load, short: bool) -> str:
        lonely = stage.prefix + "lonely"
        bootstrap = stage.kafka.bootstrap
        await asyncio.to_thread(topics.make_topic, bootstrap, lonely, 1, replicas, replicas)
        node = stage.cluster.nodes[await stage.leader_of("lonely")]
        count, before = 200, 20

        async def ask(amount: int) -> None:
            begin = int(time.time()) + 2
            for second in range(begin, begin + amount // 10):
                await asyncio.to_thread(load.burst, 10, second, lonely)

        # Timers due there have fired when the broker dies, and nothing else is asked for until then. Kafka writes no
        # marker to a partition without a leader (KAFKA-20734), so records of an open transaction there become visible
        # with a later one, though it was aborted: see docs/operate.md.
        await ask(before)
        await stage.fired(lonely, before)
        while await stage.has_open_transaction("lonely"):  # noqa: ASYNC110  # a broker has to be asked
            await asyncio.sleep(0.2)
        await node.kill()
        await ask(count - before)

        def is_told() -> bool:
            return any(f"topic {lonely} takes no callbacks" in worker.child.log.read_text() for worker in stage.workers)

        begin_s = time.monotonic()
        # It counts as away after 15 s where nobody leads it.
        told = await stage.until_told({"alarm": "TimersTopicUnavailable"}, 45)
        # A busy machine takes longer to find out that nobody leads it: a short one then lasts longer too.
        while (away_s := time.monotonic() - begin_s) < (15 if short else 30) or (not is_told() and away_s < 60):  # noqa: ASYNC110  # logs have to be read
            await asyncio.sleep(1)  # logs have to be read
        code, said = await stage.command("status")
        await node.start()
        await until_in_sync(stage.cluster)
        assert code == 1, f"status finds nothing wrong: {said}"
        assert f"{lonely}: partition 0 cannot be written" in said, said

        names = await stage.fired(lonely, count)
        assert is_told(), "no worker's log names the topic that was away"
        fault = f"of {count} on the topic that was away {len(set(names))} fired, with {len(names)} callbacks"
        assert (len(names), len(set(names))) == (count, count), fault
        return "; ".join(filter(None, [told, f"{count} on the topic that was away, each fired once"]))

    return lost


async def throttle(stage: Stage, load: Load, short: bool) -> str:
    """Let workers write, then read, then use a broker's threads a little only, one after the other."""
    entity = ("--bootstrap-server", stage.kafka.bootstrap, "--entity-type", "clients")
    worker = (*entity, "--entity-name", f"{instance_name(stage.prefix)}.worker", "--alter")
    for quota in ("producer_byte_rate=20000", "consumer_byte_rate=20000", "request_percentage=1"):
        await kafka_configs(*worker, "--add-config", quota)
        await asyncio.sleep(5 if short else 40)
        await kafka_configs(*worker, "--delete-config", quota.partition("=")[0])
    told = [worker.name for worker in stage.workers if "throttles client" in worker.log.read_text()]
    assert told, "no worker's log calls it a quota"
    return f"told by {' and '.join(told)}"


async def step_clock(stage: Stage, load: Load, short: bool) -> str:
    """Set the clock of a broker with ticks back by half a second, while all clocks are wrong anyway."""
    assert stage.clocks is not None
    await asyncio.sleep(10 if short else 150)
    stage.clocks.step(await stage.leader_of("oscillator"), -0.5)
    await asyncio.sleep(10 if short else 150)
    return ""


def keep_clocks(words: Mapping[str, str]) -> Callable[[Stage, Load, bool], Awaitable[str]]:
    """Return the fault that leaves the clocks as wrong as they are: each place has to say its *words*."""

    async def kept(stage: Stage, load: Load, short: bool) -> str:
        end_s = time.monotonic() + (15 if short else 60)
        told = await stage.until_told(words)
        await asyncio.sleep(end_s - time.monotonic())
        return told

    return kept


# --- one broker, and workers ------------------------------------------------------------------------------------------


async def kill_broker(stage: Stage, load: Load, short: bool) -> str:
    """Kill the only broker again and again, then freeze it."""
    for _ in range(1 if short else 5):
        await stage.broker.kill()
        await asyncio.sleep(2)
        await stage.broker.start()
        await asyncio.sleep(5 if short else 15)
    stage.broker.pause()
    await asyncio.sleep(5 if short else 20)
    stage.broker.resume()
    return ""


async def kill_process(stage: Stage, load: Load, short: bool) -> str:
    """Kill one of the processes of `worker --processes 2`, whose parent starts it again."""
    for _ in range(1 if short else 5):
        parent = stage.workers[0].child.pid
        told = children_of(parent)
        assert len(told) == 2, f"worker --processes 2 has the processes {told}"
        os.kill(random.choice(told), signal.SIGKILL)
        await asyncio.sleep(10 if short else 20)
    return ""


async def kill_workers(stage: Stage, load: Load, short: bool) -> str:
    """Kill one of the workers and start it again, every minute for an hour."""
    end_s = time.monotonic() + (20 if short else 3_600)
    kills = 0
    while time.monotonic() < end_s:
        worker = random.choice(stage.workers)
        await worker.kill()
        await worker.start()
        kills += 1
        await asyncio.sleep(8 if short else 60)
    return f"{kills} kills"


async def audited(stage: Stage) -> str:
    """Land everything, then audit it with callbacks and answers, and fire it again on paper."""
    lake = ["--lake", str(stage.folder / "lake")]
    code, said = await stage.command("lake", "land", "--once", *lake, limit_s=1_800)
    assert code == 0, said
    for words in (["audit", "--callbacks", "--rows"], ["replay"]):
        code, said = await stage.command("lake", *words, *lake, limit_s=1_800)
        assert code == 0, f"lake {words[0]}: {said}"
    return "audit and replay find nothing"


async def fill_disk(stage: Stage, load: Load, short: bool) -> str:
    """Fill the disk of one of the workers, a file system in memory, and make room again. Needs root and Linux."""
    worker = stage.workers[0]
    assert os.geteuid() == 0, "only root can make a small disk"
    await worker.stop()
    await _run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(worker.data_dir))
    try:
        await worker.start()
        await worker.until_ready()
        balloon = worker.data_dir / "balloon"
        await asyncio.to_thread(_fill, balloon)
        # A store has room in files that it has made already, which this takes; nobody waits for these timers.
        await asyncio.to_thread(load.burst, 40_000, int(time.time()) + 3_600, stage.prefix + "never", 2_000)
        end_s = time.monotonic() + (20 if short else 60)
        told = await stage.until_told({"alarm": "TimersDiskFull"}, 60)
        await asyncio.sleep(max(end_s - time.monotonic(), 0))
        answers = [await asyncio.to_thread(worker.get, path) for path in ("/livez", "/metrics")]
        await asyncio.to_thread(balloon.unlink)
        await asyncio.sleep(10 if short else 30)
        assert " is full: " in worker.log.read_text(), "the worker never met the full disk"
        assert all(status for status, _ in answers), "the worker does not answer while its disk is full"
        assert worker.child.returncode is None, "the worker did not live through the full disk"
    finally:
        # The worker goes on in it until it ends.
        await _run("umount", "--lazy", str(worker.data_dir))
    return told


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as balloon, contextlib.suppress(OSError):
        while balloon.write(bytes(1 << 12)):
            pass


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == 0, " ".join(command)


def children_of(pid: int) -> list[int]:
    """Return the ids of the processes that *pid* has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


FAULTS = {
    "kill-leaders": Fault("three brokers: kill -9 of one after the other", kill_leaders, 13),
    # One in a hundred comes some 2 s late at each new leader.
    "restart-brokers": Fault("three brokers: rolling restart", restart_brokers, 2, alarms={"TimersLate"}),
    "freeze-60": Fault("three brokers: leader of `timer-sealed` frozen for 60 s", freeze(60), 15),
    "freeze-200": Fault(
        "three brokers: leader of `timer-sealed` frozen for 200 s, a worker restarted", freeze(200, restarts=True), 15
    ),
    "freeze-coordinator": Fault(
        "three brokers: a worker's coordinator of transactions frozen for 60 s", freeze(60, coordinator=True), 15
    ),
    "part": Fault("three brokers: one cut off from the others, not from clients, for 120 s; workers restarted", part),
    "pause-worker": Fault("one of two workers paused for 1 to 15 s, during 5 minutes", pause_worker, brokers=1),
    "kill-broker": Fault("single broker: killed five times, then frozen for 20 s", kill_broker, brokers=1),
    "fill-disk": Fault("a worker's disk full for 60 s, then free", fill_disk, brokers=1),
    "hold-transaction": Fault("somebody's transaction open for 120 s", hold_transaction, brokers=1),
    "delete-topic": Fault(
        "a callback topic deleted in the middle of a burst of 200,000",
        delete_topic,
        2,
        late_s=2,
        brokers=1,
        alarms=_NONE,
    ),
    "step-clock": Fault(
        "three brokers whose clocks are 50 ms apart, an oscillator 2 s fast, a worker's clock an hour slow; a broker's "
        "clock steps back by 0.5 s; timers at any millisecond",
        step_clock,
        millis=1.0,
        clocks=Clocks,
    ),
    "worker-clock": Fault(
        "a worker's clock two hours fast",
        keep_clocks({"log": "s ahead of the brokers': nothing goes by it", "alarm": "TimersTickDelay"}),
        1,
        late_s=2,
        brokers=1,
        millis=0.5,
        clocks=lambda folder: Clocks(folder, {1: 0.0}, {"worker-0": 7_200.0}),
        alarms=_NONE,
    ),
    "oscillator-clock": Fault(
        "an oscillator's clock an hour fast",
        keep_clocks({"/readyz": "s ahead of the brokers'; no tick is emitted", "alarm": "TimersClockDrift"}),
        1,
        late_s=2,
        brokers=1,
        millis=0.5,
        clocks=lambda folder: Clocks(folder, {1: 0.0}, {"oscillator-0": 3_600.0}),
        alarms={"TimersOneOscillator"},
    ),
    "broker-clock": Fault(
        "three brokers: the clock of one an hour fast (late and silence are by the clocks of the brokers)",
        keep_clocks({"log": "the clock of broker 3 differs from the brokers' time", "alarm": "TimersBrokerClock"}),
        millis=0.5,
        clocks=lambda folder: Clocks(folder, {1: 0.0, 2: 0.0, 3: 3_600.0}, {}),
    ),
    "lose-topic": Fault("three brokers: the only replica of a callback topic away for 30 s", lose_topic(1)),
    "lose-one-of-two": Fault(
        "three brokers: one of two replicas of a callback topic away for 30 s, both are demanded", lose_topic(2), 13
    ),
    "lose-one-of-three": Fault(
        "three brokers: one of three replicas of a callback topic away for 30 s, all are demanded", lose_topic(3), 13
    ),
    "quotas": Fault("quotas on what workers write, read and ask for, 40 s each", throttle, brokers=1),
    "requests-anew": Fault(
        "`timer-request` deleted and made anew, then `log another`", destroyed.make_requests_anew, brokers=1
    ),
    "topics-anew": Fault(
        "`timer-reply`, `timer-rejected`, `timer-schedule`, `timer-planned` and `oscillator` deleted and made anew",
        destroyed.make_own_topics_anew,
        brokers=1,
        # It asks for callbacks on a topic that there is not.
        alarms=_SLOW | {"TimersRejected"},
    ),
    "truncate": Fault("requests deleted that paused workers have not read", destroyed.truncate, brokers=1),
    "gap": Fault(
        "requests deleted that wait, then a worker restarted, one killed, and one more",
        destroyed.keep_in_stores,
        brokers=1,
    ),
    "cut-requests": Fault(
        "three brokers: unclean election of `timer-request`, then `log same`",
        destroyed.cut("timer-request"),
        cuttable="timer-request",
        # Partitions of which nothing has fired that was lost go on by themselves.
        # Its topic lets itself be cut, which is a problem of its settings.
        alarms=_SLOW | {"TimersLogCut", "TimersTopicSettings"},
    ),
    "cut-seals": Fault(
        "three brokers: unclean election of `timer-sealed`", destroyed.cut("timer-sealed"), cuttable="timer-sealed"
    ),
    "kill-process": Fault(
        "kill -9 of one of two `--processes`, five times",
        kill_process,
        2,
        brokers=1,
        options=[["--processes", "2"]],
        alarms=_NONE,
    ),
    "kill-workers": Fault(
        "an hour of seconds and milliseconds, kill -9 of a worker each minute",
        kill_workers,
        brokers=1,
        millis=0.5,
        afterwards=audited,
        is_long=True,
    ),
}
