"""
Bytes of users in JSON, which has text alone.

Pure.
"""

import base64

__all__ = ["json_of"]


def json_of(name: str, data: bytes | bytearray | None) -> dict[str, str | None]:
    """Return *data* as the value of *name*, or in base64 under *name* with `_base64` appended if it is not UTF-8."""
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {name + "_base64": base64.b64encode(data or b"").decode()}
