"""Far requests: left to the lake, and fired by the copies that come back from it. Here the test is the lake."""

import time
from pathlib import Path

from patience import LIMIT_S
from service import Service, take

from kafka_timers.core.routing import partition_of
from kafka_timers.core.wire import Copy, Future, Reply

# A planner would ask for its runs from beyond it.
HORIZON = ("--horizon-s", "2", "--no-planner")


async def ask(service: Service, second: int, name: str, **more: object) -> int:
    """Ask for a timer in partition 0; return the offset of the request."""
    future = Future(callBackTopic=service.callbacks, callBackKey=name, callBack=name.encode(), **more)
    return int((await service.request(second, future, partition=0)).partition(":")[2])


def an_id_of_partition_0(service: Service) -> str:
    return next(name for name in map(str, range(1000)) if partition_of(name, service.partitions) == 0)


async def test_far_requests_fire_once_by_their_copies_and_under_their_own_names(
    bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    """Copies come twice, before and after a restart without a store; one was decided before its timer was cancelled."""
    async with Service(bootstrap, prefix, tmp_path) as service:
        worker = await service.worker(*HORIZON)
        name = an_id_of_partition_0(service)
        appended_s = int(time.time())
        # Far when they are asked for, also on a busy machine.
        second = appended_s + 25
        wanted = {f"far-{number}": await ask(service, second, f"far-{number}") for number in range(20)}
        cancelled = await ask(service, second, "cancelled", timerId=name)
        decided = cancelled + 1
        await ask(service, 0, "", timerId=name, cancel=True, replyTopic=service.topics.replies)
        async with service.reading(service.topics.replies) as replies:
            [answer] = await take(replies, 1, LIMIT_S)
        assert Reply.FromString(answer.value).outcome == Reply.CANCELLED
        assert worker.metric("kafka_timers_far_total") == 21
        assert worker.metric("kafka_timers_requests_total") == 0

        async def promote() -> None:
            for text, offset in {**wanted, "cancelled": cancelled}.items():
                copy = Copy(offset=offset, appended=appended_s, decidedOffset=decided, decided=appended_s)
                timer_id = name if text == "cancelled" else ""
                await ask(service, second, text, copy=copy, timerId=timer_id)

        await promote()
        await service.until_sealed(appended_s)
        # Shown with the next housekeeping.
        await worker.until("/metrics", lambda *_: worker.metric("kafka_timers_pending") == 20)
        worker.child.kill()
        await worker.child.wait()
        worker = await service.worker(*HORIZON)  # with an empty folder
        await promote()
        names = []
        while not names:
            # A tick counts as no more than the second in which it is appended, so this one has to be lived through.
            await service.tick(min(second, int(time.time())))
            assert time.time() < second + 30
            names = await service.callback_names(list(wanted), limit_s=0.5)
        names = await service.callback_names(list(wanted))
        assert sorted(names) == sorted(wanted)
        records = await service.read(service.callbacks, len(wanted))
        for record in records:
            assert dict(record.headers)["timer-request"] == b"0:%d" % wanted[record.value.decode()]
            assert dict(record.headers)["timer-expiry"] == b"%d" % second
            assert record.timestamp >= second * 1000
        seals = (await service.seals())[0]
        assert max(seal.horizon_s for seal in seals) == 2
