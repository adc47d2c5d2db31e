"""Run a real Kafka on this machine, for `kafka-timers dev` and for tests. Needs the extra `dev` and Java 17."""
