"""
A deterministic simulation of the worker: the shipped code, on a loop with virtual time, against a model of Kafka.

    python -m simulation 4711           tell history 4711 step by step; with app, oscillator and tests on PYTHONPATH
    python -m simulation 0 300          which of 300 histories fail, and what each costs
    pytest tests/simulation             random histories, and the told stories

Owner, Follower, Firing, LogReader, TickReader, TimerStore on a real RocksDB, Slice, prebuilt callbacks, Outbox,
KafkaSender with its producer and its coordinator, the readers of logs and their ends, Cluster, and all of `core` are
those that are shipped. A model of Kafka answers their questions to brokers. A history is one seed: which task runs
first, how long each question takes, the requests of clients, and the faults.

    loop        virtual time; a seed draws the task that runs first; processes that can be paused as SIGSTOP does it
    log         one partition of a topic: offsets, transactions, markers, leaders that are out of date
    kafka       topics, and the coordinator of transactions
    network     how long questions and answers take, brokers that do not answer, answers that get lost
    cluster     connections to the brokers, which are asked in Kafka's own requests
    disk        real stores on disks that fill up, lose unflushed writes, or come back as an old copy
    assembly    how a worker is put together: the only module that knows
    faults      the faults, where they happen
    nemesis     larger trouble: workers, brokers, disks, topics
    clients     the clients that ask for timers
    group       the owners of partitions, and the oscillator
    audit       the checks of requests against seals
    promises    the checks when a history is over
    world       one history
    told        told stories

How to look for a mistake: tell the history that fails, and read from its end. A line is a moment with its events,
the worker's log lines among them. To shrink it leave out kinds of faults: `run_history(seed, kinds=...)`.
"""
