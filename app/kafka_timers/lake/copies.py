"""
Copies of far requests: the requests that need one, and the content of a copy.

Pure. A copy consists of the bytes of its original followed by its origin, so nothing of the original is lost.
"""

from collections.abc import Collection, Iterable, Mapping

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from kafka_timers.core.wire import Copy, Future
from kafka_timers.lake import message
from kafka_timers.lake.buckets import Bucket, due_between
from kafka_timers.lake.conditions import no_condition
from kafka_timers.lake.marks import marks_of
from kafka_timers.lake.schema import COPY, REQUESTS
from kafka_timers.lake.tables import constant, sent

# Bytes that a copy adds to the value; offsets have up to 56 bits, and seconds up to 42.
_OFFSET_BYTES, _SECOND_BYTES = 8, 6
# Values of delay and due.
Folder = tuple[str, str]
_FOLDER = REQUESTS.partitioned_by
_ASKS = ("partition", "offset", "appended_ms", "kind", "second", "millis", "timer_id", "condition", "delay")
COPY_BYTES = 5 + 2 * (1 + _OFFSET_BYTES) + 2 * (1 + _SECOND_BYTES)


def folders_about(requests: DataFrame, far: DataFrame, since: int, named: int) -> DataFrame:
    """
    Return the number of requests and cancels that share a timer id with a row of *far*, by folder of the table.

    Of each record only id, offset and condition are read, so this takes less time than `asks_about`, which has the same
    arguments.

    Returns:
        delay string, due string, records bigint: never less than *far* has in that folder, conditions bigint: those
        that have a condition. Folders without such records are left out.
    """
    records, conditions = F.count(F.lit(1)).alias("records"), F.count("condition").alias("conditions")
    return _sharing(requests, far, since, named).groupBy(*_FOLDER).agg(records, conditions)


def others_in(folders: Iterable[Row], named_in: Mapping[Folder, int]) -> list[Folder]:
    """Return those of *folders*, rows of `folders_about`, with more records than *far* has with a timer id there."""
    return [folder for row in folders if row.records > named_in.get(folder := (row.delay, row.due), 0)]


def asks_about(
    requests: DataFrame, far: DataFrame, since: int, named: int, others: Collection[Folder] | None = None
) -> DataFrame:
    """
    Return the requests and cancels that share a timer id with a row of *far*.

    Args:
        far: far ones among them.
        since: lowest offset of *far*; no record below it concerns them.
        named: number of rows of *far* with a timer id, at least.
        others: delay and due of the folders with such records that *far* has not; None for any folder.

    Returns:
        partition int, offset bigint, appended_ms bigint, kind string, second bigint, millis int, timer_id string,
        condition string, delay string.
    """
    if others is None:
        return _sharing(requests, far, since, named).select(*_ASKS)
    # Only columns of folders, so Spark opens no file of another one.
    is_other = F.concat_ws("/", *_FOLDER).isin(["/".join(folder) for folder in others])
    own = far.where(F.col("timer_id").isNotNull() & ~is_other)
    return _sharing(requests.where(is_other), far, since, named).select(*_ASKS).unionByName(own.select(*_ASKS))


def _sharing(requests: DataFrame, far: DataFrame, since: int, named: int) -> DataFrame:
    """Return the rows of *requests* that are requests or cancels, and share a timer id with a row of *far*."""
    # Joined by a hash of the id, which is smaller. If two ids have the same hash, a needless row does no harm. The same
    # goes for an id in two partitions.
    name = F.xxhash64("timer_id")
    names = far.where(F.col("timer_id").isNotNull()).select(name.alias("name"))
    # Without this, Spark moves and sorts all records that have an id.
    names = sent(names, named)
    # Of the records with an id only copies are neither; to compare the kind of each would take a fifth longer.
    asks = requests.where((F.col("delay") != COPY) & F.col("timer_id").isNotNull() & (F.col("offset") >= since))
    return asks.withColumn("name", name).join(names, "name", "left_semi")


def copies_in(requests: DataFrame, bucket: Bucket) -> DataFrame:
    """Return the rows of `requests` that are copies of requests due in *bucket*."""
    return requests.where(
        (F.col("delay") == COPY)
        & due_between(bucket, "%Y-%m-%d")
        & (F.col("kind") == COPY)
        & F.col("second").between(bucket.first, bucket.last)
    )


def need_no_copy(asks: DataFrame, copies: DataFrame) -> DataFrame:
    """
    Return the requests that no longer need a copy, by rows of `asks_about` and `copies_in`.

    Returns:
        partition int, offset bigint, promoted boolean: true if workers have taken a copy, false if it was withdrawn.
    """
    return marks_of(asks.unionByName(copies, allowMissingColumns=True)).select(
        "partition", "offset", F.col("copied_at").isNotNull().alias("promoted")
    )


def with_sure(requests: DataFrame, fences: Mapping[int, int]) -> DataFrame:
    """
    Return *requests* with the column is_sure, a boolean: whether workers have judged the condition of each.

    Whether a condition holds may depend on the records read before the scan, and the seal says which were. Without a
    seal, a request that does not count might be copied, and would fire. *fences* has the fence of the last seal by
    partition, without the partitions that have no seal.
    """
    unconditional = F.col("condition").isNull()
    if not fences:
        return requests.withColumn("is_sure", unconditional)
    judged_to = constant(requests.sparkSession, fences.items(), "partition int, judged_to bigint")
    is_judged = F.coalesce(F.col("offset") < F.col("judged_to"), F.lit(False))
    # A join, because a condition that names each partition would be tried partition by partition for each row.
    joined = requests.join(F.broadcast(judged_to), "partition", "left")
    return joined.withColumn("is_sure", unconditional | is_judged).select(*requests.columns, "is_sure")


def copies_of(requests: DataFrame, decided: Mapping[int, int], decided_s: int) -> DataFrame:
    """
    Return the copies of *requests* as records for `timer-request`.

    Args:
        decided: by partition, the offset below which all records were known to the decision that the requests fire.
        decided_s: UNIX second in which the decision began.

    Returns:
        partition int, key binary, value binary; one task has all of a partition, by second and offset. Requests that
        the decision did not know are left out.
    """
    copy = message.nested(
        Future.COPY_FIELD_NUMBER,
        message.number(Copy.OFFSET_FIELD_NUMBER, F.col("offset"), _OFFSET_BYTES),
        message.number(Copy.APPENDED_FIELD_NUMBER, F.floor(F.col("appended_ms") / 1000), _SECOND_BYTES),
        message.number(Copy.DECIDEDOFFSET_FIELD_NUMBER, F.col("known"), _OFFSET_BYTES),
        message.number(Copy.DECIDED_FIELD_NUMBER, F.lit(decided_s), _SECOND_BYTES),
    )
    spark = requests.sparkSession
    # The number of Spark's setting, or one for each partition where these are fewer.
    tasks = min(len(decided), int(spark.conf.get("spark.sql.shuffle.partitions") or 1))
    places = _places(spark, tasks)
    known = [(number, offset, places[at % tasks]) for at, (number, offset) in enumerate(sorted(decided.items()))]
    return (
        requests.join(F.broadcast(constant(spark, known, "partition int, known bigint, place bigint")), "partition")
        # Requests landed since the decision wait for the next one: a copy older than its original is refused.
        .where(F.col("offset") < F.col("known"))
        .repartition(tasks, "place")
        # A worker keeps neighbours that are due together as one row.
        .sortWithinPartitions("partition", "second", "offset")
        .select(
            "partition",
            F.col("second").cast("string").cast("binary").alias("key"),
            # A Future with only the copy, behind the original's bytes: a parser reads both as one message.
            F.concat("value", message.bytes_of(copy), no_condition()).alias("value"),
        )
    )


def _places(spark: SparkSession, tasks: int) -> list[int]:
    """
    Return for each of *tasks* a number that Spark repartitions to it.

    Partitioned by their own numbers, four partitions of a topic shared two tasks of four. Ranges would keep them apart,
    but Spark samples to find them, so all the rows would be computed once more.
    """
    # A constant, so its hash is computed without a job. With this many numbers, some go to each task.
    numbers = constant(spark, [(number,) for number in range(32 * tasks)], "place bigint")
    hashed = numbers.select(F.pmod(F.hash("place"), F.lit(tasks)), "place").collect()
    by_task = dict(map(tuple, hashed))
    # If no number goes to a task, two partitions share one.
    return [by_task.get(task, task) for task in range(tasks)]
