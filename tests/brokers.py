"""Functions of all test folders for brokers; `conftest.py` cannot be imported, since each folder may have one."""

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import CoordinationType
from aiokafka.conn import create_conn
from aiokafka.errors import InvalidReplicationFactorError, NotControllerError, RequestTimedOutError
from aiokafka.protocol.admin import DeleteGroupsRequest
from aiokafka.protocol.metadata import MetadataRequest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from patience import LIMIT_S

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.connection import Kafka
from kafka_timers.broker.coordinator_calls import CoordinatorLink
from kafka_timers.dev import broker, jars, java
from kafka_timers.dev.broker import EmbeddedKafka, free_port
from kafka_timers.dev.three_brokers import EmbeddedCluster

StartKafka = Callable[..., Awaitable[EmbeddedKafka]]
# Partition, key, value and headers of a record.
Outgoing = tuple[int, bytes, bytes, list[tuple[str, bytes]]]

_PASSING = {InvalidReplicationFactorError.errno, NotControllerError.errno, RequestTimedOutError.errno}


@asynccontextmanager
async def administering(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """Yield a connected admin client."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


@asynccontextmanager
async def consuming(kafka: Kafka, *topics: str, **options: Any) -> AsyncIterator[AIOKafkaConsumer]:
    """
    Yield a started consumer of committed records, without a group, and stop it even while the broker is away.

    Where the caller assigns partitions, it also seeks: `assign`, then `seek`, before it awaits anything.
    """
    fixed = {"isolation_level": "read_committed", "enable_auto_commit": False, "auto_offset_reset": "none"}
    consumer = AIOKafkaConsumer(*topics, **(kafka.client_options() | fixed | options))
    try:
        await consumer.start()
        yield consumer
    finally:
        # See `joining` in broker/groups.py.
        consumer.unsubscribe()
        try:
            await asyncio.sleep(0.05)
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await consumer.stop()


async def make_topic(
    bootstrap: str, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None, replicas: int = 1
) -> None:
    """Make a topic as an operator might, and wait until the broker tells of it: the controller is ahead of it."""
    await make_topics(bootstrap, NewTopic(name, partitions, replicas, topic_configs=dict(configs or {})))


async def make_topics(bootstrap: str, *wanted: NewTopic) -> None:
    """Make several at once."""
    names = [topic.name for topic in wanted]
    async with administering(bootstrap) as admin, asyncio.timeout(LIMIT_S):
        while errors := [error for error in (await admin.create_topics(list(wanted))).topic_errors if error[1]]:
            # What a busy machine may do to an only broker: not heard for its session of 3 s, it may hold no replica.
            assert {error[1] for error in errors} <= _PASSING, errors
            await asyncio.sleep(0.5)
        # Not of all topics: the broker of the tests has a thousand in the end.
        while any(topic["error_code"] for topic in await admin.describe_topics(names)):  # noqa: ASYNC110  # the same
            await asyncio.sleep(0.02)


async def delete_group(bootstrap: str, group: str) -> None:
    """Delete a group without members, as the broker does once nobody was in it for long: its offsets are gone."""
    async with Cluster.open(Kafka(bootstrap)) as cluster:
        link = CoordinatorLink(cluster, CoordinationType.GROUP, group, LIMIT_S, "groups")
        await link.obeyed(DeleteGroupsRequest([group]), lambda answer: answer.results[0][1], "delete it")


async def set_topic(bootstrap: str, name: str, configs: Mapping[str, str]) -> None:
    """Give a topic these settings, and the broker's defaults for all others."""
    async with administering(bootstrap) as admin:
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, dict(configs))])


async def kafka_configs(*words: str) -> None:
    """Run Kafka's own kafka-configs.sh with *words*, started as quickly as the brokers."""
    tool = [str(java.find()), *broker.JAVA_OPTIONS, "-cp", jars.classpath(), "kafka.admin.ConfigCommand", *words]
    await asyncio.to_thread(subprocess.check_call, tool)


async def publish(producer: AIOKafkaProducer, topic: str, records: Iterable[Outgoing]) -> float:
    """Send *records* as fast as the broker takes them, and return the seconds until it had acknowledged all."""
    start_s = time.monotonic()
    batches: dict[int, Any] = {}
    acks = []

    async def send(partition: int) -> None:
        acks.append(await producer.send_batch(batches.pop(partition), topic, partition=partition))

    for partition, key, value, headers in records:
        batch = batches.get(partition) or batches.setdefault(partition, producer.create_batch())
        if batch.append(timestamp=None, key=key, value=value, headers=headers) is None:
            await send(partition)
            batches[partition] = producer.create_batch()
            batches[partition].append(timestamp=None, key=key, value=value, headers=headers)
    for partition in list(batches):
        await send(partition)
    await asyncio.gather(*acks)
    return time.monotonic() - start_s


async def end_of(bootstrap: str, topic: str, partition: int) -> int:
    """Return the offset behind the last record."""
    at = TopicPartition(topic, partition)
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        return int((await consumer.end_offsets([at]))[at])


async def delete_records(bootstrap: str, topic: str, partition: int, before: int) -> None:
    """Delete the records below the offset *before*."""
    async with administering(bootstrap) as admin:
        await admin.delete_records({TopicPartition(topic, partition): RecordsToDelete(before)})


@asynccontextmanager
async def short_sessions(folder: Path, session_ms: int) -> AsyncIterator[tuple[EmbeddedKafka, str, dict[str, str]]]:
    """Run a broker that ends sessions after this time; yield it, and the address and properties to log in with."""
    plain, sasl, controller = free_port(), free_port(), free_port(inner=True)
    host, user, password = broker.HOST, "timers", "a password of tests"
    of_login = "listener.name.sasl_plaintext.scram-sha-256."
    properties = {
        "listeners": f"PLAINTEXT://{host}:{plain},SASL_PLAINTEXT://{host}:{sasl},CONTROLLER://{host}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{host}:{plain},SASL_PLAINTEXT://{host}:{sasl}",
        "controller.quorum.bootstrap.servers": f"{host}:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        f"{of_login}sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        f"{of_login}connections.max.reauth.ms": str(session_ms),
    }
    async with EmbeddedKafka(folder, plain, properties) as kafka:
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        # Kept by a name: its questions end with it.
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        wanted = [UserScramCredentialUpsertion(user, credential, password.encode())]
        for made in admin.alter_user_scram_credentials(wanted).values():
            await asyncio.to_thread(made.result, 30)
        login = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": user, "sasl.password": password}
        yield kafka, f"{host}:{sasl}", {"security.protocol": "SASL_PLAINTEXT"} | login


class Told(NamedTuple):
    """The answer of a broker about a partition: ids of brokers, the leader -1 if there is none."""

    leader: int
    replicas: set[int]
    in_sync: set[int]


async def partitions_as_told_by(address: str, topic: str = "") -> dict[tuple[str, int], Told]:
    """Return the answer of this one broker about each partition of a topic, or of all, by topic and partition."""
    host, port = address.split(":")
    # No client, which would go on to another broker.
    connection = await create_conn(host, int(port), request_timeout_ms=10_000)
    try:
        told = await connection.send(MetadataRequest([topic] if topic else None, allow_auto_topic_creation=False))
    finally:
        connection.close()
    return {
        (name, number): Told(leader, set(replicas), set(in_sync))
        for _, name, _, partitions in told.topics
        for _, number, leader, replicas, in_sync, *_ in partitions
    }


async def until_in_sync(cluster: EmbeddedCluster, limit_s: float = LIMIT_S) -> None:
    """Wait until all brokers tell that each partition has a leader, and all its replicas in sync."""
    async with asyncio.timeout(limit_s):
        for address in cluster.bootstrap.split(","):
            while any(  # noqa: ASYNC110  # a broker has to be asked
                told.leader < 0 or told.in_sync < told.replicas
                for told in (await partitions_as_told_by(address)).values()
            ):
                await asyncio.sleep(0.2)


async def until_replaced(cluster: EmbeddedCluster, node: int, topic: str = "", limit_s: float = LIMIT_S) -> None:
    """Wait until the other brokers tell that *node* leads nothing of *topic*, or of any topic."""
    async with asyncio.timeout(limit_s):
        for number, address in enumerate(cluster.bootstrap.split(","), 1):
            while number != node and any(  # noqa: ASYNC110  # a broker has to be asked
                told.leader == node for told in (await partitions_as_told_by(address, topic)).values()
            ):
                await asyncio.sleep(0.1)
