"""How often Python's garbage collector runs in processes that hold many small objects, none of them in a cycle."""

import gc


def collect_seldom() -> None:
    """
    Have the collector leave alone what there is by now, and run seldom.

    With Python's default thresholds it walks through a busy second's records again and again, for a quarter of the
    second's CPU time.
    """
    gc.freeze()
    gc.set_threshold(500_000, 20, 20)
