"""
The pages, as they lie in `static/`: HTML, a style and modules of JavaScript that ask the same API as everybody else.

Nothing is put into a page here, and what a script shows of a record becomes text, never markup.
"""

from importlib.resources import files

__all__ = ["PAGES"]

_KINDS = {"css": "text/css", "html": "text/html", "js": "text/javascript"}

# Name → bytes and kind.
PAGES: dict[str, tuple[bytes, str]] = {
    each.name: (each.read_bytes(), _KINDS[each.name.rpartition(".")[2]])
    for each in files(__package__).joinpath("static").iterdir()
    if each.name.rpartition(".")[2] in _KINDS
}
