"""The site of the docs is built from the pages as they are, and is whole: no broken link, nothing from elsewhere."""

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    """The builder of the site; the test is skipped without Zensical, and fails on CI."""
    if importlib.util.find_spec("zensical") is None:
        assert os.environ.get("CI") != "true", "zensical is not installed"
        pytest.skip("zensical is not installed: pip install -e '.[test]'")
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "docs" / "site" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
