"""
Give back what `timer-request` holds for nobody any more.

The owner of a partition deletes records below the lowest of three offsets:

    restore_from    of a seal of its own that is `_SETTLED_S` old: below it nothing waits
    keep_s          the first record that was appended within so many seconds: for people, and for jobs that read behind
    landed          what the lake has landed, where there is one

`restore_from` never falls, so what an owner deletes that was fenced meanwhile, nobody else needs either. A reader that
took it from a seal has had that time to begin.

A request that waits long would hold `restore_from` back. So before that, owners are asked to repeat what waits in the
older half of `keep_s`, see `sweeping`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Never, Protocol

from aiokafka.errors import (
    IncompatibleBrokerVersion,
    KafkaError,
    PolicyViolationError,
    TopicAuthorizationFailedError,
)

from kafka_timers.broker.cluster import Cluster
from kafka_timers.broker.lake_group import landed_offsets
from kafka_timers.worker.shared import Ports

log = logging.getLogger(__name__)

_SETTLED_S, _EVERY_S, _DAY_S = 3_600.0, 600.0, 86_400.0
# A short time to keep needs shorter ones.
_TIMES_IN_KEEP = 4
# As a service is set up that is well without.
_REFUSALS = (TopicAuthorizationFailedError, PolicyViolationError, IncompatibleBrokerVersion)


class _Owner(Protocol):
    @property
    def sealed(self) -> tuple[bytes, int] | None: ...

    def sweep(self, below: int) -> None: ...


class Trimmer:
    """
    Trims the partitions of a worker.

    Args:
        owners: returns the owners of now, by partition.
        keep_s: seconds for which each record is kept at least.
    """

    def __init__(self, ports: Ports, cluster: Cluster, owners: Callable[[], Mapping[int, _Owner]], keep_s: int) -> None:
        self._ports = ports
        self._cluster = cluster
        self._owners = owners
        self._keep_s = keep_s
        self._settled_s = min(_SETTLED_S, keep_s)
        # By partition: its log, and when each `restore_from` was sealed, or earlier.
        self._sealed: dict[int, tuple[bytes, deque[tuple[float, int]]]] = {}
        self._told_s = ports.clock.elapsed_s()
        self._deleted = 0

    async def run(self) -> Never:
        """Sweep and trim from time to time. Each new reason why that cannot be done is logged once."""
        trouble = ""
        while True:
            await asyncio.sleep(min(_EVERY_S, self._keep_s / _TIMES_IN_KEEP))
            try:
                await self.look()
                await self.sweep()
                await self.trim()
                trouble = ""
            except KafkaError as error:
                why = str(error) or type(error).__name__
                if why == trouble:
                    continue
                trouble, topic = why, self._ports.names.requests
                if isinstance(error, _REFUSALS):
                    log.info(
                        "%s keeps what nothing waits in: %s; let this user delete its records, or set retention.ms",
                        *(topic, trouble),
                    )
                else:
                    log.warning("%s could not be trimmed: %s", topic, trouble)

    async def look(self) -> None:
        """
        Show how old the first record is that somebody may need who has no store.

        Raises:
            KafkaError: no leader has answered, or one has refused.
        """
        log, now_s = self._ports.log, self._ports.clock.wall_s()
        # Partitions come and go while brokers answer.
        for number, owner in dict(self._owners()).items():
            first = owner.sealed[1] if owner.sealed else 0
            needed_s, end = 0.0, await log.bounds.end(number)
            async for records in log.pages(number, first, end, skips_deleted=True):
                if records:
                    needed_s = now_s - records[0].timestamp / 1000
                    break
            if number in self._owners():
                self._ports.metrics.log_needed.labels(number).set(max(needed_s, 0.0))

    async def sweep(self) -> None:
        """
        Have owners repeat what waits in the older half of what is to be kept, or has left the log already.

        Raises:
            KafkaError: no leader has answered, or one has refused.
        """
        if self._ports.settings.horizon_s:
            # What waits long has a lake, and nobody sweeps.
            return
        bounds, moment_ms = self._ports.bounds, int((self._ports.clock.wall_s() - self._keep_s / 2) * 1000)
        owners = dict(self._owners())
        starts = await bounds.starts([*owners])
        for number, owner in owners.items():
            below = await bounds.since(number, moment_ms)
            owner.sweep(max(await bounds.watermark(number) if below is None else below, starts[number]))

    async def trim(self) -> None:
        """
        Delete what may be deleted by now.

        Raises:
            KafkaError: no leader has answered, or one has refused.
        """
        if not (settled := self._settled()):
            return
        bounds, now_ms = self._ports.bounds, int(self._ports.clock.wall_s() * 1000)
        settings = self._ports.settings
        landed = await landed_offsets(self._cluster, settings.topic_prefix, settled)
        # Whether this is the log that was sealed is to be judged by what brokers say now.
        await bounds.refresh()
        starts = await bounds.starts(settled)
        for number, restore_from in settled.items():
            kept_from = await bounds.since(number, now_ms - self._keep_s * 1000)
            limits = [restore_from, restore_from if kept_from is None else kept_from]
            if number in landed or settings.horizon_s:
                # With a horizon there is a lake, and what it has not told of may wait there alone.
                limits.append(landed.get(number, 0))
            before, to = starts[number], min(limits)
            log_id, _ = self._sealed[number]
            if to > before and number in self._owners() and not await self._ports.log.is_other(number, log_id):
                start = await bounds.delete_below(number, to)
                self._ports.metrics.trimmed.inc(start - before)
                self._deleted += start - before
        if self._deleted and self._ports.clock.elapsed_s() - self._told_s > _DAY_S:
            log.info("%d records of %s that nobody needs were deleted", self._deleted, self._ports.names.requests)
            self._told_s, self._deleted = self._ports.clock.elapsed_s(), 0

    def _settled(self) -> dict[int, int]:
        """Return for each owned partition the newest `restore_from` that was sealed long enough ago."""
        at_s, known, settled = self._ports.clock.elapsed_s(), self._sealed, dict[int, int]()
        self._sealed = {}
        for number, owner in self._owners().items():
            if not (told := owner.sealed):
                continue
            log_id, restore_from = told
            before, sealed = known.get(number, (log_id, deque()))
            if before != log_id or (sealed and restore_from < sealed[-1][1]):
                # After another takeover the log may be another one: what was sealed before is no place there.
                sealed = deque()
            sealed.append((at_s, restore_from))
            while len(sealed) > 1 and sealed[1][0] <= at_s - self._settled_s:
                sealed.popleft()
            self._sealed[number] = log_id, sealed
            if sealed[0][0] <= at_s - self._settled_s:
                settled[number] = sealed[0][1]
        return settled
