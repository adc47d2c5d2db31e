"""The brokers that are tried, each with what is special about it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from kafka_versions import KAFKA_3_3, KAFKA_3_9, KAFKA_4_0, NEWEST, classpath_of
from limited import (
    ANY,
    CONFLUENT_CLOUD,
    MSK_SERVERLESS,
    REDPANDA_2024,
    REDPANDA_2025,
    WARPSTREAM,
    LimitedRelay,
    limited,
)

from kafka_timers.dev.broker import HOST, EmbeddedKafka, free_port

__all__ = ["PROFILES", "Opened", "Profile"]

# The clients of a run need some too: they come from the same address.
_CONNECTIONS_MAX = 110
_SESSION_MS = 15_000
_USER, _PASSWORD = "timers", "a password of tests"


@dataclass(frozen=True)
class Opened:
    """
    A broker that runs.

    Attributes:
        kafka: the clients of the run reach it at its own address, without limits.
        address: the processes of the service reach it there.
        login: their options to log in.
        relay: between the processes and the broker; None if there is none.
    """

    kafka: EmbeddedKafka
    address: str
    login: Sequence[str] = ()
    relay: LimitedRelay | None = None


@dataclass(frozen=True)
class Profile:
    """
    A broker.

    Attributes:
        title: for the table.
        how: it is tried, for the table.
        opened: starts it, with its data in a folder.
    """

    title: str
    how: str
    opened: Callable[[Path], AbstractAsyncContextManager[Opened]]


def _of_version(version: str) -> Profile:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Opened]:
        async with EmbeddedKafka(folder, classpath=await classpath_of(version)) as kafka:
            yield Opened(kafka, kafka.bootstrap)

    return Profile(f"Apache Kafka {version}", "itself", opened)


def _limited(
    title: str,
    versions: Mapping[int, int] = ANY,
    settings: Collection[str] = (),
    ignored: Collection[str] = (),
) -> Profile:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Opened]:
        async with limited(folder, versions, settings, ignored) as (address, relay, broker):
            yield Opened(broker, address, relay=relay)

    limits = [
        "has its versions of requests" * (versions is not ANY),
        f"refuses {', '.join(f'`{name}`' for name in settings)}" * bool(settings),
        f"ignores {', '.join(f'`{name}`' for name in ignored)}" * bool(ignored),
    ]
    return Profile(title, "behind a relay that " + " and ".join(filter(None, limits)), opened)


@asynccontextmanager
async def _few_connections(folder: Path) -> AsyncIterator[Opened]:
    async with EmbeddedKafka(folder, properties={"max.connections.per.ip": str(_CONNECTIONS_MAX)}) as kafka:
        yield Opened(kafka, kafka.bootstrap)


@asynccontextmanager
async def _short_sessions(folder: Path) -> AsyncIterator[Opened]:
    plain, sasl, controller = free_port(), free_port(), free_port(inner=True)
    properties = {
        "listeners": f"PLAINTEXT://{HOST}:{plain},SASL_PLAINTEXT://{HOST}:{sasl},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{plain},SASL_PLAINTEXT://{HOST}:{sasl}",
        "controller.quorum.bootstrap.servers": f"{HOST}:{controller}",
        "listener.security.protocol.map": ("PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"),
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "listener.name.sasl_plaintext.scram-sha-256.connections.max.reauth.ms": str(_SESSION_MS),
    }
    login = folder.parent / "login.properties"
    lines = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=SCRAM-SHA-256", f"sasl.username={_USER}")
    login.write_text("\n".join([*lines, f"sasl.password={_PASSWORD}"]))
    async with EmbeddedKafka(folder, plain, properties) as kafka:
        await asyncio.to_thread(_make_user, kafka.bootstrap)
        yield Opened(kafka, f"{HOST}:{sasl}", ("--kafka-config", str(login)))


def _make_user(bootstrap: str) -> None:
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    wanted = [UserScramCredentialUpsertion(_USER, credential, _PASSWORD.encode())]
    # Kept by a name: its questions end with it.
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.alter_user_scram_credentials(wanted).values():
        made.result(30)


PROFILES = {
    "kafka-3.3": _of_version(KAFKA_3_3),
    "kafka-3.9": _of_version(KAFKA_3_9),
    "kafka-4.0": _of_version(KAFKA_4_0),
    "kafka-newest": _of_version(NEWEST),
    "redpanda-2024": _limited("Redpanda of December 2024", REDPANDA_2024),
    "redpanda-2025": _limited("Redpanda since September 2025", REDPANDA_2025),
    "msk-serverless": _limited("Amazon MSK Serverless", settings=MSK_SERVERLESS),
    "confluent-cloud": _limited("Confluent Cloud", settings=CONFLUENT_CLOUD),
    "ignoring": _limited("a broker that ignores settings, as WarpStream", ignored=WARPSTREAM),
    "connections": Profile(
        "a broker that allows few connections",
        f"Kafka with `max.connections.per.ip={_CONNECTIONS_MAX}`",
        _few_connections,
    ),
    "sessions": Profile(
        "a broker that ends sessions", f"Kafka with SASL and `connections.max.reauth.ms={_SESSION_MS}`", _short_sessions
    ),
}
