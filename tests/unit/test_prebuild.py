"""Callbacks that are ready before their tick: those that are used, and those that must fire with them."""

from collections import deque
from collections.abc import Iterable, Iterator

import pytest
from aiokafka.errors import KafkaConnectionError
from stand_ins import DUE_MS, ROOMY, SECOND, Known, slice_to

from kafka_timers.core.callbacks import Target
from kafka_timers.core.changes import Row
from kafka_timers.core.keys import batch_key, first_key, row_key
from kafka_timers.core.refused import Reason
from kafka_timers.core.rows import framed, pack
from kafka_timers.core.wire import Future
from kafka_timers.worker.prebuild import ByteBudget, Prebuilt, PrebuiltSeconds, behind
from kafka_timers.worker.slices import Slice

START, END = first_key(DUE_MS), first_key(DUE_MS + 1_000)
REQUEST = Future(callBackTopic="callbacks", callBack=b"v").SerializeToString()
BUDGET = 10_000


class Store:
    """Rows by key, in order."""

    def __init__(self, *keys: bytes) -> None:
        self.keys = [*keys]
        self.batches: dict[bytes, bytes] = {}

    def rows(self, start: bytes, before: bytes) -> Iterator[Row]:
        rows = dict.fromkeys(self.keys, REQUEST) | self.batches
        return iter([(key, row) for key, row in sorted(rows.items()) if start <= key < before])


def row(offset: int, millis: int = 0) -> bytes:
    return row_key(DUE_MS + millis, offset)


def new_slice() -> Slice:
    """Return a slice that takes two requests."""
    return slice_to(rows_max=2, not_before_ms=SECOND * 1000)


async def prebuilt(store: Store, budget: ByteBudget) -> Prebuilt:
    """Return all that can be made ready of *store*."""
    ready = Prebuilt(new_slice, store.rows(START, END), START, END, budget)
    while await ready.more():
        pass
    return ready


def offsets(built: Slice | None) -> list[int] | None:
    return None if built is None else built.contents.offsets


async def test_a_slice_that_fails_while_it_is_built_gives_back_no_more_than_it_took() -> None:
    class Failing:
        """Rows; the topic of the second one cannot be looked up."""

        def __iter__(self) -> Iterator[Row]:
            yield row(0), REQUEST
            raise KafkaConnectionError

    budget = ByteBudget(BUDGET)
    for _ in range(3):
        ready = Prebuilt(new_slice, iter(Failing()), START, END, budget)
        with pytest.raises(KafkaConnectionError):
            await ready.more()
        ready.release()
    assert budget.bytes == BUDGET


async def test_slices_are_handed_out_one_behind_the_other_and_give_their_budget_back() -> None:
    budget = ByteBudget(BUDGET)
    store = Store(*map(row, range(5)))
    ready = await prebuilt(store, budget)
    assert ready.requests == 5
    assert budget.bytes == BUDGET - 5 * len(REQUEST)
    start = START
    for expected in ([0, 1], [2, 3], [4]):
        built = ready.take(start, END, store.rows)
        assert offsets(built) == expected
        assert built
        start = behind(built)
    assert ready.take(start, END, store.rows) is None
    assert budget.bytes == BUDGET


async def test_a_slice_that_does_not_begin_where_the_scan_goes_on_is_not_used() -> None:
    """Much is left before it, or the tick covers less than the prepared slice."""
    store, earlier = Store(row(0)), batch_key(DUE_MS - 1_000, 2_000, 1_001)
    ready = await prebuilt(store, ByteBudget(BUDGET))
    store.keys.append(earlier)
    assert ready.take(earlier, END, store.rows) is None
    assert ready.take(START, START, store.rows) is None
    store.keys.remove(earlier)
    assert offsets(ready.take(earlier, first_key(DUE_MS + 7_000), store.rows)) == [0]


async def test_a_slice_whose_first_request_has_fired_is_not_used() -> None:
    store = Store(*map(row, range(2)))
    ready = await prebuilt(store, ByteBudget(BUDGET))
    assert ready.take(row(0) + b"\0", END, store.rows) is None
    assert offsets(ready.take(START, END, store.rows)) == [0, 1]


async def test_the_rest_of_the_second_before_fires_with_the_slice_that_is_ready() -> None:
    store, left = Store(row(0)), row_key(DUE_MS - 10, 7)
    ready = await prebuilt(store, ByteBudget(BUDGET))
    store.keys.append(left)
    built = ready.take(left, END, store.rows)
    assert built
    assert offsets(built) == [0]
    assert [key for key, _ in ready.missed(built, store.rows, left)] == [left]


async def test_rows_that_came_into_the_range_of_a_slice_are_fired_with_it() -> None:
    store = Store(row(0), row(1), row(2), row(3, millis=500))
    ready = await prebuilt(store, ByteBudget(BUDGET))
    store.keys += [row(4), row(5, millis=900)]
    ready.added(row(4))
    first = ready.take(START, END, store.rows)
    assert first
    assert list(ready.missed(first, store.rows, START)) == []
    second = ready.take(behind(first), END, store.rows)
    assert second
    assert [key for key, _ in ready.missed(second, store.rows, behind(first))] == [row(4)]
    assert [key for key, _ in store.rows(behind(second), END)] == [row(5, millis=900)]


async def test_the_rest_of_a_batch_whose_last_request_was_withdrawn_did_not_come_later() -> None:
    """The batch's key names the request that was withdrawn, which is in no slice: its rest must not fire twice."""
    store = Store()
    store.batches[batch_key(DUE_MS, 3, 2)] = pack(framed([REQUEST]), [2])
    ready = await prebuilt(store, ByteBudget(BUDGET))
    store.keys.append(row(1))
    ready.added(row(1))
    built = ready.take(START, END, store.rows)
    assert built
    assert offsets(built) == [2]
    assert [key for key, _ in ready.missed(built, store.rows, START)] == [row(1)]


async def test_nothing_is_made_ready_beyond_the_budget_and_the_rest_gives_it_back() -> None:
    budget = ByteBudget(3 * len(REQUEST))
    ready = await prebuilt(Store(*map(row, range(9))), budget)
    assert ready.requests == 4  # a stride ends with its slice
    ready.release()
    assert (ready.requests, budget.bytes) == (0, 3 * len(REQUEST))


async def test_of_nothing_nothing_is_ready() -> None:
    ready = await prebuilt(Store(), ByteBudget(BUDGET))
    assert (ready.requests, ready.take(START, END, Store().rows)) == (0, None)


async def test_a_withdrawn_request_is_not_handed_out_nor_the_part_behind_it() -> None:
    """The part before stays of use; the rest is read when its tick comes."""
    budget = ByteBudget(BUDGET)
    store = Store(*map(row, range(6)))
    ready = await prebuilt(store, budget)
    ready.withdrawn(row(3))
    assert offsets(ready.take(START, END, store.rows)) == [0, 1]
    assert (ready.slices, budget.bytes) == (deque(), BUDGET)
    assert not await ready.more()


async def test_a_request_withdrawn_elsewhere_changes_nothing() -> None:
    store = Store(row(0))
    ready = await prebuilt(store, ByteBudget(BUDGET))
    ready.withdrawn(END + row(3))
    assert offsets(ready.take(START, END, store.rows)) == [0]


async def test_a_request_withdrawn_while_its_slice_is_built_drops_that_slice() -> None:
    """It may have been read from the store and not have reached the slice yet."""
    budget = ByteBudget(BUDGET)

    class Asked(Known):
        async def resolve(self, names: Iterable[str]) -> None:
            ready.withdrawn(row(3))
            self.verdicts |= dict.fromkeys(names, ROOMY)

    known, store = Asked(), Store(*map(row, range(2)))
    ready = Prebuilt(lambda: slice_to(known, rows_max=2), store.rows(START, END), START, END, budget)
    assert not await ready.more()
    assert (ready.take(START, END, store.rows), budget.bytes) == (None, BUDGET)


async def test_nothing_is_made_ready_behind_a_request_that_was_withdrawn_meanwhile() -> None:
    """Its row is among those that were read from the store before."""
    store = Store(*map(row, range(6)))
    ready = Prebuilt(new_slice, store.rows(START, END), START, END, ByteBudget(BUDGET))
    assert await ready.more()
    ready.withdrawn(row(3))
    assert not await ready.more()
    assert ready.requests == 2


async def test_a_slice_that_is_dropped_in_its_second_stride_gives_the_first_one_back() -> None:
    budget = ByteBudget(BUDGET)

    class Strides:
        """Stands for a slice that takes ten bytes in each stride."""

        bytes, is_full = 0, False

        def __len__(self) -> int:
            return 1

        async def add(self, _: Iterator[Row]) -> bool:
            self.bytes += 10
            if self.bytes > 10:
                ready.withdrawn(row(3))
            return True

    ready = Prebuilt(Strides, iter(()), START, END, budget)  # type: ignore[arg-type]
    assert await ready.more()
    assert budget.bytes == BUDGET - 10
    assert not await ready.more()
    assert budget.bytes == BUDGET


# --- several seconds -------------------------------------------------------------------------------------------------


async def two_seconds(store: Store, budget: ByteBudget) -> PrebuiltSeconds:
    """Return the prepared slices of SECOND and the one behind it."""
    ahead = PrebuiltSeconds()
    for start in (START, END):
        end = first_key(DUE_MS + 1_000 * (1 + (start == END)))
        ready = Prebuilt(new_slice, store.rows(start, end), start, end, budget)
        while await ready.more():
            pass
        ahead.add(ready)
    return ahead


def later(offset: int) -> bytes:
    return row_key(DUE_MS + 1_000, offset)


async def test_each_second_is_handed_out_at_its_tick() -> None:
    store, budget = Store(row(0), row(1), row(2), later(3)), ByteBudget(BUDGET)
    ahead = await two_seconds(store, budget)
    assert ahead.requests == 4
    handed_out = []
    for start, end in ((START, END), (row(1) + b"\0", END), (END, first_key(DUE_MS + 2_000))):
        built, missed, is_last = ahead.next_slice(start, end, store.rows) or (None, (), None)
        handed_out.append((offsets(built), [*missed], is_last))
    assert handed_out == [([0, 1], [], False), ([2], [], True), ([3], [], True)]
    assert budget.bytes == BUDGET


async def test_a_tick_that_covers_two_seconds_gets_the_first_one_and_reads_the_rest() -> None:
    """As after a missed tick: the prepared slice of a later second ends where the slice of this scan goes on."""
    store, budget = Store(row(0), later(1)), ByteBudget(BUDGET)
    ahead = await two_seconds(store, budget)
    built, _, is_last = ahead.next_slice(START, first_key(DUE_MS + 2_000), store.rows) or (None, (), None)
    assert (offsets(built), is_last, ahead.requests, budget.bytes) == ([0], True, 0, BUDGET)


@pytest.mark.parametrize(
    ("then", "is_used"), [({"callbacks": Reason.TOPIC_UNKNOWN}, True), ({"callbacks": ROOMY}, False), ({}, False)]
)
async def test_a_request_rejected_for_a_topic_that_has_been_created_since_is_judged_anew(
    then: dict[str, Target | Reason], is_used: bool
) -> None:
    """As it is where nobody knows any more whether the topic is there."""
    known, budget = Known(callbacks=Reason.TOPIC_UNKNOWN), ByteBudget(BUDGET)
    store, ahead = Store(row(0), row(1), row(2)), PrebuiltSeconds()
    ready = Prebuilt(lambda: slice_to(known, rows_max=2), store.rows(START, END), START, END, budget)
    while await ready.more():
        pass
    ahead.add(ready)
    known.verdicts = then
    built = ahead.next_slice(START, END, store.rows)
    assert (built is not None) == is_used
    assert budget.bytes == (BUDGET - len(REQUEST) if is_used else BUDGET)
    assert ahead.requests == is_used


async def test_a_second_with_a_withdrawn_request_is_made_ready_anew() -> None:
    store, budget = Store(row(0), later(1)), ByteBudget(BUDGET)
    ahead = await two_seconds(store, budget)
    ahead.withdrawn(later(1))
    assert ahead.up_to(first_key(DUE_MS + 2_000)) is None
    assert ahead.up_to(END) is not None
    assert budget.bytes == BUDGET - len(REQUEST)
