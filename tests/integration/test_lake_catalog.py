"""The tables of the lake by name, for readers that know no paths."""

import asyncio
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyspark
import pytest
from lakes import Lake, future
from pyspark.sql import SparkSession

from kafka_timers.errors import LakeError
from kafka_timers.lake.land import land
from kafka_timers.lake.schema import TABLES
from kafka_timers.lake.session import PACKAGES
from kafka_timers.lake.tables import register

NAMES = {table.name for table in TABLES}


class Sessions:
    """Spark's programs, each a session of its own, with a metastore that outlives them in *folder*."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "spark-defaults.conf").write_text(
            f"spark.sql.catalogImplementation hive\nspark.sql.warehouse.dir {folder}/warehouse\n"
            f"spark.hadoop.javax.jdo.option.ConnectionURL jdbc:derby:;databaseName={folder}/metastore;create=true\n"
        )

    async def run(self, *command: str | Path) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=self.folder,
            env=os.environ | {"SPARK_CONF_DIR": str(self.folder)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await process.communicate()
        return process.returncode or 0, out.decode() + (errors.decode()[-3_000:] if process.returncode else "")

    async def land(self, lake: Lake) -> tuple[int, str]:
        settings = lake.settings
        where = ["--bootstrap", settings.bootstrap, "--topic-prefix", settings.topic_prefix, "--lake", settings.lake]
        command = [sys.executable, "-m", "kafka_timers", "lake", "land", "--once", "--catalog", "timers"]
        return await self.run(*command, *where, "--master", "local[2]")

    async def sql(self, text: str) -> str:
        """Return the rows of a query, by Spark's own program and without anything of ours."""
        delta = ["--packages", PACKAGES["4.0"][1]]
        delta += ["--conf", "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension"]
        delta += ["--conf", "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"]
        program = Path(pyspark.__file__).parent / "bin/spark-sql"
        code, output = await self.run(program, "--master", "local[2]", *delta, "-S", "-e", text)
        assert code == 0, output
        return output


@pytest.mark.chaos
async def test_another_program_finds_the_tables_by_name(
    spark: SparkSession, bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    sessions = Sessions(tmp_path)
    async with Lake.open(spark, bootstrap, prefix, tmp_path) as lake:
        await lake.request(lake.now + 60, future("order-8"))
        code, output = await sessions.land(lake)
        assert code == 0, output
        first, *rows = (await sessions.sql("SELECT timer_id FROM timers.requests; SHOW TABLES IN timers")).split("\n")
        assert first == "order-8"
        assert {row for row in rows if row} == NAMES


async def test_another_session_finds_the_tables_by_name(
    spark: SparkSession, bootstrap: str, prefix: str, tmp_path: Path
) -> None:
    # With its catalog it is not refused, and this one lasts as long as the process.
    schema = prefix[:-1]
    async with Lake.open(spark, bootstrap, prefix, tmp_path / "a lake's") as lake:
        await lake.request(lake.now + 60, future("order-8"))
        run = partial(land, spark, every_s=None, catalog=f"spark_catalog.{schema}")
        await asyncio.to_thread(run, lake.settings)
        other = spark.newSession()
        assert other.sql(f"SELECT timer_id FROM `{schema}`.requests").collect() == [("order-8",)]
        assert {row.tableName for row in other.sql(f"SHOW TABLES IN `{schema}`").collect()} == NAMES
        # Again: all are there.
        await asyncio.to_thread(run, lake.settings)
        with pytest.raises(LakeError, match="has the table requests of another lake"):
            await asyncio.to_thread(run, replace(lake.settings, lake=str(tmp_path / "other")))


def test_a_catalog_that_ends_with_the_session_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="this Spark forgets its catalog when the job ends"):
        register(spark, f"file:{tmp_path}/lake", "timers")
