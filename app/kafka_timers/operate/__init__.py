"""
Functions and dataclasses that answer operators' questions, for the command line and other front ends.

    status      reads the state of each partition and each door
    find        reads the history of the timers of one id
    waiting     asks the workers for pending timers
    redrive     reads the refused requests
    callback_topics    reads the topics that get callbacks next
    watch       reads a callback topic
    last_run    finds the last callback of a schedule
    acls        lists the Kafka permissions that each process needs (pure)
    capacity    computes the machines and disks that a load needs (pure)
    documents   turns all of these into JSON documents (pure)

What reads Kafka raises `BrokerError` if no broker answers within some 10 s, or a broker refuses.
"""
