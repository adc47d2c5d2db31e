"""
The rules of the service: the meaning of records. Pure: no Kafka, no store, no clock, no event loop.

    wire           names and bytes on the topics; has the generated code of all messages but schedules
    routing        the partition of a timer id
    keys           the keys of pending requests, and their order
    backlog        counts pending requests, and tells from which offset the log must be read to know them all
    contents       the requests that leave a partition in one transaction
    sums           the records that were read and the requests that fired, as numbers that add up
    digests        a callback as one number, computed alike by the lake and by Spark
    chain          a hash over the seals of a day
    changes        the changes of one step of a partition, as one value
    takeover       where a new owner starts, from seals and store
    partition      which requests are done, their keys, and those that a tick may fire
    reconcile      brings an old store in line with the seals
    versions       the last request of a timer id, and its state
    decisions      how the records of one timer id affect each other, and their answers
    ignored        how long seals name requests whose condition did not hold
    refused        why a request is refused, and its row
    verdicts       the timer that a record on `timer-request` asks for, or the reason to refuse it
    accepting      accepts records of `timer-request` into a partition
    rows           requests of one moment that are kept as one row
    callbacks      whether a topic takes a callback
    outcomes       the fate of each record of a timer id
    pending        selects waiting timers, and orders them
    rejected       describes a refused request, and asks for it again
    schedules      the rules of recurring timers
    planning       decides which runs of schedules to request next
    calendar       the times of cron expressions in time zones
    text           users' bytes in JSON
    durations      durations as people write them
    moments        points in time as callers give them, in UNIX milliseconds
    tick_clock     the broker's time, as ticks show it
    memory_store   a partition's rows in memory

The worker, `kafka-timers find`, the adapters, the lake, `kafka_timers.testing` and the simulation all import it.
"""
