"""The service of the acceptance tests, for what watches it."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "acceptance"))

from service import Service  # lies there


@pytest.fixture
async def service(bootstrap: str, prefix: str, tmp_path: Path) -> AsyncIterator[Service]:
    """The service without any process yet."""
    async with Service(bootstrap, prefix, tmp_path) as opened:
        yield opened
