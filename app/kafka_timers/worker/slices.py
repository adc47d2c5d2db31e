"""
Turns rows of the store into record batches, grouped by callback partition.

A busy second is some hundred thousand passes through the loop of `Slice._build_at_once`. So that loop keeps names in
locals and handles only plain requests; `Slice._add_any` handles all requests.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby, repeat
from typing import NamedTuple

from aiokafka.errors import KafkaError
from google.protobuf.message import DecodeError

from kafka_timers.broker.batches import Batch
from kafka_timers.clock import Clock
from kafka_timers.core import rows as batches
from kafka_timers.core.callbacks import OVERHEAD_BYTES, Outgoing
from kafka_timers.core.changes import Row
from kafka_timers.core.contents import Contents
from kafka_timers.core.keys import REFUSED_MS, copied_in, count_of, is_batch, is_late, parts_of
from kafka_timers.core.refused import Reason, unpack_refused
from kafka_timers.core.routing import POSITIVE, SEED, hash_of, murmurhash2
from kafka_timers.core.wire import EXPIRY_HEADER, REQUEST_HEADER, Request, callback_headers, unframed
from kafka_timers.runtime.filling import Ready
from kafka_timers.runtime.outlet import Outlet
from kafka_timers.runtime.rejecting import Headers, Rejected, fitted, refused_records, size_of
from kafka_timers.runtime.targets import TopicLookup
from kafka_timers.worker.accumulators import OpenBatches, accumulator_to, partition_in, place_in, tombstone_in
from kafka_timers.worker.topic_gate import TopicGate

log = logging.getLogger(__name__)

# Requests between two turns of the event loop: some 5 ms of work. A row is never split.
_STRIDE_REQUESTS = 1_000
_STRIDE_BYTES = 4 << 20

# Maximum of the seal's field, some 24 days.
_LATENESS_MS_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class History:
    """
    etf1's history: the topic to which fired callbacks are written again, and the schedule topics that it is for.

    The request shows whether a callback belongs to it, since every schedule of etf1 asks for a tombstone on its own
    topic. So no field is needed: cancelled, moved or refused requests have none, and requests from before the history
    was set up have one.
    """

    topic: bytes
    sources: frozenset[bytes]


class _Requests(NamedTuple):
    """Requests of one kind: their due seconds, offsets, parsed messages, and a function that returns their bytes."""

    seconds: Iterable[int]
    offsets: Sequence[int]
    parsed: Sequence[Request]
    raw: Callable[[], Sequence[bytes]]


class Slice:
    """
    Rows that leave in one transaction, and the callbacks built from them.

    Args:
        outlet: topics for refused requests, and for those that are sent on.
        history: etf1's history; None without one.
        rows_max: limit of requests; the last row may exceed it.
        bytes_max: limit of the rows' bytes; the last row may exceed it.
        not_before_ms: earliest timestamp of callbacks: the moment that fires, though they are built earlier.

    Attributes:
        contents: the rows, in the form that their seal needs.
        refused: number of requests for `timer-rejected`, by reason.
        dues_ms: number of requests by due moment. Late arrivals are left out.
        unrecorded: number of callbacks that the history does not take.
        sent: the batches of callbacks and tombstones; all of them are there after `rest`.
    """

    def __init__(
        self,
        number: int,
        new_batch: Callable[[], Batch],
        targets: TopicLookup,
        outlet: Outlet,
        history: History | None,
        clock: Clock,
        *,
        rows_max: int,
        bytes_max: int,
        not_before_ms: int,
    ) -> None:
        self.contents = Contents()
        self.refused: Counter[Reason] = Counter()
        self.dues_ms: Counter[int] = Counter()
        self.bytes = 0
        self.unrecorded = 0
        self._number = number
        self._source = outlet.requests
        self._history = history
        self._rejects_to = accumulator_to(outlet.rejected, outlet.rejected_takes)
        self._home = accumulator_to(outlet.requests, outlet.requests_take)
        self._clock = clock
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._not_before_ms = not_before_ms
        self._topics = TopicGate(targets)
        # Readers of requests wait for the end of a transaction that contains some, so those leave last.
        self._batches = OpenBatches(new_batch, clock, not_before_ms, self._topics.open, (self._rejects_to, self._home))
        self.sent = self._batches.sent

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.contents.offsets)

    @property
    def is_full(self) -> bool:
        """True if nothing more may be added."""
        return len(self) >= self._rows_max or self.bytes >= self._bytes_max

    @property
    def is_outdated(self) -> bool:
        """True if a topic for which requests were rejected has another verdict now. It may have been created since."""
        return self._topics.is_outdated

    @property
    def fired(self) -> dict[str, int]:
        """Number of callbacks by topic."""
        return {to.topic: to.fired for to in self._topics.open.values()}

    async def add(self, rows: Iterator[Row]) -> bool:
        """
        Build callbacks of the next *rows* for some milliseconds; False if the rows have ended.

        Raises:
            aiokafka.errors.KafkaError: no broker answers about callback topics.
        """
        wanted = max(min(_STRIDE_REQUESTS, self._rows_max - len(self)), 1)
        count = size = 0
        singles: list[Row] = []
        for key, row in rows:
            count += count_of(key)
            size += len(row)
            if is_batch(key):
                await self._add_singles(singles)
                singles = []
                await self._add_batch(key, row)
            else:
                singles.append((key, row))
            if count >= wanted or size >= _STRIDE_BYTES:
                break
        await self._add_singles(singles)
        if count < wanted and size < _STRIDE_BYTES:
            return False
        # Let heartbeats and the other partitions have their turn.
        await asyncio.sleep(0)
        return True

    def full(self) -> list[Ready]:
        """Return the full batches, in the order in which they must be sent, with their timestamps set."""
        return self._batches.full()

    def rest(self) -> list[Ready]:
        """Return all remaining batches. Nothing can be added any more."""
        return self._batches.rest()

    async def _add_batch(self, key: bytes, row: bytes) -> None:
        batch, due_ms, contents = batches.unpack(row), parts_of(key)[0], self.contents
        contents.named |= batch.named
        self.bytes += len(row)
        self.dues_ms[due_ms] += len(batch.offsets)
        contents.offsets += batch.offsets
        contents.through = max(contents.through, key)
        requests = _Requests(repeat(due_ms // 1000), batch.offsets, batch.requests, lambda: batches.raw_requests(row))
        await self._build(requests, len(row), plain=batch.plain)

    async def _add_singles(self, rows: list[Row]) -> None:
        if not rows:
            return
        keys, contents = [key for key, _ in rows], self.contents
        self.bytes += sum([len(row) for _, row in rows])
        dues_ms, offsets = zip(*map(parts_of, keys), strict=True)
        late = [is_late(key) for key in keys]
        self.dues_ms.update([due_ms for due_ms, came_late in zip(dues_ms, late, strict=True) if not came_late])
        contents.late += sum(late)
        contents.offsets += offsets
        contents.copies += [
            (offset, copied.decided) for key, offset in zip(keys, offsets, strict=True) if (copied := copied_in(key))
        ]
        contents.through = max(contents.through, keys[-1])
        requests = []
        for due_ms, offset, (_, row) in zip(dues_ms, offsets, rows, strict=True):
            if due_ms == REFUSED_MS:
                reason, *record = unpack_refused(row)
                if reason is None:
                    self._forward(offset, *record)
                else:
                    self._reject(reason, [(offset, *record)])
            else:
                requests.append((due_ms // 1000, offset, row))
        values = [row for _, _, row in requests]
        try:
            parsed = batches.requests_in(values)
        except DecodeError:
            for each in requests:
                await self._add_any(*each)
            return
        contents.named |= any(request.timerId for request in parsed)
        alike = _Requests([each[0] for each in requests], [each[1] for each in requests], parsed, lambda: values)
        await self._build(alike, max(map(len, values), default=0), plain=False)

    async def _build(self, requests: _Requests, largest: int, *, plain: bool) -> None:
        """
        Build callbacks for requests, or reject them.

        Args:
            largest: upper limit for the size of a request in bytes.
            plain: True if all of them have nothing but topic, key and value.
        """
        asked = len(requests.offsets)
        built = await self._build_at_once(requests, largest, plain=plain)
        if built == asked:
            return
        done, rows = set(range(built)), list(zip(requests.seconds, requests.offsets, requests.raw(), strict=False))
        parsed = list(requests.parsed)
        if not built and (gone := await self._topics.gone_in(parsed)):
            # They may be as many as the callbacks of a busy second.
            left = [number for number in range(asked) if number not in gone]
            some = [rows[number] for number in left]
            seconds, offsets, raw = zip(*some, strict=True) if some else ((), (), ())
            alike = _Requests(seconds, offsets, [parsed[number] for number in left], lambda: raw)
            built = await self._build_at_once(alike, largest, plain=plain)
            if built == len(left):
                self._reject_alike(gone, rows)
                return
            done = set(left[:built])
        # In order, including rejects.
        for number, each in enumerate(rows):
            if number not in done:
                await self._add_any(*each)

    async def _build_at_once(self, requests: _Requests, largest: int, *, plain: bool) -> int:
        """
        Build callbacks until something unusual occurs in *requests*, and return their number.

        A request that fails here is handled singly afterwards, and fails again there with a message.
        """
        # Each access to a field of a parsed message makes a new object.
        parsed = list(requests.parsed)
        topics, outgoing = [request.callBackTopic for request in parsed], None
        if b"" in topics:
            outgoing = [Outgoing.of(request) for request in parsed]
            topics = [each.topic for each in outgoing]
        tombstones = [] if plain else [(at, topic) for at, each in enumerate(parsed) if (topic := each.tombstoneTopic)]
        try:
            named = {topic for _, topic in tombstones}.union(topics)
            takes_all = await self._topics.has_room(named, largest, requests.raw)
            if not takes_all or self._topics.lacks_key(topics, parsed, outgoing):
                return 0
        except KafkaError:
            raise
        except Exception:
            return 0
        accumulators = map(self._topics.open.__getitem__, topics)
        dated_ms, name = self._not_before_ms, b"%d:%%d" % self._number
        expiry_of, expiry = -1, (EXPIRY_HEADER, b"")
        all_parts = zip(count(), requests.seconds, requests.offsets, parsed, accumulators, strict=False)
        number, built = 0, len(parsed)
        try:
            for number, second, offset, request, to in all_parts:  # used when one fails
                if plain:
                    if second != expiry_of:
                        expiry_of, expiry = second, (EXPIRY_HEADER, b"%d" % second)
                    headers: Headers = [expiry, (REQUEST_HEADER, name % offset)]
                else:
                    headers = callback_headers(request, second, name % offset)
                batches = to.batches
                key: bytes | None
                value: bytes | None
                if outgoing is None:
                    key, value = request.callBackKey or None, request.callBack
                    at = (murmurhash2(key, SEED) & POSITIVE if key else second) % len(batches)
                else:
                    _, key, value, *_ = outgoing[number]
                    at = partition_in(outgoing[number], len(batches), second)
                batch = batches[at]
                if batch is None or batch.append(timestamp=dated_ms, key=key, value=value, headers=headers) is None:
                    self._batches.append_to_new(to, at, key, value, headers)
        except Exception:
            built = number
        for topic, fired in Counter(topics[:built]).items():
            self._topics.open[topic].fired += fired
        for number, topic in tombstones:
            if number >= built:
                break
            to, request = self._topics.open[topic], parsed[number]
            at, key, batches = tombstone_in(request, to), request.tombstoneKey, to.batches
            headers, batch = [(REQUEST_HEADER, name % requests.offsets[number])], batches[at]
            if batch is None or batch.append(timestamp=dated_ms, key=key, value=None, headers=headers) is None:
                self._batches.append_to_new(to, at, key, None, headers)
        if self._history and tombstones:
            rows = zip(requests.seconds, requests.offsets, requests.raw(), parsed[:built], strict=False)
            for second, offset, row, request in rows:
                await self._record(second, offset, len(row), request)
        return built

    async def _record(self, second: int, offset: int, size: int, request: Request) -> None:
        """Write the callback of *request*, which has *size* bytes, again if the history is to have it."""
        history, outgoing = self._history, Outgoing.of(request)
        if not history or request.tombstoneTopic not in history.sources or outgoing.topic == history.topic:
            return
        if not await self._topics.refused({history.topic}):
            to = self._topics.open[history.topic]
            at = place_in(outgoing, request, size, to.target, second)
            if not isinstance(at, Reason):
                headers = callback_headers(request, second, b"%d:%d" % (self._number, offset))
                self._batches.append(to, at, size + OVERHEAD_BYTES, outgoing.key, outgoing.value, headers)
                return
        # It is only counted, as etf1 does not wait for its history either.
        self.unrecorded += 1

    def _reject_alike(self, gone: Mapping[int, tuple[bytes, Reason]], rows: Sequence[tuple[int, int, bytes]]) -> None:
        """Reject the *gone* ones of *rows* (second, offset, request), in order."""
        for (topic, reason), numbers in groupby(gone, gone.__getitem__):
            records = [(offset, b"%d" % second, row) for second, offset, row in map(rows.__getitem__, numbers)]
            self._reject(reason, records, self._topics.words_of([topic]) if reason is Reason.TOPIC_REFUSED else "")

    async def _add_any(self, second: int, offset: int, row: bytes) -> None:
        try:
            refused = await self._add_or_judge(second, offset, row)
        except KafkaError:
            raise
        except Exception:
            # One faulty request must not stop the others of its second.
            log.exception("partition %d offset %d: its callback cannot be built", self._number, offset)
            refused = Reason.UNREADABLE, ""
        if refused:
            reason, words = refused
            self._reject(reason, [(offset, b"%d" % second, row)], words)

    async def _add_or_judge(self, second: int, offset: int, row: bytes) -> tuple[Reason, str] | None:
        """Add a request, or return the reason for rejecting it and the broker's words."""
        try:
            request = Request.FromString(row)
        except DecodeError:
            return Reason.VALUE_NOT_A_FUTURE, ""
        outgoing = Outgoing.of(request)
        self.contents.named |= bool(request.timerId)
        if refused := await self._topics.refused({outgoing.topic, request.tombstoneTopic or outgoing.topic}):
            reason, topics = next(iter(refused.values())), [outgoing.topic, request.tombstoneTopic]
            return reason, self._topics.words_of(topics) if reason is Reason.TOPIC_REFUSED else ""
        to = self._topics.open[outgoing.topic]
        at = place_in(outgoing, request, len(row), to.target, second)
        if isinstance(at, Reason):
            return at, ""
        name = b"%d:%d" % (self._number, offset)
        headers, size = callback_headers(request, second, name), len(row) + OVERHEAD_BYTES
        self._batches.append(to, at, size, outgoing.key, outgoing.value, headers)
        to.fired += 1
        if request.tombstoneTopic:
            to, key = self._topics.open[request.tombstoneTopic], request.tombstoneKey
            at, size = tombstone_in(request, to), len(key) + OVERHEAD_BYTES
            self._batches.append(to, at, size, key, None, [(REQUEST_HEADER, name)])
            await self._record(second, offset, len(row), request)
        return None

    def lateness_ms(self, share: float) -> int:
        """Return the lateness now that *share* (0 to 1) of the rows do not exceed, up to 24 days; 0 without rows."""
        late, left, now_ms = 0, share * self.dues_ms.total(), int(self._clock.wall_s() * 1000)
        for due_ms in sorted(self.dues_ms, reverse=True):
            if left <= 0:
                break
            # If timers fire only at ticks, they are early by their millisecond.
            late = min(max(now_ms - due_ms, 0), _LATENESS_MS_MAX)
            left -= self.dues_ms[due_ms]
        return late

    def _forward(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Send a record on to the partition of its timer id, or reject it if the topic does not take it."""
        to, source = self._home, self._source
        size = size_of(key, value, [])
        if refused := self._topics.refusal_of(source):
            self._reject(refused, [(offset, key, value)], self._topics.words_of([source.encode()]))
        elif size > to.target.batch_bytes_max:
            self._reject(Reason.TOO_LARGE, [(offset, key, value)])
        else:
            self.contents.rejected.append(offset)
            self.contents.forwarded.append(offset)
            timer_id = Request.FromString(unframed(value or b"")).timerId
            self._batches.append(to, hash_of(timer_id) % to.target.partitions, size, key, value, [])

    def _reject(self, reason: Reason, records: Sequence[Rejected], words: str = "") -> None:
        offsets = [offset for offset, _, _ in records]
        self.contents.rejected += offsets
        self.refused[reason] += len(offsets)
        to, number = self._rejects_to, self._number
        # If the topic's limit is below that of `timer-request`, the record is cut.
        at, room = number % to.target.partitions, to.target.batch_bytes_max - OVERHEAD_BYTES
        for refused in refused_records(reason, self._source, number, records, words):
            key, value, headers = fitted(refused, room)
            self._batches.append(to, at, size_of(key, value, headers), key, value, headers)
