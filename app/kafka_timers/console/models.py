"""
Bodies of requests. Fields have their JSON names. Times are UNIX seconds, or RFC 3339 where a field says so.

FastAPI checks bodies by these models and makes the OpenAPI document from them.
"""

import base64
import hashlib
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.alias_generators import to_camel

from kafka_timers.client.request import CallbackOptions, CallbackSpec, future_of, set_callback
from kafka_timers.core.callbacks import Shown
from kafka_timers.core.moments import moment_after, moment_at, no_date, when_of
from kafka_timers.core.wire import SECOND_LIMIT, Callback, Future
from kafka_timers.errors import RequestError

_TOPIC_LENGTH, _ID_LENGTH = 249, 4_096


class Model(BaseModel):
    """Base of all bodies: names in camel case, and unknown fields are refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class _Asked(Model):
    """Base of bodies of requests. Nothing is taken for another type, such as true for 1."""

    model_config = ConfigDict(strict=True)

    @field_validator("*")
    @classmethod
    def _is_text(cls, given: object) -> object:
        if isinstance(given, str):
            try:
                given.encode()
            except UnicodeError as error:
                raise ValueError("holds half a surrogate pair, which no UTF-8 has") from error
        return given


class HeaderIn(_Asked):
    """A header of the callback. Without value and valueBase64, its value is null."""

    name: Annotated[str, Field(min_length=1)]
    value: str | None = None
    value_base64: str | None = None


class When(_Asked):
    """The time at which a timer fires: `at` or `after`."""

    at: Annotated[
        str | float | None, Field(description="RFC 3339 with a zone, as 2030-01-31T12:00:00Z, or UNIX seconds")
    ] = None
    after: Annotated[float | None, Field(ge=0, lt=SECOND_LIMIT, description="seconds from now")] = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.at is not None and self.after is not None:
            raise ValueError("give `at` or `after`, not both")
        return self

    def due_ms(self, now_s: float) -> int | None:
        """
        Return the UNIX millisecond at which the timer is due; None if neither field is given.

        Raises:
            WhenError: no timer can have this time.
            ValueError: `at` is neither RFC 3339 nor a number, or is a date without marks.
        """
        if self.after is not None:
            return moment_after(self.after, now_s)
        if self.at is None:
            return None
        return moment_at(when_of(self.at) if isinstance(self.at, str) else no_date(self.at))


class CallbackIn(_Asked):
    """A callback."""

    topic: Annotated[str | None, Field(max_length=_TOPIC_LENGTH)] = None
    key: Annotated[str | None, Field(description="key of the callback, as text; null is none, and empty is a key")] = (
        None
    )
    key_base64: Annotated[str | None, Field(description="the same, any bytes")] = None
    value: Annotated[str | None, Field(description="value of the callback, as text")] = None
    value_base64: Annotated[str | None, Field(description="the same, any bytes")] = None
    tombstone: Annotated[bool | None, Field(description="true: the callback has no value")] = None
    partition: Annotated[
        int | None,
        Field(ge=0, lt=1 << 31, description="of the callback's topic, in place of a partition key; null is none"),
    ] = None
    partition_key: Annotated[
        str | None, Field(description="chooses the partition by these bytes, in place of the key; null is none")
    ] = None
    partition_key_base64: Annotated[str | None, Field(description="the same, any bytes")] = None
    headers: list[HeaderIn] | None = None
    token: str | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if self.key is not None and self.key_base64 is not None:
            raise ValueError("give `key` or `keyBase64`, not both")
        if sum(each is not None for each in (self.partition, self.partition_key, self.partition_key_base64)) > 1:
            raise ValueError("give one of `partition`, `partitionKey` and `partitionKeyBase64`")
        if sum([self.value is not None, self.value_base64 is not None, bool(self.tombstone)]) > 1:
            raise ValueError("give one of `value`, `valueBase64` and `tombstone`")
        return self

    def options(self) -> CallbackOptions:
        """
        Return the given fields but the topic as the client takes them.

        Raises:
            RequestError: a field is not in base64.
        """
        given, found = self.model_fields_set, CallbackOptions()
        if given & {"key", "key_base64"}:
            found["key"] = _bytes("key", self.key, self.key_base64)
        if given & {"value", "value_base64", "tombstone"}:
            found["value"] = None if self.tombstone else _bytes("value", self.value, self.value_base64) or b""
        if "partition" in given:
            found["partition"] = self.partition
        if given & {"partition_key", "partition_key_base64"}:
            found["partition_key"] = _bytes("partition key", self.partition_key, self.partition_key_base64)
        if "headers" in given:
            found["headers"] = [
                (each.name, _bytes("header", each.value, each.value_base64)) for each in self.headers or ()
            ]
        if "token" in given:
            found["token"] = self.token or None
        return found


class Change(When, CallbackIn):
    """Changes of a timer. A field that is left out stays as it is."""

    def applied_to(self, future: Future, reserved: frozenset[str]) -> None:
        """
        Change *future*.

        Raises:
            RequestError: a request cannot carry one of the values.
        """
        given = self.model_fields_set
        if given <= {"at", "after"}:
            return
        topic, key, value = Shown.of(future)
        asked = future_of(CallbackSpec(topic if self.topic is None else self.topic, **self.options()), reserved)
        wanted = Shown.of(asked)
        if given & {"key", "key_base64"}:
            key = wanted.key
        if given & {"value", "value_base64", "tombstone"}:
            value = wanted.value
        self._place(future.callBackRecord, asked.callBackRecord)
        set_callback(future, wanted.topic, key, value)
        if "token" in given:
            future.token = asked.token
        if "headers" in given:
            del future.headers[:]
            future.headers.extend(asked.headers)

    def _place(self, record: Callback, asked: Callback) -> None:
        """Give *record* the partition or the partition key of *asked*; each takes the place of the other."""
        for fields, name, other in (
            ({"partition"}, "partition", "partitionKey"),
            ({"partition_key", "partition_key_base64"}, "partitionKey", "partition"),
        ):
            if fields & self.model_fields_set:
                record.ClearField(name)
            if asked.HasField(name):
                record.ClearField(other)
                setattr(record, name, getattr(asked, name))


class Setting(Change):
    """A timer to set. Without `topic`, its callback is that of the timer of the parameter `request`."""

    timer_id: Annotated[
        str | None,
        Field(min_length=1, max_length=_ID_LENGTH, description="your own name for it; without, one is made"),
    ] = None

    @model_validator(mode="after")
    def _has_a_time(self) -> Self:
        if self.at is None and self.after is None:
            raise ValueError("give `at` or `after`")
        return self


class Wish(Setting):
    """A new timer."""

    topic: Annotated[str, Field(min_length=1, max_length=_TOPIC_LENGTH, description="topic that gets the callback")]

    @property
    def digest(self) -> str:
        """The digest by which a repeat of this wish is told from another one, in hex."""
        return hashlib.sha256(self.model_dump_json(exclude={"timer_id"}, exclude_none=True).encode()).hexdigest()


def _bytes(what: str, text: str | None, encoded: str | None) -> bytes | None:
    if encoded is None:
        return None if text is None else text.encode()
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError as error:
        raise RequestError(f"{what} is not in base64") from error
