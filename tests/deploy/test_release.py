"""What `make release` has made, for somebody who pulls it and has no checkout."""

import hashlib
import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from test_chart import SCENARIOS, helm, rendered
from test_serve import fires_and_ends
from uv import find_uv_bin

import kafka_timers

VERSION = kafka_timers.__version__
README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def made() -> Path:
    """The folder of the release."""
    assert "RELEASE" in os.environ, "make release runs these tests, once it has made the files"
    return Path(os.environ["RELEASE"]).resolve()


def test_the_checksums_are_of_all_that_one_can_pull(made: Path) -> None:
    lines = (made / "SHA256SUMS").read_text().splitlines()
    told = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert set(told) == {file.name for file in made.iterdir()} - {"SHA256SUMS", "notes.md"}
    assert len(told) == 5
    for name, digest in told.items():
        assert hashlib.sha256((made / name).read_bytes()).hexdigest() == digest
    assert (made / "notes.md").read_text().strip()


async def test_the_line_of_the_readme_serves_a_kafka(
    made: Path, bootstrap: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [line] = re.findall(r"^uvx .*$", README.read_text(), re.MULTILINE)
    uvx, option, wheel, program, *serves = shlex.split(line)
    assert serves == ["serve", "--bootstrap", "HOST:PORT", "--create-topics", "--door", "headers=timers"]
    # After a release it names the package in the index, where this one is not yet.
    name = f"kafka_timers-{VERSION}-py3-none-any.whl"
    assert wheel in (f"build/release/{name}[serve]", "kafka-timers[serve]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    command = [find_uv_bin().removesuffix("uv") + uvx, option, f"{made / name}[serve]", program]
    await fires_and_ends(command, bootstrap, prefix, tmp_path)


def test_the_packaged_chart_makes_the_same_as_that_of_the_checkout(made: Path) -> None:
    package = str(made / f"kafka-timers-{VERSION}.tgz")
    about = yaml.safe_load(helm("show", "chart", package).stdout)
    assert (about["version"], about["appVersion"]) == (VERSION, VERSION)
    # A release takes its own images.
    registry = os.environ.get("REGISTRY", "").lower()
    image = f"{registry}/kafka-timers" if registry else "kafka-timers"
    assert yaml.safe_load(helm("show", "values", package).stdout)["image"]["repository"] == image
    for scenario in SCENARIOS:
        packaged = json.dumps(rendered(scenario, package)).replace(f"{image}:", "kafka-timers:")
        assert packaged == json.dumps(rendered(scenario))


def test_the_site_is_whole(made: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(made / f"kafka-timers-docs-{VERSION}.zip", tmp_path)
    assert {"index.html", "index.md", "llms.txt", "operate.html", "operate.md"} <= {
        file.name for file in tmp_path.iterdir()
    }
