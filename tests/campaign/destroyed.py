"""
Faults of people who destroy topics and records under load: told within 30 s, and nothing more is lost than that.

Each is a function as in `faults`. What it destroys it leaves in the stage, for the verdict.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext

from brokers import delete_records, partitions_as_told_by, until_in_sync

from campaign import topics
from campaign.load import Load
from campaign.oracle import Request
from campaign.stage import Former, Stage

__all__ = ["cut", "keep_in_stores", "make_own_topics_anew", "make_requests_anew", "truncate"]

_ELECTION_S = 60.0
# A worker waits a minute for others that may have in their stores what the log has lost.
_STORES_S = 90.0
_LOST = r"partition (\d+): \S+ has lost its offsets (\d+) to (\d+) \(\d+\), and no store"
_COUNTS = r"([\d,]+) requests count as fired, ([\d,]+) are due and fire at once, ([\d,]+) wait"


async def make_requests_anew(stage: Stage, load: Load, short: bool) -> str:
    """Delete `timer-request` and make it anew while timers wait in it; say so once it was told."""
    async with _destroying(stage, load, int(time.time() * 1000) - 2_000):
        await asyncio.to_thread(topics.delete_topic, stage.kafka.bootstrap, stage.prefix + "timer-request")
        await _made(stage)
    return await _decided(stage, "was deleted and made anew", "another")


def cut(topic: str) -> Callable[[Stage, Load, bool], Awaitable[str]]:
    """
    Return the fault that lets a replica of *topic* lead that has been away, so that what it lacks is gone for all.

    The topic is named without the prefix, and is the stage's cuttable one.
    """

    async def unclean(stage: Stage, load: Load, short: bool) -> str:
        leader, behind = stage.cluster.nodes[1], stage.cluster.nodes[2]
        since_ms = int(time.time() * 1000) - 2_000
        await behind.kill()
        await _until_led(stage, topic, 1)
        await asyncio.sleep(5 if short else 10)
        of_requests = topic == "timer-request"
        async with _destroying(stage, load, since_ms) if of_requests else nullcontext():
            before = await _records(stage, topic)
            await leader.kill()
            await behind.start()
            await _until_led(stage, topic, 2)
        if of_requests:
            told = await _decided(stage, "has lost its records from offset", "same")
        else:
            told = await stage.until_told({"log": "timer-sealed has lost its ", "alarm": "TimersLogCut"})
        await leader.start()
        await until_in_sync(stage.cluster)
        lost = len(before - await _records(stage, topic))
        assert lost, "the election has lost nothing"
        return "; ".join(filter(None, [told, f"{lost:,} records were lost"]))

    return unclean


async def truncate(stage: Stage, load: Load, short: bool) -> str:
    """Delete requests that only stores have, and those that nobody has read, since all workers were paused."""
    for worker in stage.workers:
        worker.child.pause()
    paused_ms = int(time.time() * 1000)
    await asyncio.sleep(4)
    requests = await _delete(stage)
    for worker in stage.workers:
        worker.child.resume()
    waits = "timers may wait from offset"
    told = await stage.until_told(
        {"/readyz": waits, "log": waits, "status": "has lost its offsets", "alarm": "TimersLost"}
    )
    lost: dict[int, range] = {}
    async with asyncio.timeout(_STORES_S):
        while len(lost) < stage.partitions:
            _, said = await stage.command("status")
            lost = {int(number): range(int(first), int(last) + 1) for number, first, last in re.findall(_LOST, said)}
    destroyed = [one for one in requests if one.offset in lost[one.partition]]
    assert all(one.appended_ms > paused_ms for one in destroyed), "some were lost that had been read"
    stage.left = [one for one in requests if one.offset not in lost[one.partition]]
    return f"{told}; {len(destroyed):,} records were destroyed, and `status` names their offsets"


async def keep_in_stores(stage: Stage, load: Load, short: bool) -> str:
    """Delete all requests, so that only stores have those that wait; restart workers, one by force, and add one."""
    far, count = stage.prefix + "far", 2_000
    await asyncio.to_thread(topics.make_topic, stage.kafka.bootstrap, far, stage.partitions)
    await asyncio.to_thread(load.burst, count, int(time.time()) + (60 if short else 120), far)
    await asyncio.sleep(5)
    stage.left = await _delete(stage)
    words = "timers have left"
    told = await stage.until_told({"/readyz": words, "status": words, "log": words, "alarm": "TimersLost"})
    await stage.add_worker().start()
    stage.watch()
    first, second, *_ = stage.workers
    await first.stop()
    await first.start()
    await asyncio.sleep(10)
    await second.kill()
    await second.start()
    names = await stage.fired(far, count, 300)
    assert (len(names), len(set(names))) == (count, count), (
        f"of {count} that only stores had {len(set(names))} fired, with {len(names)} callbacks"
    )
    return f"{told}; {count:,} that only stores had, each fired once"


async def make_own_topics_anew(stage: Stage, load: Load, short: bool) -> str:
    """Delete the service's other topics, one after the other, and make them anew a moment later."""
    bootstrap, nowhere, refused = stage.kafka.bootstrap, stage.prefix + "nowhere", 40
    away_ms: list[range] = []
    with topics.reading(bootstrap, load.replies) as reader:
        stage.answers = await asyncio.to_thread(reader.more, topics.answer_of)
    for name in ("timer-reply", "timer-rejected", "timer-schedule", "timer-planned", "oscillator"):
        gone_s = time.time()
        await asyncio.to_thread(topics.delete_topic, bootstrap, stage.prefix + name)
        await asyncio.to_thread(load.burst, refused, int(gone_s), nowhere)
        await _made(stage)
        away_ms.append(range(int(gone_s * 1000), int(time.time() * 1000)))
        await asyncio.sleep(5 if short else 15)
    # A worker looks again at a missing topic every 5 s.
    stage.unanswered_ms = range(away_ms[0].start - 3_000, away_ms[0].stop + 6_000)
    rejected = len(await _records(stage, "timer-rejected"))
    # Those of the first topic have gone with the second one.
    assert rejected == 4 * refused, f"of {4 * refused} that were refused {rejected} are on `timer-rejected`"
    longest_s = max(map(len, away_ms)) / 1000
    return f"each was away for {longest_s:.0f} s at most; {rejected} refused requests are on `timer-rejected`"


async def _made(stage: Stage) -> None:
    """Have the service make those of its topics that are missing."""
    status, said = await stage.command("topics", "create", "--partitions", str(stage.partitions))
    assert status == 0, said


@asynccontextmanager
async def _destroying(stage: Stage, load: Load, since_ms: int) -> AsyncIterator[None]:
    """
    Note the log of requests, and ask for nothing in this block, which may destroy it; then judge what comes apart.

    Args:
        since_ms: records that were lost, and timers that were due, after this moment may have had no effect.
    """
    callbacks, replies = (f"{stage.prefix}{name}-anew" for name in ("callbacks", "replies"))
    for name in (callbacks, replies):
        await asyncio.to_thread(topics.make_topic, stage.kafka.bootstrap, name, stage.partitions)
    async with load.anew(callbacks, replies):
        stage.former = Former(await stage.requests(), load.callbacks, load.replies, since_ms)
        yield


async def _decided(stage: Stage, words: str, command: str) -> str:
    """Wait until it is told that the log is another one, say with `kafka-timers log` what it is, and return figures."""
    told = await stage.until_told(
        {"/readyz": words, "log": words, "status": "is not the log that", "alarm": "TimersOtherLog"}
    )
    status, said = await stage.command("log", command, "--yes")
    assert status == 0, said
    begin_s = time.monotonic()
    for worker in stage.workers:
        await worker.until_ready(60)
    counts = [[int(count.replace(",", "")) for count in line] for line in re.findall(_COUNTS, said)]
    past, due, waiting = (sum(column) for column in zip(*counts, strict=True))
    return (
        f"{told}; `log {command}`: {past:,} had fired, {due:,} were due, {waiting:,} waited; all well "
        f"{time.monotonic() - begin_s:.0f} s later"
    )


async def _records(stage: Stage, topic: str) -> set[tuple[int, int, bytes]]:
    """Return place and value of all records of *topic*, which is named without the prefix."""

    def read() -> set[tuple[int, int, bytes]]:
        with topics.reading(stage.kafka.bootstrap, stage.prefix + topic) as reader:
            return {*reader.more(topics.record_of)}

    return await asyncio.to_thread(read)


async def _delete(stage: Stage) -> list[Request]:
    """Delete all requests that there are, and return them."""
    requests = await stage.requests()
    ends = {one.partition: one.offset + 1 for one in requests}
    for number, end in ends.items():
        await delete_records(stage.kafka.bootstrap, stage.prefix + "timer-request", number, end)
    return requests


async def _until_led(stage: Stage, topic: str, leader: int) -> None:
    """Wait until broker *leader* tells that it leads all of *topic*, and is the only replica in sync."""
    address = stage.cluster.bootstrap.split(",")[leader - 1]
    async with asyncio.timeout(_ELECTION_S):
        while any(  # noqa: ASYNC110  # a broker has to be asked
            (told.leader, told.in_sync) != (leader, {leader})
            for told in (await partitions_as_told_by(address, stage.prefix + topic)).values()
        ):
            await asyncio.sleep(0.2)
