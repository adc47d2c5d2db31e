"""The dashboard and the alarms ask for metrics that there are, in words that Prometheus knows."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

CHART = Path(__file__).parents[2] / "deploy" / "chart"
OPERATE = CHART.parents[1] / "docs" / "operate.md"

needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is missing: install prometheus")


def queries() -> Iterator[tuple[str, str]]:
    """Yield the title of each panel, and its query with the dashboard's variables filled in."""
    for panel in json.loads((CHART / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "1m").replace("$namespace", ".*")


def test_metrics_of_dashboard_and_alarms_are_documented() -> None:
    known = set(re.findall(r"^\| `(kafka_timers_\w+)` \|", OPERATE.read_text(), re.MULTILINE))
    alarms = yaml.safe_load((CHART / "alarms.yaml").read_text())["groups"][0]["rules"]
    asked = [*queries(), *((rule["alert"], rule["expr"]) for rule in alarms)]
    for title, query in asked:
        names = {re.sub("_(bucket|sum|count)$", "", name) for name in re.findall(r"kafka_timers_\w+", query)}
        assert names
        assert names <= known, title


@needs_promtool
def test_prometheus_understands_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": query} for number, (_, query) in enumerate(queries())]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    checked = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@needs_promtool
def test_alarms_ring_for_their_problem_and_for_nothing_else() -> None:
    told = subprocess.run(
        ["promtool", "test", "rules", Path(__file__).parent / "alarms.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
