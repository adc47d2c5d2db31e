"""
The live worker: it joins ticks with requests, and fires callbacks by the rules of `core`.

    membership    the Faust app: group and assignment
    placement     decides which worker gets which partitions (pure)
    assignor      makes Faust's group use that decision
    owner         one owned partition, from takeover to hand-over
    follower      reads the request log of a partition into its store; needs no ownership
    firing        fires the seconds of an owned partition
    shared        objects that all owners of one process use
    faults        faults that keep a partition from being served
    end_offsets   end offsets of the request log at a tick, asked once for all partitions
    store         rows of one partition in one RocksDB
    stores        the stores of one worker
    store_head    the state of a store, as bytes
    store_memory  memory and options that all stores share
    damage        recognises RocksDB's errors about damaged files
    held          the timers that one partition holds
    questions     asks all partitions of this worker for their timers
    query_server  the same over HTTP
    slices        turns rows of the store into record batches (pure except for the batch builder)
    accumulators  the open batches of a callback topic, and the partition of a callback
    history       callbacks that are written again for etf1's history
    prebuild      callbacks of the next seconds, built before their ticks
    sender        one transaction of callbacks, rejects and seal; fences the previous owner
    replies       writes to reply topics
    outbox        answers that have not been sent yet
"""
