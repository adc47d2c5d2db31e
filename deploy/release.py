"""
Makes what a release has: `python deploy/release.py FOLDER` for `make release`, which tries it afterwards.

    kafka_timers-VERSION-py3-none-any.whl, kafka_timers-VERSION.tar.gz    the package and its sources
    kafka_timers.zip                                                      the package for spark-submit's --py-files
    kafka-timers-VERSION.tgz                                              the Helm chart
    kafka-timers-docs-VERSION.zip                                         the site of the docs
    SHA256SUMS                                                            of the files above, for `sha256sum --check`
    notes.md                                                              what CHANGELOG.md says of the version

FOLDER is made anew. `--packages` makes the first two lines alone. With `--tag` all must be ready for a release of that
name: the version is in several files, and a release may contain no word of being none. The images are made by
deploy/images.sh.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The pages that say how to install kafka-timers, and what they say before the first release.
INSTALL = ("README.md", "docs/index.md")
UNRELEASED = "There is no release yet"


def version_of(root: Path) -> str:
    """Return the version of the package in the checkout *root*."""
    return _found(r'^__version__ = "(.+)"$', root / "app/kafka_timers/__init__.py")[0]


def notes_of(root: Path) -> str:
    """Return what CHANGELOG.md says of the newest version, without its heading."""
    return (root / "CHANGELOG.md").read_text().split("\n## ")[1].partition("\n")[2].strip() + "\n"


def disagreements(root: Path, tag: str = "") -> Iterator[str]:
    """Yield a sentence for each file of *root* that has another version; with *tag*, for all that its release lacks."""
    version = version_of(root)
    for name in ("version", "appVersion"):
        if (found := _found(rf"^{name}: (.+)$", root / "deploy/chart/Chart.yaml")) != [version]:
            yield f"deploy/chart/Chart.yaml has {name} {', '.join(found)}, and the package is {version}"
    changes = _found(r"^## (.+)$", root / "CHANGELOG.md")
    if changes[0].partition(" ")[0] != version:
        yield f"CHANGELOG.md begins with {changes[0]}, and the package is {version}"
    dated = [bool(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", change)) for change in changes]
    for page in INSTALL:
        text = (root / page).read_text()
        if (UNRELEASED in text) == any(dated):
            yield f"{page} must say {UNRELEASED!r} until CHANGELOG.md has a version with a date, and no longer"
        if wrong := {*re.findall(r"kafka_timers-([\d.]+)-py3", text)} - {version}:
            yield f"{page} names the wheel of {', '.join(sorted(wrong))}, and the package is {version}"
    if tag and tag != f"v{version}":
        yield f"the tag is {tag}, and the package is {version}"
    if tag and not dated[0]:
        yield f"CHANGELOG.md has no date for {version}: write ## {version} (YYYY-MM-DD)"
    if tag and not _protocol_is_released(root):
        yield "proto/released.binpb is of other messages than proto/: run make proto-released"


def packages(folder: Path) -> None:
    """Build the wheel, by way of the sources, so that both are whole; and the wheel again as a zip."""
    _run(Path(sys.executable).with_name("uv"), "build", "--quiet", "--no-create-gitignore", "--out-dir", folder, ROOT)
    # Executors import from an archive only if its name ends in .zip.
    [wheel] = folder.glob("*.whl")
    shutil.copy(wheel, folder / "kafka_timers.zip")


def chart(folder: Path, helm: str, images: str) -> None:
    """Package the chart. Its images are those of *images*, such as ghcr.io/owner; without, those that you built."""
    with tempfile.TemporaryDirectory() as made:
        copy = shutil.copytree(ROOT / "deploy/chart", Path(made, "kafka-timers"))
        if images:
            values = (copy / "values.yaml").read_text()
            (copy / "values.yaml").write_text(
                values.replace("  repository: kafka-timers\n", f"  repository: {images}/kafka-timers\n", 1)
            )
        _run(helm, "package", copy, "--destination", folder)


def docs(folder: Path) -> None:
    """Build the site of the docs, and check its links."""
    built = ROOT / "build/docs"
    _run(sys.executable, ROOT / "docs/site/build.py", built)
    shutil.make_archive(str(folder / f"kafka-timers-docs-{version_of(ROOT)}"), "zip", built / "site")


def sums(folder: Path) -> None:
    """Write the checksums of all that lies in *folder*."""
    files = sorted(folder.iterdir())
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (folder / "SHA256SUMS").write_text("".join(lines))


def _found(pattern: str, file: Path) -> list[str]:
    return re.findall(pattern, file.read_text(), re.MULTILINE)


def _protocol_is_released(root: Path) -> bool:
    released = root / "proto/released.binpb"
    before = released.read_bytes()
    _run("make", "-C", root, "--silent", "proto-released")
    try:
        return released.read_bytes() == before
    finally:
        released.write_bytes(before)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)  # noqa: S603


def main() -> int:
    """Make the files, and tell what is wrong."""
    parser = argparse.ArgumentParser(description="Make what a release has.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--packages", action="store_true", help="make wheel, zip and sources alone")
    parser.add_argument("--tag", default="", help="the name of the release, such as v0.2.0")
    parser.add_argument("--helm", default="helm")
    parser.add_argument("--images", default="", help="where the chart's images are, such as ghcr.io/owner")
    asked = parser.parse_args()
    if wrong := list(disagreements(ROOT, asked.tag)):
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    shutil.rmtree(asked.folder, ignore_errors=True)
    asked.folder.mkdir(parents=True)
    packages(asked.folder)
    if not asked.packages:
        chart(asked.folder, asked.helm, asked.images)
        docs(asked.folder)
        sums(asked.folder)
        (asked.folder / "notes.md").write_text(notes_of(ROOT))
    print(*sorted(asked.folder.iterdir()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
