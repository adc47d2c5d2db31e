from kafka_timers.v1 import future_pb2 as _future_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Run(_message.Message):
    __slots__ = ("requests", "offsets", "plain", "named")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[Request]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    plain: bool
    named: bool
    def __init__(self, requests: _Optional[_Iterable[_Union[Request, _Mapping]]] = ..., offsets: _Optional[_Iterable[int]] = ..., plain: bool = ..., named: bool = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("callBackTopic", "callBackKey", "callBack", "timerId", "token", "millis", "headers", "tombstoneTopic", "tombstoneKey", "tombstonePartition", "callBackRecord", "forwarded", "insteadOf")
    CALLBACKTOPIC_FIELD_NUMBER: _ClassVar[int]
    CALLBACKKEY_FIELD_NUMBER: _ClassVar[int]
    CALLBACK_FIELD_NUMBER: _ClassVar[int]
    TIMERID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    MILLIS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONETOPIC_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONEKEY_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONEPARTITION_FIELD_NUMBER: _ClassVar[int]
    CALLBACKRECORD_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    INSTEADOF_FIELD_NUMBER: _ClassVar[int]
    callBackTopic: bytes
    callBackKey: bytes
    callBack: bytes
    timerId: bytes
    token: bytes
    millis: int
    headers: _containers.RepeatedCompositeFieldContainer[_future_pb2.Header]
    tombstoneTopic: bytes
    tombstoneKey: bytes
    tombstonePartition: int
    callBackRecord: RawCallback
    forwarded: _future_pb2.Forwarded
    insteadOf: _future_pb2.InsteadOf
    def __init__(self, callBackTopic: _Optional[bytes] = ..., callBackKey: _Optional[bytes] = ..., callBack: _Optional[bytes] = ..., timerId: _Optional[bytes] = ..., token: _Optional[bytes] = ..., millis: _Optional[int] = ..., headers: _Optional[_Iterable[_Union[_future_pb2.Header, _Mapping]]] = ..., tombstoneTopic: _Optional[bytes] = ..., tombstoneKey: _Optional[bytes] = ..., tombstonePartition: _Optional[int] = ..., callBackRecord: _Optional[_Union[RawCallback, _Mapping]] = ..., forwarded: _Optional[_Union[_future_pb2.Forwarded, _Mapping]] = ..., insteadOf: _Optional[_Union[_future_pb2.InsteadOf, _Mapping]] = ...) -> None: ...

class RawCallback(_message.Message):
    __slots__ = ("topic", "key", "value", "partition", "partitionKey")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONKEY_FIELD_NUMBER: _ClassVar[int]
    topic: bytes
    key: bytes
    value: bytes
    partition: int
    partitionKey: bytes
    def __init__(self, topic: _Optional[bytes] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., partition: _Optional[int] = ..., partitionKey: _Optional[bytes] = ...) -> None: ...

class RawRun(_message.Message):
    __slots__ = ("requests", "offsets")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedScalarFieldContainer[bytes]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, requests: _Optional[_Iterable[bytes]] = ..., offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class Futures(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[_future_pb2.Future]
    def __init__(self, requests: _Optional[_Iterable[_Union[_future_pb2.Future, _Mapping]]] = ...) -> None: ...

class Merged(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: Extras
    def __init__(self, requests: _Optional[_Union[Extras, _Mapping]] = ...) -> None: ...

class Extras(_message.Message):
    __slots__ = ("callBackTopic", "callBackKey", "timerId", "token", "millis", "headers", "cancel", "replyTopic", "tombstoneTopic", "copy", "condition", "ifRequest", "callBackRecord", "forwarded", "insteadOf", "kept")
    CALLBACKTOPIC_FIELD_NUMBER: _ClassVar[int]
    CALLBACKKEY_FIELD_NUMBER: _ClassVar[int]
    TIMERID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    MILLIS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    REPLYTOPIC_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONETOPIC_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    IFREQUEST_FIELD_NUMBER: _ClassVar[int]
    CALLBACKRECORD_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    INSTEADOF_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    callBackTopic: _containers.RepeatedScalarFieldContainer[bytes]
    callBackKey: str
    timerId: bytes
    token: bytes
    millis: int
    headers: _containers.RepeatedScalarFieldContainer[bytes]
    cancel: bool
    replyTopic: bytes
    tombstoneTopic: bytes
    copy: bytes
    condition: int
    ifRequest: bytes
    callBackRecord: bytes
    forwarded: bytes
    insteadOf: bytes
    kept: bytes
    def __init__(self, callBackTopic: _Optional[_Iterable[bytes]] = ..., callBackKey: _Optional[str] = ..., timerId: _Optional[bytes] = ..., token: _Optional[bytes] = ..., millis: _Optional[int] = ..., headers: _Optional[_Iterable[bytes]] = ..., cancel: bool = ..., replyTopic: _Optional[bytes] = ..., tombstoneTopic: _Optional[bytes] = ..., copy: _Optional[bytes] = ..., condition: _Optional[int] = ..., ifRequest: _Optional[bytes] = ..., callBackRecord: _Optional[bytes] = ..., forwarded: _Optional[bytes] = ..., insteadOf: _Optional[bytes] = ..., kept: _Optional[bytes] = ...) -> None: ...
