"""The program's words when Spark starts and a part is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import LIMIT_S


def ended(tmp_path: Path, *options: str, ivy: str = "") -> subprocess.CompletedProcess[str]:
    """Run a query until it ends; *ivy* is where Maven's jars are looked for."""
    conf, here = tmp_path / "conf", tmp_path / "here"
    conf.mkdir()
    here.mkdir()
    env = os.environ | {"SPARK_CONF_DIR": str(conf)}
    if ivy:
        # Another Spark that starts at this moment has nothing to do with these jars: waiting for it would be said.
        env["XDG_CACHE_HOME"] = str(tmp_path / "caches")
        (conf / "ivy.xml").write_text(
            f'<ivysettings><settings defaultResolver="r"/><caches defaultCacheDir="{tmp_path}/cache"/><resolvers>'
            f'<ibiblio name="r" m2compatible="true" root="{ivy}"/></resolvers></ivysettings>'
        )
        (conf / "spark-defaults.conf").write_text(f"spark.jars.ivySettings {conf}/ivy.xml\n")
    command = [
        sys.executable,
        "-m",
        "kafka_timers",
        "lake",
        "sql",
        "SELECT 1",
        "--lake",
        str(tmp_path / "lake"),
        *options,
    ]
    return subprocess.run(
        [*command, "--master", "local[1]"],
        cwd=here,
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.usefixtures("needs_java")
def test_jars_that_no_repository_has_are_told_in_a_line(tmp_path: Path) -> None:
    done = ended(tmp_path, "--packages", "no.such:jar_2.13:1.0", ivy="http://127.0.0.1:9/")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(
        "Error: Spark's jars cannot be had: no Maven repository that answers has no.such:jar_2.13:1.0"
    )


@pytest.mark.usefixtures("needs_java")
def test_jars_that_are_not_on_the_classpath_after_all_are_told_in_a_line(tmp_path: Path) -> None:
    done = ended(tmp_path, "--packages", "none")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("Error: Spark knows no delta: its jar is not on the classpath. ")


@pytest.mark.usefixtures("needs_java")
def test_a_job_leaves_nothing_where_it_was_started(tmp_path: Path) -> None:
    done = ended(tmp_path)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "here").iterdir()) == []
