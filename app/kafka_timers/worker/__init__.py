"""
The live worker: joins ticks with requests and fires callbacks by the law of `core`.

    process       settings, metrics, health, start and stop
    start         what it has to know of the brokers before it can own anything
    supervisor    several workers as one command
    membership    the Faust app: group and assignment
    ticks         the ticks of the owned partitions
    placement     which worker gets which partitions (pure)
    assignor      has Faust's group assign by that
    owner         one owned partition from takeover to hand-over
    follower      brings the request log of a partition into its store; needs no ownership
    firing        fires the seconds of a partition while it is owned
    ports         what these talk to, as protocols
    shared        what the owners of one process talk to and share
    faults        what can keep a partition from being served
    end_offsets   where the request log ends at a tick, asked once for all partitions
    reader        a log → whoever follows its partitions, whole fetches at a time
    store         rows of one partition in one RocksDB
    stores        the stores of one worker
    store_head    what it says of itself, as bytes
    store_memory  memory and options that they share
    damage        what RocksDB's errors say of a store
    held          what one partition holds
    questions     asks all partitions of this worker what they hold
    query_server  the way to that over HTTP
    slices        rows of the store → record batches (pure but for the batch builder)
    accumulators  the open batches of a callback topic, and where in it a callback goes
    rejecting     refused requests as they lie on `timer-rejected`
    history       which callbacks are written once more, for etf1's history
    prebuild      callbacks of the next seconds, built before their ticks
    targets       which callback topics may be written to, and what they take
    sender        one transaction of callbacks, rejects and seal; fences the owner before
    replies       the way to the topics of answers
    outbox        answers on their way to those who asked
    priority      sending goes first, reading and prebuilding can wait
    metrics       names and units of everything that is counted
    tasks         ending tasks
"""
