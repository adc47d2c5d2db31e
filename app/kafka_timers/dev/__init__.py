"""A real Kafka on this machine, for `kafka-timers dev` and for tests; needs the extra `dev` and Java 17."""
