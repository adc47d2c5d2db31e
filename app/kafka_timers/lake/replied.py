"""
Compare the answers to cancels and requests with the outcomes.

An answer stays true for ever (docs/design.md, ADR-36), so it can be compared with the outcome. A timer that was
cancelled or moved has not fired, and a timer with the answer `TOO_LATE` has. `UNKNOWN` is always legal, because an id
may have been forgotten. The headers of an answer say all of this, and so does its value.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_timers.core.versions import headers_of_reply
from kafka_timers.core.wire import ANSWER_HEADER, Reply
from kafka_timers.lake.arrow import record_batch
from kafka_timers.lake.callback_records import place_in, text_in
from kafka_timers.lake.schema import CANCEL, RECORD_KEY, REQUEST, about_records, asked_ms

_PLACES = (
    "partition int, offset bigint, topic string, at_ms bigint, outcome string, about_partition int, about_offset bigint"
)
_ANSWERS = f"{_PLACES}, timer_id string, due_ms bigint, odd string"


def answers_of(records: DataFrame) -> DataFrame:
    """
    Return the answers among the records of reply topics, which are as in `callbacks_of`.

    Returns:
        partition int and offset bigint of the answered record, topic string, at_ms bigint, outcome string, and
        about_offset bigint: offset of the request that the answer is about, in the same partition, or null; and of its
        value timer_id string, due_ms bigint, and odd string: what is wrong with it in itself, or null.
    """
    (partition, offset), (about_partition, about_offset) = (
        place_in(f"{ANSWER_HEADER}-{name}") for name in ("to", "request")
    )
    answers = records.select(
        partition.alias("partition"),
        offset.alias("offset"),
        "topic",
        F.unix_millis("timestamp").alias("at_ms"),
        text_in(ANSWER_HEADER).alias("outcome"),
        about_partition.alias("about_partition"),
        about_offset.alias("about_offset"),
        "key",
        "value",
        "headers",
    )
    answers = answers.where(F.col("offset").isNotNull() & F.col("outcome").isNotNull())
    return answers.mapInArrow(_with_values, _ANSWERS)


def _with_values(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    names = [column.split()[0] for column in _PLACES.split(", ")]
    for batch in batches:
        rows = [(*(row[name] for name in names), *_in_value(row)) for row in batch.to_pylist()]
        yield record_batch(rows, _ANSWERS)


def _in_value(row: Mapping[str, Any]) -> tuple[str | None, int | None, str | None]:
    """Return timer id and due of the value of an answer, and what is wrong with it."""
    try:
        reply, wanted = Reply.FromString(row["value"] or b""), headers_of_reply(row["value"] or b"")
    except DecodeError:
        return None, None, "its value is no answer"
    due_ms = reply.second * 1000 + reply.millis or None
    if [(each["key"], each["value"]) for each in row["headers"]] != wanted:
        return reply.timerId, due_ms, "its value says something else than its headers"
    if row["key"] != reply.timerId.encode():
        return reply.timerId, due_ms, "its key is not the timer id in its value"
    return reply.timerId, due_ms, None


def answer_findings(
    answers: DataFrame, requests: DataFrame, outcomes: DataFrame, intervals: DataFrame, first: int, last: int
) -> DataFrame:
    """
    Return the answers that are not true, and the records that lack an answer.

    A missing answer is reported only for a topic that has other answers, and only from the first of these on. A topic
    that takes no answers loses them, as docs/wire.md says.

    Args:
        answers: rows of `answers_of`, of the time range and some time around it.
        requests: those in force, with all records of the timer ids in question.
        outcomes: those of these requests.

    Returns:
        findings of the kind answer about the record that asked, with the columns `schema.FINDING`.
    """
    named = requests.where(F.col("kind").isin(REQUEST, CANCEL)).select(
        *RECORD_KEY,
        "kind",
        "appended_ms",
        "sent_from",
        F.col("timer_id").alias("own_id"),
        F.col("asks.reply_topic").alias("reply_topic"),
    )
    about = outcomes.select(
        F.col("partition").alias("about_partition"),
        F.col("offset").alias("about_offset"),
        # It is sealed and was not rejected.
        (F.col("fence").isNotNull() & F.col("taken_by").isNull() & F.col("reason").isNull()).alias("has_fired"),
        F.col("taken_by").isNotNull().alias("is_taken"),
        asked_ms().alias("own_ms"),
    )
    asked_s = F.floor(F.col("at_ms") / 1000)
    given = answers.where(asked_s.between(first, last))
    both = given.join(about, ["about_partition", "about_offset"], "left")
    both = both.join(named.select(*RECORD_KEY, "kind", "own_id"), [*RECORD_KEY], "left")
    says = F.col("outcome")
    untrue = F.coalesce(
        F.when(F.col("odd").isNotNull(), F.format_string("answered %s in %s, and %s", says, "topic", "odd")),
        F.when(
            F.col("timer_id") != F.col("own_id"),
            F.format_string("answered %s in %s, about another timer id", says, "topic"),
        ),
        F.when(
            F.col("due_ms") != F.col("own_ms"),
            F.format_string(
                "answered %s in %s, with another time than that of request %d", says, "topic", "about_offset"
            ),
        ),
        F.when(
            says.isin("CANCELLED", "MOVED") & F.col("has_fired"),
            F.format_string("answered %s in %s, and request %d has fired", says, "topic", "about_offset"),
        ),
        F.when(
            (says == "TOO_LATE") & F.col("is_taken"),
            F.format_string("answered %s in %s, and request %d was withdrawn", says, "topic", "about_offset"),
        ),
        F.when(
            ((says == "MOVED") & (F.col("kind") == CANCEL)) | ((says == "CANCELLED") & (F.col("kind") == REQUEST)),
            F.format_string("answered %s in %s, and the record that asked is a %s", says, "topic", "kind"),
        ),
        F.when(
            (says == "IGNORED") & F.col("kind").isNotNull(),
            F.format_string("answered %s in %s, and the record that asked took effect", says, "topic"),
        ),
    )
    wrong = both.withColumn("detail", untrue).withColumn("second", asked_s).where(F.col("detail").isNotNull())
    begins = answers.groupBy(F.col("topic").alias("reply_topic")).agg(F.min("at_ms").alias("since_ms"))
    passed = intervals.groupBy("partition").agg(F.max("fence").alias("passed"))
    silent = (
        # The answer to a request that was sent on names another record.
        named.where(F.col("reply_topic").isNotNull() & F.col("sent_from").isNull())
        .where(F.floor(F.col("appended_ms") / 1000).between(first, last))
        .join(F.broadcast(begins), "reply_topic")
        .join(F.broadcast(passed), "partition")
        .where((F.col("appended_ms") >= F.col("since_ms")) & (F.col("offset") < F.col("passed")))
        .join(answers.select(*RECORD_KEY), [*RECORD_KEY], "anti")
        .withColumn("second", F.floor(F.col("appended_ms") / 1000))
        .withColumn("detail", F.format_string("no answer in %s", "reply_topic"))
    )
    found = (about_records(rows, "answer", F.col("detail")) for rows in (wrong, silent))
    return reduce(DataFrame.unionByName, found).distinct()
