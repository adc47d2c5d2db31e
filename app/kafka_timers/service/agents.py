"""
The Faust app: membership of the group, assignment of partitions, and the stream of ticks.

Data moves beside it (`reader`, `sender`), in batches: a Faust agent handles some 8,000 events a second, which is plenty
for ticks and far too little for requests. The agent therefore never waits: it hands each tick over and takes the next.
"""

from collections.abc import Awaitable, Callable

import faust
from faust.types import TP

from kafka_timers.settings import WorkerSettings
from kafka_timers.wire import Topics

OnTick = Callable[[int, bytes | None, int], None]
OnPartitions = Callable[[set[int]], Awaitable[None]]


def make_app(
    settings: WorkerSettings, partitions: int, on_tick: OnTick, on_assigned: OnPartitions, on_revoked: OnPartitions
) -> faust.App:
    """
    Return the app, not started.

    Args:
        settings: of the worker.
        partitions: of the oscillator's topic.
        on_tick: called with partition, key, and append time in UNIX milliseconds of each tick; must not take long.
        on_assigned: called with all partitions that this worker owns from now on.
        on_revoked: called with the partitions it gives up, before others can own them.
    """
    topic = Topics.of(settings.topic_prefix).oscillator
    app = faust.App(
        settings.group,
        broker=[f"kafka://{address.strip()}" for address in settings.bootstrap.split(",")],
        store="memory://",
        datadir=settings.data_dir,
        web_enabled=False,
        # The service's topics are made by `kafka-timers topics create`; Faust makes none of its own.
        topic_disable_leader=True,
        topic_allow_declare=False,
        topic_partitions=partitions,
        key_serializer="raw",
        value_serializer="raw",
        broker_session_timeout=settings.session_timeout_s,
        broker_heartbeat_interval=settings.session_timeout_s / 4,
        broker_request_timeout=max(30.0, settings.session_timeout_s * 2),
        # Old ticks say nothing that the newest does not: it covers all seconds before it.
        broker_commit_interval=5.0,
        consumer_auto_offset_reset="latest",
        stream_wait_empty=False,
    )
    ticks = app.topic(topic, key_type=bytes, value_type=bytes, partitions=partitions)

    @app.agent(ticks, name="ticks", concurrency=1)
    async def take_ticks(stream: faust.StreamT[bytes]) -> None:
        async for event in stream.events():
            message = event.message
            on_tick(message.partition, message.key, int(message.timestamp * 1000))

    # Faust keeps signal handlers by weak reference unless told otherwise.
    @app.on_partitions_assigned.connect(weak=False)
    async def assigned(_: faust.App, assigned: set[TP], **_kwargs: object) -> None:
        await on_assigned({at.partition for at in assigned if at.topic == topic})

    @app.on_partitions_revoked.connect(weak=False)
    async def revoked(_: faust.App, revoked: set[TP], **_kwargs: object) -> None:
        await on_revoked({at.partition for at in revoked if at.topic == topic})

    return app
