"""The brokers that are tried, each with what is special about it."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from brokers import short_sessions
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

from kafka_timers.dev.broker import EmbeddedKafka

__all__ = ["PROFILES", "Opened", "Profile"]

# The clients of a run need some too: they come from the same address.
_CONNECTIONS_MAX = 110
_SESSION_MS = 15_000


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
    login = folder.parent / "login.properties"
    async with short_sessions(folder, _SESSION_MS) as (kafka, address, properties):
        login.write_text("\n".join(f"{name}={value}" for name, value in properties.items()))
        yield Opened(kafka, address, ("--kafka-config", str(login)))


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
