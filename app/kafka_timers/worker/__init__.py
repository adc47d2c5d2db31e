"""
The live worker: it joins ticks with requests, and fires callbacks by the rules of `core`.

`owner` is the place to begin: one partition, from takeover to hand-over. The file map in docs/design.md has a line for
each module.

What asks brokers raises `aiokafka.errors.KafkaError` if none answers, or one refuses. What uses a store raises whatever
RocksDB does, and nothing has changed. Either way the partition is then taken over again.
"""
