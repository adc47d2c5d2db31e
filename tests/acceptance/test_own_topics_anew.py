"""Topics of the service are made anew with another number of partitions while its processes run: none is restarted."""

import asyncio
import time

from aiokafka.admin import NewPartitions
from brokers import administering, make_topic
from patience import LIMIT_S
from service import Service

from kafka_timers import Every, Outcome, TimerClient
from kafka_timers.core.wire import Future
from kafka_timers.errors import AnswerError


async def made_anew(service: Service, name: str, partitions: int, **configs: str) -> None:
    async with administering(service.bootstrap) as admin:
        await admin.delete_topics([name])
    await make_topic(service.bootstrap, name, partitions, {k.replace("_", "."): v for k, v in configs.items()})


async def refused(service: Service, number: int) -> None:
    """Publish a request that workers reject."""
    await service.request(int(time.time()) + 1, Future(callBackTopic=service.prefix + "nowhere"), number)


async def test_topic_for_refused_requests_may_be_made_anew_with_fewer_partitions(service: Service) -> None:
    await service.start("oscillator")
    await service.firing()
    await refused(service, 3)
    assert len(await service.read(service.topics.rejected, 1)) == 1
    await made_anew(service, service.topics.rejected, 1, max_message_bytes="2000")
    for number in range(4):
        await refused(service, number)
        large = Future(callBackTopic=service.prefix + "nowhere", callBack=bytes(5_000))
        await service.request(int(time.time()) + 1, large, number)
    await service.requests(int(time.time()) + 2, [f"good-{n}" for n in range(8)])
    assert len(await service.read_all(service.callbacks, 8)) == 8
    service.partitions = 1
    assert len(await service.read_all(service.topics.rejected, 8)) == 8


async def answered(timers: TimerClient, name: str) -> None:
    """Ask for an answer, more than once, since the client may hear late of a topic that is new."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                answer = await timers.cancel(name, timeout_s=5)
            except AnswerError:
                continue
            assert answer.outcome is Outcome.UNKNOWN
            return


async def test_topic_for_answers_may_be_made_anew_or_get_more_partitions(service: Service) -> None:
    await service.start("oscillator")
    await service.firing()
    names = [f"timer-{n}" for n in range(12)]
    async with TimerClient(service.bootstrap, topic_prefix=service.prefix) as timers:
        await answered(timers, names[0])
        await made_anew(service, service.topics.replies, 1)
        await asyncio.gather(*(answered(timers, name) for name in names))
        async with administering(service.bootstrap) as admin:
            await admin.create_partitions({service.topics.replies: NewPartitions(6)})
        await asyncio.gather(*(answered(timers, name) for name in names))


async def test_topics_of_schedules_may_be_made_anew_with_fewer_partitions(service: Service) -> None:
    await service.start("oscillator")
    await service.firing()
    async with TimerClient(service.bootstrap, topic_prefix=service.prefix) as timers:

        async def run(name: str) -> None:
            """Put a schedule, and wait for its first runs."""
            for number in range(6):
                await timers.schedules.put(f"{name}-{number}", Every(seconds=1), topic=service.callbacks)
            wanted = {f"{name}-{number}" for number in range(6)}
            async with asyncio.timeout(LIMIT_S), service.reading(service.callbacks) as consumer:
                while wanted:
                    record = await consumer.getone()
                    wanted.discard(dict(record.headers)["timer-schedule"].decode())

        await run("first")
        for name in (service.topics.schedules, service.topics.planned):
            await made_anew(service, name, 2, cleanup_policy="compact", message_timestamp_type="LogAppendTime")
        # So long the client believes that the number is the same.
        await asyncio.sleep(6)
        await run("second")
        assert len(await timers.schedules.list()) == 6
