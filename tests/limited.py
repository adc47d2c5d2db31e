"""
A relay that stands for a broker of another make: it knows fewer versions of Kafka's requests than the one behind it,
and fewer settings of topics.

It tells so in its answers about versions, and closes a connection that asks in another version, as Redpanda does. It
creates no topic that is to have a setting which it refuses, and creates topics without settings that it ignores. It
does not copy what else such a broker does differently.
"""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from aiokafka.protocol.admin import ApiVersionResponse_v0, CreateTopicsRequest_v3
from relay import Address, Relay

from kafka_timers.broker.requests import ApiVersions, Produce
from kafka_timers.dev.broker import HOST, EmbeddedKafka, free_port

_VERSIONS, _CREATE, _PRODUCE = ApiVersions.API_KEY, CreateTopicsRequest_v3.API_KEY, Produce.API_KEY
_NO_SUCH_SETTING = 40
# Behind number, version, and the number that the answer has too: the name of the client, with its length before it.
_CLIENT_AT = 8
_ANSWERS: dict[int, Any] = {0: ApiVersionResponse_v0, 3: ApiVersions().prepare({_VERSIONS: (3, 3)}).RESPONSE_TYPE}

# Kafka's numbers of requests by their highest version, as Redpanda's handlers name them in December 2024.
_REDPANDA = {
    1: (17, 29, 30, 31, 33, 44),
    2: (21, 35, 36, 42),
    3: (10, 18, 22, 24, 25, 26, 28, 37),
    4: (2, 12, 13, 14, 15, 16, 20, 23, 32),
    6: (11, 19),
    7: (0, 9),
    8: (3, 8),
    11: (1,),
}
# The highest version of each request, by its number.
REDPANDA_2024 = {key: most for most, keys in _REDPANDA.items() for key in keys}
# With the ids of topics.
REDPANDA_2025 = REDPANDA_2024 | {1: 13, 3: 12}
# No limit that anything here meets.
ANY = dict.fromkeys(range(100), 99)
# Settings that clouds refuse.
MSK_SERVERLESS = ("segment.ms", "min.compaction.lag.ms", "min.cleanable.dirty.ratio")
CONFLUENT_CLOUD = ("min.cleanable.dirty.ratio",)
# Settings that WarpStream takes, and does nothing with.
WARPSTREAM = ("segment.ms", "min.compaction.lag.ms", "min.cleanable.dirty.ratio", "min.insync.replicas")
# Of Kafka 2.2: a producer cannot ask whether its id is still its own.
TOO_OLD = {0: 6, 1: 8, 2: 3, 3: 6, 10: 2, 18: 2, 22: 1}


class LimitedRelay(Relay):
    """
    Passes on what a broker with these limits takes; see `Relay`.

    Args:
        versions: the highest version of each request, by its number. It does not know any other.
        settings: of topics, which it refuses.
        ignored: settings of topics that it takes, and does not pass on.
    """

    def __init__(
        self,
        address: Address,
        target: Address,
        versions: Mapping[int, int],
        settings: Collection[str] = (),
        ignored: Collection[str] = (),
    ) -> None:
        super().__init__(address, target)
        self._versions, self._settings, self._ignored = versions, settings, ignored
        # Topics that are not passed on, by the number of the answer, with the setting that is to blame.
        self._kept_back: dict[int, dict[str, str]] = {}
        # Of the connections that were closed: number and version of the request.
        self.refused: list[tuple[int, int]] = []
        # A topic that takes nothing meanwhile, as one whose replicas are slow: its connection is answered nothing else.
        self.held = b""

    def _ways(
        self, reader: StreamReader, writer: StreamWriter, far_reader: StreamReader, far_writer: StreamWriter
    ) -> tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, None]]:
        asked: dict[int, int] = {}
        return self._ask(reader, far_writer, asked), self._answer(far_reader, writer, asked)

    async def _ask(self, reader: StreamReader, writer: StreamWriter, asked: dict[int, int]) -> None:
        while True:
            frame = await _frame(reader)
            key, version = int.from_bytes(frame[:2]), int.from_bytes(frame[2:4])
            if version > self._versions.get(key, -1):
                self.refused.append((key, version))
                return
            while key == _PRODUCE and self.held and self.held in frame:  # noqa: ASYNC110  # a test may set it
                await asyncio.sleep(0.02)
            if key == _VERSIONS:
                asked[int.from_bytes(frame[4:8])] = version
            elif key == _CREATE:
                frame = self._passed_on(frame)
            writer.write(len(frame).to_bytes(4) + frame)
            await writer.drain()

    async def _answer(self, reader: StreamReader, writer: StreamWriter, asked: dict[int, int]) -> None:
        while True:
            frame = await _frame(reader)
            if (version := asked.pop(int.from_bytes(frame[:4]), None)) is not None:
                frame = frame[:4] + self._told(_ANSWERS[version], frame[4:])
            elif kept_back := self._kept_back.pop(int.from_bytes(frame[:4]), None):
                answer = CreateTopicsRequest_v3.RESPONSE_TYPE.decode(frame[4:])
                answer.topic_errors += [
                    (topic, _NO_SUCH_SETTING, f"{setting} is not supported") for topic, setting in kept_back.items()
                ]
                frame = frame[:4] + answer.encode()
            writer.write(len(frame).to_bytes(4) + frame)
            await writer.drain()

    def _told(self, kind: Any, answer: bytes) -> bytes:
        told = kind.decode(BytesIO(answer))
        fields = [getattr(told, name) for name in kind.SCHEMA.names]
        fields[1] = [
            (key, least, min(most, self._versions[key]), *tags)
            for key, least, most, *tags in fields[1]
            if key in self._versions
        ]
        if len(fields) > 3:  # tagged: the features, such as the version of transactions
            fields[3] = {}
        return bytes(kind(*fields).encode())

    def _passed_on(self, frame: bytes) -> bytes:
        """Return what is left of the request for new topics in *frame*."""
        begin = _CLIENT_AT + 2 + int.from_bytes(frame[_CLIENT_AT : _CLIENT_AT + 2])
        request = CreateTopicsRequest_v3.decode(frame[begin:])
        refused = {
            topic: setting
            for topic, *_, settings in request.create_topic_requests
            for setting, _ in settings
            if setting in self._settings
        }
        self._kept_back[int.from_bytes(frame[4:8])] = refused
        request.create_topic_requests = [
            (topic, *rest, [(name, value) for name, value in settings if name not in self._ignored])
            for topic, *rest, settings in request.create_topic_requests
            if topic not in refused
        ]
        return frame[:begin] + bytes(request.encode())


class Limited(NamedTuple):
    """A broker behind such a relay: clients reach it at *address*, and at its own address without limits."""

    address: str
    relay: LimitedRelay
    broker: EmbeddedKafka


@asynccontextmanager
async def limited(
    folder: Path, versions: Mapping[int, int], settings: Collection[str] = (), ignored: Collection[str] = ()
) -> AsyncIterator[Limited]:
    """Yield a broker with these limits; see `LimitedRelay`."""
    own, told = free_port(), free_port(inner=True)
    # Among themselves, brokers do not go through it.
    broker = EmbeddedKafka(folder, own)
    relay = LimitedRelay((HOST, told), (HOST, behind := free_port(inner=True)), versions, settings, ignored)
    inner = free_port(inner=True)
    broker.properties = {
        "listeners": f"PLAINTEXT://{HOST}:{own},LIMITED://{HOST}:{behind},CONTROLLER://{HOST}:{inner}",
        "controller.quorum.bootstrap.servers": f"{HOST}:{inner}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{own},LIMITED://{HOST}:{told}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LIMITED:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }
    async with broker:
        await relay.flow()
        try:
            yield Limited(f"{HOST}:{told}", relay, broker)
        finally:
            await relay.cut()


async def _frame(reader: StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
