"""How long a test waits for what has to come, in one place, and how far ahead a moment is that it has to be before."""

# A hang is found at last, and a busy machine fails no test: each wait ends as soon as what it waits for is there.
# A test about a time names that time itself.
LIMIT_S = 600.0
# A timer that is to be cancelled or moved in time lies so far ahead. To wait for it costs no other test anything.
SOON_S = 12
