"""What spark-submit starts: `spark-submit … run.py lake land`, as `kafka-timers lake land`."""

from kafka_timers.__main__ import main

main()
