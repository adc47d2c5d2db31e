"""
The outcomes of requests, as a table of cases: records, seals, and the state that each record must have.

Every form of the rule runs through it: `core.outcomes`, which reads the records as an owner does and as `find`
shows them (tests/unit/test_outcomes.py), and the lake's form in Spark (tests/spark/test_lake_law.py). Times are UNIX
seconds, small ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kafka_timers.core.keys import row_key
from kafka_timers.core.wire import Condition, Copy, Forwarded, Future, Sealed

ID = "id"
HORIZON_S = 100


class Record(NamedTuple):
    """A record on `timer-request`."""

    key: bytes | None
    value: bytes | None
    offset: int
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True)
class Case:
    """
    One history of a partition.

    Attributes:
        name: the rule that it shows.
        records: of one timer id, or with none of any.
        seals: in the order of the log.
        states: the expected outcome of each record but copies, in their order.
        rejected: offsets that lie on `timer-rejected`, and why.
        only_live: the lake cannot tell, for the reason given.
    """

    name: str
    records: Sequence[Record]
    seals: Sequence[Sealed]
    states: str
    rejected: tuple[tuple[int, str], ...] = ()
    only_live: str = ""


def request(offset: int, appended_s: float, second: int | None, timer_id: str = ID, **more: object) -> Record:
    """Return a request; for no second one that no worker takes."""
    future = Future(callBackTopic="calls", callBackKey="k", timerId=timer_id, **more)  # type: ignore[arg-type]
    key = b"soon" if second is None else b"%d" % second
    return Record(key, future.SerializeToString(), offset, round(appended_s * 1000))


def cancel(offset: int, appended_s: float, **more: object) -> Record:
    """Return a cancel."""
    future = Future(timerId=ID, cancel=True, **more)  # type: ignore[arg-type]
    return Record(ID.encode(), future.SerializeToString(), offset, round(appended_s * 1000))


def sent_on(appended_s: float) -> Forwarded:
    """Return the text of a record that was appended in another partition at first."""
    return Forwarded(appendedMs=round(appended_s * 1000))


def copy(
    offset: int,
    appended_s: float,
    second: int,
    of: int,
    decided: int,
    decided_s: int | None = None,
    *,
    timer_id: str = ID,
) -> Record:
    """Return a copy of the request at offset *of*, which was appended at second 1."""
    known = int(appended_s) if decided_s is None else decided_s
    made = Copy(offset=of, appended=1, decidedOffset=decided, decided=known)
    return request(offset, appended_s, second, timer_id, copy=made)


def seal(
    last: int,
    fence: int,
    first: int | None = None,
    *,
    through: bytes | None = None,
    ignored: Iterable[int] = (),
) -> Sealed:
    """Return a seal of a partition without a lake."""
    made = part_of(last if first is None else first, last + 1, fence)
    made.ignored.extend(ignored)
    if through is not None:
        made.through = through
    return made


def lake_seal(
    last: int, fence: int, first: int | None = None, *, horizon_from: int = 0, horizon_s: int = HORIZON_S
) -> Sealed:
    """Return a seal of a partition that leaves requests due in more than a hundred seconds to the lake."""
    made = seal(last, fence, first)
    made.horizon_s, made.horizon_from = horizon_s, horizon_from
    return made


def part_of(first_s: float, end_s: float, fence: int) -> Sealed:
    """Return a seal of a part of a second, or of more than one; *end_s* is not covered."""
    return Sealed(first_ms=round(first_s * 1000), end_ms=round(end_s * 1000), fence=fence, partitions=1)


LAST = [seal(20, 14, 1)]
ABSENT, PENDING = Condition.IF_ABSENT, Condition.IF_PENDING

# P pending, K parked, F fired, C cancelled, M moved, L too late, U unknown, I ignored, R refused.
CASES = [
    Case(
        "each record is about the request before it",
        [request(11, 9, 15), cancel(12, 14), request(13, 16, 18), request(14, 17, 30)],
        LAST,
        "CCFP",
    ),
    Case("a request waits while nothing is sealed", [request(11, 9, 15)], [], "P"),
    Case("a request fires in its second", [request(11, 9, 20)], LAST, "F"),
    Case("the next second has not come", [request(11, 9, 21)], LAST, "P"),
    Case("what is read behind the snapshot fires with the next tick", [request(14, 9, 15)], LAST, "P"),
    Case("it has fired with the next tick", [request(14, 9, 15)], [*LAST, seal(21, 15)], "F"),
    Case("a cancel in the last millisecond is in time", [request(1, 9, 15), cancel(2, 14.999)], [], "CC"),
    Case("a cancel in its second is too late", [request(1, 9, 15), cancel(2, 15)], [], "PL"),
    Case("it is too late also once the second is sealed", [request(1, 9, 15), cancel(2, 15)], LAST, "FL"),
    Case("a cancel that became readable after the scan is too late", [request(1, 9, 15), cancel(14, 14)], LAST, "FL"),
    Case(
        "so is one that was read later than its second was scanned, and before a later seal",
        [request(1, 9, 15), cancel(14, 14)],
        [seal(15, 14, 1), seal(20, 30, 16)],
        "FL",
    ),
    Case(
        "so is a request that came to take its place",
        [request(1, 9, 15), request(14, 14, 30)],
        [seal(15, 14, 1), seal(20, 30, 16)],
        "FP",
    ),
    Case(
        "a cancel in its second, and before its millisecond, is in time",
        [request(1, 9, 15, millis=500), cancel(2, 15.499)],
        [part_of(1, 15.001, 2), part_of(15.001, 15.501, 3)],
        "CC",
    ),
    Case(
        "a cancel in its millisecond is too late",
        [request(1, 9, 15, millis=500), cancel(2, 15.5)],
        [part_of(1, 15.001, 2), part_of(15.001, 15.501, 3)],
        "FL",
    ),
    Case(
        "a timer fires in its part of the second, and what is due later waits",
        [request(1, 9, 15, "", millis=249), request(2, 9, 15, "", millis=250), request(3, 9, 15, "")],
        [part_of(1, 15.25, 4)],
        "FPF",
    ),
    Case("a cancel below the snapshot is in time", [request(1, 9, 15), cancel(13, 14)], LAST, "CC"),
    Case("a later second is not touched", [request(1, 9, 25), cancel(14, 24)], LAST, "CC"),
    Case("a cancel of nothing", [cancel(1, 9)], LAST, "U"),
    Case(
        "what was cancelled is cancelled again",
        [cancel(1, 9), request(2, 10, 30), cancel(15, 11), cancel(16, 12), cancel(17, 40)],
        LAST,
        "UCCCC",
    ),
    Case("after a cancel the id is free", [request(1, 9, 30), cancel(2, 10), request(3, 11, 31)], LAST, "CCP"),
    Case(
        "each request replaces the one before", [request(1, 9, 30), request(2, 10, 31), request(3, 11, 32)], LAST, "MMP"
    ),
    Case(
        "a request that comes too late to replace stands beside it",
        [request(1, 9, 15), request(2, 15, 30), cancel(3, 16)],
        LAST,
        "FCC",
    ),
    Case(
        "one that is late itself fires with the tick that finds it",
        [request(1, 9, 15), request(2, 15, 16), cancel(15, 16)],
        LAST,
        "FFL",
    ),
    Case("what is refused is about nothing", [request(1, 9, 30), request(2, 10, None), cancel(3, 11)], LAST, "CRC"),
    Case("what its topic did not take was refused", [request(1, 9, 15)], LAST, "R", ((1, "topic-unknown"),)),
    Case(
        "a slice has fired what lies up to its last key",
        [request(1, 9, 15), request(2, 9, 16, ""), request(3, 9, 16)],
        [seal(16, 14, 1, through=row_key(16_000, 2))],
        "MFP",
        only_live="the lake knows complete seals alone",
    ),
    Case(
        "what a slice covers fires, though its cancel was appended in time",
        [request(1, 9, 16), cancel(14, 15)],
        [seal(16, 14, 1, through=row_key(15_000, 0))],
        "PL",
        only_live="the lake knows complete seals alone",
    ),
    Case("a far request is parked", [request(1, 1, 200)], [lake_seal(20, 14, 1)], "K"),
    Case("a far request that is cancelled", [request(1, 1, 200), cancel(2, 5)], [lake_seal(20, 14, 1)], "CC"),
    Case(
        "a request and its copy are one timer, which waits",
        [request(1, 1, 200), copy(50, 150, 200, of=1, decided=40)],
        [lake_seal(140, 30, 1)],
        "P",
    ),
    Case(
        "a request and its copy are one timer, which fires once",
        [request(1, 1, 200), copy(50, 150, 200, of=1, decided=40), copy(51, 151, 200, of=1, decided=40)],
        [lake_seal(140, 30, 1), lake_seal(199, 60, 141), lake_seal(200, 70)],
        "F",
    ),
    Case(
        "a copy that comes late fires once",
        [request(1, 1, 200), copy(50, 205, 200, of=1, decided=40)],
        [lake_seal(204, 50, 1), lake_seal(205, 70)],
        "F",
    ),
    Case(
        "a copy of what was cancelled meanwhile means nothing",
        [request(1, 1, 200), cancel(45, 149), copy(50, 150, 200, of=1, decided=40)],
        [lake_seal(210, 70, 1)],
        "CC",
    ),
    Case(
        "a cancel behind a copy withdraws the timer",
        [request(1, 1, 200), copy(50, 150, 200, of=1, decided=40), cancel(52, 160)],
        [lake_seal(155, 51, 1)],
        "CC",
    ),
    Case(
        "the first of two copies fires it",
        [request(1, 1, 200), copy(50, 205, 200, of=1, decided=40), copy(80, 206, 200, of=1, decided=40)],
        [lake_seal(205, 70, 1), lake_seal(206, 90)],
        "F",
    ),
    Case(
        "a copy counts for half an hour after its decision",
        [request(1, 1, 4_000), copy(50, 1_850.999, 4_000, of=1, decided=40, decided_s=50)],
        [lake_seal(1_860, 60, 1)],
        "P",
    ),
    Case(
        "a second later it is stale",
        [request(1, 1, 4_000), copy(50, 1_851, 4_000, of=1, decided=40, decided_s=50)],
        [lake_seal(1_860, 60, 1)],
        "K",
    ),
    Case(
        "a record at the offset up to which all was known overtakes a copy",
        [request(1, 1, 200), cancel(40, 201), copy(50, 205, 200, of=1, decided=40)],
        [lake_seal(204, 50, 1), lake_seal(205, 70)],
        "KL",
    ),
    Case(
        "a record below it does not",
        [request(1, 1, 200), cancel(40, 201), copy(50, 205, 200, of=1, decided=41)],
        [lake_seal(204, 50, 1), lake_seal(205, 70)],
        "FL",
    ),
    Case(
        "a horizon applies from its first offset on",
        [request(1, 1, 200)],
        [lake_seal(20, 14, 1, horizon_from=1)],
        "K",
    ),
    Case(
        "what has fired before there was a horizon has fired",
        [request(1, 1, 200)],
        [seal(20, 14, 1), seal(200, 40, 21), lake_seal(300, 80, 201, horizon_from=60)],
        "F",
    ),
    Case(
        "what was cancelled before there was a horizon was cancelled",
        [request(1, 1, 200), cancel(35, 150)],
        [seal(20, 14, 1), seal(200, 40, 21), lake_seal(300, 80, 201, horizon_from=60)],
        "CC",
    ),
    Case(
        "what was far by an earlier horizon fires by its copy",
        [request(1, 1, 200), copy(50, 205, 200, of=1, decided=40)],
        [
            lake_seal(140, 30, 1),
            lake_seal(204, 45, 141, horizon_from=45, horizon_s=1_000),
            lake_seal(205, 70, 205, horizon_from=45, horizon_s=1_000),
        ],
        "F",
    ),
    Case(
        "a copy of what workers hold means nothing",
        [request(1, 1, 90), copy(20, 50, 90, of=1, decided=15), copy(45, 95, 90, of=1, decided=15)],
        [lake_seal(55, 21, 1), lake_seal(90, 40, 56), lake_seal(95, 50, 91)],
        "F",
    ),
    Case(
        "so a cancel behind it withdraws the request",
        [request(1, 1, 90), copy(20, 50, 90, of=1, decided=15), cancel(22, 60)],
        [lake_seal(55, 21, 1), lake_seal(90, 40, 56)],
        "CC",
    ),
    Case(
        "a copy of what was moved meanwhile means nothing",
        [request(1, 1, 200), request(45, 149, 210), copy(50, 150, 200, of=1, decided=40)],
        [lake_seal(144, 40, 1), lake_seal(210, 70, 145)],
        "MF",
    ),
    Case(
        "a request without an id and its copies are one timer",
        [request(1, 1, 200, ""), *(copy(at, 150, 200, of=1, decided=40, timer_id="") for at in (50, 51))],
        [lake_seal(140, 30, 1), lake_seal(200, 60, 141)],
        "F",
    ),
    Case(
        "a far request that was sent on fires by its copy",
        [request(1, 1, 200, forwarded=sent_on(0.5)), copy(50, 150, 200, of=1, decided=40)],
        [lake_seal(140, 30, 1), lake_seal(200, 60, 141)],
        "F",
    ),
    Case(
        "a far request that a cancel has overtaken on its way is not parked",
        [cancel(1, 10), request(2, 10.5, 200, forwarded=sent_on(9)), request(3, 11, 201)],
        [lake_seal(140, 30, 1)],
        "UIK",
    ),
]

CONDITIONS = [
    Case(
        "a request if absent stands where nothing is known",
        [request(1, 9, 30, condition=ABSENT)],
        [seal(8, 0, 1)],
        "P",
    ),
    Case(
        "a request if absent means nothing where a timer waits",
        [request(1, 9, 30), request(2, 10, 31, condition=ABSENT)],
        [seal(8, 0, 1)],
        "PI",
    ),
    Case(
        "nor where one has fired within the hour",
        [request(1, 9, 15), request(2, 18, 31, condition=ABSENT), request(40, 3_616, 3_700, condition=ABSENT)],
        [seal(17, 2, 1)],
        "FIP",
    ),
    Case(
        "nor where one was cancelled",
        [request(1, 9, 30), cancel(2, 10), request(3, 11, 31, condition=ABSENT)],
        [seal(8, 0, 1)],
        "CCI",
    ),
    Case(
        "a request if absent may except the one that it follows, and no other",
        [
            request(1, 9, 15),
            request(2, 14, 31, condition=ABSENT, ifRequest="0:1"),
            request(3, 15, 32, condition=ABSENT, ifRequest="0:1"),
            request(4, 16, 33, condition=ABSENT, ifRequest="0:1"),
        ],
        [seal(8, 0, 1), seal(15, 4, 9, ignored=[2])],
        "FIPI",
    ),
    Case(
        "a request if pending replaces the one that waits",
        [request(1, 9, 30), request(2, 10, 31, condition=PENDING)],
        [seal(8, 0, 1)],
        "MP",
    ),
    Case(
        "a late move under a condition does not fire",
        [request(1, 9, 15), request(2, 15, 31, condition=PENDING)],
        [seal(8, 0, 1), seal(15, 2, 9)],
        "FI",
    ),
    Case(
        "nor does one that became readable too late",
        [request(1, 9, 15), request(14, 14, 31, condition=PENDING)],
        [seal(8, 0, 1), seal(15, 14, 9)],
        "FI",
    ),
    Case(
        "a cancel if pending names the version that was seen",
        [
            request(1, 9, 30),
            cancel(2, 10, condition=PENDING, ifRequest="0:7"),
            cancel(3, 11, condition=PENDING, ifRequest="0:1"),
        ],
        [seal(8, 0, 1)],
        "CIC",
    ),
    Case(
        "a cancel if pending of nothing",
        [cancel(2, 10, condition=PENDING)],
        [seal(8, 0, 1)],
        "I",
    ),
    Case(
        "a cancel takes back what was appended before it in another partition",
        [cancel(2, 10), request(3, 10.5, 30, forwarded=sent_on(9)), request(4, 10.6, 31, forwarded=sent_on(10.2))],
        [seal(8, 0, 1)],
        "UIP",
    ),
    Case(
        "so does one that was sent on itself",
        [cancel(2, 10, forwarded=sent_on(9)), request(3, 10.5, 30, forwarded=sent_on(8.9)), request(4, 11, 15)],
        [seal(20, 14, 1)],
        "UIF",
    ),
    Case(
        "a cancel that was sent on counts from its first append",
        [cancel(2, 10, forwarded=sent_on(9)), request(3, 10.5, 30, forwarded=sent_on(9.5))],
        [seal(8, 0, 1)],
        "UP",
    ),
    Case(
        "what was sent on takes the place of the request before it",
        [request(2, 10, 30), request(3, 11, 31, forwarded=sent_on(9)), cancel(4, 12, forwarded=sent_on(11))],
        [seal(8, 0, 1)],
        "MCC",
    ),
    Case(
        "a cancel under a condition takes nothing back that comes later",
        [cancel(2, 10, condition=PENDING), request(3, 10.5, 30, forwarded=sent_on(9))],
        [seal(8, 0, 1)],
        "IP",
    ),
    Case(
        "a cancel is known for an hour to what arrives later",
        [
            cancel(2, 10),
            request(3, 3_609.9, 3_700, forwarded=sent_on(9)),
            request(4, 3_610, 3_701, forwarded=sent_on(9)),
        ],
        [seal(8, 0, 1)],
        "UIP",
    ),
]
