from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Future(_message.Message):
    __slots__ = ("callBackTopic", "callBackKey", "callBack", "timerId", "token", "millis", "headers", "cancel", "replyTopic", "tombstoneTopic", "tombstoneKey", "tombstonePartition", "copy", "condition", "ifRequest", "callBackRecord", "forwarded", "source", "insteadOf", "kept")
    class Condition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CONDITION_UNSPECIFIED: _ClassVar[Future.Condition]
        IF_ABSENT: _ClassVar[Future.Condition]
        IF_PENDING: _ClassVar[Future.Condition]
    CONDITION_UNSPECIFIED: Future.Condition
    IF_ABSENT: Future.Condition
    IF_PENDING: Future.Condition
    CALLBACKTOPIC_FIELD_NUMBER: _ClassVar[int]
    CALLBACKKEY_FIELD_NUMBER: _ClassVar[int]
    CALLBACK_FIELD_NUMBER: _ClassVar[int]
    TIMERID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    MILLIS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    REPLYTOPIC_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONETOPIC_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONEKEY_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONEPARTITION_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    IFREQUEST_FIELD_NUMBER: _ClassVar[int]
    CALLBACKRECORD_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    INSTEADOF_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    callBackTopic: str
    callBackKey: str
    callBack: bytes
    timerId: str
    token: str
    millis: int
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    cancel: bool
    replyTopic: str
    tombstoneTopic: str
    tombstoneKey: str
    tombstonePartition: int
    copy: Copy
    condition: Future.Condition
    ifRequest: str
    callBackRecord: Callback
    forwarded: Forwarded
    source: Source
    insteadOf: InsteadOf
    kept: Kept
    def __init__(self, callBackTopic: _Optional[str] = ..., callBackKey: _Optional[str] = ..., callBack: _Optional[bytes] = ..., timerId: _Optional[str] = ..., token: _Optional[str] = ..., millis: _Optional[int] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., cancel: bool = ..., replyTopic: _Optional[str] = ..., tombstoneTopic: _Optional[str] = ..., tombstoneKey: _Optional[str] = ..., tombstonePartition: _Optional[int] = ..., copy: _Optional[_Union[Copy, _Mapping]] = ..., condition: _Optional[_Union[Future.Condition, str]] = ..., ifRequest: _Optional[str] = ..., callBackRecord: _Optional[_Union[Callback, _Mapping]] = ..., forwarded: _Optional[_Union[Forwarded, _Mapping]] = ..., source: _Optional[_Union[Source, _Mapping]] = ..., insteadOf: _Optional[_Union[InsteadOf, _Mapping]] = ..., kept: _Optional[_Union[Kept, _Mapping]] = ...) -> None: ...

class Kept(_message.Message):
    __slots__ = ("begun", "requests")
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    begun: int
    requests: _containers.RepeatedCompositeFieldContainer[KeptRequest]
    def __init__(self, begun: _Optional[int] = ..., requests: _Optional[_Iterable[_Union[KeptRequest, _Mapping]]] = ...) -> None: ...

class KeptRequest(_message.Message):
    __slots__ = ("offset", "dueMs", "future")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DUEMS_FIELD_NUMBER: _ClassVar[int]
    FUTURE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    dueMs: int
    future: bytes
    def __init__(self, offset: _Optional[int] = ..., dueMs: _Optional[int] = ..., future: _Optional[bytes] = ...) -> None: ...

class Forwarded(_message.Message):
    __slots__ = ("fromPartition", "fromOffset", "appendedMs")
    FROMPARTITION_FIELD_NUMBER: _ClassVar[int]
    FROMOFFSET_FIELD_NUMBER: _ClassVar[int]
    APPENDEDMS_FIELD_NUMBER: _ClassVar[int]
    fromPartition: int
    fromOffset: int
    appendedMs: int
    def __init__(self, fromPartition: _Optional[int] = ..., fromOffset: _Optional[int] = ..., appendedMs: _Optional[int] = ...) -> None: ...

class InsteadOf(_message.Message):
    __slots__ = ("request", "dueMs")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    DUEMS_FIELD_NUMBER: _ClassVar[int]
    request: str
    dueMs: int
    def __init__(self, request: _Optional[str] = ..., dueMs: _Optional[int] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("door", "topic", "partition", "offset", "key")
    DOOR_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    door: str
    topic: str
    partition: int
    offset: int
    key: bytes
    def __init__(self, door: _Optional[str] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., key: _Optional[bytes] = ...) -> None: ...

class Callback(_message.Message):
    __slots__ = ("topic", "key", "value", "partition", "partitionKey")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONKEY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: bytes
    value: bytes
    partition: int
    partitionKey: bytes
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., partition: _Optional[int] = ..., partitionKey: _Optional[bytes] = ...) -> None: ...

class Copy(_message.Message):
    __slots__ = ("offset", "appended", "decidedOffset", "decided")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPENDED_FIELD_NUMBER: _ClassVar[int]
    DECIDEDOFFSET_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    offset: int
    appended: int
    decidedOffset: int
    decided: int
    def __init__(self, offset: _Optional[int] = ..., appended: _Optional[int] = ..., decidedOffset: _Optional[int] = ..., decided: _Optional[int] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
