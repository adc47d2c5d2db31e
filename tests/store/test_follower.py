"""The request log of a partition → its store and its state, with a real RocksDB, after failures and repeats."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from at_once import at_once

from kafka_timers.core.changes import Changes
from kafka_timers.core.contents import Contents
from kafka_timers.core.keys import first_key, parts_of
from kafka_timers.core.partition import Partition
from kafka_timers.core.refused import Reason
from kafka_timers.core.rows import singles
from kafka_timers.core.sums import ReadSums, sum_of
from kafka_timers.core.wire import Future, Sealed
from kafka_timers.runtime.metrics import WorkerMetrics
from kafka_timers.testing import ManualClock
from kafka_timers.worker.faults import FaultError, LogCutError, StoreBehindError
from kafka_timers.worker.follower import Follower
from kafka_timers.worker.store import TimerStore
from kafka_timers.worker.stores import StoreFolders

DUE_S, END_MS = 100, 101_000
LAST = first_key(10**14)


@dataclass
class Record:
    """A record on the request log, appended long before it is due."""

    offset: int
    value: bytes
    key: bytes = b"%d" % DUE_S
    timestamp: int = 5_000
    headers: Sequence[tuple[str, bytes | None]] = ()


def asked(offset: int, **more: Any) -> Record:
    return Record(offset, Future(**({"callBackTopic": "callbacks"} | more)).SerializeToString())


def cancel(offset: int, timer_id: str) -> Record:
    return asked(offset, timerId=timer_id, cancel=True, replyTopic="replies")


class Wanted:
    """Stands for the knowledge of callback topics: takes note of the wanted ones."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Any] = {}
        self.wanted: list[str] = []

    def want(self, names: Any) -> None:
        self.wanted += names

    async def resolve(self, names: Any) -> None:
        raise AssertionError("a follower asks for no topic")

    def refuse(self, name: str, reason: Reason) -> None:
        raise AssertionError("a follower sends nothing")

    def doubt(self) -> None:
        raise AssertionError("a follower sends nothing")


class Followed:
    """A follower of partition 0, and its messages to others."""

    def __init__(self, folder: Path, **partition: int) -> None:
        self.stores = StoreFolders(folder, "cluster/timer-request", partition.get("horizon_s", 0))
        self.topics, self.metrics = Wanted(), WorkerMetrics()
        self.told: list[Changes] = []
        # What the log has kept of each leader epoch.
        self.kept_to: dict[int, int] = {}
        self.clock = ManualClock(1_000.0)
        self.follower = Follower(
            Partition(0, **partition),
            partitions=1,
            topic="timer-request",
            stores=self.stores,
            topics=self.topics,
            metrics=self.metrics,
            clock=self.clock,
            kept=self._kept,
            is_other=self._is_other,
            on_read=self.told.append,
        )

    async def _is_other(self, known: bytes) -> bool:
        return False

    async def _kept(self, epoch: int) -> int:
        return self.kept_to[epoch]

    @property
    def partition(self) -> Partition:
        return self.follower.partition

    def offsets(self) -> list[int]:
        """Return the offsets of all requests that the store would fire."""
        rows = self.follower.store.rows(first_key(0) + b"\xff", LAST)
        return sorted(parts_of(single)[1] for key, row in rows for single, _ in singles(key, row))

    def seal(self, *, through: bytes = b"") -> None:
        """Seal all rows of the open scan, or those up to the key *through*, as the owner does."""
        follower, partition = self.follower, self.partition
        start, end = partition.keys_left()
        rows = list(follower.store.rows(start, through + b"\0" if through else end))
        keys = [single for key, row in rows for single, _ in singles(key, row)]
        contents = Contents([parts_of(key)[1] for key in keys], through=through or max(keys, default=b""))
        seal = partition.seal(contents, complete=not through)
        follower.write(partition.sealed(seal, contents, through + b"\0" if through else end))
        follower.release_held()

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"kafka_timers_{name}_total", labels) or 0.0


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., Followed]]:
    """Open a follower at the beginning of the log, which ends far ahead; all are closed at the end."""
    opened: list[Followed] = []

    def follow(seals: Sequence[Sealed] = (), end: int = 1_000, **partition: int) -> Followed:
        followed = Followed(tmp_path, **partition)
        opened.append(followed)
        at_once(followed.follower.open(seals, 0, end, None))
        return followed

    yield follow
    for each in opened:
        asyncio.run(each.follower.close())


Follow = Callable[..., Followed]


def test_unread_requests_are_as_old_as_the_first_end_of_the_log_that_is_not_reached(follow: Follow) -> None:
    followed = follow()
    follower, clock = followed.follower, followed.clock

    async def wait_for(*ends: int) -> None:
        for end in ends:
            waits = asyncio.create_task(follower.reach(end, unless=lambda: False))
            await clock.advance(1)
            waits.cancel()

    asyncio.run(wait_for(1, 3, 5))
    ages_s = [follower.unread_s]
    for offset in range(5):
        follower.ingest([asked(offset)], offset + 1)
        ages_s.append(follower.unread_s)
    assert ages_s == [3, 2, 2, 1, 1, 0]


class Refusing:
    """A store that takes no write, and is a real one otherwise."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def write(self, changes: Changes) -> None:
        raise OSError("No space left on device")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_store_that_is_the_only_copy_is_not_dropped_to_read_the_log_again(
    follow: Follow, tmp_path: Path, is_alone: bool
) -> None:
    before = follow()
    before.follower.ingest([asked(0), asked(1), asked(2)], 3)
    asyncio.run(before.follower.close())
    after = Followed(tmp_path)
    after.stores.alone = {0: 3} if is_alone else {}
    try:
        at_once(after.follower.open([], 2, 1_000, 1))
        assert after.offsets() == ([0, 1, 2] if is_alone else [])
        assert after.partition.lost == (range(0) if is_alone else range(2))
    finally:
        asyncio.run(after.follower.close())


# --- feeding ---------------------------------------------------------------------------------------------------------


def test_fed_requests_are_stored_and_counted_and_reported(follow: Follow) -> None:
    followed = follow()
    followed.follower.ingest([asked(0), asked(1, timerId="a", callBackTopic="other"), cancel(2, "a")], 4)
    assert (followed.offsets(), followed.partition.position, followed.partition.pending) == ([0], 4, 1)
    assert sorted(followed.topics.wanted) == ["callbacks", "other"]
    [changes] = followed.told
    assert [parts_of(key) for key, mark in changes.marks.items() if mark] == [(100_000, 1)]
    assert [answer.offset for answer in changes.answers] == [2]
    assert (followed.count("requests"), followed.count("taken_back", how="cancelled")) == (2, 1)
    assert followed.follower.read_at_s == 0.0


def test_positions_that_pass_offsets_without_a_record_are_kept(follow: Follow) -> None:
    followed = follow()
    followed.follower.ingest([], 7)
    assert (followed.partition.position, followed.follower.store.head().position) == (7, 7)


def test_a_write_that_fails_moves_no_position_and_tells_nobody(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the failed records are read again, by the next owner."""
    followed = follow()
    follower = followed.follower
    follower.ingest([asked(0), asked(1, timerId="a")], 2)
    before = followed.partition.head, followed.partition.pending, follower.store.head(), follower.store.counts()
    told = len(followed.told)
    later = [asked(2, callBackTopic="other"), cancel(3, "a")]
    with monkeypatch.context() as patch:
        patch.setattr(follower, "_store", Refusing(follower.store))
        with pytest.raises(OSError, match="No space"):
            follower.ingest(later, 4)
    assert before == (
        followed.partition.head,
        followed.partition.pending,
        follower.store.head(),
        follower.store.counts(),
    )
    assert (follower.read_up_to, len(followed.told), followed.topics.wanted) == (2, told, ["callbacks"])
    assert followed.count("requests") == 2
    follower.ingest(later, 4)
    assert (followed.offsets(), followed.partition.position, followed.partition.pending) == ([0, 2], 4, 2)


@pytest.mark.parametrize("first", [1, 2, 5])
def test_requests_fed_twice_are_counted_once(follow: Follow, first: int) -> None:
    """A fetch may begin below the read records, and end within them, at their end or behind it."""
    followed = follow()
    records = [asked(offset, **({"timerId": "a"} if offset == 3 else {})) for offset in range(5)]
    follower = followed.follower
    follower.ingest(records[:first], first)
    for part, position in ((records[:first], first), (records[: first + 1], min(first + 1, 5)), (records, 5)):
        follower.ingest(part, position)
    assert (followed.offsets(), followed.partition.pending, followed.partition.position) == ([0, 1, 2, 3, 4], 5, 5)
    assert follower.store.counts() == {0: (5, 0)}
    assert followed.count("requests") == 5


def test_a_position_does_not_go_back(follow: Follow) -> None:
    followed = follow()
    followed.follower.ingest([asked(0)], 9)
    followed.follower.ingest([asked(0)], 4)
    followed.follower.ingest([], 8)
    assert (followed.partition.position, followed.follower.store.head().position) == (9, 9)


def test_a_record_on_which_the_code_fails_is_set_aside_and_told(
    follow: Follow, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All others of its partition go on."""
    followed = follow()
    place = followed.partition.place

    def failing(due_ms: int, offset: int, *more: Any) -> bytes | None:
        if offset == 1 and due_ms:
            raise ZeroDivisionError("a bug")
        return place(due_ms, offset, *more)

    monkeypatch.setattr(followed.partition, "place", failing)
    followed.follower.ingest([asked(0, millis=1), asked(1, millis=1), asked(2, millis=1)], 3)
    assert (followed.offsets(), followed.partition.position, followed.partition.pending) == ([0, 1, 2], 3, 3)
    assert followed.count("requests") == 2
    [record] = caplog.records
    assert "timer-request partition 0 offset 1 is set aside as unreadable" in record.getMessage()
    assert record.exc_info


# --- holding back ----------------------------------------------------------------------------------------------------


def scanning(followed: Followed) -> None:
    """Read two requests with timer ids, and begin to fire them."""
    followed.follower.ingest([asked(0, timerId="a"), asked(1, timerId="b")], 2)
    followed.partition.begin(END_MS)


def test_a_record_that_an_open_scan_decides_is_held_back_with_all_behind_it_until_its_end(follow: Follow) -> None:
    """The next owner may read the cancel before it begins a scan of its own, until a slice of this one is sealed."""
    followed = follow()
    scanning(followed)
    follower = followed.follower
    follower.ingest([asked(2), cancel(3, "a"), asked(4)], 6)
    assert (follower.read_up_to, followed.partition.position) == (6, 3)
    follower.ingest([asked(6)], 7)
    assert (follower.read_up_to, followed.partition.position, followed.offsets()) == (7, 3, [0, 1, 2])
    followed.seal()
    assert (follower.read_up_to, followed.partition.position) == (7, 7)
    assert (followed.offsets(), followed.partition.pending) == ([2, 4, 6], 3)
    # The scan has fired it.
    assert [(answer.offset, answer.outcome) for answer in follower.store.answers()] == [(3, 3)]
    assert followed.count("requests") == 5


def test_a_record_held_back_is_counted_as_read_once_it_is_decided_and_not_twice(follow: Follow) -> None:
    followed = follow()
    scanning(followed)
    records = [asked(0, timerId="a"), asked(1, timerId="b"), asked(2), cancel(3, "a"), asked(4)]
    followed.follower.ingest(records[2:], 5)
    assert followed.partition.head.read == ReadSums(0, 3, near=sum_of(0, records[:3]))
    followed.seal()
    near = [record for record in records if record.offset != 3]
    assert followed.partition.head.read == ReadSums(0, 5, near=sum_of(0, near), cancels=sum_of(0, records[3:4]))
    assert followed.follower.store.head().read == followed.partition.head.read


def test_a_record_held_back_is_decided_once_a_slice_of_the_scan_is_sealed(follow: Follow) -> None:
    """The next owner of the scan has its snapshot then."""
    followed = follow()
    scanning(followed)
    [(first, _), *_] = followed.follower.store.rows(first_key(0) + b"\xff", LAST)
    followed.follower.ingest([cancel(2, "b")], 3)
    assert (followed.follower.read_up_to, followed.partition.position) == (3, 2)
    followed.seal(through=first)
    assert (followed.follower.read_up_to, followed.partition.position) == (3, 3)


def test_a_reader_that_begins_anew_with_a_shorter_fetch_repeats_and_loses_nothing(follow: Follow) -> None:
    """It goes on where the store is, though more is held back."""
    followed = follow()
    scanning(followed)
    follower = followed.follower
    held = [asked(2), cancel(3, "a"), asked(4), asked(5)]
    follower.ingest(held, 6)
    assert (followed.partition.position, follower.read_up_to) == (3, 6)
    follower.ingest(held[1:2], 4)
    assert (followed.partition.position, follower.read_up_to) == (3, 6)
    follower.ingest(held[2:], 6)
    follower.ingest([*held[1:], asked(6), asked(7)], 8)
    assert (followed.partition.position, follower.read_up_to, followed.told[-1].head.position) == (3, 8, 3)
    followed.seal()
    assert (followed.partition.position, follower.store.head().position) == (8, 8)
    assert (followed.offsets(), followed.partition.pending) == ([2, 4, 5, 6, 7], 5)
    assert [answer.offset for answer in follower.store.answers() if answer.offset > 1] == [3]
    assert followed.count("requests") == 7


def test_requests_fed_twice_after_they_were_held_back_are_counted_once(follow: Follow) -> None:
    followed = follow()
    scanning(followed)
    followed.follower.ingest([cancel(2, "a"), asked(3)], 4)
    followed.seal()
    followed.follower.ingest([cancel(2, "a"), asked(3)], 4)
    followed.follower.ingest([asked(3), asked(4)], 5)
    assert (followed.offsets(), followed.partition.pending, followed.partition.position) == ([3, 4], 2, 5)


# --- opening ---------------------------------------------------------------------------------------------------------


def test_a_store_that_is_opened_again_goes_on_where_it_was(follow: Follow) -> None:
    seals = [Sealed(first_ms=1_000, end_ms=10_000)]
    first = follow(seals)
    first.follower.ingest([asked(0), asked(1, timerId="a")], 3)
    asyncio.run(first.follower.close())
    again = follow(seals)
    assert (again.partition.position, again.partition.pending, again.offsets()) == (3, 2, [0, 1])


def test_a_record_held_back_at_the_end_is_read_again_from_the_log(follow: Follow) -> None:
    seals = [Sealed(first_ms=1_000, end_ms=10_000)]
    first = follow(seals)
    scanning(first)
    first.follower.ingest([cancel(2, "a"), asked(3)], 4)
    asyncio.run(first.follower.close())
    again = follow(seals)
    assert (again.partition.position, again.offsets()) == (2, [0, 1])
    assert again.follower.read_up_to == 2


def test_a_store_that_has_read_beyond_the_log_is_emptied(follow: Follow) -> None:
    """The log has lost records, or was made anew."""
    seals = [Sealed(first_ms=1_000, end_ms=10_000)]
    first = follow(seals)
    first.follower.ingest([asked(offset) for offset in range(9)], 9)
    asyncio.run(first.follower.close())
    again = follow(seals, end=5)
    assert (again.partition.position, again.partition.pending, again.offsets()) == (0, 0, [])


def test_a_log_that_ends_below_fired_requests_is_not_followed(follow: Follow) -> None:
    with pytest.raises(LogCutError, match="from offset 5 on, as in an unclean election, and has been fired up to 7"):
        follow([Sealed(end_ms=51_000, fence=7)], end=5)


# --- faults ----------------------------------------------------------------------------------------------------------


async def test_a_waiting_caller_gets_the_first_error(follow: Follow) -> None:
    followed = follow()
    followed.follower.fail(OSError("first"))
    followed.follower.fail(OSError("second"))
    with pytest.raises(FaultError, match="first"):
        await followed.follower.reach(5, unless=lambda: False)
    with pytest.raises(FaultError, match="first"):
        followed.follower.check()


# --- a log that another broker leads ---------------------------------------------------------------------------------


async def test_records_of_another_leader_are_taken_if_it_has_what_was_read_before(follow: Follow) -> None:
    followed = follow()
    followed.kept_to = {-1: 0}
    await followed.follower.ready(4)
    followed.follower.ingest([], 9)
    followed.kept_to = {4: 9}
    await followed.follower.ready(6)
    followed.kept_to = {6: 8}
    # It has lost offset 8, and has another record there.
    with pytest.raises(LogCutError, match="from offset 8 on, as in an unclean election, of which 1 had been read"):
        await followed.follower.ready(7)


# --- a disk that is slow ---------------------------------------------------------------------------------------------


async def test_new_requests_wait_for_a_slower_disk(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    first = follow()
    behind = [True, True, False]
    monkeypatch.setattr(TimerStore, "is_behind", property(lambda _: behind.pop(0)))
    await first.follower.ready(-1)
    assert behind == []


async def test_a_disk_that_takes_nothing_for_long_is_a_fault_and_no_endless_wait(
    follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = follow()
    looks = iter([0.0, 4.0, 8.0, 12.0])
    monkeypatch.setattr(first.clock, "elapsed_s", lambda: next(looks))
    monkeypatch.setattr(TimerStore, "is_behind", True)
    with pytest.raises(StoreBehindError, match="has taken nothing for 10 s"):
        await first.follower.ready(-1)
