"""
The lake's tables: the folder of each, its columns in order, their types and units.

All are Delta tables below one root. Every row of the first five is one record of Kafka, named by (partition, offset).
It is appended once, and only `lake forget` changes it.

A seal's row keeps its bytes and few columns; `tables.read` reads the others from the bytes.
The offsets that a seal names as ignored are left out, because they follow from the other columns.

    root/requests       each record of timer-request            partitioned by delay, due
    root/seals          each record of timer-sealed             partitioned by day
    root/rejected       each record of timer-rejected           partitioned by day
    root/schedules      each record of timer-schedule           partitioned by day
    root/planned        each record of timer-planned            partitioned by day
    root/positions      landed offsets, per batch
    root/buckets        buckets of seconds that are promoted
    root/audit_seconds  each audit's result for each seal       partitioned by day
    root/audit_findings findings of each audit
    root/_land          checkpoint of the landing

Requests lie in a partition by their waiting time, and within it by their due time. The longer they wait, the coarser is
the due time, as in Kafka's hierarchical timing wheel. Both follow from the record alone, with any horizon.

    delay    seconds from append to due    due
    1h       up to 3,600                   day, as 2030-01-31
    1d       up to 86,400                  day
    32d      up to 32 days                 day
    1y       up to 366 days                month, as 2030-01
    more     more                          year, as 2030
    copy     any, for a copy               day
    none     not a timer                   day of the append
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

# Columns of findings, as functions return them.
FINDING = "kind string, partition int, offset bigint, second bigint, detail string"

# Columns that name a record of timer-request, the records of one timer id, and a seal with its slices.
RECORD_KEY, ID_KEY, SEAL_KEY = ("partition", "offset"), ("partition", "timer_id"), ("partition", "end_ms", "fence")

# Values of the column `kind` of `requests`.
REQUEST, CANCEL, COPY, REFUSED, FOREIGN, KEPT = "request", "cancel", "copy", "refused", "foreign", "kept"
# Value of `condition` for a request that was sent on from another partition and has no condition, and outcome of the
# record there that it is made of.
FORWARDED = "FORWARDED"

_DAY_S = 86_400
# The longest delay of each partition except the last, in seconds.
DELAYS_S = {"1h": 3_600, "1d": _DAY_S, "32d": 32 * _DAY_S, "1y": 366 * _DAY_S}


def _columns(*columns: tuple[str, type | DataType, bool, str]) -> StructType:
    return StructType(
        [
            StructField(name, kind if isinstance(kind, DataType) else kind(), nullable, {"comment": comment})
            for name, kind, nullable, comment in columns
        ]
    )


_NOTHING = StructType()


@dataclass(frozen=True, slots=True)
class Table:
    """
    A table of the lake.

    Attributes:
        name: the folder below the root.
        columns: columns in order, each with its meaning as its comment.
        partitioned_by: columns whose values are folders.
        skipped_by: columns whose bounds Delta keeps for each file, so that it can skip files; empty for all columns.
        of_small_rows: whether a commit adds some rows only. After 50 commits Delta merges their files.
        in_bytes: further columns, which are not stored, but read from the bytes of a row by `sealed`.
    """

    name: str
    columns: StructType
    partitioned_by: tuple[str, ...] = ()
    skipped_by: tuple[str, ...] = ()
    of_small_rows: bool = False
    in_bytes: StructType = _NOTHING


HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

# Settings that only few requests and cancels have.
ASKS = StructType(
    [
        # The partition of the callback's topic, or else murmur2 of a key that replaces the callback's in choosing it.
        StructField("partition", IntegerType()),
        StructField("hashed", IntegerType()),
        StructField("tombstone_topic", StringType()),
        # The hash of the tombstone, like `callback`.
        StructField("tombstone", LongType()),
        StructField("reply_topic", StringType()),
    ]
)

# Where and when a record was appended at first that was sent on; appended_ms in UNIX milliseconds.
SENT_FROM = StructType(
    [
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("appended_ms", LongType()),
    ]
)

REQUESTS = Table(
    "requests",
    _columns(
        ("partition", IntegerType, False, "of timer-request"),
        ("offset", LongType, False, "on timer-request"),
        ("appended_ms", LongType, False, "UNIX milliseconds of the append"),
        (
            "kind",
            StringType,
            False,
            "request, cancel, copy (of a far request), refused, foreign (sent on to the partition of its timer id), or "
            "kept (what a sweep repeats)",
        ),
        ("second", LongType, True, "UNIX second in which it is due; null of cancels and of refused records"),
        ("millis", IntegerType, True, "0-999, of that second; null where second is"),
        ("topic", StringType, True, "of the callback; null where second is"),
        ("timer_id", StringType, True, "the sender's name for the timer; null without one, and of refused records"),
        ("reason", StringType, True, "why it is refused, else null"),
        ("original", LongType, True, "of a copy: offset of the request that it is a copy of"),
        ("original_s", LongType, True, "of a copy: UNIX second of that one's append"),
        ("decided", LongType, True, "of a copy: all below this offset were known when it was decided"),
        ("decided_s", LongType, True, "of a copy: UNIX second of that decision"),
        (
            "condition",
            StringType,
            True,
            "IF_ABSENT, IF_PENDING; FORWARDED: see sent_from; others mean nothing; or null",
        ),
        ("expected", LongType, True, "offset of the request that the condition names; null without one"),
        ("sent_from", SENT_FROM, True, "of a record that was sent on: the foreign one that it is made of; or null"),
        ("callback", LongType, True, "digest of its callback, see core/digests.py; null if it is no request"),
        ("asks", ASKS, True, "the other fields of the request; null if all are empty"),
        ("value", BinaryType, True, "the record's value as it came; null of copies, whose original has it"),
        ("key", BinaryType, True, "the record's key as it came"),
        ("headers", HEADERS, True, "the record's headers as they came; null of a record without any"),
        ("digest", LongType, True, "the record's, part of near_digest, far_digest or cancels_digest of `seals`"),
        ("forgotten_s", LongType, True, "UNIX second in which key, value and headers were deleted, else null"),
        ("delay", StringType, False, "how long it waits, see above"),
        ("due", StringType, False, "when it is due, see above"),
    ),
    ("delay", "due"),
    # Bounds of all columns took a tenth of the landing, and no query uses the others. Bounds of `condition` tell that a
    # file has no condition.
    skipped_by=("partition", "offset", "appended_ms", "second", "condition"),
)

SEALS = Table(
    "seals",
    # By which jobs skip rows, or which they read of all seals of a partition.
    _columns(
        ("partition", IntegerType, False, "of timer-request"),
        ("offset", LongType, False, "on timer-sealed"),
        ("appended_ms", LongType, False, "UNIX milliseconds of the append"),
        ("last", LongType, False, "last UNIX second covered"),
        ("fence", LongType, False, "offset on timer-request below which everything had been read"),
        ("through", BinaryType, True, "row key of the last one fired of a slice; null when the second is complete"),
        ("partitions", IntegerType, False, "of timer-request, as the worker saw them"),
        ("horizon_s", LongType, False, "the worker's horizon in seconds; 0 without one"),
        ("horizon_from", LongType, False, "offset from which on requests were judged by that horizon"),
        ("end_ms", LongType, False, "UNIX millisecond before which all is covered"),
        ("value", BinaryType, False, "the record's value as it came"),
        ("day", StringType, False, "day of last, as 2030-01-31"),
    ),
    ("day",),
    in_bytes=_columns(
        ("first", LongType, False, "first UNIX second covered"),
        ("due", LongType, False, "fired + rejected"),
        ("fired", LongType, False, "callbacks"),
        ("rejected", LongType, False, "records that went to timer-rejected, or were sent on"),
        ("forwarded", LongType, False, "of rejected: records that were sent on to the partition of their timer id"),
        ("late_arrivals", LongType, False, "of due: read after their second had been scanned"),
        ("cancelled", LongType, False, "requests that a cancel had withdrawn"),
        ("moved", LongType, False, "requests that another one had replaced"),
        ("pending", LongType, False, "requests that wait after this seal"),
        ("lateness_p50_ms", IntegerType, False, "of the callbacks"),
        ("lateness_p99_ms", IntegerType, False, "of the callbacks"),
        ("lateness_max_ms", IntegerType, False, "of the callbacks"),
        ("digest", LongType, False, "sum of XXH64 of the fired, modulo 2^64 as a signed number"),
        ("restore_from", LongType, False, "offset on timer-request below which nothing waits"),
        ("worker", StringType, False, "address at which the worker answers; empty if the seal is brief"),
        ("format", IntegerType, False, "form of the message; 0 if it is brief"),
        ("first_ms", LongType, False, "first UNIX millisecond covered"),
        ("read_from", LongType, True, "offset from which, up to fence, the next columns count the records; or null"),
        ("near", LongType, True, "records that are held, were refused, or are copies"),
        ("near_digest", LongType, True, "of these, modulo 2^64 as a signed number"),
        ("far", LongType, True, "requests that were left to the lake"),
        ("far_digest", LongType, True, "of these"),
        ("cancels", LongType, True, "cancels"),
        ("cancels_digest", LongType, True, "of these"),
        ("previous", BinaryType, True, "SHA-256 of the value of the seal before, or null"),
    ),
)

REJECTED = Table(
    "rejected",
    _columns(
        ("partition", IntegerType, False, "of timer-rejected"),
        ("offset", LongType, False, "on timer-rejected"),
        ("appended_ms", LongType, False, "UNIX milliseconds of the append"),
        ("reason", StringType, True, "header timer-rejected-reason"),
        ("source_topic", StringType, True, "header timer-rejected-topic; of a door's request timer-request"),
        ("source_partition", IntegerType, True, "header timer-rejected-partition, or that of a door's request"),
        ("source_offset", LongType, True, "header timer-rejected-offset, or that of a door's request"),
        ("day", StringType, False, "day of the append, as 2030-01-31"),
    ),
    ("day",),
)

SCHEDULES, PLANNED = (
    Table(
        name,
        _columns(
            ("partition", IntegerType, False, f"of {topic}"),
            ("offset", LongType, False, f"on {topic}"),
            ("appended_ms", LongType, False, "UNIX milliseconds of the append"),
            ("landed_s", LongType, False, "UNIX second in which this row was written"),
            ("key", BinaryType, True, "the record's key as it came: the schedule's id, maybe behind a zero byte"),
            ("value", BinaryType, True, "the record's value as it came"),
            ("day", StringType, False, "day of the append, as 2030-01-31"),
        ),
        ("day",),
    )
    for name, topic in (("schedules", "timer-schedule"), ("planned", "timer-planned"))
)

POSITIONS = Table(
    "positions",
    _columns(
        ("topic", StringType, False, "a topic that is landed"),
        ("partition", IntegerType, False, "of it"),
        ("position", LongType, False, "all records below this offset are in the tables"),
        ("landed_s", LongType, False, "UNIX second in which this row was written"),
        ("topic_id", StringType, True, "Kafka's id of the topic, which a recreated topic does not share; or null"),
        ("leader_epoch", IntegerType, True, "Kafka's leader epoch under which this was landed; or null"),
    ),
    of_small_rows=True,
)

BUCKETS = Table(
    "buckets",
    _columns(
        ("first", LongType, False, "first UNIX second of the bucket"),
        ("last", LongType, False, "last UNIX second of the bucket"),
        ("horizon_s", LongType, False, "horizon by which it was promoted"),
        ("promoted", LongType, False, "requests whose copies the workers have"),
        ("closed_s", LongType, False, "UNIX second in which nothing was left to promote"),
    ),
    of_small_rows=True,
)

# A seal that was written in slices is one row, with their sums.
AUDIT_SECONDS = Table(
    "audit_seconds",
    _columns(
        ("audited_s", LongType, False, "UNIX second in which the audit began; names it"),
        ("partition", IntegerType, False, "of timer-request"),
        ("first", LongType, False, "first UNIX second that the seal covers"),
        ("last", LongType, False, "last UNIX second that it covers"),
        ("end_ms", LongType, True, "UNIX millisecond before which it covers all"),
        ("fence", LongType, False, "offset on timer-request below which everything had been read"),
        ("due", LongType, False, "as sealed: fired + rejected"),
        ("fired", LongType, False, "as sealed: callbacks"),
        ("rejected", LongType, False, "as sealed: records that went to timer-rejected, or were sent on"),
        ("forwarded", LongType, False, "as sealed: records that were sent on"),
        ("digest", LongType, False, "as sealed: of the fired, modulo 2^64 as a signed number"),
        ("expected_due", LongType, False, "due, as the requests tell"),
        ("expected_fired", LongType, False, "fired, as the requests tell"),
        ("expected_rejected", LongType, False, "rejected, as the requests and timer-rejected tell"),
        ("expected_forwarded", LongType, False, "forwarded, as the requests and timer-rejected tell"),
        ("expected_digest", LongType, False, "digest, as the requests tell"),
        ("late", LongType, False, "of expected_due: read after their second had been scanned"),
        ("lateness_p99_ms", IntegerType, False, "as sealed, of the callbacks; of slices the largest"),
        ("lateness_max_ms", IntegerType, False, "as sealed, of the callbacks"),
        ("ok", BooleanType, False, "whether the sealed figures equal the expected ones"),
        ("day", StringType, False, "day of last, as 2030-01-31"),
    ),
    ("day",),
    of_small_rows=True,
)

AUDIT_FINDINGS = Table(
    "audit_findings",
    _columns(
        ("audited_s", LongType, False, "UNIX second in which the audit began; names it"),
        ("kind", StringType, False, "kind of the finding, as docs/lake.md lists it"),
        ("partition", IntegerType, False, "of timer-request; of timer-schedule where a schedule is wrong"),
        ("offset", LongType, True, "of the request on timer-request; null where a seal or a schedule is wrong"),
        ("second", LongType, False, "UNIX second: of the request, else the last one of the seal"),
        ("detail", StringType, False, "in words"),
    ),
    of_small_rows=True,
)

TABLES = (REQUESTS, SEALS, REJECTED, SCHEDULES, PLANNED, POSITIONS, BUCKETS, AUDIT_SECONDS, AUDIT_FINDINGS)


def asked_ms() -> Column:
    """Return the UNIX millisecond that a row of `requests` asks for; null if it is not a timer."""
    return F.col("second") * 1000 + F.col("millis")


def day_of(second: Column) -> Column:
    """Return the day of a UNIX second in UTC, as 2030-01-31."""
    # Not from a timestamp, whose day depends on the session's time zone: many sessions read a table.
    return F.date_from_unix_date(F.floor(second / _DAY_S).cast("int")).cast("string")


def about_records(rows: DataFrame, kind: str, detail: Column, second: Column | str = "second") -> DataFrame:
    """Return a finding about the record that each of *rows* names: the columns `FINDING`."""
    at = F.col(second) if isinstance(second, str) else second
    return rows.select(F.lit(kind).alias("kind"), *RECORD_KEY, at.alias("second"), detail.alias("detail"))


def about_seals(rows: DataFrame, kind: Column | str, detail: Column) -> DataFrame:
    """Return a finding about each of *rows*, which are seals: the columns `FINDING`, of which offset is null."""
    offset = F.lit(None).cast("bigint").alias("offset")
    second = F.col("last").alias("second")
    return rows.select(F.lit(kind).alias("kind"), "partition", offset, second, detail.alias("detail"))
