"""Run all processes of the service in one command: `kafka-timers serve`, and `dev`, which brings a Kafka."""
