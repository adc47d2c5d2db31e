"""Seals of moments within one second: what they leave out, and how a reader gets it back."""

import pytest

from kafka_timers.core.brief import filled, shortened
from kafka_timers.core.wire import FORMAT, Sealed, key_of_seal

WHO = {"worker": "http://worker-0.workers:6066/", "queries": "http://worker-0.workers:7070/"}
LOG = {"log": b"0123456789abcdef", "leader_epoch": 7, "ignored": [3, 5]}


def seal(end_ms: int, **more: object) -> Sealed:
    return Sealed(**{"partition": 3, "format": FORMAT, "end_ms": end_ms, "fence": end_ms, **WHO, **LOG} | more)


def read(seals: list[Sealed]) -> list[Sealed]:
    """Return *seals* as they come off the wire."""
    return filled([Sealed.FromString(each.SerializeToString()) for each in seals])


def test_the_second_seal_of_a_second_leaves_out_what_the_first_has_said_and_loses_nothing() -> None:
    whole, next_one = seal(12_004), seal(12_009, fired=1, pending=2)
    brief = shortened(next_one, whole)
    assert brief == Sealed(partition=3, end_ms=12_009, fence=12_009, fired=1, pending=2)
    assert (key_of_seal(whole), key_of_seal(brief)) == (b"3", b"3+")
    assert read([whole, brief, brief]) == [whole, next_one, next_one]


@pytest.mark.parametrize(
    "changed",
    [
        {"end_ms": 13_001},
        {"worker": "http://worker-1.workers:6066/"},
        {"log": b""},
        {"leader_epoch": 8},
        {"leader_epoch": None},
        {"ignored": [3]},
        {"ignored": []},
        {"format": FORMAT + 1},
        {"through": b"k"},
    ],
)
def test_a_seal_of_another_second_or_for_which_something_else_holds_is_whole(changed: dict[str, object]) -> None:
    before = seal(12_004)
    now = seal(12_009) if "end_ms" in changed else seal(12_009, **changed)
    if "end_ms" in changed:
        now.end_ms = 13_001
    assert shortened(now, before) is now
    assert key_of_seal(now) == (b"3 slice" if "through" in changed else b"3")
    assert read([before, now]) == [before, now]


def test_the_first_seal_of_an_owner_is_whole() -> None:
    now = seal(12_009)
    assert shortened(now, None) is now


def test_an_epoch_of_zero_is_told_from_none() -> None:
    whole, next_one = seal(12_004, leader_epoch=0), seal(12_009, leader_epoch=0)
    [_, told] = read([whole, shortened(next_one, whole)])
    assert told.HasField("leader_epoch")
    assert shortened(next_one, seal(12_004, leader_epoch=None)) is next_one


def test_slices_in_between_do_not_hide_what_was_said() -> None:
    whole, brief = seal(12_004), shortened(seal(12_014), seal(12_004))
    part = seal(12_009, through=b"k", worker="http://worker-1.workers:6066/")
    assert read([whole, part, brief]) == [whole, part, seal(12_014)]


def test_a_brief_seal_in_front_of_all_whole_ones_stays_as_it_is() -> None:
    brief = shortened(seal(12_009), seal(12_004))
    assert read([brief, seal(13_001)]) == [brief, seal(13_001)]
