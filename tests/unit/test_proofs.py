"""A proof shows the outcome of a request, and nothing else can be made of it."""

import base64
import copy
import json
import random
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

import pytest

from kafka_timers.core.chain import Day, Place, PublishedDay, days_in, path_to, root_from, root_of
from kafka_timers.core.proofs import Link, ProvenRecord, document_of, verified
from kafka_timers.core.routing import partition_of
from kafka_timers.core.sums import ReadSums, fired_digest_of, hash_of_record, sum_of
from kafka_timers.core.wire import Future, Sealed
from kafka_timers.errors import ProofError

DAY = "2027-01-15"
START_S = 1_800_000_000
NUMBER = 3


def asked(offset: int, due_s: int, appended_s: float = 0, **more: Any) -> ProvenRecord:
    """Return a record of the log, that lies in no proof yet; times are seconds behind the start."""
    future = Future(callBackTopic="callbacks", callBack=b"%d" % offset, **more)
    appended_ms = round((START_S + appended_s) * 1000)
    return ProvenRecord(offset, appended_ms, b"%d" % (START_S + due_s), future.SerializeToString(), [], None, 0, [])


GONE, A, B = [name for name in map(str, range(100)) if partition_of(name, 8) == NUMBER][:3]
RECORDS = [
    asked(0, 12),
    asked(1, 12),
    asked(2, 20),
    asked(4, 12, 1, cancel=True, timerId=GONE),
    asked(5, 13, 1, timerId=A, millis=250),
    asked(7, 13, 2, timerId=B),
    asked(8, 0, 9, timerId=B, cancel=True),
    asked(9, 13, 9, headers=[{"key": "h", "value": b"v"}]),
    asked(10, 5_000, 9),
    asked(12, 30, 11),
    asked(13, 5_000, 12, copy={"offset": 10, "appended": START_S + 9, "decidedOffset": 12, "decided": START_S + 12}),
]
# End and fence of each seal, and the requests fired by it; a slice has more behind it.
SEALS = [
    (12, 6, [], False),
    (13, 6, [0], True),
    (13, 6, [1], False),
    (14, 11, [5, 9], False),
    (15, 13, [], False),
    (5_001, 14, [2, 12, 10], False),
]


def links() -> list[Link]:
    """Return the seals, each naming the one before it."""
    values: list[bytes] = []
    first = 0
    for end, fence, fired, goes_on in SEALS:
        seal = Sealed(partition=NUMBER, fence=fence, fired=len(fired), format=3, digests=1, horizon_s=4_000)
        seal.first_ms, seal.end_ms = (START_S + first) * 1000, (START_S + end) * 1000
        seal.fired_digest = fired_digest_of(NUMBER, fired)
        below = [record for record in RECORDS if record.offset < fence]
        ReadSums(0, fence, near=sum_of(NUMBER, below)).tell(seal)
        if goes_on:
            seal.through = b"key"
        else:
            first = end
        seal.previous = sha256(values[-1]).digest() if values else b""
        values.append(seal.SerializeToString())
    hashes = [sha256(value).digest() for value in values]
    return [Link(value, DAY, path_to(hashes, number)) for number, value in enumerate(values)]


LINKS = links()
PUBLISHED = {(NUMBER, DAY): Day(len(LINKS), root_of([sha256(link.value).digest() for link in LINKS]))}


def shown(offset: int, after: int | None, by: int) -> ProvenRecord:
    """Return the record at *offset* as one that was read between two seals."""
    [record] = [each for each in RECORDS if each.offset == offset]
    begin, behind = 0 if after is None else SEALS[after][1], SEALS[by][1]
    others = [hash_of_record(NUMBER, each) for each in RECORDS if begin <= each.offset < behind and each != record]
    told = (record.offset, record.timestamp, record.key, record.value, record.headers)
    return ProvenRecord(*told, after, by, others)


def proof(records: Sequence[ProvenRecord], covering: Sequence[int]) -> dict[str, Any]:
    fired = [offset for number in covering[1:] for offset in SEALS[number][2]]
    told = document_of(NUMBER, 8, records, LINKS, covering=covering, fired=fired)
    return json.loads(json.dumps(told))


PROOFS: dict[str, tuple[dict[str, Any], str]] = {
    "fired": (proof([shown(9, 2, 3)], [2, 3]), "fired"),
    "fired in slices": (proof([shown(1, None, 0)], [0, 1, 2]), "fired"),
    "at its millisecond": (proof([shown(5, None, 0)], [2, 3]), "fired"),
    "cancelled": (proof([shown(7, 2, 3), shown(8, 2, 3)], [2, 3]), "taken back"),
    "not fired": (proof([shown(7, 2, 3)], [2, 3]), "did not fire"),
    "waits": (proof([shown(12, 3, 4)], [4]), "waits"),
    "parked": (proof([shown(10, 2, 3)], [4]), "parked"),
    "came back": (proof([shown(10, 2, 3), shown(13, 4, 5)], [4, 5]), "fired"),
    "read from the beginning": (proof([shown(2, None, 4)], [4, 5]), "fired"),
}


@pytest.mark.parametrize("name", PROOFS)
@pytest.mark.parametrize("published", [None, PUBLISHED], ids=["trusted", "published"])
def test_a_proof_shows_the_outcome_of_a_request(name: str, published: Any) -> None:
    document, state = PROOFS[name]
    verdict = verified(document, published)
    assert (verdict.state, verdict.is_published) == (state, published is not None)
    assert all(line.endswith((".", ",")) for line in verdict.lines)


def test_the_verdict_is_written_in_sentences() -> None:
    assert verified(PROOFS["cancelled"][0]).lines == [
        "The record at 3:7 was appended at 2027-01-15 08:00:02.000 UTC.",
        "The record at 3:8 was appended at 2027-01-15 08:00:09.000 UTC.",
        "It did not fire: the seal from 2027-01-15 08:00:13.000 UTC to 2027-01-15 08:00:14.000 UTC, the first one that "
        "covers it, does not count it as fired,",
        "and a request fires with no other seal.",
        "It was cancelled by the record at offset 8, 4,000 ms before it was due.",
    ]


# --- nothing else can be made of it ----------------------------------------------------------------------------------


def places(told: Any, path: tuple = ()) -> list[tuple]:
    """Return the way to each value in a document that is not made of others."""
    if isinstance(told, dict | list):
        parts = told.items() if isinstance(told, dict) else enumerate(told)
        return [place for name, part in parts for place in places(part, (*path, name))]
    return [path]


def changed(value: Any, rng: random.Random) -> Any:
    """Return something else than *value*, of its kind."""
    if value is None:
        return rng.choice([0, 1, ""])
    if isinstance(value, int):
        return value + rng.choice([-1, 1, 2, 1 << 20])
    if not value:
        return "AA=="
    try:
        raw = bytearray(base64.b64decode(value, validate=True))
    except ValueError:
        return value + "x"
    at = rng.randrange(8 * len(raw))
    raw[at // 8] ^= 1 << at % 8
    return base64.b64encode(raw).decode()


@pytest.mark.parametrize("name", PROOFS)
def test_a_proof_in_which_anything_was_changed_shows_the_same_or_nothing(name: str) -> None:
    document, state = PROOFS[name]
    rng, refused = random.Random(name), 0
    for place in places(document) * 20:
        other = copy.deepcopy(document)
        part: Any = other
        for each in place[:-1]:
            part = part[each]
        part[place[-1]] = changed(part[place[-1]], rng)
        try:
            verdict = verified(other, PUBLISHED)
            # That it waits is shown by any seal that is not too late.
            assert verdict.state == state, place
            assert state == "waits" or verdict.lines == verified(document).lines, place
        except ProofError:
            refused += 1
    assert refused > 15 * len(places(document))


def without(part: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda document: {name: value for name, value in document.items() if name != part}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda _: proof([shown(9, 2, 3)], [1, 2, 3]), "do not follow|not one seal"),
        (lambda _: proof([shown(9, 2, 3)], [3, 4]), "not the first one"),
        (lambda _: proof([shown(9, 2, 3)], [1, 2]), "not one seal|not the first"),
        (lambda _: proof([shown(1, None, 0)], [0, 2]), "do not follow"),
        (lambda _: proof([shown(9, 2, 3)], [3]), "covers it"),
        (lambda _: proof([shown(7, 2, 3), shown(4, None, 0)], [2, 3]), "not about the timer"),
        (lambda _: proof([shown(8, 2, 3)], [2, 3]), "no request"),
        (lambda document: {**document, "proof": 2}, "version 2"),
        (lambda document: {**document, "records": []}, "no proof"),
        (lambda document: {**document, "fired": document["fired"][:8]}, "no proof"),
        *((without(part), "no proof") for part in ("proof", "partition", "records", "seals", "covering", "fired")),
    ],
)
def test_an_invalid_proof_is_refused(make: Callable[[dict[str, Any]], dict[str, Any]], says: str) -> None:
    with pytest.raises(ProofError, match=says):
        verified(make(PROOFS["fired"][0]))


def test_seals_that_were_not_published_show_nothing() -> None:
    document = PROOFS["fired"][0]
    for published, says in (
        ({}, "nothing was published of partition 3 for 2027-01-15"),
        ({(NUMBER, DAY): Day(len(LINKS) + 1, PUBLISHED[NUMBER, DAY].root)}, "among the 7 published ones"),
        ({(NUMBER, DAY): Day(len(LINKS), b"x" * 32)}, "none of those that were published"),
    ):
        with pytest.raises(ProofError, match=says):
            verified(document, published)


# --- the tree --------------------------------------------------------------------------------------------------------


def test_a_seal_has_one_place_in_the_tree_of_its_day() -> None:
    for count in range(1, 40):
        hashes = [sha256(b"%d" % number).digest() for number in range(count)]
        root = root_of(hashes)
        for number, each in enumerate(hashes):
            place = path_to(hashes, number)
            assert root_from(each, place) == root
            others = [at for at in range(count) if root_from(each, place._replace(number=at)) == root]
            assert others == [number]
            assert root_from(sha256(each).digest(), place) != root
    assert root_from(hashes[0], Place(1, 1, [])) is None
    assert root_from(hashes[0], Place(0, 1, [b"x"])) is None
    assert root_from(hashes[0], Place(0, 2, [])) is None


def test_published_days_are_read_as_they_were_written() -> None:
    days = {(0, DAY): Day(3, b"x" * 32), (1, DAY): Day(86_400, b"y" * 32)}
    lines = [PublishedDay(*key, day).line() for key, day in days.items()]
    assert days_in([*lines, "", *lines], "chain.jsonl") == days


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{}", "chain.jsonl, line 2: this is no line of lake publish-chain"),
        ("[]", "no line"),
        ("fired", "no line"),
        ('{"partition": 0, "day": "2027-01-15", "seals": 1, "root": "no"}', "no line"),
        (
            '{"partition": 0, "day": "2027-01-15", "seals": 4, "root": "00"}',
            "differs from it, for 2027-01-15",
        ),
    ],
)
def test_an_invalid_or_contradictory_published_line_is_refused(line: str, says: str) -> None:
    with pytest.raises(ProofError, match=says):
        days_in([PublishedDay(0, DAY, Day(3, b"x" * 32)).line(), line], "chain.jsonl")
