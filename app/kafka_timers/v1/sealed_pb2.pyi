from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Sealed(_message.Message):
    __slots__ = ("partition", "due", "fired", "rejected", "late_arrivals", "cancelled", "moved", "pending", "lateness_p50_ms", "lateness_p99_ms", "lateness_max_ms", "fence", "through", "restore_from", "worker", "partitions", "horizon_s", "horizon_from", "format", "first_ms", "end_ms", "ignored", "unsent", "queries", "forwarded", "fired_digest", "read_from", "near", "far", "cancels", "previous", "sent", "log", "leader_epoch", "begins", "held_alone", "lost_from", "lost_to", "retired", "swept")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    FIRED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    LATE_ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    LATENESS_P50_MS_FIELD_NUMBER: _ClassVar[int]
    LATENESS_P99_MS_FIELD_NUMBER: _ClassVar[int]
    LATENESS_MAX_MS_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FROM_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    HORIZON_S_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FROM_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    FIRST_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    UNSENT_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    FIRED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    READ_FROM_FIELD_NUMBER: _ClassVar[int]
    NEAR_FIELD_NUMBER: _ClassVar[int]
    FAR_FIELD_NUMBER: _ClassVar[int]
    CANCELS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    HELD_ALONE_FIELD_NUMBER: _ClassVar[int]
    LOST_FROM_FIELD_NUMBER: _ClassVar[int]
    LOST_TO_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    SWEPT_FIELD_NUMBER: _ClassVar[int]
    partition: int
    due: int
    fired: int
    rejected: int
    late_arrivals: int
    cancelled: int
    moved: int
    pending: int
    lateness_p50_ms: int
    lateness_p99_ms: int
    lateness_max_ms: int
    fence: int
    through: bytes
    restore_from: int
    worker: str
    partitions: int
    horizon_s: int
    horizon_from: int
    format: int
    first_ms: int
    end_ms: int
    ignored: _containers.RepeatedScalarFieldContainer[int]
    unsent: _containers.RepeatedCompositeFieldContainer[Unsent]
    queries: str
    forwarded: int
    fired_digest: int
    read_from: int
    near: Records
    far: Records
    cancels: Records
    previous: bytes
    sent: _containers.RepeatedCompositeFieldContainer[Sent]
    log: bytes
    leader_epoch: int
    begins: bool
    held_alone: int
    lost_from: int
    lost_to: int
    retired: _containers.RepeatedScalarFieldContainer[int]
    swept: _containers.RepeatedCompositeFieldContainer[Swept]
    def __init__(self, partition: _Optional[int] = ..., due: _Optional[int] = ..., fired: _Optional[int] = ..., rejected: _Optional[int] = ..., late_arrivals: _Optional[int] = ..., cancelled: _Optional[int] = ..., moved: _Optional[int] = ..., pending: _Optional[int] = ..., lateness_p50_ms: _Optional[int] = ..., lateness_p99_ms: _Optional[int] = ..., lateness_max_ms: _Optional[int] = ..., fence: _Optional[int] = ..., through: _Optional[bytes] = ..., restore_from: _Optional[int] = ..., worker: _Optional[str] = ..., partitions: _Optional[int] = ..., horizon_s: _Optional[int] = ..., horizon_from: _Optional[int] = ..., format: _Optional[int] = ..., first_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., ignored: _Optional[_Iterable[int]] = ..., unsent: _Optional[_Iterable[_Union[Unsent, _Mapping]]] = ..., queries: _Optional[str] = ..., forwarded: _Optional[int] = ..., fired_digest: _Optional[int] = ..., read_from: _Optional[int] = ..., near: _Optional[_Union[Records, _Mapping]] = ..., far: _Optional[_Union[Records, _Mapping]] = ..., cancels: _Optional[_Union[Records, _Mapping]] = ..., previous: _Optional[bytes] = ..., sent: _Optional[_Iterable[_Union[Sent, _Mapping]]] = ..., log: _Optional[bytes] = ..., leader_epoch: _Optional[int] = ..., begins: bool = ..., held_alone: _Optional[int] = ..., lost_from: _Optional[int] = ..., lost_to: _Optional[int] = ..., retired: _Optional[_Iterable[int]] = ..., swept: _Optional[_Iterable[_Union[Swept, _Mapping]]] = ...) -> None: ...

class Swept(_message.Message):
    __slots__ = ("begun", "below", "since", "to", "requests", "from_ms")
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    BELOW_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FROM_MS_FIELD_NUMBER: _ClassVar[int]
    begun: int
    below: int
    since: int
    to: int
    requests: int
    from_ms: int
    def __init__(self, begun: _Optional[int] = ..., below: _Optional[int] = ..., since: _Optional[int] = ..., to: _Optional[int] = ..., requests: _Optional[int] = ..., from_ms: _Optional[int] = ...) -> None: ...

class Sent(_message.Message):
    __slots__ = ("topic", "partitions", "records", "sha256")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    records: _containers.RepeatedScalarFieldContainer[int]
    sha256: bytes
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., records: _Optional[_Iterable[int]] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class Records(_message.Message):
    __slots__ = ("count", "digest")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    count: int
    digest: int
    def __init__(self, count: _Optional[int] = ..., digest: _Optional[int] = ...) -> None: ...

class Unsent(_message.Message):
    __slots__ = ("topic", "key", "reply")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: bytes
    reply: bytes
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[bytes] = ..., reply: _Optional[bytes] = ...) -> None: ...
