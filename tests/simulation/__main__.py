"""`python -m simulation SEED` tells one history step by step; with a second number, those up to it in short."""

import sys
import time

from simulation.world import run_history


def main(first: int, last: int | None = None) -> None:
    """Tell history *first*, or which ones of those from *first* up to *last* fail."""
    if last is None:
        run_history(first, trace=print)
        return
    began_s, failed = time.process_time(), 0
    for seed in range(first, last):
        try:
            run_history(seed)
        except Exception as error:
            failed += 1
            print(f"{seed}: {type(error).__name__}: {error}"[:300], flush=True)
    each_ms = 1000 * (time.process_time() - began_s) / max(last - first, 1)
    print(f"{failed} of {last - first} histories fail; {each_ms:.0f} ms of CPU each")


main(*map(int, sys.argv[1:]))
