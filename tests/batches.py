"""Batches as clients in other languages may send them; aiokafka's parser does not read all of them."""

import struct
import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

from aiokafka.client import AIOKafkaClient
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from aiokafka.errors import for_code
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import TopicPartition

NOT_UTF8 = b"\xff\xfe\xfd\xfc"
# As long as NOT_UTF8, which takes its place where the batch is built.
_IN_ITS_PLACE = "~~~~"
_HEADER_BYTES = 61
# A broker that looks after its topics deletes records that are older than they keep, read or not.
_STARTED_MS = int(time.time() * 1000)
CODECS: dict[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: gzip_encode,
    2: snappy_encode,
    3: lz4_encode,
    4: zstd_encode,
}


def batch_of(
    records: Sequence[tuple[bytes | None, bytes | None]],
    *,
    odd: Sequence[int] = (),
    codec: int = 0,
    behind: bytes = b"",
    base_offset: int = 0,
    base_ms: int = _STARTED_MS,
    headers: Sequence[tuple[str, bytes | None]] = (("none", None),),
    in_transaction_of: tuple[int, int] | None = None,
) -> bytes:
    """
    Return a batch.

    Args:
        records: key and value of each.
        odd: places of those that get a header whose name is `NOT_UTF8`; all others have one that is text.
        codec: number of the compression, as Kafka counts them.
        behind: bytes that follow the compressed records.
        base_offset: as a broker would set it.
        base_ms: time of the first, in UNIX milliseconds; each has the next one 7 ms later.
        headers: that all have behind that one.
        in_transaction_of: id and epoch of a transactional producer; None is outside of transactions.
    """
    producer_id, epoch = in_transaction_of or (-1, -1)
    builder = DefaultRecordBatchBuilder(
        2,
        0,
        is_transactional=int(in_transaction_of is not None),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0 if in_transaction_of else -1,
        batch_size=1 << 24,
    )
    for place, (key, value) in enumerate(records):
        name = _IN_ITS_PLACE if place in odd else "text"
        builder.append(place, base_ms + 7 * place, key, value, [(name, b"header"), *headers])
    built = bytes(builder.build()).replace(_IN_ITS_PLACE.encode(), NOT_UTF8)
    batch = bytearray(built[:_HEADER_BYTES] + bytes(CODECS[codec](built[_HEADER_BYTES:])) + behind)
    struct.pack_into(">qi", batch, 0, base_offset, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec | (16 if in_transaction_of else 0))
    struct.pack_into(">I", batch, 17, calc_crc32c(bytes(batch[21:])))
    return bytes(batch)


async def append_batch(
    bootstrap: str, topic: str, partition: int, batch: bytes, transactional_id: str | None = None
) -> None:
    """Append *batch*, and wait until the broker has it; *transactional_id* is that of its producer."""
    client = AIOKafkaClient(bootstrap_servers=bootstrap)
    try:
        await client.bootstrap()
        await client.set_topics([topic])
        while True:
            leader = client.cluster.leader_for_partition(TopicPartition(topic, partition))
            answer = await client.send(
                leader, ProduceRequest(transactional_id, -1, 10_000, [(topic, [(partition, batch)])])
            )
            [(_, [(_, code, *_)])] = answer.topics
            # Of a topic that is new a broker may know nothing yet.
            if not for_code(code).retriable:
                break
            await client.force_metadata_update()
        assert code == 0, for_code(code)
    finally:
        await client.close()


def encoded_records(records: Sequence[tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]]) -> bytes:
    """
    Return the bytes of *records* in a batch of one timestamp, by the words of Kafka's protocol.

    Args:
        records: key, value and headers of each.
    """

    def number(given: int) -> bytes:
        left, out = given << 1 ^ given >> 63, bytearray()
        while left > 0x7F:
            out.append(left & 0x7F | 0x80)
            left >>= 7
        return bytes([*out, left])

    def text(given: bytes | None) -> bytes:
        return number(-1) if given is None else number(len(given)) + given

    out = b""
    for at, (key, value, headers) in enumerate(records):
        told = b"".join(text(name.encode()) + text(content) for name, content in headers)
        body = b"\0" + number(0) + number(at) + text(key) + text(value) + number(len(headers)) + told
        out += number(len(body)) + body
    return out


def digest_of_batches(
    batches: Iterable[Sequence[tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]]],
) -> bytes:
    """Return the SHA-256 that a seal must name for *batches* of such records, by the words of docs/wire.md."""
    return sha256(b"".join(sha256(encoded_records(batch)).digest() for batch in batches)).digest()
