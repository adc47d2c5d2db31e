"""
The rules of one partition: which requests are done, the key of a new request, and the requests that a tick may fire.

Pure: moments, offsets and bytes, no Kafka, no store, no clock. A step returns its `Changes`. The state moves when they
are applied, after they were written.

Only seals (`timer-sealed`) tell which requests are done, so that every later owner of the partition knows it. A seal
ends at a moment and names a snapshot, the offset up to which the log had been read when its scan began:

    complete seal (end, snapshot)             done: due < end and offset < snapshot
    slice of a scan (end, snapshot, through)  done: key <= through and offset < snapshot

Every pending request has one key. It follows from the log and the last complete seal alone, so two workers order the
same rows alike, and `through` means the same to both:

    due at or after the seal's end      row_key(due, offset)
    else it came late                   late_key(seal's end, offset, due)
    read during a scan that covers it   late_key(scan's end, offset, due)

Requests of one read that are due at one moment may share one key, if no scan has looked at that moment. The key is that
of the last of them, with their number behind it. They fire together, so nothing needs to tell them apart.

A scan covers everything with a key before its end. A request that is read during a scan lies behind the snapshot. Its
key lies outside of the scan's range, so it fires with the next tick.

A request that is far ahead is left to the lake, which copies it back in good time. A copy keeps the name of its
original, so its key has the original's offset. The copy's own offset tells whether it is done. The offset of its
decision tells the chunk that it counts under: a worker that reads on from there knows all that it needs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from kafka_timers.core.backlog import Backlog, Count, Tally, chunk_of, chunks_of
from kafka_timers.core.changes import Changes, Head, Mark, Row, Scan, Swept
from kafka_timers.core.contents import DIGESTS, Contents
from kafka_timers.core.hour import begun_s, forgets_ms, over_ms
from kafka_timers.core.ignored import named_of, unnamed_of
from kafka_timers.core.keys import FIRST_MS, Copied, first_key, late_key, row_key
from kafka_timers.core.sums import ReadSums, fired_digest_of
from kafka_timers.core.sweep import Sweep, sweeps_in, tell
from kafka_timers.core.takeover import start_of
from kafka_timers.core.versions import Decided, Effect, Version
from kafka_timers.core.wire import FORMAT, Sealed, is_complete


class Partition:
    """
    The state of one partition.

    Args:
        horizon_s: requests due more seconds than this after their append are left to the lake; 0 leaves none.
        format: format of the seals that this owner writes, which every member of the group can read.

    Attributes:
        horizon_from: offset from which on all owners have used this horizon.
        ignored: offsets of requests whose condition did not hold, and their due in UNIX milliseconds; 0 if the request
            has not been read.
        replaced_below: a request below this offset whose condition did not hold is `ignored`, or done.
        held_alone: number of pending requests that have left the request log, so that only the store has them.
        lost: offsets that had left the request log before they could be read, though some requests waited there.
        swept: a sweep that is written, and that no seal has told of yet; None without one.
    """

    def __init__(self, number: int, horizon_s: int = 0, format: int = FORMAT) -> None:
        self.number = number
        self.format = format
        self.horizon_s = horizon_s
        self.head = Head(position=0, sealed_ms=FIRST_MS, snapshot=0, known_from=0, scan=None)
        self.backlog = Backlog()
        self.horizon_from = 0
        self.ignored: dict[int, int] = {}
        self.replaced_below = 0
        self.held_alone = 0
        self.lost = range(0)
        self.swept: Swept | None = None

    @property
    def position(self) -> int:
        """The offset up to which the request log has been read into the store."""
        return self.head.position

    @property
    def scan(self) -> Scan | None:
        """The open scan, if there is one."""
        return self.head.scan

    @property
    def sealed_ms(self) -> int:
        """The moment before which everything is sealed, in UNIX milliseconds."""
        return self.head.sealed_ms

    def apply(self, changes: Changes) -> None:
        """Take over *changes* that have been written."""
        self.backlog.apply(changes.counts)
        self.head = changes.head
        self.ignored.update(changes.ignored)
        for offset in changes.unignored:
            self.ignored.pop(offset, None)

    # --- acquiring it ------------------------------------------------------------------------------------------------

    def acquire(
        self,
        seals: Iterable[Sealed],
        local: Head | None,
        *,
        ignored: Mapping[int, int] = MappingProxyType({}),
        log_start: int = 0,
        read_from: int | None = None,
        log: bytes = b"",
    ) -> bool:
        """
        Set the state from the *seals* of this partition, the head of a *local* store, and what it has *ignored*.

        Afterwards the owner reads the log from `position` on, and scans nothing before it has reached `must_read_to`.

        Args:
            seals: the last seals, with the latest complete one among them.
            local: head of the store; None if there is no store, or if it was kept with another horizon.
            ignored: the store's requests whose condition did not hold, as in the attribute.
            log_start: first offset that the request log still has.
            read_from: offset to read the log from if there is no local store, when it must be earlier than the seals
                say.
            log: as in `Head`.

        Returns:
            Whether the local store is worth keeping. If so, `reconcile` brings it in line. If not, drop it, and read
            the log from `position`.

        Raises:
            NewerFormatError: a later version has written one of the seals.
        """
        start = start_of(seals, local, ignored, horizon_s=self.horizon_s, log_start=log_start, read_from=read_from)
        self.head = replace(start.head, log=log)
        self.horizon_from = start.horizon_from
        self.ignored = dict.fromkeys(start.ignored, 0) | (dict(ignored) if start.keeps_store else {})
        self.replaced_below = start.head.must_read_to
        return start.keeps_store

    def restore(self, counts: Mapping[int, Count]) -> None:
        """Take over the counts of a store that is worth keeping."""
        self.backlog.apply(counts)

    @property
    def must_read_to(self) -> int:
        """See `Head`."""
        return self.head.must_read_to

    # --- the hour of ids ---------------------------------------------------------------------------------------------

    @property
    def forgets_s(self) -> int:
        """The last UNIX second from which on an hour is over, so that the ids with that hour can be forgotten."""
        return begun_s(self._forgets_ms)

    @property
    def _forgets_ms(self) -> int:
        return forgets_ms(self.sealed_ms, self.head.passed_ms)

    def passed(self, moment_ms: int) -> None:
        """Note that all below a high watermark has been read that was asked for after *moment_ms*."""
        self.head = replace(self.head, passed_ms=max(self.head.passed_ms, moment_ms))

    def led(self, epoch: int) -> None:
        """Note that the log is read on under the leader *epoch*, and still has what was read before."""
        self.head = replace(self.head, leader_epoch=epoch)

    # --- requests ----------------------------------------------------------------------------------------------------

    @property
    def scanned_ms(self) -> int:
        """The moment up to which scans have begun to look; from it on no request is done, and none is late."""
        return max(self.sealed_ms, self.scan.end_ms if self.scan else 0)

    def place(self, due_ms: int, offset: int, copied: Copied | None = None) -> bytes | None:
        """
        Return the key to keep a request under, or None if it is done.

        Args:
            due_ms: due of the request; `REFUSED_MS` for a refused one.
            offset: offset of the request; for a copy that of its original.
            copied: the copy's own offsets, if it is a copy.
        """
        head = self.head
        at, scan = copied.at if copied else offset, head.scan
        if due_ms >= head.sealed_ms:
            key = row_key(due_ms, offset, copied)
        elif at < head.snapshot:
            return None
        else:
            key = late_key(head.sealed_ms, offset, due_ms, copied)
        if scan is not None and due_ms < scan.end_ms:
            # A request is read after the scan that covers it began:
            #  1. tick 12 is read, the log has been read up to offset 40: a scan up to 13.000 with snapshot 40
            #  2. offset 40 asks for 11        3. the scan's rows are dropped once they are sealed
            # Under 11 it would be dropped without having fired. Held by test_v4_request_read_during_a_scan_is_not_lost.
            if at >= scan.snapshot:
                return late_key(scan.end_ms, offset, due_ms, copied)
            if key <= scan.through:
                return None
        return key

    def key_of(self, version: Version) -> bytes | None:
        """Return the key under which the request is kept, None if it is done."""
        return self.place(version.due_ms, version.offset, version.copied)

    def is_done(self, version: Version) -> bool:
        """Tell whether a request that was not withdrawn is done; one that is left to the lake is not."""
        return not version.far and self.key_of(version) is None

    def effect(self, before: Version, by: int, appended_ms: int) -> Effect:
        """
        Return the effect of a record on the request *before* it of its timer id, which no record has withdrawn yet.

        The due rule: the record withdraws that request if it was appended before the request's due, and lies below the
        snapshot of the scan that covers the request. Seals and requests alone decide this.

        Args:
            by: offset of the record, a cancel or a request.
            appended_ms: UNIX milliseconds at which the broker appended the record.
        """
        if appended_ms >= before.due_ms:
            return Effect.TOO_LATE
        if before.far:
            return Effect.WITHDRAWS
        if self.is_done(before):
            # The snapshot that covers it is unknown, and not above the last one.
            return Effect.FORGOTTEN if self.is_answered(by) else Effect.TOO_LATE
        scan = self.scan
        if scan is not None and before.due_ms < scan.end_ms and before.at < scan.snapshot <= by:
            # Once a slice is sealed, every owner that goes on with this scan has the same snapshot. Before that, the
            # next owner may have read the record when it begins a scan of its own.
            return Effect.TOO_LATE if scan.through else Effect.UNDECIDED
        return Effect.WITHDRAWS

    def has_replaced(self, offset: int, appended_ms: int) -> bool:
        """
        Tell whether a conditional request stands because it has replaced another one that was not read.

        A request that was replaced less than an hour ago is read again, see `Backlog`. So if none is found then, none
        was replaced.

        Args:
            offset: offset of the request, which is not among the `ignored` ones.
        """
        return offset < self.replaced_below and over_ms(appended_ms) <= self.newest_ms

    def has_stood(self, offset: int, due_ms: int) -> bool:
        """
        Tell whether an owner before has let a conditional request stand, which is not among the `ignored` ones.

        Seals name the others for an hour after their second. What this owner knows of its id may be misjudged: an
        ignored request that they name no more makes its id known here.
        """
        return offset < self.replaced_below and over_ms(due_ms) > self.newest_ms

    @property
    def newest_ms(self) -> int:
        """The begin of the last second that a scan has begun to look at; `has_replaced` counts its hour up to there."""
        return self.scanned_ms - 1000

    def is_answered(self, offset: int) -> bool:
        """Tell whether the record at *offset* was answered before; no seal covers a record that was not."""
        return offset < self.must_read_to

    def read(
        self,
        position: int,
        rows: Sequence[Row] = (),
        offsets: Sequence[int] = (),
        decided: Decided | None = None,
        *,
        read: ReadSums | None = None,
        appended_ms: int = 0,
    ) -> Changes:
        """
        Return the changes after more of the log has been read.

        Args:
            position: offset up to which it has been read.
            offsets: offsets under which these count as pending, ascending.
            read: sums of the records read by then, if they were counted.
            appended_ms: UNIX milliseconds at which the last of these records was appended; 0 if there is none.
        """
        tally, before = self.tally(), self.head
        tally.add(chunks_of(offsets, ascending=True))
        passed_ms = max(before.passed_ms, appended_ms)
        head = replace(before, position=position, read=before.read if read is None else read, passed_ms=passed_ms)
        changes = Changes(head, rows=list(rows), counts=tally.counts)
        if decided is not None:
            tally.remove(chunks_of([each.counted for each in decided.withdrawn]))
            for offset, since_ms in decided.remember:
                tally.remember([chunk_of(offset)], over_ms(since_ms))
            changes.marks = {each.key: Mark(each.timer_id, each.superseded) for each in decided.withdrawn}
            changes.versions, changes.answers = decided.versions, decided.answers
            changes.expiring, changes.last = decided.expiring, decided.last
            changes.ignored = decided.ignored
        return changes

    @property
    def pending(self) -> int:
        """The number of pending requests."""
        return self.backlog.total

    @property
    def restore_from(self) -> int:
        """An offset on `timer-request` below which nothing waits or is remembered; at most one chunk below the best."""
        return self._lowest(self.tally(), self._forgets_ms)

    def begins_at(self, start: int, held_alone: int) -> None:
        """Note that the request log begins at the offset *start*, and how many pending requests lie below it."""
        self.held_alone = held_alone
        if not held_alone:
            # Chunks are coarse, so `restore_from` alone could lie below the log though it has all that waits.
            self.head = replace(self.head, done_below=max(self.head.done_below, min(start, self.position)))

    def _lowest(self, tally: Tally, at_ms: int) -> int:
        lowest = tally.lowest(at_ms)
        # A request that was sealed is never pending again, though a new one may open its chunk again. The result must
        # not fall then, since retention follows it.
        return self.position if lowest is None else max(lowest, self.head.done_below)

    # --- firing ------------------------------------------------------------------------------------------------------

    def begin(self, end_ms: int) -> None:
        """
        Open a scan of all requests that are due before *end_ms*. A scan that was left open comes first, with its own
        snapshot.

        The scan need not be in the store before its callbacks leave. An owner that goes on with a scan takes it from
        the seals. Requests that are read meanwhile have keys that fit the scan, and are written together with the head
        that has it.
        """
        head = self.head
        # A caller that only asks which requests would fire has not counted.
        read = head.read if head.read and head.read.to == head.position else None
        self.head = replace(head, scan=self.scan or Scan(end_ms, head.position, read=read))

    def keys_left(self) -> tuple[bytes, bytes]:
        """Return the range of keys, the second one excluded, that are left to fire in the open scan."""
        scan = self._open()
        return scan.through + b"\0" if scan.through else first_key(self.sealed_ms), first_key(scan.end_ms)

    def seal(
        self,
        contents: Contents,
        *,
        complete: bool,
        cancelled: int = 0,
        superseded: int = 0,
    ) -> Sealed:
        """
        Return the seal for the next rows of the open scan, without the fields that only the sender knows.

        Args:
            contents: the rows from the scan's `through` on, complete but for those that were withdrawn.
            cancelled: number of rows in between that a cancel has withdrawn.
            superseded: number of rows in between that another request has withdrawn.
        """
        scan, offsets, rejected = self._open(), contents.offsets, contents.rejected
        after, sweeps = self._tally_without(contents), self.head.sweeps
        if self.swept and complete:
            sweeps = *sweeps, self.swept
            after.sweep(*_chunks_of(self.swept))
        seal = Sealed(
            partition=self.number,
            format=self.format,
            first_ms=self.sealed_ms,
            end_ms=scan.end_ms,
            due=len(offsets),
            fired=len(offsets) - len(rejected),
            rejected=len(rejected),
            forwarded=len(contents.forwarded),
            late_arrivals=contents.late,
            cancelled=cancelled,
            moved=superseded,
            pending=after.pending,
            fence=scan.snapshot,
            through=None if complete else contents.through,
            restore_from=self._lowest(after, forgets_ms(scan.end_ms, self.head.passed_ms)),
            horizon_s=self.horizon_s,
            horizon_from=self.horizon_from,
            ignored=named_of(self.ignored, self.head),
            log=self.head.log,
            leader_epoch=None if self.head.leader_epoch < 0 else self.head.leader_epoch,
            held_alone=min(self.held_alone, after.pending),
            lost_from=self.lost.start,
            lost_to=self.lost.stop,
        )
        if sweeps:
            tell(sweeps, seal)
        digests = [fired_digest_of(self.number, each) for each in (offsets, rejected)]
        seal.fired_digest = (digests[0] - digests[1]) % DIGESTS
        if scan.read is not None:
            scan.read.tell(seal)
        return seal

    def sealed(self, seal: Sealed, contents: Contents, drop_before: bytes | None = None) -> Changes:
        """
        Return the changes once *seal* is durable, so that the rows in *contents* are done.

        All rows below the key *drop_before* go; None if there were none.
        """
        scan, after = self._open(), self._tally_without(contents)
        if is_complete(seal):
            head = replace(self.head, sealed_ms=scan.end_ms, snapshot=scan.snapshot, scan=None)
            if seal.swept:
                head = replace(head, sweeps=sweeps_in(seal))
            if head.swept != self.head.swept:
                self.swept = None
                after.sweep(*_chunks_of(head.swept))
            after.forget(forgets_ms(scan.end_ms, head.passed_ms))
        else:
            head = replace(self.head, scan=scan._replace(through=seal.through))
        changes = Changes(replace(head, done_below=seal.restore_from), drop_before=drop_before, counts=after.counts)
        changes.unignored = unnamed_of(self.ignored, head, seal.restore_from)
        return changes

    def _tally_without(self, contents: Contents) -> Tally:
        tally = self.tally()
        tally.remove(contents.chunks)
        if contents.named:
            tally.remember(map(tally.counts_in, contents.chunks), over_ms(self._open().end_ms - 1))
        return tally

    def tally(self) -> Tally:
        """Return an empty change of the counts of pending requests."""
        return Tally(self.backlog, self._forgets_ms, *self.swept_chunks)

    # --- sweeping it -------------------------------------------------------------------------------------------------

    @property
    def swept_chunks(self) -> tuple[int, int]:
        """What waits in chunks below the first one counts in the second one, since it is repeated there."""
        return _chunks_of(self.head.swept)

    def read_again_at(self, offset: int, due_ms: int, by: int | None = None) -> int:
        """
        Return where a request is to be read again that has fired, or that the record at the offset *by* has withdrawn.

        A sweep has it for sure only if it was not left out, and was still there when all was written:
         1. a sweep begins at 40     2. offset 41 cancels offset 3     3. the sweep comes to where offset 3 was: it is
            gone     4. the sweep ends at 45
        Offset 3 must be read where it lies, also by an owner that reads offset 41 again.
        """
        for swept in reversed(self.head.sweeps):
            if offset < swept.below and due_ms >= swept.from_ms and (by is None or by >= swept.to):
                return swept.since
        return offset

    def sweep(self, begun_us: int, below: int, ahead_ms: int) -> Sweep | None:
        """
        Return a sweep of what waits below the offset *below*; None if nothing does, or if it cannot be swept now.

        Args:
            begun_us: as in `Swept`.
            ahead_ms: milliseconds; what is due within these is left out, and has to fire before the sweep ends.
        """
        below, lowest = min(below, self.position), min(self.backlog.pending, default=None)
        before = self.head.sweeps
        if lowest is None or lowest >= chunk_of(below) or self.horizon_s or self.swept or len(before) > 1:
            return None
        # What waits from the one before counts with all of the chunk in which that began.
        if before and chunk_of(below) <= chunk_of(before[-1].since):
            return None
        return Sweep(begun_us, below, self.position, self.scanned_ms + ahead_ms)

    def has_taken(self) -> Changes:
        """Return the changes once all is in the store that the last sweep has repeated."""
        return Changes(replace(self.head, lacks_swept=False))

    def _open(self) -> Scan:
        if self.scan is None:
            raise AssertionError("no scan is open: begin() comes first")
        return self.scan


def _chunks_of(swept: Swept) -> tuple[int, int]:
    return chunk_of(swept.below), chunk_of(swept.since)
