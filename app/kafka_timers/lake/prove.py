"""
Prove the outcome of the timer of an id: gather the proof from the lake, and check it before it is returned.

The lake only says where to look. The seals make the proof, and a proof that does not hold is not written.
"""

from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from kafka_timers.core.chain import Place, path_to
from kafka_timers.core.contents import DIGESTS
from kafka_timers.core.proofs import Link, ProvenRecord, document_of, verified
from kafka_timers.core.routing import partition_of
from kafka_timers.core.sums import VERSION
from kafka_timers.errors import LakeError
from kafka_timers.lake.copies import copies_of
from kafka_timers.lake.publish import hashes_of
from kafka_timers.lake.schema import COPY, REQUEST, REQUESTS, SEALS, ends_ms
from kafka_timers.lake.tables import read, root_of
from kafka_timers.lake.time_range import time_range_of
from kafka_timers.settings import LakeSettings

__all__ = ["proof_of"]


def proof_of(spark: SparkSession, settings: LakeSettings, timer_id: str, offset: int | None = None) -> dict[str, Any]:
    """
    Return a proof of a timer's outcome, see `core.proofs`.

    Args:
        spark: session to use.
        settings: settings with the lake.
        timer_id: id of the timer.
        offset: offset of its request on `timer-request`; None for the last one of the id.

    Raises:
        LakeError: there is no such request, or the lake cannot show its outcome.
        ProofError: the lake's rows contradict the seals.
    """
    return _Gathering(spark, settings, timer_id).proof(offset)


class _Gathering:
    def __init__(self, spark: SparkSession, settings: LakeSettings, timer_id: str) -> None:
        self._spark, self._settings, self._timer_id = spark, settings, timer_id
        root = root_of(settings)
        seals = read(spark, root, SEALS)
        told = seals.agg(F.max_by("partitions", F.struct(ends_ms(), "fence"))).first()
        if told is None or not told[0]:
            raise LakeError(f"no seal is in the lake at {root}: run `kafka-timers lake land` first")
        self._partitions = int(told[0])
        self._number = number = partition_of(timer_id, self._partitions)
        self._requests = read(spark, root, REQUESTS).where(F.col("partition") == number)
        self._all_seals = seals.where(F.col("partition") == number)
        self._seals = self._all_seals.where(F.col("digests") == VERSION)
        self._complete = self._seals.where(F.col("through").isNull() & F.col("read_from").isNotNull())
        # The seals of the proof by their offset on timer-sealed, and the hashes of all seals of their days.
        self._shown: dict[int, Row] = {}
        self._days: dict[str, dict[int, bytes | None]] = {}
        self._outcomes: dict[int, Row] = {}

    def proof(self, offset: int | None) -> dict[str, Any]:
        request = self._request(offset)
        copy = self._copy_of(request)
        covering, fired = self._covering(request, (copy or request)["offset"])
        more = [] if copy is None else [copy]
        if request["offset"] not in fired and (taker := self._taker(request)):
            more.append(taker)
        records = [self._proven(each) for each in (request, *more)]
        document = document_of(
            self._number,
            self._partitions,
            records,
            [self._link(each) for each in self._shown.values()],
            covering=[self._number_of(each) for each in covering],
            fired=sorted(fired),
        )
        verified(document)
        return document

    # --- records and seals -------------------------------------------------------------------------------------------

    def _request(self, offset: int | None) -> Row:
        own = self._requests.where((F.col("timer_id") == self._timer_id) & (F.col("kind") == REQUEST))
        if offset is not None:
            own = own.where(F.col("offset") == offset)
        found = own.orderBy(F.desc("offset")).first()
        if found is None:
            which = "" if offset is None else f" at offset {offset} of partition {self._number}"
            raise LakeError(f"the lake has no request with the timer id {self._timer_id!r}{which}")
        return found

    def _copy_of(self, request: Row) -> Row | None:
        """Return the copy that workers have taken; None if none has come back from the lake."""
        copies = self._requests.where((F.col("kind") == COPY) & (F.col("original") == request["offset"]))
        return copies.orderBy("offset").first()

    def _covering(self, request: Row, at: int) -> tuple[list[Row], list[int]]:
        """
        Return the seals that show whether *request* fired, and the offsets of the requests that fired by them.

        These are the first seal that covers the offset *at*, its slices, and the seal before them. If no seal covers
        it, they are the last seal only.
        """
        due_ms = request["second"] * 1000 + request["millis"]
        covers = (ends_ms() > due_ms) & (F.col("fence") > at)
        order = [ends_ms(), F.col("fence")]
        first = self._complete.where(covers).orderBy(*order).first()
        if first is None:
            last = self._complete.orderBy(*(each.desc() for each in order)).first()
            if last is None:
                raise LakeError(f"the lake has no seal of partition {self._number} that counts the records read")
            return [self._show(last)], []
        before = self._complete.where(~covers & (F.col("offset") < first["offset"])).orderBy(F.desc("offset")).first()
        if before is None:
            raise LakeError(f"no seal lies before the first one that covers {self._number}:{request['offset']}")
        between = F.col("offset").between(before["offset"], first["offset"])
        covering = [self._show(each) for each in self._seals.where(between).orderBy("offset").collect()]
        self._outcomes = self._outcomes_in(first)
        return covering, [at for at, row in self._outcomes.items() if row["taken_by"] is None and not row["reason"]]

    def _outcomes_in(self, seal: Row) -> dict[int, Row]:
        """Return the outcomes of the requests that *seal* covers first, by offset."""
        with time_range_of(self._spark, self._settings, seal["first"], seal["last"]) as within:
            rows = within.outcomes().where(
                (F.col("partition") == self._number)
                & (F.col("sealed_ms") == seal["end_ms"])
                & (F.col("fence") == seal["fence"])
            )
            return {row["offset"]: row for row in rows.select("offset", "reason", "taken_by").collect()}

    def _taker(self, request: Row) -> Row | None:
        """Return the record that withdrew *request*, if there is one."""
        outcome = self._outcomes.get(request["offset"])
        if outcome is None or outcome["taken_by"] is None:
            return None
        return self._requests.where(F.col("offset") == outcome["taken_by"]).first()

    # --- parts of the proof ------------------------------------------------------------------------------------------

    def _show(self, seal: Row) -> Row:
        """Add *seal* to the proof."""
        if seal["value"] is None:
            raise LakeError("the seals were landed by an earlier version, which kept no bytes of them")
        return self._shown.setdefault(seal["offset"], seal)

    def _number_of(self, seal: Row) -> int:
        offset = self._show(seal)["offset"]
        return list(self._shown).index(offset)

    def _proven(self, record: Row) -> ProvenRecord:
        offset = record["offset"]
        if record["forgotten_s"] is not None:
            raise LakeError(
                f"{self._number}:{offset} was forgotten: the lake has deleted its bytes, so there is nothing to show"
            )
        behind = self._complete.where(F.col("fence") > offset).orderBy("fence", "offset").first()
        if behind is None:
            raise LakeError(f"no seal in the lake counts the record {self._number}:{offset} yet")
        since = behind["read_from"]
        below = self._complete.where((F.col("fence") <= offset) & (F.col("read_from") == since))
        before = below.orderBy(F.desc("fence"), F.desc("offset")).first()
        begin = since if before is None else before["fence"]
        if offset < begin:
            raise LakeError(
                f"seals count the records read from offset {since} on, and {self._number}:{offset} lies before it"
            )
        near = self._requests.where(F.col("offset").between(begin, behind["fence"] - 1) & (F.col("offset") != offset))
        others = [row["digest"] for row in near.select("digest").collect()]
        if None in others:
            raise LakeError(
                "records beside that of the timer were landed by an earlier version, which kept no digests of them"
            )
        return ProvenRecord(
            offset,
            record["appended_ms"],
            *self._content_of(record),
            [(each["key"], each["value"] and bytes(each["value"])) for each in record["headers"] or ()],
            None if before is None else self._number_of(before),
            self._number_of(behind),
            [each % DIGESTS for each in others],
        )

    def _content_of(self, record: Row) -> tuple[bytes | None, bytes | None]:
        """Return key and value of *record*. The lake keeps no value of a copy; it is made from the original's bytes."""
        key, value = (record[name] and bytes(record[name]) for name in ("key", "value"))
        if record["kind"] != COPY:
            return key, value
        original = self._requests.where(F.col("offset") == record["original"])
        [copy] = copies_of(original, {self._number: record["decided"]}, record["decided_s"]).collect()
        return key, bytes(copy["value"])

    def _link(self, seal: Row) -> Link:
        return Link(bytes(seal["value"]), seal["day"], self._place(seal))

    def _place(self, seal: Row) -> Place | None:
        """Return the place of *seal* in the tree of its day; None until the day is over."""
        day = seal["day"]
        if day not in self._days:
            rows = hashes_of(self._all_seals.where(F.col("day") == day)).collect()
            is_over = not self._all_seals.where(F.col("day") > day).isEmpty()
            self._days[day] = {row["offset"]: row["hash"] for row in rows} if is_over else {}
        hashes = self._days[day]
        if seal["offset"] not in hashes or None in hashes.values():
            return None
        return path_to([bytes(each or b"") for each in hashes.values()], list(hashes).index(seal["offset"]))
