"""
What the processes of the service have in common, below worker, doors, planner and oscillator.

The file map in docs/design.md has a line for each module.
"""
