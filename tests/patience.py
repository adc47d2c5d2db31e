"""How long a test waits for what has to come, in one place."""

# A hang is found at last, and a busy machine fails no test: each wait ends as soon as what it waits for is there.
# A test about a time names that time itself.
LIMIT_S = 600.0
