"""
The service on brokers of other versions and makes: `make brokers`.

Apache Kafka of several versions runs itself. For brokers that cannot be started here, a relay stands that has their
limits; see `limited`. `python -m matrix --help` says how to run one of them; docs/operate.md has the results.

    profiles.py  the brokers
    steps.py     21 steps, as a user would try the service
    logs.py      what must not be in the logs
    run.py       a profile: the steps, timers under kills, the logs
    table.py     the table of docs/operate.md
"""
