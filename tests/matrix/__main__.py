"""`python -m matrix`: try the service on brokers of other versions and makes, and write the results."""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from kafka_timers.errors import KafkaSetupError
from matrix.profiles import PROFILES
from matrix.run import problems_of, run
from matrix.table import put

_TIMERS, _LONG = 200_000, 1_000_000


def main() -> int:
    """Take 21 steps and fire timers under kills on each broker; exit with 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="matrix", description=main.__doc__)
    parser.add_argument("--profile", action="append", choices=PROFILES, help="only this one; all by default")
    parser.add_argument("--timers", type=int, default=_TIMERS, help="timers of each profile at least")
    parser.add_argument("--long", action="store_true", help=f"the same as --timers {_LONG}")
    parser.add_argument("--rate", type=float, default=2_000, help="timers a second")
    parser.add_argument("--idle-s", type=float, default=180, help="seconds in which all is left alone at the end")
    parser.add_argument("--folder", type=Path, help="keep logs and data here")
    parser.add_argument("--json", type=Path, help="put the results here, in place of earlier ones of the same profiles")
    parser.add_argument("--page", type=Path, help="put the table of these results between the marks of this page")
    given = parser.parse_args()
    before = json.loads(given.json.read_text()) if given.json and given.json.exists() else []
    known, is_well = {one["profile"]: one for one in before}, True
    for name in given.profile or PROFILES:
        with tempfile.TemporaryDirectory(prefix="matrix-") as temporary:
            folder = (given.folder or Path(temporary)) / name
            folder.mkdir(parents=True, exist_ok=True)
            timers = _LONG if given.long else given.timers
            try:
                told = asyncio.run(run(name, folder, timers=timers, rate=given.rate, idle_s=given.idle_s))
            except (AssertionError, KafkaSetupError) as error:
                # The service did not start at all; its results of before stay.
                print(name, f"cannot be tried: {error}", flush=True)
                is_well = False
                continue
        problems = problems_of(told)
        print(name, json.dumps(told), problems or "all held", flush=True)
        is_well = is_well and not problems
        known[name] = told
        ordered = [known[profile] for profile in PROFILES if profile in known]
        if given.json:
            given.json.write_text(json.dumps(ordered, indent=1) + "\n")
        if given.page:
            put(ordered, given.page)
    return 0 if is_well else 1


sys.exit(main())
