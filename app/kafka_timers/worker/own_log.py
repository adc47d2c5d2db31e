"""
Checks that the `timer-request` of an owned partition is the log of its seals, before anything is written or fires.

`core.log_identity` says why a partition that fails a check stands still. It is checked again at the next takeover.
"""

import asyncio

from kafka_timers.core.log_identity import UNSEALED_MS, is_other_log
from kafka_timers.worker.faults import LogCutError, OtherLogError, SealsGoneError
from kafka_timers.worker.shared import Ports

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
