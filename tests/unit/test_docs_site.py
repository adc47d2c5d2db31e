"""The site of the docs is built from the pages as they are, and is whole: no broken link, nothing from elsewhere."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def script(name: str) -> ModuleType:
    """Return a script of docs/site as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    """The builder of the site; the test is skipped without Zensical, and fails on CI."""
    if importlib.util.find_spec("zensical") is None:
        assert os.environ.get("CI") != "true", "zensical is not installed"
        pytest.skip("zensical is not installed: pip install -e '.[test]'")
    return script("build")


@pytest.fixture(scope="module")
def built(builder: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, which has nothing wrong."""
    folder: Path = tmp_path_factory.mktemp("docs")
    assert builder.build(folder) == []
    return folder / "site"


def test_readers_find_each_page_and_each_file_that_a_page_links_to(built: Path) -> None:
    pages = {page.stem for page in built.glob("*.html")}
    assert {page.stem for page in ROOT.glob("docs/*.md")} <= pages
    assert {"readme", "changelog", "contributing", "security-policy"} <= pages
    assert (built / "source/examples/wire_go/main.go.html").exists()
    assert (built / "one-timer.svg").exists()


def test_programs_find_each_page_as_markdown_with_all_that_it_links_to(built: Path) -> None:
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \S", (built / "llms.txt").read_text(), re.MULTILINE)
    assert {built / page for page in listed} == {*built.glob("*.md")}
    assert {page.stem for page in built.glob("*.html")} - {"404"} == {page.stem for page in built.glob("*.md")}
    for page in built.rglob("*.md"):
        text = re.sub(r"^(```|~~~~).*?^\1$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\((?!https?:|mailto:|#)([^)\s#]+)", text):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_each_version_keeps_its_site_and_the_newest_is_the_latest(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "--quiet", "--bare", "origin")
    git("clone", "--quiet", "origin", "checkout")
    by = ("-c", "user.name=Some Body", "-c", "user.email=some@example.org")
    git("-C", "checkout", *by, "commit", "--quiet", "--allow-empty", "-m", "release")
    publish = script("publish").publish
    # A correction of an older version comes after a newer one, and a version may come twice.
    for version, page in (("0.9.0", "old"), ("0.10.0", "wrong"), ("0.9.1", "mended"), ("0.10.0", "new")):
        (site := tmp_path / "site").mkdir(exist_ok=True)
        (site / "index.html").write_text(page)
        archive = Path(shutil.make_archive(str(tmp_path / "made"), "zip", site))
        publish(archive, version, tmp_path / "checkout")
    assert git("-C", "checkout", "status", "--porcelain") == ""
    git("clone", "--quiet", "--branch", "gh-pages", "origin", "pages")
    pages = tmp_path / "pages"
    shown = {path.parent.name: path.read_text() for path in pages.glob("*/index.html")}
    assert shown == {"0.9.0": "old", "0.9.1": "mended", "0.10.0": "new", "latest": "new"}
    assert 'content="0; url=latest/"' in (pages / "index.html").read_text()
    offered = [(each["version"], each["aliases"]) for each in json.loads((pages / "versions.json").read_text())]
    assert offered == [("0.10.0", ["latest"]), ("0.9.1", []), ("0.9.0", [])]
    assert git("-C", "pages", "log", "--format=%an: %s").splitlines() == [
        f"Some Body: docs: publish {version}" for version in ("0.10.0", "0.9.1", "0.10.0", "0.9.0")
    ]


@pytest.mark.parametrize(
    ("link", "wrong"),
    [
        ('<a href="nowhere.html">', "page.html links to nowhere.html, which is not there"),
        ('<a href="page.html#gone">', "page.html links to page.html#gone, a heading that is not there"),
        ('<a href="#gone">', "page.html links to #gone, a heading that is not there"),
        ('<img src="nowhere.svg">', "page.html links to nowhere.svg, which is not there"),
        ('<script src="https://example.org/x.js">', "page.html loads https://example.org/x.js"),
        ('<link href="//example.org/x.css">', "page.html loads //example.org/x.css"),
    ],
)
def test_a_link_that_is_broken_is_found(builder: ModuleType, tmp_path: Path, link: str, wrong: str) -> None:
    (tmp_path / "page.html").write_text(
        f'<h1 id="top"><a href="#top">#</a><a href="page.html#top">#</a><a href="https://example.org">{link}'
    )
    assert list(builder.broken(tmp_path)) == [wrong]


def test_a_page_that_the_navigation_does_not_name_is_found(
    builder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "zensical.toml"
    config.write_text(builder.CONFIG.read_text().replace('{ "Wire" = "wire.md" },', ""))
    monkeypatch.setattr(builder, "CONFIG", config)
    assert builder.build(tmp_path / "built") == ["zensical.toml does not name wire.md in its navigation"]
