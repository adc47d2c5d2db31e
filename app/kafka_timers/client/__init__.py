"""
The client side of the service: ask for timers, and recognise their callbacks.

The file map in docs/design.md has a line for each module. Import their names from `kafka_timers` itself.
"""
