"""Tests of this folder are those of the inner loop: `make check` runs them in seconds, without Java and the network."""

from typing import NoReturn

import pytest


def _refuse(what: str, folder: str) -> NoReturn:
    pytest.fail(f"tests/unit has no {what}, to keep `make check` quick: move this test to {folder}", pytrace=False)


@pytest.fixture(scope="session")
def needs_java() -> None:
    """Refuse tests that need Java by a process of their own."""
    _refuse("Java", "tests/integration")


@pytest.fixture(scope="session")
def kafka() -> None:
    """Refuse tests that need a broker; so do `bootstrap` and `start_kafka`, which come by it or by Java."""
    _refuse("Kafka", "tests/integration")


@pytest.fixture(scope="session")
def bootstrap() -> None:
    """Refuse it also where KAFKA_TIMERS_TEST_BOOTSTRAP names one."""
    _refuse("Kafka", "tests/integration")


@pytest.fixture(scope="session")
def spark() -> None:
    """Refuse tests that need a Spark session."""
    _refuse("Spark", "tests/spark")
