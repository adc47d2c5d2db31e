"""
Kafka's classes as Java has them in memory: a broker of a test then starts with 5 s of CPU instead of 8.

It is made once, of a broker that runs for a moment, and kept beside Kafka's jars; Java itself looks whether it fits.
To make it takes 15 s, so `kafka-timers dev` has none.
"""

import fcntl
import tempfile
import zlib
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from brokers import make_topic

from kafka_timers.dev import broker, jars, java


async def use() -> None:
    """Have all brokers that this process starts from now on use the archive; make it if there is none."""
    program, classpath = java.find().resolve(), jars.classpath()
    what = f"{program} {program.stat().st_mtime_ns} {classpath} {broker.JAVA_OPTIONS}"
    archive = jars.cache_folder() / f"classes-{zlib.crc32(what.encode()):08x}.jsa"
    if not archive.exists():
        await _make(archive)
    broker.JAVA_OPTIONS.append(f"-XX:SharedArchiveFile={archive}")


async def _make(archive: Path) -> None:
    with archive.with_suffix(".lock").open("w") as lock, tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        # Other processes of the same run wait here, and find it made.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.exists():  # noqa: ASYNC240  # nothing else runs yet
            return
        made = Path(folder, archive.name)
        broker.JAVA_OPTIONS.append(f"-XX:ArchiveClassesAtExit={made}")
        # Java writes the archive at its end, and the other processes of the tests have the cores meanwhile.
        usual_s, broker.STOP_LIMIT_S = broker.STOP_LIMIT_S, 300
        try:
            kafka = broker.EmbeddedKafka(Path(folder, "kafka"))
            async with kafka:
                await _use_most_of(kafka.bootstrap)
        finally:
            broker.JAVA_OPTIONS.pop()
            broker.STOP_LIMIT_S = usual_s
        # Java's code for SIGTERM.
        if "exit code 143;" in await kafka.obituary():
            made.replace(archive)  # noqa: ASYNC240  # the same


async def _use_most_of(bootstrap: str) -> None:
    await make_topic(bootstrap, "topic")
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="id") as producer, producer.transaction():
        await producer.send_and_wait("topic", b"value")
    async with AIOKafkaConsumer(
        "topic", bootstrap_servers=bootstrap, group_id="group", auto_offset_reset="earliest"
    ) as consumer:
        await consumer.getone()
        await consumer.commit()
