"""Users' bytes as JSON, which holds only text, and the milliseconds of a moment as text."""

import base64
from collections.abc import Iterable, Mapping
from typing import Any


def json_of(name: str, data: bytes | bytearray | None) -> dict[str, str | None]:
    """Return *data* as the value of *name*, or in base64 under *name* with `_base64` appended if it is not UTF-8."""
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {name + "_base64": base64.b64encode(data or b"").decode()}


def headers_of(headers: Iterable[Any]) -> list[dict[str, str | None]]:
    """Return *headers* of a request's message as JSON objects with name and value; a missing value is null."""
    return [{"name": name, **json_of("value", value)} for name, value in pairs_of(headers)]


def pairs_of(headers: Iterable[Any]) -> list[tuple[str, bytes | None]]:
    """Return name and value of each of the *headers* of a request's message; a missing value is None."""
    return [(each.key, each.value if each.HasField("value") else None) for each in headers]


def bytes_in(document: Mapping[str, Any], name: str) -> bytes | None:
    """Return the bytes that `json_of` has put under *name* in *document*."""
    if encoded := document.get(f"{name}_base64"):
        return base64.b64decode(encoded)
    text = document.get(name)
    return None if text is None else text.encode("utf-8", "surrogateescape")


def is_text(data: bytes) -> bool:
    """Tell whether *data* is UTF-8."""
    # Most text is ASCII.
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def fraction_of(moment_ms: int) -> str:
    """Return the fraction of a second in *moment_ms* as text, such as .250; empty for a whole second."""
    millis = moment_ms % 1000
    return f".{millis:03}" if millis else ""
