"""
Checks that the `timer-request` of an owned partition is the log of its seals, before anything is written or fires.

`core.log_identity` says why a partition that fails a check stands still. It is checked again at the next takeover.
"""

import asyncio
import logging
from collections.abc import Sequence

from kafka_timers.core.keys import FIRST_MS
from kafka_timers.core.log_identity import UNSEALED_MS, is_other_log
from kafka_timers.core.wire import Sealed, latest, partitions_in
from kafka_timers.errors import TopicsError
from kafka_timers.worker.faults import LogCutError, OtherLogError, SealsGoneError
from kafka_timers.worker.shared import Ports

log = logging.getLogger(__name__)

# Pauses in the search for a leader of the request log that has all requests which were fired from it.
_LOOKS_S = (0.0, 0.1, 0.5, 1.0, 1.0)


class OwnLog:
    """
    The log of partition *number*, for one owner.

    Attributes:
        id: Kafka's id of the topic, at the last takeover; empty if no broker tells one.
    """

    def __init__(self, number: int, ports: Ports) -> None:
        self.id = b""
        self._number = number
        self._ports = ports
        # How long its oldest request had been due when the partition was found without seals; 0 if it was not.
        self._unsealed_s = 0.0

    async def check(self) -> None:
        """
        Check that the seals belong to the log, before anything is written to it.

        This read proves nothing and serves one purpose: our barriers must not lengthen a recreated log.

        Raises:
            OtherLogError: the seals are of another topic.
            LogCutError: the log has lost requests that have fired.
            SealsGoneError: `check_seals` has raised it, and there still are none.
        """
        ports, number, topic = self._ports, self._number, self._ports.names.requests
        tail = await ports.seals.tail(number)
        if self._unsealed_s and not tail.seals:
            raise SealsGoneError(topic, number, self._unsealed_s)
        self._unsealed_s = 0.0
        for pause_s in _LOOKS_S:
            # The answers before may be old, from a broker that was cut off.
            await asyncio.sleep(pause_s)
            await ports.bounds.refresh()
            self.id, end = ports.bounds.log_id, await ports.bounds.end(number)
            kept_to = await tail.kept_in(ports.log, number)
            if kept_to is not None and min(kept_to, end) >= tail.fence:
                return
        if kept_to is None:
            raise OtherLogError(topic, number, tail.log, self.id)
        raise LogCutError(topic, number, min(kept_to, end), tail.fence, has_fired=True)

    async def check_seals(self, second: int, first_ms: int | None) -> None:
        """
        Check that a log without seals is not one that has lost them, before the tick *second* fires.

        Args:
            first_ms: UNIX millisecond at which its oldest request is due; None if it has none.

        Raises:
            SealsGoneError: that request has been due for over an hour, and there are records as old as that.
        """
        past_ms = second * 1000 - UNSEALED_MS
        if first_ms is None or first_ms >= past_ms:
            return
        if await self._ports.bounds.has_before(self._number, past_ms):
            self._unsealed_s = second - first_ms / 1000
            raise SealsGoneError(self._ports.names.requests, self._number, self._unsealed_s)

    def check_id(self) -> None:
        """
        Check that the topic is the one of the takeover.

        Raises:
            OtherLogError: it has another id by now.
        """
        if is_other_log(self.id, now := self._ports.bounds.log_id):
            raise OtherLogError(self._ports.names.requests, self._number, self.id, now)

    def check_partitions(self, seals: Sequence[Sealed]) -> None:
        """
        Check that the worker's number of partitions equals the one in the *seals*.

        Raises:
            TopicsError: the number has changed.
        """
        before = partitions_in(seals)
        if before and before != self._ports.partitions:
            raise TopicsError(
                f"the service has run with {before} partitions, and this worker was started for "
                f"{self._ports.partitions}. The number is fixed for life, since timer ids are routed by it: start it "
                f"with --partitions {before}, or without the option, which takes the number from the seals"
            )

    def compare(self, seals: Sequence[Sealed], known_ms: int) -> None:
        """
        Tell that `timer-sealed` has lost seals, if the last *seals* end before what the store of this worker knows.

        A store is written once its seal is committed, so it is never ahead of a topic that has lost nothing.

        Args:
            known_ms: the UNIX millisecond up to which all has fired, by seals and store together.
        """
        complete = latest(seals)
        sealed_ms = complete.end_ms if complete else FIRST_MS
        if known_ms > sealed_ms:
            what = f"its seals of the last {(known_ms - sealed_ms) / 1000:g} s" if complete else "all its seals"
            tell_lost_seals(self._ports, self._number, what)


def tell_lost_seals(ports: Ports, number: int, what: str) -> None:
    """Tell that partition *number* of `timer-sealed` has lost *what*, which its owner knows all the same."""
    ports.metrics.log_cuts.labels("timer-sealed").inc()
    log.error(
        "partition %d: %s has lost %s, as in an unclean election. This worker knows what has fired, and its next seal "
        "says so; without it and its store, that would have fired again",
        *(number, ports.names.sealed, what),
    )
