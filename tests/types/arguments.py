"""
Calls that a type checker refuses. mypy reads this file with the package; nothing runs it.

Each wrong call has the code of its error. mypy also reports a code that is not needed, so it fails if a wrong call
type-checks.
"""

from kafka_timers import At, Cron, Every, TimerClient, sync


async def right(timers: TimerClient) -> None:
    """Calls that type-check."""
    await timers.after(3, topic="t", key="k", value=None, headers={"h": b""}, partition=1, timer_id="id", token="token")
    await timers.create("id", 3, topic="t", partition_key=b"k", request="0:0")
    await timers.move("id", after=3)
    await timers.schedules.put("s", Cron("0 9 * * *", zone="Europe/Paris", gap="skip", overlap="both"), topic="t")
    await timers.schedules.put("s", Every(60, anchor=5), topic="t", key="k", catch_up="all", runs=3)
    await timers.schedules.put("s", At([5, 6]), topic="t", value=b"v")


async def wrong(timers: TimerClient) -> None:
    """Calls that do not."""
    await timers.after(3, key="k")  # type: ignore[call-arg]
    await timers.after(3, topic="t", keys="k")  # type: ignore[call-arg]
    await timers.at(3, topic="t", value="text")  # type: ignore[arg-type]
    await timers.create("id", 3, topic="t", timer_id="id")  # type: ignore[misc]
    await timers.move("id", 3, topic="t", partition="first")  # type: ignore[arg-type]
    await timers.schedules.put("s", topic="t")  # type: ignore[call-arg]
    await timers.schedules.put("s", "0 9 * * *", topic="t")  # type: ignore[arg-type]
    await timers.schedules.put("s", Every(60), at=[5], topic="t")  # type: ignore[call-arg]
    await timers.schedules.put("s", Every(60), topic="t", timer_id="id")  # type: ignore[call-arg]
    await timers.schedules.put("s", Every(60), topic="t", catch_up="some")  # type: ignore[arg-type]
    Cron("0 9 * * *", anchor=5)  # type: ignore[call-arg]
    Cron("0 9 * * *", gap="jump")  # type: ignore[arg-type]
    Every(60, zone="Europe/Paris")  # type: ignore[call-arg]
    At([5], overlap="both")  # type: ignore[call-arg]


def without_asyncio(timers: sync.TimerClient) -> None:
    """The client that blocks has the same arguments."""
    timers.at(3, topic="t", key="k", timer_id="id")
    timers.schedules.put("s", Every(60), topic="t", key="k")
    timers.at(3, topic="t", keys="k")  # type: ignore[call-arg]
    timers.schedules.put("s", Every(60), topic="t", zone="Europe/Paris")  # type: ignore[call-arg]
