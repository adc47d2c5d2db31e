from kafka_timers.v1 import future_pb2 as _future_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Gap(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GAP_UNSPECIFIED: _ClassVar[Gap]
    GAP_AT_JUMP: _ClassVar[Gap]
    GAP_SKIP: _ClassVar[Gap]

class Overlap(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OVERLAP_UNSPECIFIED: _ClassVar[Overlap]
    OVERLAP_FIRST: _ClassVar[Overlap]
    OVERLAP_BOTH: _ClassVar[Overlap]

class CatchUp(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CATCH_UP_UNSPECIFIED: _ClassVar[CatchUp]
    CATCH_UP_LAST: _ClassVar[CatchUp]
    CATCH_UP_ALL: _ClassVar[CatchUp]
    CATCH_UP_NONE: _ClassVar[CatchUp]
GAP_UNSPECIFIED: Gap
GAP_AT_JUMP: Gap
GAP_SKIP: Gap
OVERLAP_UNSPECIFIED: Overlap
OVERLAP_FIRST: Overlap
OVERLAP_BOTH: Overlap
CATCH_UP_UNSPECIFIED: CatchUp
CATCH_UP_LAST: CatchUp
CATCH_UP_ALL: CatchUp
CATCH_UP_NONE: CatchUp

class Schedule(_message.Message):
    __slots__ = ("cron", "interval", "instants", "callback", "from_ms", "until_ms", "runs_max", "jitter_ms", "catch_up", "catch_up_window_s", "note", "except_dates")
    CRON_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    INSTANTS_FIELD_NUMBER: _ClassVar[int]
    CALLBACK_FIELD_NUMBER: _ClassVar[int]
    FROM_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    RUNS_MAX_FIELD_NUMBER: _ClassVar[int]
    JITTER_MS_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    EXCEPT_DATES_FIELD_NUMBER: _ClassVar[int]
    cron: Cron
    interval: Interval
    instants: Instants
    callback: _future_pb2.Future
    from_ms: int
    until_ms: int
    runs_max: int
    jitter_ms: int
    catch_up: CatchUp
    catch_up_window_s: int
    note: str
    except_dates: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cron: _Optional[_Union[Cron, _Mapping]] = ..., interval: _Optional[_Union[Interval, _Mapping]] = ..., instants: _Optional[_Union[Instants, _Mapping]] = ..., callback: _Optional[_Union[_future_pb2.Future, _Mapping]] = ..., from_ms: _Optional[int] = ..., until_ms: _Optional[int] = ..., runs_max: _Optional[int] = ..., jitter_ms: _Optional[int] = ..., catch_up: _Optional[_Union[CatchUp, str]] = ..., catch_up_window_s: _Optional[int] = ..., note: _Optional[str] = ..., except_dates: _Optional[_Iterable[str]] = ...) -> None: ...

class Hold(_message.Message):
    __slots__ = ("paused", "note", "skipped_ms")
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_MS_FIELD_NUMBER: _ClassVar[int]
    paused: bool
    note: str
    skipped_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, paused: bool = ..., note: _Optional[str] = ..., skipped_ms: _Optional[_Iterable[int]] = ...) -> None: ...

class Cron(_message.Message):
    __slots__ = ("expression", "zone", "gap", "overlap")
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    expression: str
    zone: str
    gap: Gap
    overlap: Overlap
    def __init__(self, expression: _Optional[str] = ..., zone: _Optional[str] = ..., gap: _Optional[_Union[Gap, str]] = ..., overlap: _Optional[_Union[Overlap, str]] = ...) -> None: ...

class Interval(_message.Message):
    __slots__ = ("every_ms", "anchor_ms")
    EVERY_MS_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_MS_FIELD_NUMBER: _ClassVar[int]
    every_ms: int
    anchor_ms: int
    def __init__(self, every_ms: _Optional[int] = ..., anchor_ms: _Optional[int] = ...) -> None: ...

class Instants(_message.Message):
    __slots__ = ("at_ms",)
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    at_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, at_ms: _Optional[_Iterable[int]] = ...) -> None: ...

class Planned(_message.Message):
    __slots__ = ("schedule", "planned_ms", "next_ms", "runs", "asked_ms", "dropped_ms", "cancelled_ms", "digest", "asked_jitter_ms", "dropped_jitter_ms")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    PLANNED_MS_FIELD_NUMBER: _ClassVar[int]
    NEXT_MS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    ASKED_MS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_MS_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_MS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ASKED_JITTER_MS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_JITTER_MS_FIELD_NUMBER: _ClassVar[int]
    schedule: int
    planned_ms: int
    next_ms: int
    runs: int
    asked_ms: _containers.RepeatedScalarFieldContainer[int]
    dropped_ms: _containers.RepeatedScalarFieldContainer[int]
    cancelled_ms: int
    digest: int
    asked_jitter_ms: _containers.RepeatedScalarFieldContainer[int]
    dropped_jitter_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, schedule: _Optional[int] = ..., planned_ms: _Optional[int] = ..., next_ms: _Optional[int] = ..., runs: _Optional[int] = ..., asked_ms: _Optional[_Iterable[int]] = ..., dropped_ms: _Optional[_Iterable[int]] = ..., cancelled_ms: _Optional[int] = ..., digest: _Optional[int] = ..., asked_jitter_ms: _Optional[_Iterable[int]] = ..., dropped_jitter_ms: _Optional[_Iterable[int]] = ...) -> None: ...

class Planner(_message.Message):
    __slots__ = ("name", "tzdata", "schedules")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TZDATA_FIELD_NUMBER: _ClassVar[int]
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    name: str
    tzdata: str
    schedules: bytes
    def __init__(self, name: _Optional[str] = ..., tzdata: _Optional[str] = ..., schedules: _Optional[bytes] = ...) -> None: ...
