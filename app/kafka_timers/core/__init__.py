"""
The law: what records mean. Pure: no Kafka, no store, no clock, no event loop.

    wire        names and bytes on the topics; the only module that touches generated code
    partition   what is done, where a request is kept, what a tick may fire
    versions    what the records of one timer id mean for each other, and what they are answered
    verdicts    what a record on `timer-request` asks for, or why it is refused
    rows        requests of one instant that are kept as one row
    outcomes    what became of each request of a timer id, for people

The worker, `kafka-timers find`, the adapters, `kafka_timers.testing` and the simulation all import it.
"""
