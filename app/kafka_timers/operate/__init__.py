"""
What an operator asks of a running service: computed here, shown by the command line.

    status     how each partition stands
    find       what became of the timers of one id
    acls       what each process must be allowed to do on Kafka (pure)
    capacity   what a load needs (pure)
"""
