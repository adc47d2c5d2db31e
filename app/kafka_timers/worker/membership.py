"""
The Faust app: membership of the group, and assignment of partitions.

Data is moved by other modules (`reader`, `ticks`, `sender`), in batches. A Faust agent handles some 8,000 events a
second, too few for requests, and its consumer waits 30 s for a silent broker, too long for ticks.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import faust
from faust.app.base import BootStrategy
from faust.types import TP
from faust.types.auth import CredentialsT

from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.internals import member_id_of, read_nothing
from kafka_timers.core.wire import Topics
from kafka_timers.settings import WorkerSettings
from kafka_timers.worker.assignor import StoreAssignor

_HEARTBEAT_S = 0.5

OnAssigned = Callable[[set[int], int, str], Awaitable[None]]
OnRevoked = Callable[[set[int]], Awaitable[None]]
OnRefused = Callable[[str], None]


def make_app(
    settings: WorkerSettings,
    partitions: int,
    name: str,
    on_assigned: OnAssigned,
    on_revoked: OnRevoked,
    on_refused: OnRefused,
) -> faust.App:
    """
    Return the app, finalized and not started.

    Args:
        partitions: number of partitions of the oscillator's topic.
        on_assigned: called with all partitions that this worker owns from now on, the seal format that every member of
            the group knows, and this worker's member id.
        on_revoked: called with the partitions that it gives up, before others can own them.
        on_refused: called with the reason if the group serves another instance, so that this worker has to end.
    """
    topic, kafka = Topics.of(settings.topic_prefix).oscillator, settings.kafka
    app = faust.App(
        settings.group,
        canonical_url=name,
        broker=[f"kafka://{address.strip()}" for address in kafka.bootstrap.split(",")],
        broker_client_id=kafka.client_id,
        broker_credentials=_credentials(kafka),
        store="memory://",
        datadir=settings.data_dir,
        PartitionAssignor=StoreAssignor,
        web_enabled=False,
        # `kafka-timers topics create` creates the service's topics. Faust must create none of its own.
        topic_disable_leader=True,
        topic_allow_declare=False,
        topic_partitions=partitions,
        key_serializer="raw",
        value_serializer="raw",
        broker_session_timeout=settings.session_timeout_s,
        # The partitions of a member that leaves are idle until the next heartbeat of the others.
        broker_heartbeat_interval=min(settings.session_timeout_s / 4, _HEARTBEAT_S),
        broker_request_timeout=max(30.0, settings.session_timeout_s * 2),
        # Old ticks add nothing to the newest one, which covers all seconds before it.
        broker_commit_interval=5.0,
        consumer_auto_offset_reset="latest",
        stream_wait_empty=False,
    )
    # The app sends nothing, and a silent broker could delay the producer's start without limit.
    app.boot_strategy = BootStrategy(app, enable_kafka_producer=False)
    ticks = app.topic(topic, key_type=bytes, value_type=bytes, partitions=partitions)

    # Subscribing makes the worker a member. `ticks` reads the records.
    @app.agent(ticks, name="ticks", concurrency=1)
    async def take_ticks(stream: faust.StreamT[bytes]) -> None:
        async for _ in stream:
            pass

    # Faust keeps signal handlers by weak reference unless told otherwise.
    @app.on_partitions_assigned.connect(weak=False)
    async def assigned(app: faust.App, assigned: set[TP], **_kwargs: object) -> None:
        assignor: Any = app.assignor
        if assignor.topic != topic:
            on_refused(
                f"group {settings.group} is that of workers on topic {assignor.topic}, and this worker needs "
                f"{topic}: leave --group out, so that it follows from --topic-prefix, or give each instance its own"
            )
            return
        await on_assigned({at.partition for at in assigned if at.topic == topic}, assignor.format, member_id_of(app))

    @app.on_partitions_revoked.connect(weak=False)
    async def revoked(_: faust.App, revoked: set[TP], **_kwargs: object) -> None:
        await on_revoked({at.partition for at in revoked if at.topic == topic})

    app.finalize()
    read_nothing(app)
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
