"""
The rules of the service: the meaning of records. Pure: no Kafka, no store, no clock, no event loop.

The worker, `kafka-timers find`, the adapters, the lake, `kafka_timers.testing` and the simulation all import it. The
file map in docs/design.md has a line for each module.
"""
