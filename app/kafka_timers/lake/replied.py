"""
Compare the answers to cancels and requests with the outcomes.

An answer stays true for ever (docs/design.md, ADR-36), so it can be compared with the outcome. A timer that was
cancelled or moved has not fired, and a timer with the answer `TOO_LATE` has. `UNKNOWN` is always legal, because an id
may have been forgotten. The headers of an answer say all of this.
"""

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_timers.core.wire import ANSWER_HEADER
from kafka_timers.lake.callback_records import place_in, text_in
from kafka_timers.lake.schema import CANCEL, RECORD_KEY, REQUEST, about_records


def answers_of(records: DataFrame) -> DataFrame:
    """
    Return the answers among the records of reply topics, which are as in `callbacks_of`.

    Returns:
        partition int and offset bigint of the answered record, topic string, at_ms bigint, outcome string, and
        about_offset bigint: offset of the request that the answer is about, in the same partition, or null.
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
    )
    return answers.where(F.col("offset").isNotNull() & F.col("outcome").isNotNull())


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
        *RECORD_KEY, "kind", "appended_ms", "sent_from", F.col("asks.reply_topic").alias("reply_topic")
    )
    about = outcomes.select(
        F.col("partition").alias("about_partition"),
        F.col("offset").alias("about_offset"),
        # It is sealed and was not rejected.
        (F.col("fence").isNotNull() & F.col("taken_by").isNull() & F.col("reason").isNull()).alias("has_fired"),
        F.col("taken_by").isNotNull().alias("is_taken"),
    )
    asked_s = F.floor(F.col("at_ms") / 1000)
    given = answers.where(asked_s.between(first, last))
    both = given.join(about, ["about_partition", "about_offset"], "left")
    both = both.join(named.select(*RECORD_KEY, "kind"), [*RECORD_KEY], "left")
    says = F.col("outcome")
    untrue = F.coalesce(
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
