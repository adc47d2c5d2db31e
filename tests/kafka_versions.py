"""
Other versions of Kafka than the one of `kafka_timers.dev.jars`: resolved by Maven's rules and fetched at run time.

Nothing is committed of them but their numbers. The jars of a version come into a folder of its own beside those of
`jars.lock`, which gets its name once all are there; from then on no network is needed.
"""

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from kafka_timers.dev.jars import caches
from kafka_timers.errors import KafkaSetupError

# The last patch of each, and the newest of all.
KAFKA_3_3, KAFKA_3_9, KAFKA_4_0, NEWEST = "3.3.2", "3.9.2", "4.0.2", "4.4.0"

# One way to log for all of them: before 4.0, Kafka also calls log4j 1. Not resolved with Kafka, whose versions would
# then be those that log4j was built with.
_LOG4J = ("log4j-core", "log4j-api", "log4j-slf4j-impl", "log4j-1.2-api")
_LOG4J_VERSION = "2.25.4"
_TIMEOUT_S = 60


async def classpath_of(version: str) -> str:
    """
    Return the class path of a version of Kafka, and fetch it first where the cache lacks it (half a minute).

    Raises:
        KafkaSetupError: it cannot be fetched.
    """
    folder = caches() / f"kafka-{version}-tests"
    if not folder.exists():
        try:
            await asyncio.to_thread(_fetch, version, folder)
        # As in `jars`.
        except (OSError, RuntimeError) as error:
            raise KafkaSetupError(f"Kafka {version} cannot be fetched: {error}") from error
    return os.pathsep.join(str(jar) for jar in sorted(folder.glob("*.jar")))


def _fetch(version: str, folder: Path) -> None:
    # Not needed once the jars are in the cache.
    from jgo.maven import MavenContext, PythonResolver

    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the folder, because a move is one step only within a file system.
    with tempfile.TemporaryDirectory(prefix=".part-", dir=folder.parent) as part:
        resolver = PythonResolver()
        maven = MavenContext(resolver, repo_cache=Path(part, "repository"), timeout=_TIMEOUT_S)
        kafka, others = resolver.resolve([maven.create_dependency(f"org.apache.kafka:kafka_2.13:{version}")])
        artifacts = [dependency.artifact for dependency in [*kafka, *others]]
        assert {each.version for each in artifacts if each.groupId == "org.apache.kafka"} == {version}
        log4j = [maven.project("org.apache.logging.log4j", name).at_version(_LOG4J_VERSION) for name in _LOG4J]
        jars = Path(part, "jars")
        jars.mkdir()
        for artifact in [*artifacts, *(each.artifact() for each in log4j)]:
            shutil.copy(artifact.resolve(), jars)
        try:
            jars.rename(folder)
        except OSError:
            # Another process was first.
            if not folder.exists():
                raise
