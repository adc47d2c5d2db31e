"""`python -m campaign.shrunk`: `kafka-timers` with hours of two minutes, so that half an hour shows what days do."""

from kafka_timers.cli.program import main
from kafka_timers.core import hour
from kafka_timers.worker import sweeping, trim

# For so long an id is known after its timer.
MEMORY_S = 120

if __name__ == "__main__":
    hour.ID_MEMORY_MS, hour.SLACK_MS = MEMORY_S * 1000, 5_000
    trim._SETTLED_S, trim._EVERY_S = 60.0, 15.0
    sweeping._AHEAD_S = 30.0
    main()
