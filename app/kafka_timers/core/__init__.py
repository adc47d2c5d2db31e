"""
The law: what records mean. Pure: no Kafka, no store, no clock, no event loop.

    wire           names and bytes on the topics; the only module that touches generated code
    routing        in which partition a timer id belongs
    keys           the keys of pending requests, and their order
    backlog        how many requests wait, and from where the log must be read to know all of them
    contents       what leaves a partition in one transaction
    sums           what was read, and what has fired, as numbers that add up
    digests        a callback as one number, which the lake and Spark compute alike
    chain          a hash over the seals of a day, and the place of a seal in it
    proofs         what became of one request, as a document to check anywhere
    changes        what a step of a partition changes, as one value
    takeover       where an owner starts: what seals and store say
    partition      what is done, where a request is kept, what a tick may fire
    reconcile      brings an old store in line with the seals
    versions       what is known of a timer id
    decisions      what the records of one timer id mean for each other, and what they are answered
    refused        why a request is refused, and the row of one
    verdicts       what a record on `timer-request` asks for, or why it is refused
    rows           requests of one moment that are kept as one row
    callbacks      whether a topic takes a callback
    outcomes       what became of each record of a timer id
    pending        which of the waiting timers are asked for, and their order
    rejected       what is told of a refused request, and how it is asked for once more
    text           bytes of users in JSON
    durations      how long something lasts, as people write it
    moments        points in time as callers give them, in UNIX milliseconds
    judging        from which offset on owners judge what earlier versions do not know
    ignored        until when seals name requests whose condition did not hold
    memory_store   a partition's rows in memory

The worker, `kafka-timers find`, the adapters, the lake, `kafka_timers.testing` and the simulation all import it.
"""
