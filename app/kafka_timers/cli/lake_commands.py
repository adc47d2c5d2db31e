"""All commands `kafka-timers lake …`."""

from kafka_timers.cli.lake import lake
from kafka_timers.cli.lake_audit import LAKE_AUDIT
from kafka_timers.cli.lake_jobs import LAKE_JOBS

for command in (*LAKE_JOBS, *LAKE_AUDIT):
    lake.add_command(command)

COMMANDS = (lake,)
