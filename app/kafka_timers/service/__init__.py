"""
The live worker: joins ticks with requests and fires callbacks.

    partition   the rules: what is done, where a request goes, what a tick may fire (pure)
    ids         what requests and cancels mean for earlier ones of their timer id, and the answers (pure)
    requests    what a record on `timer-request` asks for, or why it is refused (pure)
    runs        requests of one second that are kept as one row (pure)
    callbacks   rows of the store → record batches (pure but for the batch builder)
    arming      callbacks of the next second, built before its tick (pure but for the batch builder)
    store       rows of one partition in one RocksDB
    fetching    committed records of one topic, straight from the broker's batches
    reader      request log → stores, whole fetches at a time
    rush        sending goes first, reading and arming can wait
    targets     which callback topics may be written to, and how large a record they take
    sender      one transaction of callbacks, rejects and seal; fences the owner before
    owner       one owned partition from takeover to hand-over: ties the above together
    lease       asks the broker whether this is still the owner
    replies     answers on their way to those who asked
    agents      the Faust app: membership, the tick stream
    placement   which worker gets which partitions (pure)
    assignor    has Faust's group assign by that
    tasks       ending tasks
    worker      the process: settings, metrics, health, start and stop
    processes   several workers as one command
    metrics     names and units of everything that is counted
"""
