"""
In which partition a timer id or a key belongs: Kafka's own hash, as every client's default partitioner has it.

murmurhash2 is compiled and comes with the worker's extra; a client goes without, and takes aiokafka's own, in Python.
"""

try:
    from murmurhash2 import murmurhash2
except ModuleNotFoundError:
    from aiokafka.partitioner import murmur2

    def murmurhash2(key: bytes, seed: int) -> int:
        """Return the hash that Kafka's clients take, whose *seed* is fixed there."""
        return int(murmur2(key))


__all__ = ["POSITIVE", "SEED", "hash_of", "murmurhash2", "partition_of"]

# The seed of murmur2 in Kafka's clients, whose default partitioner takes the lower 31 bits modulo the partitions.
SEED = 0x9747B28C
POSITIVE = 0x7FFF_FFFF


def hash_of(name: bytes) -> int:
    """Return what Kafka's default partitioner takes modulo the number of partitions."""
    return int(murmurhash2(name, SEED)) & POSITIVE


def partition_of(name: str, partitions: int) -> int:
    """Return the partition that every Kafka client's default hash gives to *name*, a timer id or a callback key."""
    return hash_of(name.encode()) % partitions
