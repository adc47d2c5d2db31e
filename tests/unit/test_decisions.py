"""The effect of the records of a timer id on each other, and the answers."""

from collections.abc import Iterable

import pytest

from kafka_timers.core.decisions import decide
from kafka_timers.core.keys import Copied
from kafka_timers.core.partition import Partition
from kafka_timers.core.versions import Answer, Decided, Original, TimerRecord, Version, cancel_name
from kafka_timers.core.wire import ID_MEMORY_MS, ID_MEMORY_S, Condition, Reply, Sealed

EARLY_MS, SECOND, DUE_MS = 5_000, 10, 10_000


def asked(offset: int, due_ms: int | None, appended_ms: int = EARLY_MS) -> TimerRecord:
    return TimerRecord(b"a", due_ms, offset, appended_ms, b"replies")


def outcomes(partition: Partition, *records: TimerRecord) -> list[str]:
    decided = decide(records, {}, partition)
    return [Reply.Outcome.Name(answer.outcome) for answer in decided.answers]


def test_each_record_means_something_for_the_request_before_it() -> None:
    records = [asked(0, 20_000), asked(1, 30_000), asked(2, None), asked(3, None)]
    records += [asked(4, 40_000), asked(5, 50_000, 41_000)]
    said = outcomes(Partition(0), *records)
    assert said == ["UNKNOWN", "MOVED", "CANCELLED", "CANCELLED", "UNKNOWN", "TOO_LATE"]


@pytest.mark.parametrize(("appended_ms", "outcome"), [(9_999, "CANCELLED"), (10_000, "TOO_LATE")])
def test_the_append_time_decides_to_the_millisecond(appended_ms: int, outcome: str) -> None:
    assert outcomes(Partition(0), asked(0, DUE_MS), asked(1, None, appended_ms))[1] == outcome


def test_a_record_that_depends_on_an_open_scan_is_left_with_all_behind_it() -> None:
    partition = Partition(0)
    partition.apply(partition.read(1))
    partition.begin(DUE_MS + 1_000)
    decided = decide([asked(0, DUE_MS), asked(1, None), asked(2, 30_000)], {}, partition)
    assert decided.undecided_at == 1
    assert decided.versions == {b"a": Version(DUE_MS, 0)}
    assert decided.withdrawn == decided.answers == []


def test_a_record_that_a_seal_covers_is_not_answered_again() -> None:
    partition = Partition(0)
    partition.acquire([Sealed(end_ms=(SECOND + 1) * 1000, fence=2)], None)
    decided = decide([asked(0, DUE_MS), asked(1, None), asked(2, None)], {}, partition)
    # Whether the first cancel was read in time cannot be told any more, only that there was a timer.
    assert decided.versions[b"a"] == Version(DUE_MS, 0, since_ms=EARLY_MS).doubted
    assert [(answer.offset, answer.outcome) for answer in decided.answers] == [(2, Reply.UNKNOWN)]


@pytest.mark.parametrize(
    "version",
    [
        None,
        Version(10_999, 2**63, cancelled=True, by=2**63 + 1),
        Version(10_000, 3, far=True),
        Version(10_000, 3, copied=Copied(9, 7)),
    ],
)
def test_an_answer_comes_back_from_the_store_as_it_was(version: Version | None) -> None:
    outcome = Reply.CANCELLED if version else Reply.UNKNOWN
    for first in ("", "3:11"):
        answer = Answer(7, b"replies", "clé".encode(), outcome, version, first)
        assert Answer.unpack(7, answer.pack()) == answer


def test_a_reply_names_the_asking_record_and_the_request_that_it_is_about() -> None:
    reply = Answer(7, b"replies", b"a", Reply.MOVED, Version(10_000, 3)).reply(2)
    assert reply == Reply(timerId="a", outcome="MOVED", second=10, request="2:3", asked="2:7")
    assert Answer(7, b"replies", b"a", Reply.UNKNOWN, None).reply(2) == Reply(
        timerId="a", outcome="UNKNOWN", asked="2:7"
    )
    # Where its sender was told that it lies.
    assert Answer(7, b"replies", b"a", Reply.UNKNOWN, None, "1:4").reply(2).asked == "1:4"


@pytest.mark.parametrize(("due_ms", "outcome"), [(None, "TOO_LATE"), (15_000, "CANCELLED")])
def test_a_copy_fires_and_leaves_the_last_word_to_a_later_request_of_its_id(due_ms: int | None, outcome: str) -> None:
    """An owner that has begun behind the original knows the record behind it alone, which came too late for it."""
    partition = Partition(0, horizon_s=5)
    known = dict(decide([asked(9, due_ms, 11_000)], {}, partition).versions)
    before = known[b"a"]
    assert before is not None
    assert before.latest == 9
    copy = TimerRecord(b"a", DUE_MS, 20, 12_000, b"", original=Original(3, 1, 12, 11))
    decided = decide([copy, asked(21, None, 12_500)], known, partition)
    assert decided.dropped == {}
    assert [Reply.Outcome.Name(answer.outcome) for answer in decided.answers] == [outcome]


def test_a_cancelled_id_is_forgotten_an_hour_after_its_cancel() -> None:
    """However long it was to wait."""
    decided = decide([asked(0, 1_000_000_000), asked(1, None, 61_000)], {}, judging())
    assert decided.expiring[120] == ([cancel_name(b"a"), b"a"], [1, 0])
    assert sorted(decided.remember) == [(0, 61_000), (1, 61_000)]


# --- conditions ------------------------------------------------------------------------------------------------------

PENDING, FIRED = Version(DUE_MS, 3), Version(3_000, 3)
CANCELLED = Version(DUE_MS, 3, cancelled=True, since_ms=EARLY_MS)
ONLY_A_CANCEL = Version(0, 0, cancelled=True, by=4)
FAR, COPY = Version(DUE_MS, 3, far=True, since_ms=EARLY_MS), Version(DUE_MS, 3, copied=Copied(6, 5))
OVER_MS, CANCEL_OVER_MS = DUE_MS + ID_MEMORY_MS, EARLY_MS + ID_MEMORY_MS
AT, NEW_MS = 7, 50_000_000


def told(before: Version | None, appended_ms: int) -> Version | None:
    """The answer to an ignored record about the timer *before* it: also whether that one waits."""
    if before is None or not before.due_ms:
        return None
    return before._replace(waits=not before.cancelled and before != FIRED and appended_ms < before.due_ms)


def judging(sealed: int = 4, snapshot: int = 5, ignored: Iterable[int] = ()) -> Partition:
    """Return a partition that is sealed up to the second *sealed*, and judges conditions."""
    partition = Partition(0)
    end_ms = (sealed + 1) * 1000
    seal = Sealed(fence=snapshot, first_ms=1_000, end_ms=end_ms)
    seal.ignored.extend(ignored)
    partition.acquire([seal], None)
    return partition


def under(
    condition: int, *, cancel: bool = False, offset: int = AT, appended_ms: int = EARLY_MS, expected: int | None = None
) -> TimerRecord:
    """Return a request for `NEW_MS`, or a cancel, under a *condition*."""
    due_ms = None if cancel else NEW_MS
    return TimerRecord(b"a", due_ms, offset, appended_ms, b"replies", condition=condition, expected=expected)


@pytest.mark.parametrize(
    ("before", "appended_ms", "holds"),
    [
        (None, EARLY_MS, True),
        (ONLY_A_CANCEL, EARLY_MS, True),
        (PENDING, EARLY_MS, False),
        (FAR, EARLY_MS, False),
        (COPY, EARLY_MS, False),
        (FIRED, EARLY_MS, False),
        (CANCELLED, EARLY_MS, False),
        # By the second of the one before, also when that has millis.
        (PENDING, OVER_MS - 1, False),
        (PENDING, OVER_MS, True),
        (CANCELLED, CANCEL_OVER_MS - 1, False),
        (CANCELLED, CANCEL_OVER_MS, True),
        (Version(DUE_MS + 999, 3), OVER_MS, True),
        (FIRED, 3_000 + ID_MEMORY_MS, True),
    ],
)
def test_a_request_if_absent_stands_only_where_none_was_made_within_the_hour(
    before: Version | None, appended_ms: int, holds: bool
) -> None:
    known = {b"a": before}
    decided = decide([under(Condition.IF_ABSENT, appended_ms=appended_ms)], known, judging())
    [answer] = decided.answers
    assert decided.withdrawn == []
    if holds:
        assert (answer.outcome, answer.version) == (Reply.ACCEPTED, None)
        assert decided.versions == known == {b"a": Version(NEW_MS, AT)}
        assert decided.ignored == {}
    else:
        assert (answer.outcome, answer.version) == (Reply.IGNORED, told(before, appended_ms))
        assert (decided.versions, known) == ({}, {b"a": before})
        assert decided.ignored == {AT: NEW_MS}


@pytest.mark.parametrize(
    ("before", "appended_ms", "holds"),
    [
        (None, EARLY_MS, True),
        # While it could be withdrawn it counts.
        (PENDING, DUE_MS - 1, False),
        (PENDING, DUE_MS, True),
        (Version(DUE_MS + 999, 3), DUE_MS + 998, False),
        (Version(DUE_MS + 999, 3), DUE_MS + 999, True),
        (FIRED, 3_000, True),
        (CANCELLED, DUE_MS - 1, False),
        (CANCELLED, DUE_MS, True),
        # The sender of the question knows the original's offset.
        (COPY, DUE_MS, True),
        (Version(DUE_MS, 4), DUE_MS, False),
        (Version(DUE_MS, 4), OVER_MS, True),
    ],
)
def test_a_request_if_absent_counts_all_but_the_one_that_it_names_once_that_is_due(
    before: Version | None, appended_ms: int, holds: bool
) -> None:
    record = under(Condition.IF_ABSENT, appended_ms=appended_ms, expected=3)
    decided = decide([record], {b"a": before}, judging())
    [answer] = decided.answers
    assert (answer.outcome, answer.version) == (
        (Reply.ACCEPTED, None) if holds else (Reply.IGNORED, told(before, appended_ms))
    )
    assert decided.withdrawn == []
    assert decided.ignored == ({} if holds else {AT: NEW_MS})


IF_PENDING_CASES = pytest.mark.parametrize(
    ("before", "appended_ms", "expected", "holds"),
    [
        (PENDING, EARLY_MS, None, True),
        (PENDING, EARLY_MS, 3, True),
        (PENDING, EARLY_MS, 4, False),
        (PENDING, DUE_MS - 1, None, True),
        (PENDING, DUE_MS, None, False),
        (PENDING, OVER_MS, None, False),
        (FAR, EARLY_MS, 3, True),
        # The sender of the question knows the original's offset.
        (COPY, EARLY_MS, 3, True),
        (COPY, EARLY_MS, 6, False),
        (None, EARLY_MS, None, False),
        (None, EARLY_MS, 3, False),
        (ONLY_A_CANCEL, EARLY_MS, None, False),
        (FIRED, EARLY_MS, None, False),
        (FIRED, EARLY_MS, 3, False),
        (CANCELLED, EARLY_MS, None, False),
        (CANCELLED, EARLY_MS, 3, False),
    ],
)


@IF_PENDING_CASES
@pytest.mark.parametrize("cancel", [False, True])
def test_a_record_if_pending_means_something_only_for_the_timer_that_was_meant(
    before: Version | None, appended_ms: int, expected: int | None, holds: bool, cancel: bool
) -> None:
    record = under(Condition.IF_PENDING, cancel=cancel, appended_ms=appended_ms, expected=expected)
    decided = decide([record], {b"a": before}, judging())
    [answer] = decided.answers
    if holds and before:
        assert (answer.outcome, answer.version) == (Reply.CANCELLED if cancel else Reply.MOVED, before)
        gone = before._replace(cancelled=True, since_ms=before.since_ms or appended_ms)
        assert decided.versions == {b"a": gone if cancel else Version(NEW_MS, AT)}
        assert [each.superseded for each in decided.withdrawn] == ([] if before.far else [not cancel])
        assert decided.ignored == {}
    else:
        # If only a cancel of an id is known, there is nothing to tell.
        assert (answer.outcome, answer.version) == (Reply.IGNORED, told(before, appended_ms))
        assert (decided.versions, decided.withdrawn) == ({}, [])
        assert decided.ignored == ({} if cancel else {AT: NEW_MS})


def test_an_ignored_record_leaves_the_timer_as_it_is_for_the_next_record() -> None:
    records = [under(Condition.IF_ABSENT), under(Condition.IF_PENDING, offset=8, cancel=True, expected=3)]
    decided = decide(records, {b"a": PENDING}, judging())
    assert [answer.outcome for answer in decided.answers] == [Reply.IGNORED, Reply.CANCELLED]
    assert decided.versions == {b"a": CANCELLED}


def test_a_request_that_was_ignored_once_is_ignored_by_every_next_owner() -> None:
    """The records that decide its condition lie below those that are read again."""
    for condition in (Condition.IF_ABSENT, Condition.IF_PENDING):
        heir = judging(snapshot=20, ignored=[AT])
        decided = decide([under(condition)], {}, heir)
        # It was answered before.
        assert (decided.versions, decided.answers, decided.ignored) == ({}, [], {AT: NEW_MS})


def test_a_move_if_pending_that_stood_once_stands_for_every_next_owner() -> None:
    """The request that it has replaced lies below the records that are read again, which it does after an hour."""
    heir, due_ms = judging(sealed=SECOND + ID_MEMORY_S, snapshot=20), NEW_MS + 2 * ID_MEMORY_MS
    decided = decide([under(Condition.IF_PENDING)._replace(due_ms=due_ms)], {}, heir)
    assert (decided.versions, decided.answers, decided.ignored) == ({b"a": Version(due_ms, AT)}, [], {})
    # Within the hour, and behind earlier answers, nothing known means that there is nothing.
    decided = decide([under(Condition.IF_PENDING)], {}, judging(snapshot=20))
    assert (decided.versions, decided.ignored) == ({}, {AT: NEW_MS})
    decided = decide([under(Condition.IF_PENDING, offset=20)._replace(due_ms=due_ms)], {}, heir)
    assert (decided.versions, decided.ignored) == ({}, {20: due_ms})


def test_a_move_if_pending_that_a_seal_covers_stands_beside_the_replaced_timer() -> None:
    """Whether the first owner has read it in time cannot be told any more, and it has been answered."""
    decided = decide([under(Condition.IF_PENDING, appended_ms=2_000)], {b"a": FIRED}, judging(snapshot=20))
    assert (decided.versions, decided.answers, decided.ignored) == ({b"a": Version(NEW_MS, AT)}, [], {})


def test_an_ignored_record_that_is_done_by_now_is_not_kept() -> None:
    record = under(Condition.IF_PENDING)._replace(due_ms=4_000, offset=4)
    assert decide([record], {b"a": CANCELLED}, judging(snapshot=5)).ignored == {}
    assert decide([record._replace(offset=5)], {b"a": CANCELLED}, judging(snapshot=5)).ignored == {5: 4_000}


def test_the_due_of_an_ignored_record_that_a_seal_names_is_learned_though_it_is_done() -> None:
    """Or it would be named as long as it may be read again, and a seal names ten thousand."""
    record = under(Condition.IF_PENDING)._replace(due_ms=4_000, offset=4)
    assert decide([record], {}, judging(snapshot=5, ignored=[4])).ignored == {4: 4_000}


def test_whether_a_condition_holds_may_have_to_wait_for_the_open_scan() -> None:
    partition = judging()
    partition.apply(partition.read(6))
    partition.begin(DUE_MS + 1_000)
    decided = decide([under(Condition.IF_PENDING, expected=3)], {b"a": PENDING}, partition)
    assert decided == Decided(undecided_at=AT)
