"""The requests that aiokafka lacks, byte by byte, against Kafka's description of its protocol."""

from io import BytesIO
from typing import Any

import pytest

from kafka_timers.broker.requests import (
    ApiVersions,
    Fetch,
    ListOffsets,
    Metadata,
    Produce,
    ProduceInTransaction,
    transaction_version_in,
)
from kafka_timers.broker.transaction_requests import CommitOffsets, CommittedOffsets, EndTransaction, InitProducerId
from kafka_timers.errors import BrokerVersionError

ID, EPOCH = (1_000_007).to_bytes(8, "big"), (5).to_bytes(2, "big")
NONE = b"\xff"


@pytest.mark.parametrize(
    ("asked", "version", "expected"),
    [
        (Metadata(["ab"]), 10, b"\x02" + bytes(16) + b"\x03ab\x00" + b"\x00\x00\x00" + b"\x00"),
        (ApiVersions(), 3, b"\x0dkafka-timers\x021\x00"),
        (InitProducerId("t.3", 10_000), 4, b"\x04t.3" + b"\x00\x00\x27\x10" + NONE * 10 + b"\x00"),
        (InitProducerId(None, 10_000), 4, b"\x00" + b"\x00\x00\x27\x10" + NONE * 10 + b"\x00"),
        (
            CommitOffsets("t.3", "g", 1_000_007, 5, "a", {3: 9}, "id"),
            5,
            (b"\x04t.3\x02g" + ID + EPOCH + NONE * 4 + b"\x01\x00" + b"\x02\x02a\x02\x00\x00\x00\x03")
            + (bytes(7) + b"\x09" + NONE * 4 + b"\x03id\x00\x00\x00"),
        ),
        (CommittedOffsets("g", "a", 3), 7, b"\x02g\x02\x02a\x02\x00\x00\x00\x03\x00\x01\x00"),
        (EndTransaction("t.3", 1_000_007, 5, is_commit=True), 5, b"\x04t.3" + ID + EPOCH + b"\x01\x00"),
        (
            InitProducerId("t.3", 10_000, 1_000_007, 5),
            4,
            b"\x04t.3" + b"\x00\x00\x27\x10" + ID + EPOCH + b"\x00",
        ),
    ],
    ids=lambda given: type(given).__name__ if hasattr(given, "prepare") else "",
)
def test_a_request_has_the_bytes_that_kafka_reads(asked: Any, version: int, expected: bytes) -> None:
    made = asked.prepare({asked.API_KEY: (0, 99)})
    assert (made.API_VERSION, made.encode()) == (version, expected)


@pytest.mark.parametrize(
    ("asked", "most", "expected"),
    [
        (Metadata(["ab"]), 8, b"\x00\x00\x00\x01\x00\x02ab" + b"\x00\x00\x00"),
        (Metadata(None), 9, NONE * 4 + b"\x00\x00\x00"),
        (
            Produce("t", 3_000, {("a", 1): b"xyz"}),
            7,
            (b"\x00\x01t\xff\xff\x00\x00\x0b\xb8" + b"\x00\x00\x00\x01\x00\x01a")
            + (b"\x00\x00\x00\x01" + b"\x00\x00\x00\x01\x00\x00\x00\x03xyz"),
        ),
        (
            Fetch("a", {3: (5, 1_000_007)}, 100, 8, 2, session=(9, 7), forgotten=[4]),
            11,
            (NONE * 4 + b"\x00\x00\x00\x64" + b"\x00\x00\x00\x01" + b"\x00\x00\x00\x08" + b"\x01")
            + (b"\x00\x00\x00\x09" + b"\x00\x00\x00\x07" + b"\x00\x00\x00\x01\x00\x01a" + b"\x00\x00\x00\x01")
            + (b"\x00\x00\x00\x03\x00\x00\x00\x05" + ID + NONE * 8 + b"\x00\x00\x00\x02")
            + (b"\x00\x00\x00\x01\x00\x01a" + b"\x00\x00\x00\x01\x00\x00\x00\x04" + b"\x00\x00"),
        ),
        (
            ListOffsets("a", [3], ListOffsets.START),
            5,
            (NONE * 4 + b"\x01" + b"\x00\x00\x00\x01\x00\x01a" + b"\x00\x00\x00\x01\x00\x00\x00\x03")
            + (NONE * 4 + NONE * 7 + b"\xfe"),
        ),
        (
            InitProducerId("t.3", 10_000, 7, 5),
            3,
            b"\x04t.3" + b"\x00\x00\x27\x10" + bytes(7) + b"\x07" + EPOCH + b"\x00",
        ),
    ],
    ids=lambda given: type(given).__name__ if hasattr(given, "prepare") else "",
)
def test_a_broker_that_knows_only_older_versions_is_asked_in_one(asked: Any, most: int, expected: bytes) -> None:
    made = asked.prepare({asked.API_KEY: (0, most)})
    assert most >= made.API_VERSION
    assert made.encode() == expected


def test_what_an_older_answer_lacks_is_read_as_nothing() -> None:
    """Its other fields are where those of the newer one are, so no caller knows the difference."""
    of_partition = b"\x00\x00\x00\x00\x00\x03" + b"\x00\x00\x00\x01" + b"\x00\x00\x00\x05" + b"\x00\x00\x00\x00" * 3
    answer = (
        (bytes(4) + b"\x00\x00\x00\x01" + b"\x00\x00\x00\x01\x00\x04host\x00\x00\x00\x07\xff\xff")
        + (b"\xff\xff" + b"\x00\x00\x00\x01" + b"\x00\x00\x00\x01\x00\x00\x00\x01a\x00")
        + (b"\x00\x00\x00\x01" + of_partition + bytes(4) + bytes(4))
    )
    told = Metadata(["a"]).prepare({3: (0, 8)}).RESPONSE_TYPE.decode(BytesIO(answer))
    assert (told.brokers, told.cluster_id) == ([(1, "host", 7, None, {})], None)
    assert told.topics == [(0, "a", bytes(16), False, [(0, 3, 1, 5, [], [], [], {})], 0, {})]
    produced = b"\x00\x00\x00\x01\x00\x01a" + b"\x00\x00\x00\x01\x00\x00\x00\x03\x00\x57" + NONE * 24 + bytes(4)
    told = Produce("t", 1, {}).prepare({0: (0, 8)}).RESPONSE_TYPE.decode(BytesIO(produced))
    assert told.topics == [("a", [(3, 87, -1, -1, -1, (), "", {})], {})]


@pytest.mark.parametrize(
    ("versions", "words"),
    [({3: (0, 7)}, "knows Metadata in versions 0 to 7 only, and version 8 is needed"), ({}, "does not know Metadata")],
)
def test_a_broker_that_is_too_old_is_told_what_it_lacks(versions: dict[int, tuple[int, int]], words: str) -> None:
    with pytest.raises(BrokerVersionError, match=words):
        Metadata(None).prepare(versions)


@pytest.mark.parametrize(("kind", "version"), [(Produce, 9), (ProduceInTransaction, 12)])
def test_batches_go_by_topic(kind: Any, version: int) -> None:
    batches = {("a", 1): b"xyz", ("b", 0): b"", ("a", 2): bytearray(b"v")}
    made = kind("t", 3_000, batches).prepare({0: (0, 99)})
    assert version == made.API_VERSION
    assert made.encode() == (
        b"\x02t\xff\xff\x00\x00\x0b\xb8\x03"
        b"\x02a\x03" + b"\x00\x00\x00\x01\x04xyz\x00" + b"\x00\x00\x00\x02\x02v\x00" + b"\x00"
        b"\x02b\x02" + b"\x00\x00\x00\x00\x01\x00" + b"\x00"
        b"\x00"
    )


def test_a_refusal_comes_with_the_words_of_the_broker() -> None:
    answer = (
        b"\x02\x02a\x02"
        + (b"\x00\x00\x00\x01\x00\x57" + NONE * 24)
        + (b"\x02\x00\x00\x00\x02\x04bad\x00" + b"\x06words" + b"\x00")
        + b"\x00\x00\x00\x00\x00\x00"
    )
    kind = Produce("t", 1, {}).prepare({0: (0, 99)}).RESPONSE_TYPE
    [(topic, [(partition, code, _, _, _, records, words, _)], _)] = kind.decode(BytesIO(answer)).topics
    assert (topic, partition, code, records, words) == ("a", 1, 87, [(2, "bad", {})], "words")


def test_the_version_of_transactions_is_told_among_the_features() -> None:
    """Behind the requests, in a field that earlier brokers do not send."""
    kind = ApiVersions().prepare({18: (0, 9)}).RESPONSE_TYPE
    begin = b"\x00\x00\x02\x00\x00\x00\x00\x00\x0b\x00" + b"\x00\x00\x00\x00"
    features = b"\x03\x06other\x00\x07\x00\x01\x00" + b"\x14transaction.version\x00\x02\x00\x01\x00"
    assert transaction_version_in(kind.decode(BytesIO(begin + b"\x00"))) == 0
    with_features = begin + b"\x01\x02" + bytes([len(features)]) + features
    assert transaction_version_in(kind.decode(BytesIO(with_features))) == 2


def test_a_fetch_returns_the_batches_of_a_partition_and_the_aborted_transactions() -> None:
    made = Fetch("a", {3: (5, 1_000_007)}, 100, 8, 2).prepare({1: (0, 99)})
    assert made.API_VERSION == 12
    assert made.encode() == (
        NONE * 4 + b"\x00\x00\x00\x64" + b"\x00\x00\x00\x01" + b"\x00\x00\x00\x08" + b"\x01"
        b"\x00\x00\x00\x00" + NONE * 4 + b"\x02\x02a\x02"
        b"\x00\x00\x00\x03\x00\x00\x00\x05" + ID + NONE * 4 + NONE * 8 + b"\x00\x00\x00\x02\x00"
        b"\x00" + b"\x01\x01\x00"
    )
    answer = (
        bytes(10)
        + b"\x02\x02a\x02\x00\x00\x00\x03\x00\x00"
        + (bytes(7) + b"\x09" + bytes(7) + b"\x08" + bytes(8))
        + (b"\x02" + ID + bytes(7) + b"\x07\x00" + NONE * 4 + b"\x04xyz\x00")
        + b"\x00\x00"
    )
    [(topic, [(number, code, end, stable, _, aborted, _, data, _)], _)] = made.RESPONSE_TYPE.decode(
        BytesIO(answer)
    ).topics
    assert (topic, number, code, end, stable, aborted, data) == ("a", 3, 0, 9, 8, [(1_000_007, 7, {})], b"xyz")


def test_an_end_is_told_with_the_epoch_of_the_leader() -> None:
    made = ListOffsets("a", [3], ListOffsets.END).prepare({2: (0, 99)})
    assert made.API_VERSION == 6
    assert made.encode() == (
        NONE * 4 + b"\x01" + b"\x02\x02a\x02" + b"\x00\x00\x00\x03" + NONE * 4 + NONE * 8 + b"\x00\x00\x00"
    )
    answer = bytes(4) + b"\x02\x02a\x02\x00\x00\x00\x03\x00\x00" + NONE * 8 + ID + b"\x00\x00" + EPOCH + bytes(3)
    [(topic, [told], _)] = made.RESPONSE_TYPE.decode(BytesIO(answer)).topics
    assert (topic, *told) == ("a", 3, 0, -1, 1_000_007, 5, {})


def test_offsets_are_answered_by_partition() -> None:
    place = b"\x02\x02a\x02\x00\x00\x00\x03"
    kind = CommittedOffsets("g", "a", 3).prepare({9: (0, 99)}).RESPONSE_TYPE
    told = kind.decode(BytesIO(bytes(4) + place + ID + NONE * 4 + b"\x01\x00\x58\x00\x00" + b"\x00\x0e\x00"))
    assert (told.topics, told.error_code) == ([("a", [(3, 1_000_007, -1, "", 88, {})], {})], 14)
    kind = CommitOffsets("t", "g", 1, 1, "a", {}, "").prepare({28: (0, 99)}).RESPONSE_TYPE
    told = kind.decode(BytesIO(bytes(4) + place + b"\x00\x2f\x00\x00\x00"))
    assert told.errors == [("a", [(3, 47, {})], {})]
