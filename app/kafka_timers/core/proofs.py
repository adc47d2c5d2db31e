"""
The fate of one request, as a document that anyone can check without Kafka and without the lake.

Pure. A proof has the request, the record that withdrew it if one did, and the seals that cover them. It relies on two
sums in seals. The sum of all records read between two fences fixes the record at each offset. The sum of all requests
that a seal fired tells whether the request is among them. Other records appear only as hashes, and other fired requests
only as offsets, so a proof reveals nothing about them.

    seal A   read up to 40         ┐ the records read between them have these hashes, and that of the request
    seal B   read up to 90         ┘
    seal C   up to 12.000          ┐ the request is due at 12.300, so D, which follows C, is the first that covers it
    seal D   up to 13.000          ┘ D fired the offsets 12, 61, …

Each seal is a leaf of the tree of its day, see `chain`. So a proof about a seal shows its state when the root of that
tree was published.
"""

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kafka_timers.core.chain import Day, Place, root_from
from kafka_timers.core.contents import DIGESTS
from kafka_timers.core.refused import Reason
from kafka_timers.core.sums import NOTHING, VERSION, ReadSums, fired_digest_of, hash_of_record, hash_of_seal
from kafka_timers.core.verdicts import judged
from kafka_timers.core.wire import Future, Sealed, end_ms_of, first_ms_of, is_complete, is_far, sealed_from
from kafka_timers.errors import ProofError, WireError

__all__ = ["Link", "ProvenRecord", "Verdict", "document_of", "verified"]

_VERSION = 1
# Largest size of an unpacked proof, since a stranger may have written it.
_BYTES_MAX = 256 << 20


class Link(NamedTuple):
    """
    A seal.

    Attributes:
        value: value of its record.
        day: day of its last second, as 2030-01-31.
        place: place in the tree of that day; None if nothing is published, so that it does not matter.
    """

    value: bytes
    day: str
    place: Place | None


@dataclass(frozen=True, slots=True)
class ProvenRecord:
    """
    A record of the request log, and the evidence that it lies there.

    Attributes:
        offset: offset on `timer-request`.
        timestamp: UNIX milliseconds of its append.
        key: key as it came.
        value: value as it came.
        headers: headers as they came.
        after: number of the seal at whose fence the span of read records begins; None if it begins where seal `by`
            begins to count.
        by: number of the seal at whose fence the span ends.
        others: hashes of all other records in the span.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    after: int | None
    by: int
    others: Sequence[int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    The result of a proof.

    Attributes:
        state: `fired`, `taken back`, `did not fire` (it was rejected, or its condition did not hold), `waits`, or
            `parked` in the lake.
        lines: the facts that it shows, a sentence each.
        is_published: whether all of its seals were found among the published ones.
    """

    state: str
    lines: Sequence[str]
    is_published: bool


def document_of(
    partition: int,
    partitions: int,
    records: Sequence[ProvenRecord],
    seals: Sequence[Link],
    *,
    covering: Sequence[int],
    fired: Sequence[int],
) -> dict[str, Any]:
    """
    Return a proof as JSON for a file.

    Args:
        partition: partition of `timer-request`.
        partitions: number of partitions.
        records: the request, then its copies and the record that withdrew it, if there are any.
        seals: all seals; the other arguments and the records refer to them by number.
        covering: numbers of the complete seal before the first one that covers the request, of that one's slices, and
            of that one, in this order; for a request that no seal covers yet, the number of the last seal.
        fired: offsets of the requests that fired with these seals, the first seal excepted.
    """
    return {
        "proof": _VERSION,
        "partition": partition,
        "partitions": partitions,
        "records": [
            {
                "offset": each.offset,
                "appended_ms": each.timestamp,
                "key": _text(each.key),
                "value": _text(each.value),
                "headers": [[name, _text(value)] for name, value in each.headers],
                "after": each.after,
                "by": each.by,
                "others": _numbers_text(each.others),
            }
            for each in records
        ],
        "seals": [
            {
                "value": _text(each.value),
                "day": each.day,
                **(_place_text(each.place) if each.place else {}),
            }
            for each in seals
        ],
        "covering": list(covering),
        "fired": _numbers_text(fired),
    }


def verified(document: Mapping[str, Any], published: Mapping[tuple[int, str], Day] | None = None) -> Verdict:
    """
    Return the result of a proof.

    Args:
        document: document from `document_of`.
        published: published days by partition and day; None trusts the seals in the proof.

    Raises:
        ProofError: the proof shows nothing; the text says why.
    """
    try:
        proof = _Proof(document)
        if published is not None:
            proof.check_published(published)
        return proof.verdict(is_published=published is not None)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, struct.error, zlib.error) as error:
        # Numbers that are out of range only fail when they are used.
        raise ProofError(f"this is no proof of version {_VERSION}: {error!r}") from error


class _Proof:
    def __init__(self, document: Mapping[str, Any]) -> None:
        if document["proof"] != _VERSION:
            raise ProofError(f"this is a proof of version {document['proof']}, and this program knows {_VERSION}")
        self._number, self._partitions = int(document["partition"]), int(document["partitions"])
        self._links = [_link_in(each) for each in document["seals"]]
        self._seals = [self._seal_in(link.value) for link in self._links]
        self._records = [_record_in(each) for each in document["records"]]
        self._covering = [self._index(each) for each in document["covering"]]
        self._fired = _numbers_in(document["fired"])
        if not self._records or not self._covering:
            raise ValueError("records or covering is empty")

    def _seal_in(self, value: bytes) -> Sealed:
        try:
            seal = sealed_from(value)
        except WireError as error:
            raise ProofError(str(error)) from error
        if seal.partition != self._number or seal.digests != VERSION:
            raise ProofError("a seal is of another partition, or has no digests")
        return seal

    def _index(self, number: int) -> int:
        if not 0 <= int(number) < len(self._seals):
            raise ValueError(f"there is no seal {number}")
        return int(number)

    def check_published(self, published: Mapping[tuple[int, str], Day]) -> None:
        """Check that each seal belongs to a published root."""
        for link in self._links:
            day = published.get((self._number, link.day))
            if day is None:
                raise ProofError(f"nothing was published of partition {self._number} for {link.day}")
            if link.place is None or link.place.among != day.seals:
                raise ProofError(f"the proof does not place a seal of {link.day} among the {day.seals} published ones")
            if root_from(hash_of_seal(link.value), link.place) != day.root:
                raise ProofError(f"a seal of {link.day} is none of those that were published")

    def verdict(self, *, is_published: bool) -> Verdict:
        request, *more = self._records
        lines = [self._shown(each) for each in self._records]
        due_ms, future = judged(request, self._number, self._partitions)
        if isinstance(future, Reason) or due_ms is None:
            raise ProofError(f"the record at offset {request.offset} is no request that a worker accepts")
        covering = [self._seals[each] for each in self._covering]
        copies, takers = self._sorted(request, more)
        last = covering[-1]
        is_left = is_far(due_ms // 1000, request.timestamp // 1000, last.horizon_s)
        if is_left and request.offset >= last.horizon_from and not copies:
            lines.append("It was left to the lake, and no copy of it is shown: it had not come back.")
            return Verdict("parked", lines, is_published)
        # A request that was left to the lake fires when its copy has been read.
        at = copies[0].offset if copies else request.offset
        if len(covering) == 1:
            if due_ms < end_ms_of(last) and at < last.fence:
                raise ProofError("the seal that is to show that the request waits covers it")
            lines.append(f"No seal up to {_moment(end_ms_of(last))} covers it: it had not fired by then.")
            return Verdict("waits", lines, is_published)
        self._check_covering(at, due_ms, covering)
        span = f"{_moment(first_ms_of(last))} to {_moment(end_ms_of(last))}"
        if request.offset in self._fired:
            lines.append(f"It fired once: the seal from {span}, the first one that covers it, counts it as fired.")
            return Verdict("fired", lines, is_published)
        lines.append(
            f"It did not fire: the seal from {span}, the first one that covers it, does not count it as fired,"
        )
        lines.append("and a request fires with no other seal.")
        if not takers:
            return Verdict("did not fire", lines, is_published)
        lines.append(self._taken_back(request, due_ms, future, takers[0], last))
        return Verdict("taken back", lines, is_published)

    def _shown(self, record: ProvenRecord) -> str:
        """Check that *record* lies at the place in the proof, and return a sentence that says so."""
        by, after = self._seals[self._index(record.by)], None
        read = ReadSums.of(by)
        if read is None:
            raise ProofError("a seal does not count the records read")
        begin, sums = read.since, [read.near, read.far, read.cancels]
        if record.after is not None:
            after = ReadSums.of(self._seals[self._index(record.after)])
            if after is None or after.since != read.since:
                raise ProofError("two seals do not count from the same offset")
            begin = after.to
            sums += [NOTHING.minus(each) for each in (after.near, after.far, after.cancels)]
        if not begin <= record.offset < read.to:
            raise ProofError(f"offset {record.offset} does not lie between {begin} and {read.to}")
        counted = sum(each.records for each in sums)
        digest = sum(each.digest for each in sums) % DIGESTS
        own = hash_of_record(self._number, record)
        if counted != len(record.others) + 1 or digest != (own + sum(record.others)) % DIGESTS:
            raise ProofError(f"by the seals, offset {record.offset} had another record than this one")
        return f"The record at {self._number}:{record.offset} was appended at {_moment(record.timestamp)}."

    def _sorted(
        self, request: ProvenRecord, more: Sequence[ProvenRecord]
    ) -> tuple[Sequence[ProvenRecord], Sequence[ProvenRecord]]:
        """Return the other records in two lists: copies of *request*, and the rest."""
        copies = []
        for each in more:
            _, future = judged(each, self._number, self._partitions)
            if not isinstance(future, Reason) and future.HasField("copy") and future.copy.offset == request.offset:
                copies.append(each)
        return copies, [each for each in more if each not in copies]

    def _check_covering(self, at: int, due_ms: int, covering: Sequence[Sealed]) -> None:
        """
        Check that *covering* ends with the first seal that covers offset *at*, and check the requests that it fired.
        """
        before, *scan = covering
        links = [self._links[each] for each in self._covering]
        for earlier, later in zip(links, scan, strict=False):
            if later.previous != hash_of_seal(earlier.value):
                raise ProofError("the seals that cover the request do not follow each other")
        last = scan[-1]
        if not is_complete(before) or not is_complete(last) or any(is_complete(each) for each in scan[:-1]):
            raise ProofError("the seals that cover the request are not one seal with its slices, behind another one")
        covers_before = due_ms < end_ms_of(before) and at < before.fence
        if covers_before or due_ms >= end_ms_of(last) or at >= last.fence:
            raise ProofError("the seal is not the first one that covers the request")
        digest = sum(each.fired_digest for each in scan) % DIGESTS
        counted = sum(each.fired for each in scan)
        if counted != len(self._fired) or digest != fired_digest_of(self._number, self._fired):
            raise ProofError("the proof names other requests as fired than the seal counts")

    def _taken_back(self, request: ProvenRecord, due_ms: int, future: Future, by: ProvenRecord, last: Sealed) -> str:
        _, taker = judged(by, self._number, self._partitions)
        if isinstance(taker, Reason) or not future.timerId or taker.timerId != future.timerId:
            raise ProofError(f"the record at offset {by.offset} is not about the timer of the request")
        if not request.offset < by.offset < last.fence or by.timestamp >= due_ms:
            raise ProofError(f"the record at offset {by.offset} came too late for the request")
        verb = "cancelled" if taker.cancel else "replaced"
        return f"It was {verb} by the record at offset {by.offset}, {due_ms - by.timestamp:,} ms before it was due."


def _link_in(told: Mapping[str, Any]) -> Link:
    place = None
    if "number" in told:
        place = Place(int(told["number"]), int(told["among"]), [base64.b64decode(each) for each in told["path"]])
    return Link(base64.b64decode(told["value"], validate=True), str(told["day"]), place)


def _record_in(told: Mapping[str, Any]) -> ProvenRecord:
    return ProvenRecord(
        int(told["offset"]),
        int(told["appended_ms"]),
        _bytes_in(told["key"]),
        _bytes_in(told["value"]),
        [(str(name), _bytes_in(value)) for name, value in told["headers"]],
        None if told["after"] is None else int(told["after"]),
        int(told["by"]),
        _numbers_in(told["others"]),
    )


def _place_text(place: Place) -> dict[str, Any]:
    return {"number": place.number, "among": place.among, "path": [_text(each) for each in place.path]}


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes_in(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


def _numbers_text(numbers: Sequence[int]) -> str:
    """Return *numbers* as text: packed in 8 bytes each, lowest byte first, and compressed."""
    return base64.b64encode(zlib.compress(struct.pack(f"<{len(numbers)}Q", *numbers))).decode()


def _numbers_in(text: str) -> list[int]:
    unpacker = zlib.decompressobj()
    packed = unpacker.decompress(base64.b64decode(text, validate=True), _BYTES_MAX)
    if not unpacker.eof:
        raise ValueError(f"a list of numbers has more than {_BYTES_MAX} bytes, or ends early")
    return [number for (number,) in struct.iter_unpack("<Q", packed)]


def _moment(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
