"""`python -m campaign.shrunk`: `kafka-timers` with hours of two minutes, so that half an hour shows what days do."""

from kafka_timers.cli.program import main
from kafka_timers.core import hour
from kafka_timers.worker import trim

hour.ID_MEMORY_MS, hour.SLACK_MS = 120_000, 5_000
trim._SETTLED_S = 60.0
main()
