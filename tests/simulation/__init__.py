"""
The worker that ships, on an event loop with virtual time; Kafka alone is a model.

    loop        the seeded loop: who runs first is drawn, time jumps, processes can be paused
    log, kafka  the model: logs with transactions; brokers, topics, the coordinator
    network     how long questions take, and what gets lost on the way
    ports       what stands in for Kafka's clients where the worker reads
    producers   and where it writes
    disk        real RocksDB on disks that may be full, old or lost
    faults      what may go wrong, and how often
    nemesis     larger trouble: brokers that freeze, workers that are paused or killed
    clients     requests, cancels, moves, hostile records
    group       which worker owns what, and the oscillator
    assembly    how a worker process is put together: the one module that knows it
    world       one history
    promises    what must hold after it; audit: what the seals must say
    told        a history that happens as a story says

`PYTHONPATH=app:oscillator:tests python -m simulation SEED` tells one history step by step.
"""
