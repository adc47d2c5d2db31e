"""
Seals of moments within one second, without what another seal of their owner has said in that second.

Pure. Most of a seal's bytes say who wrote it and which log it is of, and a busy partition may write 200 a second:

    12.004   whole    key 3    who, which log, and what has fired up to there
    12.009   brief    key 3+   what has fired up to there
    12.014   brief    key 3+
    13.002   whole    key 3

Compaction leaves the last seal of each key, so it leaves the whole seal that a brief one builds on. The first seal of
an owner is whole, and so is one for which something else holds than the whole seal before it says.
"""

from collections.abc import Iterable
from typing import Any

from kafka_timers.core.wire import Sealed, is_brief, is_complete, last_second_of

# A seal without a format is brief.
_SAID_ONCE = frozenset(("format", "worker", "queries", "log", "leader_epoch", "ignored", "swept"))


def shortened(seal: Sealed, whole: Sealed | None) -> Sealed:
    """
    Return *seal* as it is written: without what *whole* has said, if that is of the same second and still holds.

    Args:
        whole: the last whole seal that this owner has committed; None if there is none.
    """
    if whole is None or last_second_of(whole) != last_second_of(seal) or not is_complete(seal):
        return seal
    return seal if _said_by(seal) != _said_by(whole) else _cleared(seal, _SAID_ONCE)


def filled(seals: Iterable[Sealed]) -> list[Sealed]:
    """Return *seals* of a partition, in log order, each whole. A brief one in front of all whole ones stays brief."""
    full, said = [], Sealed()
    for seal in seals:
        if is_brief(seal):
            seal.MergeFrom(said)
        elif is_complete(seal):
            said = _cleared(seal, set(Sealed.DESCRIPTOR.fields_by_name) - _SAID_ONCE)
        full.append(seal)
    return full


def _said_by(seal: Sealed) -> list[tuple[str, Any]]:
    return [(field.name, said) for field, said in seal.ListFields() if field.name in _SAID_ONCE]


def _cleared(seal: Sealed, names: Iterable[str]) -> Sealed:
    rest = Sealed()
    rest.CopyFrom(seal)
    for name in names:
        rest.ClearField(name)
    return rest
