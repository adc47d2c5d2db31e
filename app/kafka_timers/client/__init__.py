"""
What a service uses: to ask for timers, and to tell which callback it waits for.

    timer_client   the public class: publishes timers, cancels and moves
    request        checks arguments and makes the messages (pure)
    producer       sends them in batches, an accumulator per partition
    answers        brings the answers to cancels, moves and creates to their calls
    token_guard    which callback a receiver waits for (pure)

Import these from `kafka_timers` itself.
"""
