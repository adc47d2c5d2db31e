"""What the records of a timer id mean for each other, and what is answered."""

import pytest

from kafka_timers.client.request import partition_of
from kafka_timers.core.decisions import decide
from kafka_timers.core.keys import Copied
from kafka_timers.core.partition import Partition
from kafka_timers.core.routing import hash_of
from kafka_timers.core.versions import Answer, TimerRecord, Version
from kafka_timers.core.wire import ID_MEMORY_S, Reply, Sealed

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


def test_what_depends_on_an_open_scan_is_left_with_all_that_comes_behind() -> None:
    partition = Partition(0)
    partition.apply(partition.read(1))
    partition.apply(partition.begin(DUE_MS + 1_000))
    decided = decide([asked(0, DUE_MS), asked(1, None), asked(2, 30_000)], {}, partition)
    assert decided.undecided_at == 1
    assert decided.versions == {b"a": Version(DUE_MS, 0)}
    assert decided.withdrawn == decided.answers == []


def test_what_a_seal_covers_is_not_answered_again() -> None:
    partition = Partition(0)
    partition.acquire([Sealed(last=SECOND, fence=2)], None)
    decided = decide([asked(0, DUE_MS), asked(1, None), asked(2, None)], {}, partition)
    # Whether the first cancel was read in time cannot be told any more, only that there was a timer.
    assert decided.versions == {b"a": Version(DUE_MS, 0, cancelled=True, unsure=True)}
    assert [(answer.offset, answer.outcome) for answer in decided.answers] == [(2, Reply.UNKNOWN)]


def test_what_was_done_an_hour_ago_is_not_kept() -> None:
    partition = Partition(0)
    partition.acquire([Sealed(last=SECOND + ID_MEMORY_S, fence=2)], None)
    decided = decide([asked(0, DUE_MS), TimerRecord(b"b", DUE_MS + 1_000, 1, EARLY_MS, b"")], {}, partition)
    assert {timer_id for timer_id, version in decided.versions.items() if version} == {b"b"}
    assert [ids for ids, _ in decided.expiring.values()] == [[b"b"]]


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
    answer = Answer(7, b"replies", "clé".encode(), outcome, version)
    assert Answer.unpack(7, answer.pack()) == answer


def test_a_reply_names_the_asking_record_and_the_request_that_it_is_about() -> None:
    reply = Answer(7, b"replies", b"a", Reply.MOVED, Version(10_000, 3)).reply(2)
    assert reply == Reply(timerId="a", outcome="MOVED", second=10, request="2:3", asked="2:7")
    assert Answer(7, b"replies", b"a", Reply.UNKNOWN, None).reply(2) == Reply(
        timerId="a", outcome="UNKNOWN", asked="2:7"
    )


@pytest.mark.parametrize("name", ["a", "clé", "x" * 1_000])
def test_ids_are_hashed_as_clients_hash_them(name: str) -> None:
    assert hash_of(name.encode()) % 7 == partition_of(name, 7)
