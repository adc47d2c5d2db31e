"""
Find the partition of a timer id or a key, with the hash of every Kafka client's default partitioner.

The compiled murmurhash2 comes with the extras of the worker and the lake. A client may go without it; aiokafka's hash
in pure Python then gives the same numbers, and takes twenty times as long.
"""

try:
    from murmurhash2 import murmurhash2 as murmurhash2
except ModuleNotFoundError:
    from aiokafka.partitioner import murmur2

    def murmurhash2(key: bytes, seed: int) -> int:
        """Return the 32-bit murmur2 hash of *key*; aiokafka's function has Kafka's *seed* built in."""
        return int(murmur2(key))


# The seed of murmur2 in Kafka's clients, whose default partitioner takes the lower 31 bits modulo the partitions.
SEED = 0x9747B28C
POSITIVE = 0x7FFF_FFFF


def hash_of(name: bytes) -> int:
    """Return the number that Kafka's default partitioner takes modulo the number of partitions."""
    return int(murmurhash2(name, SEED)) & POSITIVE


def partition_of(name: str | bytes, partitions: int) -> int:
    """
    Return the partition that every Kafka client's default partitioner gives to *name*.

    Args:
        name: a timer id or a callback key, as text or as its UTF-8 bytes.
    """
    return hash_of(name.encode() if isinstance(name, str) else name) % partitions
