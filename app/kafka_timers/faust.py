"""
For agents of Faust that receive callbacks.
"""

from typing import Any

from kafka_timers.broker.internals import have_read_committed

__all__ = ["read_committed"]


def read_committed(app: Any) -> None:
    """
    Have all agents of *app* read committed records alone, as receivers of callbacks need.

    Faust reads uncommitted ones unless its own `processing_guarantee` is `exactly_once`, which does more than that.
    Call this once in the module of the app, after its settings are made.

    Args:
        app: a `faust.App` that is not started.
    """
    have_read_committed(app)
