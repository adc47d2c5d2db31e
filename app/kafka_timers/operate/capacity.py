"""
What a load needs, from what was measured: docs/performance.md and docs/lake.md say on what machine and how.

Sizes are upper bounds, of payloads that do not compress. Speeds are those of shared cores, halved: what is planned for
should not be all that there is.
"""

import math
from dataclasses import dataclass

from kafka_timers.broker.topics import GRACE_S

__all__ = ["Load", "Need", "needs_of"]

# CPU of a timer from request to callback with ten million pending, and how much of a core to plan for.
_CPU_S, _CORE_SHARE = 10e-6, 0.5
# Partitions are for life, so there are some for a load that grows.
_PARTITIONS_MIN, _PARTITIONS_PER_WORKER = 8, 4
_WORKERS_MIN = 2
# A request around its payload: second, names and framing of the record; a callback: key, headers and framing.
_REQUEST_BYTES, _CALLBACK_BYTES = 45, 90
# A row of the store around the payload; and one of the lake's table.
_ROW_BYTES, _PARKED_BYTES = 49, 10
# Of a worker with ten million pending 216 MB, and what a burst is built in.
_MEMORY_BYTES = 512 << 20
_DAY_S = 86_400
# Requests read from the log by a worker whose disk was lost, 1/s: a million took 9 s.
_RESTORED_PER_S = 110_000


@dataclass(frozen=True, slots=True)
class Load:
    """
    The timers that a service has to carry.

    Attributes:
        rate: timers per second, in the busiest hour.
        delay_s: seconds that a timer waits, on average.
        payload_bytes: bytes of a callback.
        horizon_s: timers that wait longer are left to a lake; 0 without a lake.
        replication: replicas of the topics.
    """

    rate: float
    delay_s: int
    payload_bytes: int
    horizon_s: int = 0
    replication: int = 3


@dataclass(frozen=True, slots=True)
class Need:
    """
    One thing that a load needs.

    Attributes:
        name: name of the figure in snake case, for programs.
        amount: the figure, in *unit*.
        unit: bytes, bytes/s, bytes/day or s; empty for a number of things.
        why: what the figure is, and what it follows from.
    """

    name: str
    amount: float
    unit: str
    why: str


def _of_the_log(bytes_per_s: float, load: Load) -> list[Need]:
    """Return what `timer-request` takes that gets *bytes_per_s*."""
    if not load.horizon_s:
        why = "timer-request grows for ever without a lake: give workers a --horizon, see docs/lake.md; each replica"
        growth = bytes_per_s * _DAY_S
        total = Need(
            "log_growth_total", growth * load.replication, "bytes/day", f"the same of {load.replication} replicas"
        )
        return [Need("log_growth", growth, "bytes/day", why), total]
    kept_s = load.horizon_s + GRACE_S
    log = bytes_per_s * kept_s
    return [
        Need("retention", kept_s, "s", "of timer-request, at least: the horizon, and 7 days"),
        Need("log_disk", log, "bytes", "of timer-request on the brokers, each replica"),
        Need("log_disk_total", log * load.replication, "bytes", f"the same of {load.replication} replicas"),
    ]


def needs_of(load: Load) -> list[Need]:
    """Return what *load* needs, from the workers to the lake."""
    cores = load.rate * _CPU_S / _CORE_SHARE
    workers = max(_WORKERS_MIN, math.ceil(cores) + 1)
    partitions = max(_PARTITIONS_MIN, _PARTITIONS_PER_WORKER * workers)
    is_far = 0 < load.horizon_s < load.delay_s
    # What is far comes back as a copy a horizon before it is due.
    held = load.rate * (load.horizon_s if is_far else load.delay_s)
    request, callback = load.payload_bytes + _REQUEST_BYTES, load.payload_bytes + _CALLBACK_BYTES
    requests_per_s = load.rate * (2 if is_far else 1)
    produced = requests_per_s * request + load.rate * callback
    # One of them being away.
    held_each = held / (workers - 1)
    found = [
        Need("partitions", partitions, "", f"of timer-request, for life: {_PARTITIONS_PER_WORKER} for each worker"),
        Need("workers", workers, "", "one of them to spare: 10 µs of CPU a timer, a core each, half used"),
        Need("pending", held, "", "timers in the workers' stores"),
        Need("worker_memory", _MEMORY_BYTES, "bytes", "of each worker, whatever is pending"),
        Need("worker_disk", held_each * (load.payload_bytes + _ROW_BYTES), "bytes", "of each, one being away"),
        Need("restore", held_each / _RESTORED_PER_S, "s", "to read the log again after a lost disk"),
        *_of_the_log(requests_per_s * request, load),
        Need("produced", produced, "bytes/s", "requests and callbacks to Kafka"),
        Need(
            "replicated",
            produced * load.replication,
            "bytes/s",
            f"the same to the disks of {load.replication} replicas",
        ),
    ]
    if is_far:
        parked = load.rate * load.delay_s
        size = parked * (load.payload_bytes + _PARKED_BYTES)
        found.append(Need("lake_disk", size, "bytes", f"of the lake, for {parked:,.0f} timers parked"))
    return found
