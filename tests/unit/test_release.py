"""What a release needs agrees before somebody tags it, and its workflow does nothing that cannot be run here."""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import kafka_timers

ROOT = Path(__file__).parents[2]
VERSION = kafka_timers.__version__
DATED = f"{VERSION} (2030-01-31)"


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "deploy" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Change = Callable[[str, str, str], None]


@pytest.fixture
def checkout(tmp_path: Path) -> tuple[Path, Change]:
    """A checkout with the files that have the version, ready to be released, and how to change one of them."""
    for name in ("app/kafka_timers/__init__.py", "deploy/chart/Chart.yaml", "CHANGELOG.md", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs/index.md", tmp_path / "docs/index.md")

    def change(name: str, pattern: str, to: str) -> None:
        text, changes = re.subn(pattern, to, (tmp_path / name).read_text(), count=1, flags=re.MULTILINE)
        assert changes or pattern == "There is no release yet"
        (tmp_path / name).write_text(text)

    change("CHANGELOG.md", r"^## .*$", f"## {DATED}")
    for page in ("README.md", "docs/index.md"):
        change(page, "There is no release yet", "It is in the index")
    return tmp_path, change


def test_all_files_have_the_same_version(release: ModuleType) -> None:
    assert list(release.disagreements(ROOT)) == []


@pytest.mark.parametrize(
    ("file", "pattern", "to", "told"),
    [
        (
            "deploy/chart/Chart.yaml",
            "^version: .*$",
            "version: 7.0.0",
            f"has version 7.0.0, and the package is {VERSION}",
        ),
        ("deploy/chart/Chart.yaml", "^appVersion: .*$", "appVersion: 7.0.0", "has appVersion 7.0.0, and the package"),
        ("CHANGELOG.md", "^## .*$", "## 7.0.0 (2030-01-31)", "begins with 7.0.0 (2030-01-31), and the package"),
        ("CHANGELOG.md", "^## .*$", f"## {VERSION} (unreleased)", f"CHANGELOG.md has no date for {VERSION}"),
        ("README.md", "^## Install$", "There is no release yet", "README.md must say 'There is no release yet' until"),
        ("docs/index.md", "^## Try it$", "kafka_timers-7.0.0-py3", "docs/index.md names the wheel of 7.0.0, and the"),
    ],
)
def test_what_has_another_version_is_named_before_a_release(
    release: ModuleType,
    checkout: tuple[Path, Change],
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    pattern: str,
    to: str,
    told: str,
) -> None:
    monkeypatch.setattr(release, "_protocol_is_released", lambda _: True)
    root, change = checkout
    assert list(release.disagreements(root, f"v{VERSION}")) == []
    change(file, pattern, to)
    assert any(told in line for line in release.disagreements(root, f"v{VERSION}"))


def test_a_tag_of_another_version_and_messages_that_are_not_released_are_named(
    release: ModuleType, checkout: tuple[Path, Change], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "_protocol_is_released", lambda _: False)
    assert list(release.disagreements(checkout[0], "v7.0.0")) == [
        f"the tag is v7.0.0, and the package is {VERSION}",
        "proto/released.binpb is of other messages than proto/: run make proto-released",
    ]


def test_the_workflow_only_calls_make_and_has_few_rights() -> None:
    file = ROOT / ".github/workflows/release.yml"
    if not file.exists():
        pytest.skip("not a git checkout")
    workflow = yaml.safe_load(file.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    rights = {
        name: {k for k, v in job.get("permissions", {}).items() if v == "write"}
        for name, job in workflow["jobs"].items()
    }
    assert rights == {
        "make": set(),
        "images": {"packages"},
        "index": {"id-token"},
        "registry": {"packages"},
        "pages": {"contents"},
    }
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    runs = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert runs
    assert [run for run in runs if not (run.startswith("make ") and run.removeprefix("make ") in targets)] == []


def test_images_are_pushed_for_each_platform_and_joined(tmp_path: Path) -> None:
    (stub := tmp_path / "docker").write_text('#!/bin/sh\necho "$@"\n')
    stub.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    command = ["make", "--silent", "-C", str(ROOT), "publish-images", "REGISTRY=ghcr.io/Some-Owner"]
    done = subprocess.run([*command, "PLATFORM=linux/arm64"], env=env, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("make")]
    builds, starts = lines[::2], lines[1::2]
    stages = set(re.findall(r" AS (\S+)$", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE))
    for build, start, target in zip(builds, starts, ("worker", "oscillator", "lake"), strict=True):
        assert target in stages
        name = "ghcr.io/some-owner/kafka-timers" + f"-{target}" * (target != "worker")
        assert f"--target {target} --platform linux/arm64 --sbom=true --provenance=mode=max" in build
        assert build.endswith(f"--tag {name}:{VERSION}-arm64 --push .")
        assert start == f"run --rm {name}:{VERSION}-arm64 --version"
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    joined = [line for line in done.stdout.splitlines() if not line.startswith("make")]
    name = "ghcr.io/some-owner/kafka-timers"
    assert joined[0] == f"buildx imagetools create --tag {name}:{VERSION} {name}:{VERSION}-amd64 {name}:{VERSION}-arm64"
    assert len(joined) == 3
