"""
Compute the machines, disks and bandwidth that a load needs, from measured figures.

docs/performance.md and docs/lake.md name the machine and the method. Sizes are upper bounds, for payloads that do not
compress. Speeds were measured on shared cores and are halved, so that a plan leaves room.
"""

import math
from dataclasses import dataclass
from datetime import timedelta

from kafka_timers.broker.topic_settings import GRACE_S
from kafka_timers.core.wire import is_far
from kafka_timers.settings import WorkerSettings

# CPU seconds of a timer from request to callback with ten million pending, and the share of a core to plan with.
_CPU_S, _CORE_SHARE = 10e-6, 0.5
# The number of partitions is fixed for life, so some are there for a growing load.
_PARTITIONS_MIN, _PARTITIONS_PER_WORKER = 8, 4
_WORKERS_MIN = 2
# Bytes beside the payload. A request: second, names and framing of the record. A callback: key, headers and framing.
_REQUEST_BYTES, _CALLBACK_BYTES = 45, 90
# Bytes beside the payload: a row of the store, and a row of the lake's table.
_ROW_BYTES, _PARKED_BYTES = 49, 10
# A worker with ten million pending timers takes 216 MB; the rest is for building a burst.
_MEMORY_BYTES = 512 << 20
_DAY_S = 86_400
# Requests per second that a worker reads from the log after it lost its disk: a million took 9 s.
_RESTORED_PER_S = 110_000
# How many times what is asked for is written again at most without advice: where timers wait on average for four times
# what is kept.
REPEATED_MAX = 8


@dataclass(frozen=True, slots=True)
class Need:
    """
    One thing that a load needs.

    Attributes:
        amount: the figure, in *unit*.
        unit: bytes, bytes/s, bytes/day or s; empty for a count.
        why: meaning of the figure, and the reason for it.
    """

    name: str
    amount: float
    unit: str
    why: str


def _of_the_log(bytes_per_s: float, keep_s: int, horizon_s: int, replication: int) -> list[Need]:
    """Return the needs of `timer-request` when it receives *bytes_per_s*."""
    if not (keep_s or horizon_s):
        why = "timer-request grows for ever: give workers a --keep-s, or see docs/lake.md; each replica"
        growth = bytes_per_s * _DAY_S
        total = Need("log_growth_total", growth * replication, "bytes/day", f"the same of {replication} replicas")
        return [Need("log_growth", growth, "bytes/day", why), total]
    kept_s = horizon_s + GRACE_S if horizon_s else keep_s
    log = bytes_per_s * kept_s
    return [
        *([Need("retention", kept_s, "s", "of timer-request, at least: the horizon, and 7 days")] if horizon_s else ()),
        Need("log_disk", log, "bytes", "of timer-request on the brokers, each replica"),
        Need("log_disk_total", log * replication, "bytes", f"the same of {replication} replicas"),
    ]


def needs_of(
    rate: float,
    delay_s: int,
    payload_bytes: int,
    keep_s: int = WorkerSettings.keep_s,
    horizon_s: int = 0,
    replication: int = 3,
) -> list[Need]:
    """
    Return the needs of a load, from the workers to the lake.

    Args:
        rate: timers per second in the busiest hour.
        delay_s: seconds that a timer waits, on average.
        keep_s: as workers have it.
        horizon_s: seconds; timers that wait longer are left to a lake. 0 without a lake.
    """
    cores = rate * _CPU_S / _CORE_SHARE
    workers = max(_WORKERS_MIN, math.ceil(cores) + 1)
    partitions = max(_PARTITIONS_MIN, _PARTITIONS_PER_WORKER * workers)
    returns = is_far(delay_s, 0, horizon_s)
    # A far request comes back as a copy, one horizon before it is due.
    held = rate * (horizon_s if returns else delay_s)
    request, callback = payload_bytes + _REQUEST_BYTES, payload_bytes + _CALLBACK_BYTES
    # A worker repeats what waits in the older half of what is kept, once in half of that time.
    repeated = held / (keep_s / 2) if keep_s and not horizon_s else 0.0
    requests_per_s = rate * (2 if returns else 1) + repeated
    produced = requests_per_s * request + rate * callback
    # One worker may be away.
    held_each = held / (workers - 1)
    restore, why = held, "to read the log again after a lost disk"
    if repeated:
        # What is needed of the log, and what waits longer where it is repeated.
        restore += rate * min(delay_s, keep_s) if delay_s > keep_s / 2 else 0
        most = timedelta(seconds=math.ceil((held + rate * keep_s) / (workers - 1) / _RESTORED_PER_S))
        why += f"; {most} if some timers wait far longer than the average"
    found = [
        Need("partitions", partitions, "", f"of timer-request, for life: {_PARTITIONS_PER_WORKER} for each worker"),
        Need("workers", workers, "", "one of them spare; 10 µs of CPU for each timer, and half a core for each worker"),
        Need("pending", held, "", "timers in the workers' stores"),
        Need("worker_memory", _MEMORY_BYTES, "bytes", "of each worker, however many timers are pending"),
        Need("worker_disk", held_each * (payload_bytes + _ROW_BYTES), "bytes", "of each, one being away"),
        Need("restore", restore / (workers - 1) / _RESTORED_PER_S, "s", why),
        *_of_the_log(requests_per_s * request, keep_s, horizon_s, replication),
        Need("produced", produced, "bytes/s", "requests and callbacks to Kafka"),
        Need(
            "replicated",
            produced * replication,
            "bytes/s",
            f"the same to the disks of {replication} replicas",
        ),
    ]
    if repeated:
        why = (
            f"of requests that wait long, to trim the log before them: up to {repeated / rate:.0%} of what is asked for"
        )
        if repeated > REPEATED_MAX * rate:
            why += "; a longer --keep-s makes it less"
        found.append(Need("repeated", repeated * request, "bytes/s", why))
    if returns:
        parked = rate * delay_s
        size = parked * (payload_bytes + _PARKED_BYTES)
        found.append(Need("lake_disk", size, "bytes", f"of the lake, for {parked:,.0f} timers parked"))
    return found
