"""
The Faust app: membership of the group, assignment of partitions, and the stream of ticks.

Data moves beside it (`reader`, `sender`), in batches: a Faust agent handles some 8,000 events a second, which is plenty
for ticks and far too little for requests. The agent therefore never waits: it hands each tick over and takes the next.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import faust
from faust.types import TP
from faust.types.auth import CredentialsT

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.internals import set_fetch_wait
from kafka_timers.core.wire import Topics
from kafka_timers.settings import WorkerSettings
from kafka_timers.worker.assignor import StoreAssignor

_HEARTBEAT_S = 0.5
_FETCH_WAIT_MS = 200

OnTick = Callable[[int, bytes | None, int], None]
OnAssigned = Callable[[set[int], int], Awaitable[None]]
OnRevoked = Callable[[set[int]], Awaitable[None]]


def make_app(
    settings: WorkerSettings, partitions: int, on_tick: OnTick, on_assigned: OnAssigned, on_revoked: OnRevoked
) -> faust.App:
    """
    Return the app, not started.

    Args:
        settings: of the worker.
        partitions: of the oscillator's topic.
        on_tick: called with partition, key, and append time in UNIX milliseconds of each tick; must not take long.
        on_assigned: called with all partitions that this worker owns from now on, and the format of seals that every
            member of the group knows.
        on_revoked: called with the partitions it gives up, before others can own them.
    """
    topic, kafka = Topics.of(settings.topic_prefix).oscillator, settings.kafka
    app = faust.App(
        settings.group,
        broker=[f"kafka://{address.strip()}" for address in kafka.bootstrap.split(",")],
        broker_client_id=kafka.client_id,
        broker_credentials=_credentials(kafka),
        store="memory://",
        datadir=settings.data_dir,
        PartitionAssignor=StoreAssignor,
        web_enabled=False,
        # The service's topics are made by `kafka-timers topics create`; Faust makes none of its own.
        topic_disable_leader=True,
        topic_allow_declare=False,
        topic_partitions=partitions,
        key_serializer="raw",
        value_serializer="raw",
        broker_session_timeout=settings.session_timeout_s,
        # Whoever leaves the group, its partitions are idle until the others' next heartbeat tells them.
        broker_heartbeat_interval=min(settings.session_timeout_s / 4, _HEARTBEAT_S),
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
    async def assigned(app: faust.App, assigned: set[TP], **_kwargs: object) -> None:
        # What is asked first for new partitions waits behind what was asked last for the old ones: up to 1.5 s as
        # Faust has it.
        set_fetch_wait(app, _FETCH_WAIT_MS)
        assignor: Any = app.assignor
        await on_assigned({at.partition for at in assigned if at.topic == topic}, assignor.format)

    @app.on_partitions_revoked.connect(weak=False)
    async def revoked(_: faust.App, revoked: set[TP], **_kwargs: object) -> None:
        await on_revoked({at.partition for at in revoked if at.topic == topic})

    return app


def _credentials(kafka: Kafka) -> CredentialsT | None:
    options = kafka.client_options()
    tls = options.get("ssl_context")
    if tokens := options.get("sasl_oauth_token_provider"):
        return faust.OAuthCredentials(oauth_cb=tokens, ssl_context=tls)
    if mechanism := options.get("sasl_mechanism"):
        return faust.SASLCredentials(
            username=options["sasl_plain_username"],
            password=options["sasl_plain_password"],
            mechanism=mechanism,
            ssl_context=tls,
        )
    return faust.SSLCredentials(tls) if tls else None
