"""
Builds the site of the docs, for `make docs`: `python docs/site/build.py FOLDER` writes it to FOLDER/site.

The pages are written for GitHub, where a link may lead from docs/ to any file of the repository. Here each such file
becomes a page of the site as well, so that the site is whole by itself:

    docs/*.md, and what lies beside them        as they are
    the pages of EXTRA, such as README.md       with other names, and their links changed
    any other file that a page links to         a page below source/ that shows it; of a folder, all its files

zensical.toml has the navigation. Zensical checks the links between pages; `broken` checks all links of the built site,
and that it loads nothing from elsewhere.

For programs that read Markdown, each page lies beside its .html as .md, and llms.txt lists them (https://llmstxt.org).
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CONFIG = HERE / "zensical.toml"
# Pages outside docs/, by their names in the site. docs/security.md is another page.
EXTRA = {
    ROOT / "README.md": "readme.md",
    ROOT / "CHANGELOG.md": "changelog.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "SECURITY.md": "security-policy.md",
}

_LINK = re.compile(r"(?<=\]\()(?!https?://|mailto:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LANGUAGES = {".proto": "protobuf", ".go": "go", ".java": "java", ".rs": "rust", ".ts": "typescript", ".py": "python"}
# A page may lead elsewhere, but what it needs to be shown comes with it.
_LOADS = {("script", "src"), ("link", "href"), ("img", "src"), ("source", "src"), ("iframe", "src")}


class Pages:
    """The Markdown of the site, written to *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self) -> None:
        """Write all pages, and what they show."""
        shutil.copytree(ROOT / "docs", self._folder, ignore=shutil.ignore_patterns(HERE.name, "*.md"))
        for page in sorted((ROOT / "docs").glob("*.md")):
            self._page(page, page.name)
        for page, name in EXTRA.items():
            self._page(page, name)

    def _page(self, file: Path, name: str) -> None:
        parts = _CODE.split(file.read_text())
        parts[::2] = [_LINK.sub(lambda link: self._link(file, link), part) for part in parts[::2]]
        (self._folder / name).write_text("".join(parts))

    def _link(self, page: Path, link: re.Match[str]) -> str:
        target, anchor = (page.parent / link[1]).resolve(), link[2] or ""
        if target in EXTRA:
            return EXTRA[target] + anchor
        if target.is_relative_to(ROOT / "docs"):
            return os.path.relpath(target, ROOT / "docs") + anchor
        return self._source(target)

    def _source(self, target: Path) -> str:
        """Make the page that shows a file or folder of the repository, and return its name."""
        if not target.is_relative_to(ROOT) or not target.exists():
            raise SystemExit(f"{target} is no file of the repository, and a page links to it")
        path = target.relative_to(ROOT)
        name = f"source/{path}.md"
        files = [target] if target.is_file() else sorted(file for file in target.iterdir() if file.is_file())
        page = self._folder / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"# {path}\n\n" + "\n".join(map(_shown, files)))
        return name


def _shown(file: Path) -> str:
    """Return a file as a block of code, below its name."""
    language = _LANGUAGES.get(file.suffix, "text")
    return f"## {file.name}\n\n~~~~{language}\n{file.read_text().rstrip()}\n~~~~\n"


class _Page(HTMLParser):
    """Collects the anchors of a page, what it links to and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what one element says."""
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "src") and value:
                self.links.append((value, (tag, name) in _LOADS))


def broken(site: Path) -> Iterator[str]:
    """Yield a sentence for each link of a site that leads nowhere, and each thing that it loads from elsewhere."""
    pages = {}
    for file in sorted(site.rglob("*.html")):
        pages[file.resolve()] = page = _Page()
        page.feed(file.read_text())
    for file, page in pages.items():
        name = file.relative_to(site.resolve())
        for link, loads in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if loads and parts.scheme != "data":
                    yield f"{name} loads {link}"
                continue
            # The page that says that there is no such page is shown at any address, so its links begin at the root.
            target = site.resolve() / parts.path.lstrip("/") if parts.path.startswith("/") else file.parent / parts.path
            target = Path(unquote(str(target))).resolve() if parts.path else file
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                yield f"{name} links to {link}, which is not there"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                yield f"{name} links to {link}, a heading that is not there"


def index(project: dict[str, Any], pages: Path) -> str:
    """Return llms.txt: the navigation of *project*, each page with its first paragraph from *pages*."""
    lines = [f"# {project['site_name']}", "", f"> {project['site_description']}", ""]
    alone = [entry for entry in project["nav"] if isinstance(*entry.values(), str)]
    for part in [{"Start here": alone}, *(entry for entry in project["nav"] if entry not in alone)]:
        ((title, entries),) = part.items()
        lines += [f"## {title}", ""]
        for entry in entries:
            ((name, page),) = entry.items()
            lines.append(f"- [{name}]({page}): {_first_paragraph((pages / page).read_text())}")
        lines.append("")
    return "\n".join(lines)


def _first_paragraph(page: str) -> str:
    paragraph = page.split("\n\n")[1].replace("\n", " ")
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", paragraph)


def in_nav(entry: object) -> Iterator[str]:
    """Yield the pages below an entry of the navigation."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict | list):
        for below in entry.values() if isinstance(entry, dict) else entry:
            yield from in_nav(below)


def build(folder: Path) -> list[str]:
    """Build the site anew in *folder*, and return what is wrong with it, a line for each."""
    for name in ("pages", "site", ".cache"):
        shutil.rmtree(folder / name, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(CONFIG, folder)
    Pages(folder / "pages").write()
    project = tomllib.loads(CONFIG.read_text())["project"]
    listed = set(in_nav(project["nav"]))
    written = {page.name for page in (folder / "pages").glob("*.md")}
    wrong = [f"{CONFIG.name} does not name {name} in its navigation" for name in sorted(written - listed)]
    wrong += [f"{CONFIG.name} names {name}, which is not there" for name in sorted(listed - written)]
    if wrong:
        return wrong
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    if run.returncode:
        # It colours each letter, also where nobody sees it, and ends with a stack.
        return [re.sub(r"\x1b\[[\d;]*m", "", run.stdout) or run.stderr]
    shutil.copytree(folder / "pages", folder / "site", dirs_exist_ok=True)
    (folder / "site" / "llms.txt").write_text(index(project, folder / "pages"))
    return list(broken(folder / "site"))


def main() -> int:
    """Build, and tell how it went."""
    folder = Path(sys.argv[1])
    if wrong := build(folder):
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    print(f"The first page is {folder / 'site' / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
