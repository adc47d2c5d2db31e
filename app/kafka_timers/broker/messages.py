"""
Building blocks of our own requests to brokers: the base of their classes, and the types of their fields.

The requests are in `requests`. Those for transactions and their offsets are in `transaction_requests`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import (
    Array,
    Bytes,
    CompactArray,
    CompactBytes,
    CompactString,
    Int32,
    Schema,
    String,
    TaggedFields,
)

from kafka_timers.errors import BrokerVersionError

TEXT = CompactString("utf-8")
TAGS = ("tags", TaggedFields)

Fields = Sequence[tuple[str, Any]]


def by_topic(name: str, *of_partition: tuple[str, Any]) -> tuple[str, CompactArray]:
    """Return the field *name*: by topic, the fields of each partition, of which the first is its number."""
    partitions = CompactArray(("partition", Int32), *of_partition, TAGS)
    return name, CompactArray(("topic", TEXT), ("partitions", partitions), TAGS)


class Older(NamedTuple):
    """
    An earlier version of a message. Kafka's messages only gain fields, so all that it has are in their places.

    Attributes:
        lacks: the fields that it lacks, each with the value that it has in an answer all the same.
        is_compact: whether it has compact fields and tagged ones too.
    """

    version: int
    lacks: Mapping[str, Any] = MappingProxyType({})
    is_compact: bool = False


class Message(ABC):
    """
    A request of Kafka's protocol. Iterate over it for the values of its fields.

    A subclass names its key and version, and the fields of question and answer, both of which end in tagged fields.
    *header* is that of the answer, if it differs from the one that goes with tagged fields. Brokers that do not know
    the version are asked in the *older* one, if there is one.
    """

    API_KEY: ClassVar[int]
    # The newest first.
    _structs: ClassVar[Sequence[Any]]

    def __init_subclass__(
        cls,
        *,
        key: int,
        version: int,
        asks: Fields,
        answers: Fields,
        header: Any = None,
        older: Older | None = None,
        **given: Any,
    ) -> None:
        super().__init_subclass__(**given)
        cls.API_KEY = key
        newest = Older(version, is_compact=True)
        cls._structs = [_struct(cls.__name__, key, each, asks, answers, header) for each in (newest, older) if each]

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Any:
        """
        Return what aiokafka sends. *versions* has the least and the highest version that the broker knows, by key.

        Raises:
            BrokerVersionError: the broker knows none of the versions.
        """
        least, most = versions.get(self.API_KEY, (0, -1))
        for struct in self._structs:
            if least <= struct.API_VERSION <= most:
                return struct(*self, {})
        name, needed = type(self).__name__, self._structs[-1].API_VERSION
        known = f"knows {name} in versions {least} to {most} only" if most >= 0 else f"does not know {name}"
        raise BrokerVersionError(f"it {known}, and version {needed} is needed, as Kafka 2.8 has it")


def _struct(name: str, key: int, of: Older, asks: Fields, answers: Fields, header: Any) -> Any:
    """Return the class that aiokafka sends, in the version *of*."""
    about = {"API_KEY": key, "API_VERSION": of.version}
    question, answer = (_as_in(of, Schema(*fields, TAGS)) for fields in (asks, answers))
    kind = type(f"{name}Response{of.version}", (Response,), about | {"SCHEMA": answer})
    members = {"FLEXIBLE_VERSION": of.is_compact, "RESPONSE_TYPE": kind, "SCHEMA": question}
    if header:
        members["parse_response_header"] = lambda _, read_buffer: header.decode(read_buffer)
    return type(f"{name}Request{of.version}", (RequestStruct,), about | members)


def _as_in(of: Older, kind: Any, name: str = "") -> Any:
    """Return the type in the version *of* for a field *name* that has the type *kind* in the newest one."""
    if name in of.lacks:
        return _Lacking(of.lacks[name])
    if isinstance(kind, Schema):
        fields = zip(kind.names, kind.fields, strict=True)
        return Schema(*((each, _as_in(of, field, each)) for each, field in fields))
    if isinstance(kind, CompactArray):
        array = (CompactArray if of.is_compact else Array)(Int32)
        array.array_of = _as_in(of, kind.array_of)
        return array
    if of.is_compact:
        return kind
    if kind is TaggedFields:
        return _Lacking({})
    if isinstance(kind, CompactString):
        return String("utf-8")
    return Bytes if kind is CompactBytes else kind


class _Lacking(AbstractType[Any]):  # type: ignore[misc]  # aiokafka tells no types
    """A field that a version lacks: nothing is sent, and *value* is read."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def encode(self, _: Any) -> bytes:
        """Return nothing."""
        return b""

    def decode(self, _: BytesIO) -> Any:
        """Return the value."""
        return self._value


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
