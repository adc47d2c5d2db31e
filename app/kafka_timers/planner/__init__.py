"""
Recurring timers: schedules become requests, a minute and more before they are due.

    planner     has the partitions of timer-schedule that the group gives to this process
    partition   plans the schedules of one partition
    turns       has the partitions of a process plan in turns, and pauses while a second is fired
    metrics     the metrics of a planner

Which runs are asked for is decided in `core.planning`. Workers run a planner beside their owners.
"""


def planner_group(group: str) -> str:
    """Return the consumer group in which the planners of the workers' *group* share schedules."""
    return f"{group}.planner"
