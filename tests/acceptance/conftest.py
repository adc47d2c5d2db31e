"""A service per test, on topics of its own; its processes end with the test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from service import Service


@pytest.fixture
async def service(bootstrap: str, prefix: str, tmp_path: Path) -> AsyncIterator[Service]:
    """The service without any process yet."""
    async with Service(bootstrap, prefix, tmp_path) as opened:
        yield opened
