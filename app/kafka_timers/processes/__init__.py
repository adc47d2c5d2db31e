"""
The processes of the service, each wired of its parts. Nothing else imports worker, doors and planner together.

    worker      `kafka-timers worker`: owners, doors and a planner
    supervisor  runs several workers as one command
    planner     `kafka-timers planner`
    start       asks the brokers for everything a process needs before it can own a partition
"""
