"""
What requests of our own to brokers are made of: the class of a message in one version, and the types of its fields.

The requests are in `requests` and, of transactions and the offsets in them, in `transaction_requests`.
"""

from io import BytesIO
from typing import Any

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int32, Schema, TaggedFields

__all__ = ["TAGS", "TEXT", "Uuid", "by_topic", "message"]

TEXT = CompactString("utf-8")
TAGS = ("tags", TaggedFields)


def by_topic(name: str, *of_partition: tuple[str, Any]) -> tuple[str, CompactArray]:
    """Return the field *name* that holds, for each topic, fields of each of its partitions; the number is the first."""
    partitions = CompactArray(("partition", Int32), *of_partition, TAGS)
    return name, CompactArray(("topic", TEXT), ("partitions", partitions), TAGS)


def message(name: str, key: int, version: int, request: Schema, response: Schema, *, header: Any = None) -> Any:
    """
    Return the class of a request in one *version*, which knows that of its answer; all of them end in tagged fields.

    Args:
        name: of the request.
        key: its number in the protocol.
        version: of both.
        request: its fields.
        response: those of the answer.
        header: of the answer, where it is not the one that goes with tagged fields.
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
        """Return it as it is sent."""
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        """Take it out of *data*."""
        return data.read(16)
