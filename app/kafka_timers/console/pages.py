"""
The pages in `static/`: HTML, a style, and modules of JavaScript that use the same API as every other client.

The server adds nothing to a page. Scripts show the data of records as text, never as markup.
"""

from importlib.resources import files

_KINDS = {"css": "text/css", "html": "text/html", "js": "text/javascript"}

# Name → bytes and kind.
PAGES: dict[str, tuple[bytes, str]] = {
    each.name: (each.read_bytes(), _KINDS[each.name.rpartition(".")[2]])
    for each in files(__package__).joinpath("static").iterdir()
    if each.name.rpartition(".")[2] in _KINDS
}
