"""
Publishes the site of one version: `python docs/site/publish.py SITE.zip VERSION` pushes it to the branch gh-pages.

The branch keeps the sites of all versions:

    0.1.0/, 0.2.0/, …    each as it was published
    latest/              the newest one once more, so that a link to one of its pages lasts
    index.html           leads to latest/
    versions.json        the versions that each page offers in its header, newest first
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BRANCH = "gh-pages"


def lay_out(site: Path, version: str, folder: Path) -> None:
    """Put the archive *site* among the sites that *folder* has."""
    shutil.rmtree(folder / version, ignore_errors=True)
    shutil.unpack_archive(site, folder / version)
    versions = [path.name for path in folder.iterdir() if re.fullmatch(r"\d+\.\d+\.\d+", path.name)]
    versions.sort(key=lambda name: [*map(int, name.split("."))], reverse=True)
    shutil.rmtree(folder / "latest", ignore_errors=True)
    shutil.copytree(folder / versions[0], folder / "latest")
    told = [{"version": each, "title": each, "aliases": ["latest"] * (each == versions[0])} for each in versions]
    (folder / "versions.json").write_text(json.dumps(told, indent=2) + "\n")
    (folder / "index.html").write_text(
        '<!doctype html>\n<meta charset="utf-8">\n<title>kafka-timers</title>\n'
        '<meta http-equiv="refresh" content="0; url=latest/">\n<a href="latest/">The docs of kafka-timers</a>\n'
    )
    # GitHub would leave out files whose names begin with an underscore.
    (folder / ".nojekyll").touch()


def publish(site: Path, version: str, repository: Path) -> None:
    """Push the archive *site* as that of *version* to the origin of *repository*, beside those that it has."""

    def git(*arguments: str, **variables: str) -> str:
        command = ["git", "-C", str(repository), *arguments]
        return subprocess.check_output(command, env=os.environ | variables, text=True).strip()  # noqa: S603

    with tempfile.TemporaryDirectory() as made:
        folder, parents = Path(made, "sites"), []
        folder.mkdir()
        if git("ls-remote", "origin", f"refs/heads/{BRANCH}"):
            git("fetch", "--quiet", "--depth=1", "origin", BRANCH)
            parents = ["-p", git("rev-parse", "FETCH_HEAD")]
            git("archive", "--output", f"{made}/before.tar", "FETCH_HEAD")
            shutil.unpack_archive(f"{made}/before.tar", folder, filter="data")
        lay_out(site, version, folder)
        # By whom the release is, and without touching what is checked out.
        name, email = git("log", "-1", "--format=%an%n%ae").splitlines()
        by = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": email}
        by |= {"GIT_COMMITTER_NAME": name, "GIT_COMMITTER_EMAIL": email}
        index = {"GIT_INDEX_FILE": f"{made}/index", "GIT_WORK_TREE": str(folder)}
        git("add", "--all", "--force", str(folder), **index)
        commit = git("commit-tree", git("write-tree", **index), *parents, "-m", f"docs: publish {version}", **by)
        git("push", "--quiet", "origin", f"{commit}:refs/heads/{BRANCH}")


if __name__ == "__main__":
    publish(Path(sys.argv[1]).resolve(), sys.argv[2], Path(__file__).parents[2])
