"""How many partitions a worker serves, where somebody may have added some."""

import pytest

from kafka_timers.core.wire import Sealed, Topics, partitions_in
from kafka_timers.errors import TopicsError
from kafka_timers.processes.start import served_partitions

TOPICS = Topics()


def found(requests: int, oscillator: int, sealed: int) -> dict[str, int]:
    return {"timer-request": requests, "oscillator": oscillator, "timer-sealed": sealed} | dict.fromkeys(
        ("timer-rejected", "timer-reply", "timer-door"), 1
    )


@pytest.mark.parametrize(
    ("counts", "sealed_with", "wanted", "served"),
    [
        ((4, 4, 4), 0, 0, 4),
        ((4, 4, 4), 4, 4, 4),
        ((8, 4, 4), 4, 0, 4),
        ((8, 8, 8), 4, 0, 4),
        ((8, 8, 8), 0, 4, 4),
        ((8, 4, 6), 0, 4, 4),
    ],
)
def test_the_seals_tell_it_else_the_option_else_the_topics(
    counts: tuple[int, int, int], sealed_with: int, wanted: int, served: int
) -> None:
    assert served_partitions(found(*counts), TOPICS, sealed_with, wanted) == served


@pytest.mark.parametrize(
    ("counts", "sealed_with", "wanted", "words"),
    [
        ((8, 4, 4), 0, 0, "give --partitions with the number before"),
        ((8, 8, 8), 4, 8, "has run with 4 partitions, and --partitions says 8"),
        ((4, 2, 4), 4, 0, "oscillator has 2, timer-sealed has 4: add partitions"),
        ((4, 4, 4), 0, 8, "the service runs with 8 partitions"),
    ],
)
def test_partition_counts_that_do_not_fit_are_named_with_the_remedy(
    counts: tuple[int, int, int], sealed_with: int, wanted: int, words: str
) -> None:
    with pytest.raises(TopicsError, match=words):
        served_partitions(found(*counts), TOPICS, sealed_with, wanted)


def test_the_latest_seal_tells_it() -> None:
    assert partitions_in([]) == 0
    assert (
        partitions_in([Sealed(end_ms=8_000, fence=2, partitions=4), Sealed(end_ms=8_000, fence=1, partitions=8)]) == 4
    )
