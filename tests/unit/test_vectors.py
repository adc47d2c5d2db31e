"""
This code reads and writes docs/wire-vectors.json, and docs/wire.md shows the same.

After a change of that file `python tests/unit/test_vectors.py` puts its tables into the page.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka.partitioner import murmur2
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from kafka_timers.core.routing import SEED, murmurhash2, partition_of
from kafka_timers.core.verdicts import Ask, Cancel, Repeats, judged
from kafka_timers.core.wire import Future, Reply, Sealed, future_from, is_complete, sealed_from
from kafka_timers.v1.schedule_pb2 import Hold, Schedule

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "wire.md"
VECTORS = json.loads((DOCS / "wire-vectors.json").read_text())
RECORDS = VECTORS["records"]
MESSAGES = {"Future": Future, "Reply": Reply, "Schedule": Schedule, "Hold": Hold, "Sealed": Sealed}
# The table shows a long id or long bytes in this form.
_SHOWN = 60


def shown_id(name: str) -> str:
    """Return an id as the table has it."""
    if not name:
        return "(empty)"
    return f"`{name[0]}`, {len(name)} times" if len(name) > _SHOWN else f"`{name}`"


def tables() -> str:
    """Return the tables that the page must show."""
    counts = list(VECTORS["partitions"][0]["partition"])
    lines = [
        "| id | murmur2 | " + " | ".join(f"of {count}" for count in counts) + " |",
        "|---|---|" + "---|" * len(counts),
    ]
    for row in VECTORS["partitions"]:
        numbers = " | ".join(str(row["partition"][count]) for count in counts)
        lines.append(f"| {shown_id(row['id'])} | {row['murmur2']} | {numbers} |")
    lines += ["", "| record | key | value |", "|---|---|---|"]
    for record in RECORDS:
        value = record.get("framing", "") + record["bytes"]
        cut = f"`{value[:_SHOWN]}`… ({len(value) // 2} bytes)" if len(value) > 4 * _SHOWN else f"`{value}`"
        key = record["key"].replace("\0", "\\0")
        lines.append(f"| `{record['message']}`: {record['name']} | `{key}` | {cut} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("row", VECTORS["partitions"], ids=lambda row: row["id"][:20] or "empty")
def test_an_id_has_its_partition_with_the_compiled_hash_and_without(row: dict[str, Any]) -> None:
    name = row["id"].encode()
    for hashed in (int(murmurhash2(name, SEED)), int(murmur2(name))):
        assert (hashed - row["murmur2"]) % 2**32 == 0
    assert {count: partition_of(row["id"], int(count)) for count in row["partition"]} == row["partition"]


def test_an_id_of_each_length_of_a_block_is_among_the_vectors() -> None:
    """The hash takes four bytes at a time; ids are hashed as UTF-8, so one whose text is shorter is among them."""
    names = [row["id"] for row in VECTORS["partitions"]]
    assert {len(name.encode()) % 4 for name in names} == {0, 1, 2, 3}
    assert "" in names
    assert any(len(name) < len(name.encode()) for name in names)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["name"])
def test_fields_have_these_bytes_and_bytes_have_these_fields(record: dict[str, Any]) -> None:
    kind, value = MESSAGES[record["message"]], bytes.fromhex(record["bytes"])
    message = json_format.ParseDict(record["fields"], kind())
    assert message.SerializeToString() == value
    assert json_format.MessageToDict(kind.FromString(value), preserving_proto_field_name=True) == record["fields"]


class Read:
    """A record as it was read."""

    offset, timestamp = 20, 1_699_999_000_000

    def __init__(self, key: bytes, value: bytes) -> None:
        self.key, self.value = key, value


def test_a_worker_takes_each_request_in_the_partition_of_its_id() -> None:
    for record in RECORDS:
        if record["topic"] != "timer-request":
            continue
        value = bytes.fromhex(record.get("framing", "") + record["bytes"])
        future = future_from(value)
        verdict = judged(Read(record["key"].encode(), value), partition_of(future.timerId, 4), 4)
        if future.HasField("kept"):
            assert verdict == Repeats(future.kept)
            continue
        meant = Cancel(future) if future.cancel else Ask(int(record["key"]) * 1000 + future.millis, future)
        assert verdict == meant, record["name"]


@pytest.mark.parametrize("name", ["Future", "Reply", "Schedule", "Hold"])
def test_each_field_of_a_message_is_in_a_vector(name: str) -> None:
    """So are those of the messages within it."""
    kind, shown = MESSAGES[name], set[str]()
    for record in RECORDS:
        if record["message"] == name:
            shown |= fields_set_in(kind.FromString(bytes.fromhex(record["bytes"])))
    assert fields_of(kind.DESCRIPTOR) <= shown, fields_of(kind.DESCRIPTOR) - shown


def fields_set_in(message: Message) -> set[str]:
    """Return the full names of the fields that are set in *message*, and in those within it."""
    names = set()
    for field, value in message.ListFields():
        names.add(field.full_name)
        for inner in [value] if isinstance(value, Message | str | bytes | int) else value:
            if isinstance(inner, Message):
                names |= fields_set_in(inner)
    return names


def fields_of(kind: Descriptor) -> set[str]:
    """Return the full names of the fields of a message, and of those within it."""
    names = {field.full_name for field in kind.fields}
    # The callback of a schedule is a Future, whose fields are in vectors of its own.
    inner = [field.message_type for field in kind.fields if field.message_type and field.name != "callback"]
    return names.union(*map(fields_of, inner))


def test_answers_have_each_outcome_and_the_id_as_key() -> None:
    replies = [Reply.FromString(bytes.fromhex(r["bytes"])) for r in RECORDS if r["message"] == "Reply"]
    assert {reply.outcome for reply in replies} == set(Reply.Outcome.values()) - {Reply.OUTCOME_UNSPECIFIED}
    assert [reply.timerId for reply in replies] == [r["key"] for r in RECORDS if r["message"] == "Reply"]


def test_the_key_of_a_seal_tells_its_partition_and_whether_it_closes_a_slice() -> None:
    records = [record for record in RECORDS if record["message"] == "Sealed"]
    seals = [sealed_from(bytes.fromhex(record["bytes"])) for record in records]
    assert {is_complete(seal) for seal in seals} == {True, False}
    for record, seal in zip(records, seals, strict=True):
        assert record["key"] == f"{seal.partition}" + " slice" * (not is_complete(seal))


def test_the_page_shows_the_vectors() -> None:
    assert tables() in PAGE.read_text(), "run: python tests/unit/test_vectors.py"


if __name__ == "__main__":
    before, head, after = PAGE.read_text().partition("| id | murmur2 |")
    PAGE.write_text(before + tables() + after.partition("| `Sealed`: a slice")[2].partition("\n")[2])
