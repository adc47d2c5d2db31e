"""A timer id or a key belongs to the partition that every Kafka client's default partitioner gives to it."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest
from aiokafka.partitioner import DefaultPartitioner

from kafka_timers.core import routing

NAMES = ["a", "clé", "order-7", "x" * 1_000, *(f"name-{number}" for number in range(200))]


@pytest.fixture(params=["compiled", "in Python"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module as it is with the compiled hash, and as it is without."""
    if request.param == "in Python":
        monkeypatch.setitem(sys.modules, "murmurhash2", None)
    # Under a name of its own, so that nobody else gets it.
    found = spec_from_file_location("routing", routing.__file__)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_a_name_has_the_partition_that_clients_give_to_it(implementation: ModuleType) -> None:
    partitions = list(range(7))
    for name in NAMES:
        expected = DefaultPartitioner()(name.encode(), partitions, partitions)
        assert implementation.partition_of(name, 7) == implementation.partition_of(name.encode(), 7) == expected
        assert implementation.hash_of(name.encode()) % 7 == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    # From Kafka's own UtilsTest.testMurmur2, without the sign.
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)],
)
def test_the_hash_is_the_one_that_kafka_tests(implementation: ModuleType, name: bytes, expected: int) -> None:
    assert implementation.hash_of(name) == expected & 0x7FFF_FFFF
