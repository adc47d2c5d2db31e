"""Rows of the lake for people at a terminal, and as CSV."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from kafka_timers.cli.render import printable
from kafka_timers.operate.documents import row_document

if TYPE_CHECKING:
    from kafka_timers.lake.forget import Forgetting

_ANY_WIDTH = 100_000
# Most offsets to print of a partition.
_SHOWN = 20


def print_rows(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print *rows*, at least one, to *console* as a table; if they are too wide for it, each column is a line."""
    table = _table(rows)
    if console.measure(table, options=console.options.update(width=_ANY_WIDTH)).maximum <= console.width:
        console.print(table)
        return
    width = max(len(printable(name.encode())) for name in rows[0])
    for number, row in enumerate(rows, start=1):
        console.print(Rule(f"row {number}", characters="-", align="left", style=""))
        lines = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
        lines.add_column(min_width=min(width, console.width // 2), overflow="fold")
        lines.add_column(overflow="fold")
        for name, value in row.items():
            lines.add_row(Text(printable(name.encode())), Text(printable(_as_bytes(value))))
        console.print(lines)


def rows_csv(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """
    Return *rows* as CSV by RFC 4180, with a line of names.

    An empty field is null, and "" is an empty text. Lists and maps are JSON. If a column has bytes that are not UTF-8,
    it is called NAME_base64, and is base64 in all rows.
    """
    # `rows_of` has given different names to columns with the same name.
    names = list(rows[0]) if rows else list(names)
    texts = {name: [_csv_cell(row[name]) for row in rows] for name in names}
    titles = dict(zip(names, names, strict=True))
    for name in names:
        if any(isinstance(cell, bytes) for cell in texts[name]):
            titles[name] = f"{name}_base64"
            cells = (cell.encode() if isinstance(cell, str) else cell for cell in texts[name])
            texts[name] = [None if cell is None else base64.b64encode(cell).decode() for cell in cells]
    lines = [",".join(_quoted(title) for title in titles.values())]
    lines += [",".join(_quoted(texts[name][at]) for name in names) for at in range(len(rows))]
    return "".join(f"{line}\r\n" for line in lines)


def _csv_cell(value: Any) -> str | bytes | None:
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return bytes(value)
    if isinstance(value, list | dict):
        return _nested(value)
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def _quoted(cell: str | bytes | None) -> str:
    # The csv module cannot write null and an empty text differently.
    text = "" if cell is None else str(cell)
    return '"' + text.replace('"', '""') + '"' if cell == "" or any(each in text for each in ',"\r\n') else text


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in rows[0]:
        table.add_column(Text(printable(name.encode())), overflow="fold")
    for row in rows:
        # As Text, because rich would read markup in a value.
        table.add_row(*(Text(printable(_as_bytes(value))) for value in row.values()))
    return table


def _as_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes | bytearray):
        return value if value is None else bytes(value)
    return (_nested(value) if isinstance(value, list | dict) else str(value)).encode()


def _nested(value: Any) -> str:
    return json.dumps(row_document({"value": value})["value"], ensure_ascii=False)


def kept_lines(forgotten: "Forgetting") -> Iterator[str]:
    """Yield lines about the forgotten records that Kafka still has."""
    for partition, offsets in forgotten.kept.items():
        more = f" and {len(offsets) - _SHOWN} more" if len(offsets) > _SHOWN else ""
        places = ", ".join(map(str, offsets[:_SHOWN]))
        yield f"Kafka still has the requests in partition {partition} at offsets {places}{more}"
    for topic, settings in forgotten.topics.items():
        name = printable(topic.encode())
        if settings is None:
            yield f"callbacks: topic {name} is gone"
            continue
        ms, policy = settings
        kept_for = "without limit" if int(ms) < 0 else f"for {int(ms) / 86_400_000:g} days"
        if "delete" not in policy:
            kept_for = "until a later one with their key or a tombstone"
        yield f"callbacks: topic {name} keeps them {kept_for} ({policy})"
