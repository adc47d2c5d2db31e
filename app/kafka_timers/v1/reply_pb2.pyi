from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Reply(_message.Message):
    __slots__ = ("timerId", "outcome", "second", "request", "asked", "millis", "waits", "future")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[Reply.Outcome]
        CANCELLED: _ClassVar[Reply.Outcome]
        MOVED: _ClassVar[Reply.Outcome]
        TOO_LATE: _ClassVar[Reply.Outcome]
        UNKNOWN: _ClassVar[Reply.Outcome]
        ACCEPTED: _ClassVar[Reply.Outcome]
        IGNORED: _ClassVar[Reply.Outcome]
    OUTCOME_UNSPECIFIED: Reply.Outcome
    CANCELLED: Reply.Outcome
    MOVED: Reply.Outcome
    TOO_LATE: Reply.Outcome
    UNKNOWN: Reply.Outcome
    ACCEPTED: Reply.Outcome
    IGNORED: Reply.Outcome
    TIMERID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SECOND_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    MILLIS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    FUTURE_FIELD_NUMBER: _ClassVar[int]
    timerId: str
    outcome: Reply.Outcome
    second: int
    request: str
    asked: str
    millis: int
    waits: bool
    future: bytes
    def __init__(self, timerId: _Optional[str] = ..., outcome: _Optional[_Union[Reply.Outcome, str]] = ..., second: _Optional[int] = ..., request: _Optional[str] = ..., asked: _Optional[str] = ..., millis: _Optional[int] = ..., waits: bool = ..., future: _Optional[bytes] = ...) -> None: ...
