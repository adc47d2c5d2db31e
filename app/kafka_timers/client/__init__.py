"""
What a service uses: to ask for timers, and to tell which callback it waits for.

    timer_client   the public class: publishes timers, cancels and moves
    request        checks arguments and makes the messages (pure)
    channel        the way of records to `timer-request`, and of answers back
    producer       sends them in batches, an accumulator per partition
    answers        brings the answers to cancels, moves and creates to their calls
    received       a record that was read, whichever Kafka client gave it (pure)
    callback       what a receiver reads of a callback (pure)
    retry          asks for a record again, later and later (pure)
    token_guard    which callback a receiver waits for (pure)

Import these from `kafka_timers` itself.
"""
