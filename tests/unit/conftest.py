"""Tests of this folder are those of the inner loop: `make check` runs them in seconds, without Java and the network."""

from typing import NoReturn

import pytest


def _refuse(what: str, folder: str) -> NoReturn:
    pytest.fail(f"tests/unit has no {what}, to keep `make check` quick: move this test to {folder}", pytrace=False)


@pytest.fixture(scope="session")
def needs_java() -> None:
    """Refuse what needs Java by a process of its own."""
    _refuse("Java", "tests/integration")


@pytest.fixture(scope="session")
def kafka() -> None:
    """Refuse what needs a broker; so do `bootstrap` and `start_kafka`, which come by it or by Java."""
    _refuse("Kafka", "tests/integration")


@pytest.fixture(scope="session")
def bootstrap() -> None:
    """Refuse it also where KAFKA_TIMERS_TEST_BOOTSTRAP names one."""
    _refuse("Kafka", "tests/integration")


@pytest.fixture(scope="session")
def spark() -> None:
    """Refuse what needs a Spark session."""
    _refuse("Spark", "tests/spark")
