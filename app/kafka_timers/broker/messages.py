"""
Building blocks of our own requests to brokers: the class of a message in one version, and the types of its fields.

The requests are in `requests`. Those for transactions and their offsets are in `transaction_requests`.
"""

from io import BytesIO
from typing import Any

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int32, Schema, TaggedFields

TEXT = CompactString("utf-8")
TAGS = ("tags", TaggedFields)


def by_topic(name: str, *of_partition: tuple[str, Any]) -> tuple[str, CompactArray]:
    """Return the field *name*: by topic, the fields of each partition, of which the first is its number."""
    partitions = CompactArray(("partition", Int32), *of_partition, TAGS)
    return name, CompactArray(("topic", TEXT), ("partitions", partitions), TAGS)


def message(name: str, key: int, version: int, request: Schema, response: Schema, *, header: Any = None) -> Any:
    """
    Return the class of a request in one *version*, with its answer's class. All of them end in tagged fields. *header*
    is that of the answer, if it differs from the one that goes with tagged fields.
    """
    answer = type(f"{name}Response", (Response,), {"API_KEY": key, "API_VERSION": version, "SCHEMA": response})
    members: dict[str, Any] = {
        "FLEXIBLE_VERSION": True,
        "API_KEY": key,
        "API_VERSION": version,
        "RESPONSE_TYPE": answer,
        "SCHEMA": request,
    }
    if header:
        members["parse_response_header"] = lambda _, read_buffer: header.decode(read_buffer)
    return type(f"{name}Request", (RequestStruct,), members)


class Uuid(AbstractType[bytes]):  # type: ignore[misc]  # aiokafka tells no types
    """Sixteen bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """Return *value* as it is sent."""
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        """Read the value from *data*."""
        return data.read(16)
