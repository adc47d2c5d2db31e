"""
Turns rows of the store into record batches, grouped by callback partition.

A busy second is some hundred thousand requests. So `Slice._build_at_once` builds column by column, and only for
requests of which none is unusual; `Slice._add_any` handles any request.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
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
from kafka_timers.core.set_aside import instead_of
from kafka_timers.core.wire import EXPIRY_HEADER, REQUEST_HEADER, Request, Sealed, callback_headers, unframed
from kafka_timers.runtime.filling import Ready
from kafka_timers.runtime.outlet import Outlet
from kafka_timers.runtime.rejecting import Headers, Rejected, fitted, refused_records, size_of
from kafka_timers.runtime.targets import TopicLookup
from kafka_timers.worker.accumulators import Accumulator, OpenBatches, accumulator_to, place_in, tombstone_in
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

    seconds: Sequence[int]
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
        """Build callbacks of the next *rows* for some milliseconds; False if the rows have ended."""
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

    def tell(self, seal: Sealed) -> None:
        """Write into *seal* which batches have left, after `rest`."""
        self._batches.tell(seal)

    async def _add_batch(self, key: bytes, row: bytes) -> None:
        batch, due_ms, contents = batches.unpack(row), parts_of(key)[0], self.contents
        # Each pass over a field of a parsed message makes new objects.
        offsets = list(batch.offsets)
        contents.named |= batch.named
        self.bytes += len(row)
        self.dues_ms[due_ms] += len(offsets)
        contents.offsets += offsets
        contents.through = max(contents.through, key)
        seconds = [due_ms // 1000] * len(offsets)
        requests = _Requests(seconds, offsets, list(batch.requests), lambda: batches.raw_requests(row))
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
            parsed = list(batches.requests_in(values))
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
            plain: True if all of them have nothing but topic, key and value, and are due in one second.
        """
        if await self._build_at_once(requests, largest, plain=plain):
            return
        seconds, offsets, parsed, raw = requests
        rows = list(zip(seconds, offsets, raw(), strict=True))
        if gone := await self._topics.gone_in(parsed):
            # They may be as many as the callbacks of a busy second.
            left = [number for number in range(len(rows)) if number not in gone]
            seconds, offsets, values = zip(*(rows[number] for number in left), strict=True) if left else ((), (), ())
            alike = _Requests(seconds, offsets, [parsed[number] for number in left], lambda: values)
            if not left or await self._build_at_once(alike, largest, plain=plain):
                self._reject_alike(gone, rows)
                return
        # In order, including rejects.
        for each in rows:
            await self._add_any(*each)

    async def _build_at_once(self, requests: _Requests, largest: int, *, plain: bool) -> bool:
        """
        Build the callbacks of all *requests*; False, and none is built, if one of them is unusual.

        Those are handled singly afterwards, and a request that fails here fails again there with a message.
        """
        seconds, offsets, parsed, raw = requests
        name = b"%d:%%d" % self._number
        try:
            topics, outgoing = [request.callBackTopic for request in parsed], None
            if b"" in topics:
                outgoing = [Outgoing.of(request) for request in parsed]
                topics = [each.topic for each in outgoing]
            counts = Counter(topics)
            ending = [] if plain else [each for each in zip(parsed, offsets, strict=True) if each[0].tombstoneTopic]
            named = {request.tombstoneTopic for request, _ in ending}.union(counts)
            takes_all = await self._topics.has_room(named, largest, raw)
            if not takes_all or self._topics.lacks_key(topics, parsed, outgoing):
                return False
            accumulators = list(map(self._topics.open.__getitem__, topics))
            columns = _placed(parsed, seconds) if outgoing is None else _asked(outgoing, seconds, accumulators)
            if _NOWHERE in columns[2]:
                return False
            headers = _headers(parsed, seconds, [name % offset for offset in offsets], plain=plain)
        except KafkaError:
            raise
        except Exception:
            return False
        dated_ms = self._not_before_ms
        for to, key, value, place, own in zip(accumulators, *columns, headers, strict=True):
            at = place % len(to.batches)
            batch = to.batches[at]
            if batch is None or batch.append(dated_ms, key, value, own) is None:
                self._batches.append_to_new(to, at, key, value, own)
        for topic, fired in counts.items():
            self._topics.open[topic].fired += fired
        for request, offset in ending:
            self._add_tombstone(request, name % offset)
        if self._history and ending:
            for second, offset, row, request in zip(seconds, offsets, raw(), parsed, strict=True):
                await self._record(second, offset, len(row), request)
        return True

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
            again = self._ask_again(second, offset, row) if reason is Reason.TOPIC_UNAVAILABLE else b""
            self._reject(reason, [(offset, b"%d" % second, row)], words, again)

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
        if isinstance(at, int) and (ending := request.tombstoneTopic):
            beside = self._topics.open[ending]
            if tombstone_in(request, beside) in beside.target.unavailable:
                at = Reason.TOPIC_UNAVAILABLE
        if isinstance(at, Reason):
            is_told = at is Reason.TOPIC_UNAVAILABLE
            return at, self._topics.words_of([outgoing.topic, request.tombstoneTopic]) if is_told else ""
        name = b"%d:%d" % (self._number, offset)
        headers, size = callback_headers(request, second, name), len(row) + OVERHEAD_BYTES
        self._batches.append(to, at, size, outgoing.key, outgoing.value, headers)
        to.fired += 1
        if request.tombstoneTopic:
            self._add_tombstone(request, name)
            await self._record(second, offset, len(row), request)
        return None

    def _add_tombstone(self, request: Request, name: bytes) -> None:
        to, key = self._topics.open[request.tombstoneTopic], request.tombstoneKey
        at, size = tombstone_in(request, to), len(key) + OVERHEAD_BYTES
        self._batches.append(to, at, size, key, None, [(REQUEST_HEADER, name)])

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

    def _ask_again(self, second: int, offset: int, row: bytes) -> bytes:
        """Have another request take the place of one that is rejected for now; return its key, empty if none does."""
        asks = instead_of(row, f"{self._number}:{offset}", second, self._not_before_ms)
        if asks is None or (size := size_of(*asks, [])) > self._home.target.batch_bytes_max:
            return b""
        self._batches.append(self._home, self._number, size, *asks, [])
        return asks[0]

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

    def _reject(self, reason: Reason, records: Sequence[Rejected], words: str = "", again: bytes = b"") -> None:
        offsets = [offset for offset, _, _ in records]
        self.contents.rejected += offsets
        self.refused[reason] += len(offsets)
        to, number = self._rejects_to, self._number
        # If the topic's limit is below that of `timer-request`, the record is cut.
        at, room = number % to.target.partitions, to.target.batch_bytes_max - OVERHEAD_BYTES
        for refused in refused_records(reason, self._source, number, records, words, again):
            key, value, headers = fitted(refused, room)
            self._batches.append(to, at, size_of(key, value, headers), key, value, headers)


# --- columns of callbacks: comprehensions, since a busy second has some hundred thousand ------------------------------

# Key, value and place of each callback: a number that is a partition once taken modulo theirs, or `_NOWHERE`.
_Columns = tuple[Sequence[bytes | None], Sequence[bytes | None], Sequence[int]]
_NOWHERE = -1


def _placed(parsed: Sequence[Request], seconds: Sequence[int]) -> _Columns:
    """Return the columns of requests that have their callback in the fields for topic, key and value."""
    keys = [each.callBackKey or None for each in parsed]
    places = [murmurhash2(key, SEED) & POSITIVE if key else second for key, second in zip(keys, seconds, strict=True)]
    return keys, [each.callBack for each in parsed], places


def _asked(outgoing: Sequence[Outgoing], seconds: Sequence[int], accumulators: Sequence[Accumulator]) -> _Columns:
    """Return the columns of *outgoing* callbacks for the topics of *accumulators*."""
    asked = zip(outgoing, seconds, accumulators, strict=True)
    places = [each.at(len(to.batches), second) for each, second, to in asked]
    found = [_NOWHERE if place is None else place for place in places]
    return [each.key for each in outgoing], [each.value for each in outgoing], found


def _headers(
    parsed: Sequence[Request], seconds: Sequence[int], names: Sequence[bytes], *, plain: bool
) -> Iterable[Headers]:
    """Return the headers of the callbacks of requests with these *names*. *plain* ones are all due in one second."""
    if not plain:
        return list(map(callback_headers, parsed, seconds, names))
    return _plain_headers((EXPIRY_HEADER, b"%d" % seconds[0]), names)


def _plain_headers(expiry: tuple[str, bytes | None], names: Iterable[bytes]) -> Iterator[Headers]:
    # One list for all: a batch has read it before the next one is asked for.
    own = [expiry, expiry]
    for name in names:
        own[1] = REQUEST_HEADER, name
        yield own
