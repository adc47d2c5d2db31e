"""
Kafka's program files: fetched once into the user's cache, then used from there without a network.

`jars.lock` names every jar with its size and SHA-256. It lists the jars that Maven resolves for
`org.apache.kafka:kafka_2.13` and its runtime dependencies, and `log4j-slf4j-impl`, without which the broker logs
nothing. A jar in the cache is always complete, because it is moved there only after its hash was checked. So the cache
needs no lock: fetched jars survive an interruption, and two processes that fetch at once write the same bytes.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from kafka_timers.errors import KafkaSetupError

KAFKA_VERSION = "4.3.1"

_TIMEOUT_S = 30

# Called with a file's name and size in bytes. Gives a function that is called with the bytes of each piece.
_Advance = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of `jars.lock`."""

    group: str
    artifact: str
    version: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        """The file name that Maven gives the jar."""
        return f"{self.artifact}-{self.version}.jar"


def locked() -> list[Jar]:
    """Return all jars that the broker needs."""
    jars = []
    for line in resources.files(__package__).joinpath("jars.lock").read_text().splitlines():
        coordinate, size, sha256 = line.split()
        group, artifact, version = coordinate.split(":")
        jars.append(Jar(group, artifact, version, int(size), sha256))
    return jars


def cache_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that holds the jars; it need not exist."""
    return caches(env) / f"kafka-{KAFKA_VERSION}"


def caches(env: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this user's caches for kafka-timers, in XDG_CACHE_HOME or ~/.cache; it need not exist."""
    home = env.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "kafka-timers"


def classpath(env: Mapping[str, str] = os.environ) -> str:
    """
    Return Kafka's class path. Fetch the jars that the cache lacks first (43 MB, with a progress bar).

    Raises:
        KafkaSetupError: a jar cannot be fetched, or differs from the one in `jars.lock`, or the cache is not writable.
    """
    folder = cache_folder(env)
    jars = locked()
    missing = [jar for jar in jars if not _is_there(folder, jar)]
    if missing:
        _fetch(missing, folder)
    return os.pathsep.join(str(folder / jar.name) for jar in jars)


def _is_there(folder: Path, jar: Jar) -> bool:
    try:
        return (folder / jar.name).stat().st_size == jar.size
    except OSError:
        return False


def _fetch(jars: list[Jar], folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Beside the jars, because a move is one step only within a file system.
        with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as part, _progress(jars) as advance:
            for jar in jars:
                fetched = _download(jar, Path(part), advance)
                if hashlib.sha256(fetched.read_bytes()).hexdigest() != jar.sha256:
                    raise KafkaSetupError(f"{jar.name} arrived with other bytes than expected: try again")
                fetched.replace(folder / jar.name)
    except OSError as error:
        raise KafkaSetupError(f"the cache {folder} cannot be written: {error}") from error


def _download(jar: Jar, part: Path, advance: _Advance) -> Path:
    try:
        # Imported here because it is not needed once the jars are in the cache.
        from jgo.maven import MavenContext, PythonResolver
    except ImportError as error:
        raise KafkaSetupError("fetching Kafka needs the extra dev: pip install 'kafka-timers[dev]'") from error
    # A Maven repository in the temporary folder, because jgo writes a file under its final name while it arrives.
    maven = MavenContext(PythonResolver(progress_callback=advance), repo_cache=part, timeout=_TIMEOUT_S)
    try:
        # The artifact alone: resolving the dependencies again would take 9 s and could give other versions.
        return Path(maven.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve())
    # The library requests raises OSError; jgo raises RuntimeError if no repository has the file.
    except (OSError, RuntimeError) as error:
        raise KafkaSetupError(
            f"cannot fetch {jar.name} of Kafka {KAFKA_VERSION} ({error}): the network is needed once, until all jars "
            "are in the cache; connect and try again, or give the address of a running Kafka with --bootstrap"
        ) from error


@contextlib.contextmanager
def _progress(jars: list[Jar]) -> Iterator[_Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(f"Fetching Kafka {KAFKA_VERSION}, once", total=sum(jar.size for jar in jars))

        @contextlib.contextmanager
        def advance(filename: str, size: int) -> Iterator[Callable[[int], None]]:
            yield lambda count: progress.advance(task, count)

        yield advance
