"""
etf1's history: a topic to which fired callbacks are written again.

The request shows whether a callback belongs to the history, since every schedule of etf1 asks for a tombstone on its
own topic. So no field is needed, and the history is part of firing: cancelled, moved or refused requests have none, and
requests from before the history was set up have one.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class History:
    """The topic of the history, and the schedule topics whose callbacks it gets."""

    topic: bytes
    sources: frozenset[bytes]
