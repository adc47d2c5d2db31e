"""
Building blocks of our own requests to brokers: the base of their classes, and the types of their fields.

The requests are in `requests`. Those for transactions and their offsets are in `transaction_requests`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, ClassVar

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int32, Schema, TaggedFields

TEXT = CompactString("utf-8")
TAGS = ("tags", TaggedFields)

Fields = Sequence[tuple[str, Any]]


def by_topic(name: str, *of_partition: tuple[str, Any]) -> tuple[str, CompactArray]:
    """Return the field *name*: by topic, the fields of each partition, of which the first is its number."""
    partitions = CompactArray(("partition", Int32), *of_partition, TAGS)
    return name, CompactArray(("topic", TEXT), ("partitions", partitions), TAGS)


class Message(ABC):
    """
    A request in one version of Kafka's protocol. Iterate over it for the values of its fields.

    A subclass names its key and version, and the fields of question and answer, both of which end in tagged fields.
    *header* is that of the answer, if it differs from the one that goes with tagged fields.
    """

    API_KEY: ClassVar[int]
    _struct: ClassVar[Any]

    def __init_subclass__(
        cls, *, key: int, version: int, asks: Fields, answers: Fields, header: Any = None, **given: Any
    ) -> None:
        super().__init_subclass__(**given)
        about = {"API_KEY": key, "API_VERSION": version}
        answer = type(f"{cls.__name__}Response", (Response,), about | {"SCHEMA": Schema(*answers, TAGS)})
        members = {"FLEXIBLE_VERSION": True, "RESPONSE_TYPE": answer, "SCHEMA": Schema(*asks, TAGS)}
        if header:
            members["parse_response_header"] = lambda _, read_buffer: header.decode(read_buffer)
        cls.API_KEY = key
        cls._struct = type(f"{cls.__name__}Request", (RequestStruct,), about | members)

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Any:
        """
        Return what aiokafka sends. *versions* has the least and the highest version that the broker knows, by key.

        Raises:
            IncompatibleBrokerVersion: the broker does not know this version.
        """
        least, most = versions.get(self.API_KEY, (0, -1))
        if not least <= self._struct.API_VERSION <= most:
            raise IncompatibleBrokerVersion(
                f"{type(self).__name__} has version {self._struct.API_VERSION}, and the broker knows {least} to {most}"
            )
        return self._struct(*self, {})


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
