"""
The client side of the service: ask for timers, and recognise their callbacks.

    timer_client   the public class: publishes, cancels and moves timers
    recurring      recurring timers
    sync_schedules the same without asyncio
    request        checks arguments and makes the messages (pure)
    channel        carries records to `timer-request`, and answers back
    batching       sends records in batches, with an accumulator per partition
    answers        brings the answers to cancels, moves and creates to their calls
    received       a record as any Kafka client returns it (pure)
    callback       a callback as a receiver reads it (pure)
    retry          asks for a record again, after longer and longer delays (pure)
    token_guard    tells a receiver which callback it waits for (pure)

Import these names from `kafka_timers` itself.
"""
