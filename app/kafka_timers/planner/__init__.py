"""
Recurring timers: schedules become requests, a minute and more before they are due.

Which runs are asked for is decided in `core.planning`. Workers run a planner beside their owners.
"""


def planner_group(group: str) -> str:
    """Return the consumer group in which the planners of the workers' *group* share schedules."""
    return f"{group}.planner"
