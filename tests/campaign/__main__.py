"""`python -m campaign`: run faults on brokers of their own, and write their results."""

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

from partable import PartableCluster
from prometheus import Prometheus, is_installed

from campaign.faults import FAULTS, Fault
from campaign.run import Outcome, run
from campaign.table import page
from kafka_timers.dev.broker import EmbeddedKafka

# As the chart has it by default.
_SCRAPE_EVERY_S = 15


async def once(fault: Fault, folder: Path, rate: float, seed: int, short: bool) -> Outcome:
    """Return the outcome of one run, on brokers that nobody has used."""
    kafka = EmbeddedKafka(folder / "kafka") if fault.brokers == 1 else PartableCluster(folder / "kafka")
    clocks = fault.clocks(folder) if fault.clocks else None
    if clocks and isinstance(kafka, PartableCluster):
        for number, node in kafka.nodes.items():
            node.environment |= clocks.of_broker(number)
    await kafka.start()
    try:
        async with Prometheus.started(folder / "prometheus", _SCRAPE_EVERY_S) as prometheus:
            return await run(
                *(fault, kafka, "campaign-", folder),
                rate=rate,
                seed=seed,
                short=short,
                clocks=clocks,
                prometheus=prometheus,
            )
    finally:
        await kafka.kill()


def main() -> None:
    """Run each fault some times; after each run the files hold all that is known."""
    parser = argparse.ArgumentParser(prog="campaign", description=main.__doc__)
    parser.add_argument("--fault", action="append", choices=FAULTS, help="only this one; all by default")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each fault")
    parser.add_argument("--rate", type=float, default=2_000, help="timers a second")
    parser.add_argument("--short", action="store_true", help="faults of 20 s at most, as `make test` has them")
    parser.add_argument("--folder", type=Path, help="keep logs and data of each run here")
    parser.add_argument("--json", type=Path, help="write the figures of all runs here")
    parser.add_argument("--add", action="store_true", help="keep what the JSON file has of earlier runs")
    parser.add_argument("--page", type=Path, help="write the table of the runs in the JSON file here")
    given = parser.parse_args()
    assert is_installed(), "install prometheus, as with `apt-get install prometheus`"
    known = json.loads(given.json.read_text()) if given.add and given.json.exists() else []
    for turn in range(given.rounds):
        for name in given.fault or [name for name, fault in FAULTS.items() if turn == 0 or not fault.is_long]:
            with tempfile.TemporaryDirectory(prefix="campaign-") as temporary:
                seed = sum(one["fault"] == name for one in known)
                folder = (given.folder or Path(temporary)) / f"{name}-{seed}"
                outcome = asyncio.run(once(FAULTS[name], folder, given.rate, seed, given.short))
            print(name, outcome.document(), outcome.problems() or "all held", flush=True)
            known.append({"fault": name, "rate": given.rate, "short": given.short} | outcome.document())
            if given.json:
                given.json.write_text(json.dumps(known, indent=1) + "\n")
            if given.page:
                given.page.write_text(page(known))


main()
