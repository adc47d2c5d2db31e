"""
Faults of real brokers and workers under load, and an oracle that trusts nothing but the log of requests.

`python -m campaign --help` says how to run them; docs/faults.md has the results. Clients and topics are those of
docs/wire.md: nothing here imports the core of the service, only the messages.

    load.py      asks for timers, cancels and moves them
    topics.py    reads topics, with a client that is not ours
    oracle.py    the expected callbacks and answers (pure)
    audited.py   the same where records have conditions, by the seals too (pure)
    clocks.py    clocks that are wrong
    stage.py     brokers, oscillators and workers to break
    faults.py    one function for each fault
    destroyed.py those that destroy topics and records
    run.py       one run, and its verdict
    table.py     runs as a page
    recurring.py schedules through faults
    trimmed.py   a log that is swept and trimmed; shrunk.py has its workers
"""
