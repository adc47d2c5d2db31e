"""
The brokers that tests run against. They are real ones: no broker is ever mocked.

`kafka` is one broker for all tests, so each test uses names of its own (`prefix`). A test that stops its broker, or
needs other settings, starts its own with `start_kafka`. With KAFKA_TIMERS_TEST_BOOTSTRAP set, tests that only need an
address use that one. Tests that need a broker of ours are skipped where there is no Java; on CI (CI=true) they fail.
"""

import os
import shutil
import signal
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import class_archive
import pytest
from brokers import StartKafka

from kafka_timers.dev import broker as ports
from kafka_timers.dev import java
from kafka_timers.dev.broker import EmbeddedKafka
from kafka_timers.errors import KafkaSetupError
from kafka_timers.settings import LakeSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Read now, before the variables of the user who runs the tests are removed.
TEST_BOOTSTRAP = os.environ.get("KAFKA_TIMERS_TEST_BOOTSTRAP", "")

# To verify each class of Spark anew takes Java a fifth of its start.
_UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"

# A port that one process has chosen is free for some moments, in which another process would choose it too.
_RANGES = 8
_RANGE = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % _RANGES
ports.PORTS = ports.PORTS[len(ports.PORTS) // _RANGES * _RANGE :][: len(ports.PORTS) // _RANGES]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `make check` have a look where `make test` searches."""
    told = "how many random histories a simulation lives through; each has a number of its own, in the thousands"
    parser.addoption("--histories", type=int, help=told)


# Brokers and stores write to disk for certain some thousand times, and a test waits each time.
_IN_MEMORY, _ENOUGH = Path("/dev/shm"), 4 << 30  # bytes


def pytest_configure() -> None:
    """Have the folders of tests in memory, if that has room: brokers then take two thirds of the CPU for topics."""
    if _IN_MEMORY.is_dir() and shutil.disk_usage(_IN_MEMORY).free > _ENOUGH:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_IN_MEMORY))


# --- `make test` runs in four processes -------------------------------------------------------------------------------

SPARK = "spark"
_FOLDERS = ("acceptance", "simulation", "unit", "integration")
# They take a minute or more each, longest first: one that began at the end would run alone.
_LONGEST = tuple(
    f"test_{name}.py"
    for name in (
        *("three_brokers", "tutorials", "secured", "faults", "adapter_reader", "console", "dev", "console_pages"),
        *("lake_cluster", "broker_away", "examples", "conditions", "oscillator", "sender", "bad_input"),
    )
)


def part_of(path: str) -> str:
    """
    Return the part of the tests that one process runs as a whole, of the file *path*.

    All that needs the Spark session is two parts: a session takes long to start, and is quicker the longer it runs. Of
    all others each file is a part, because the tests of a file may share a broker.
    """
    folder, name = path.split("/")[-2:]
    has_its_own = name in ("test_lake_starts.py", "test_lake_cluster.py")
    is_of_the_lake = name.startswith("test_lake") and folder != "unit" and not has_its_own
    if folder != "spark" and not is_of_the_lake:
        return path
    is_beside_kafka = folder == "integration" and name != "test_lake_promoted.py"  # so both take as long
    return f"{SPARK} beside Kafka" if is_beside_kafka else SPARK


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a part to whichever process has none left, in the order below."""
    from xdist.scheduler import LoadScopeScheduling

    class Parts(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return part_of(nodeid.split("::")[0])

    config.option.loadscopereorder = False
    return Parts(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest parts first, and then the folders whose files take longer: short tests even out the end."""
    if not hasattr(config, "workerinput"):  # no process of pytest-xdist
        return

    def place(item: pytest.Item) -> tuple[int, str]:
        path = item.nodeid.split("::")[0]
        part, folder = part_of(path), path.split("/")[-2]
        if part.startswith(SPARK):
            return -2, part
        if path.split("/")[-1] in _LONGEST:
            return -1, f"{_LONGEST.index(path.split('/')[-1]):02}"
        return _FOLDERS.index(folder) if folder in _FOLDERS else len(_FOLDERS), ""

    items.sort(key=place)


@pytest.fixture(scope="session")
def histories(pytestconfig: pytest.Config) -> int | None:
    """How many random histories are asked for; None means all."""
    given: int | None = pytestconfig.getoption("histories")
    return given


@pytest.fixture(scope="session", autouse=True)
def clean_environment() -> Iterator[None]:
    """
    Remove the user's settings from the environment; child processes inherit the rest.

    So they do with signals that are ignored, as Ctrl-C is where a shell runs the tests in the background: tests that
    press it would wait for ever.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("KAFKA_TIMERS_"):
                patch.delenv(name)
        # Jobs of the lake that tests start take two thirds of the time without the optimizing compiler.
        patch.setenv("SPARK_SUBMIT_OPTS", f"-XX:TieredStopAtLevel=1 {_UNVERIFIED}")
        yield


@pytest.fixture(scope="session")
def has_java() -> None:
    """Skip without Java; on CI, fail."""
    try:
        java.find()
    except KafkaSetupError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
async def needs_java(has_java: None) -> None:
    """The same, for a test that starts a broker: it starts quickly."""
    await class_archive.use()


@pytest.fixture(scope="session")
async def kafka(needs_java: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedKafka]:
    """The broker that all tests share; do not stop it."""
    async with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of a broker: the one given, else that of `kafka`."""
    if TEST_BOOTSTRAP:
        return TEST_BOOTSTRAP
    broker: EmbeddedKafka = request.getfixturevalue("kafka")
    return broker.bootstrap


@pytest.fixture(scope="session")
async def older_bootstrap(needs_java: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The address of a broker that speaks the first protocol of transactions only, as all before Kafka 4.0."""
    features = {"transaction.version": 1}
    async with EmbeddedKafka(tmp_path_factory.mktemp("older-kafka"), features=features) as broker:
        yield broker.bootstrap


@pytest.fixture(params=["older_bootstrap", "bootstrap"], ids=["first protocol", "second protocol"])
def address(request: pytest.FixtureRequest) -> str:
    """The address of a broker that speaks one of the two protocols of transactions."""
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def spark(has_java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """The Spark session that all tests share."""
    # Takes seconds, and `make check` needs none.
    from kafka_timers.lake.session import open_session

    # The module that compares frames needs it before it is imported.
    os.environ.setdefault("PYARROW_IGNORE_TIMEZONE", "1")
    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(folder),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # A test's tables are a few rows, and most of its time went into all that Spark does around them:
        # compiling code that runs once, planning anew after each stage, one task more for each part of nothing.
        # Half of the time is Spark's planner. The optimizing compiler took a quarter of the CPU, and gave less back. Of
        # compiled code 48 MB, the default with one compiler, are too few: the JVM throws away code that it needs again.
        # Without room for classes and for short-lived objects, a tenth of the time would go into collecting garbage.
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m "
        f"-XX:MetaspaceSize=400m -Xms1500m -Xmn1g {_UNVERIFIED}",
        # The messages about an execution to listeners.
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.databricks.delta.snapshotPartitions": "1",
        # The first rows of a table would be merged into one file at once: a job and a commit for each new lake.
        "spark.databricks.delta.autoCompact.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }
    session = open_session(LakeSettings(master="local[2]"), conf)
    yield session
    session.stop()


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Without what asyncio tells when it collects a task that an earlier test left behind."""
    caplog.handler.addFilter(lambda record: record.name != "asyncio")
    return caplog


@pytest.fixture
def prefix() -> str:
    """Put before every topic, group and id of this test."""
    return f"t{uuid.uuid4().hex[:8]}-"


@pytest.fixture
async def start_kafka(needs_java: None, tmp_path: Path) -> AsyncIterator[StartKafka]:
    """Start brokers of the test's own, with arguments of `EmbeddedKafka`; all are stopped at its end."""
    started: list[EmbeddedKafka] = []

    async def start(
        port: int = 0, properties: Mapping[str, str] | None = None, features: Mapping[str, int] | None = None
    ) -> EmbeddedKafka:
        broker = EmbeddedKafka(tmp_path / f"kafka-{len(started)}", port, properties, features)
        started.append(broker)
        await broker.start()
        return broker

    yield start
    for broker in started:
        await broker.stop()
