"""Support for Faust agents that receive callbacks."""

from typing import Any

from kafka_timers.broker.internals import have_read_committed

__all__ = ["read_committed"]


def read_committed(app: Any) -> None:
    """
    Make all agents of *app* read committed records alone, as receivers of callbacks must.

    Faust reads uncommitted records unless its own `processing_guarantee` is `exactly_once`, which has further effects.
    Call this once in the app's module, after the app's settings are made.

    Args:
        app: a `faust.App` that is not started.
    """
    have_read_committed(app)
