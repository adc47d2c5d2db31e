"""The time that what runs now and then reads off the last ticks."""

import pytest

from kafka_timers.broker.ticked import tick_of


@pytest.mark.parametrize(
    ("key", "appended_ms", "second"),
    [(b"20", 20_999, 20), (b"20", 19_999, 19), (b"20", 30_000, 20), (b"x", 1, None), (b"", 1, None), (None, 1, None)],
)
def test_a_tick_is_its_second_but_never_ahead_of_the_broker(key: bytes, appended_ms: int, second: int | None) -> None:
    assert tick_of(key, appended_ms) == second
