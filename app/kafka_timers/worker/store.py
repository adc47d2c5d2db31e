"""
The rows of one partition, in one RocksDB on this host's disk.

The store is a cache of `timer-request` and nothing else, unless that has lost requests, see `alone`. It may be lost,
stale or damaged at any time, and is then read from the log again. So nothing is synced to disk, or logged before it is
in a table. Only one thing matters: each batch holds its rows together with the read position.

    second 0 + c + chunk     number of pending requests in a chunk of offsets, and until when rereading it is useful
    second 0 + m             the head: position, last sealed second, its snapshot, start of reading, open scan;
                             identity of the store
    second 0 + n             the number of the last batch
    key of core.keys         the request as it came; a batch: rows.pack; a refused one: refused.pack_refused

Two more column families are for timer ids, and are empty without any:

    ids    timer id                  its last request, Version.pack
           Original.name             the copy of that request
           ff                        the number of the last batch
    side   b + key of core.keys      a request that does not fire: c or m (cancelled, superseded) + its timer id
           i + offset                a request whose condition does not hold, and its due time in milliseconds
           p + second, last offset   ids to forget an hour after that second, unless a later record is known
           r + offset                the answer to that record, Answer.pack
           n                         the number of the last batch

Each batch goes into all families with its number. RocksDB closes one family after the other. If the process is killed
in between, rows, counts and marks are of different moments, and the store is read from the log again.

No request is due in second 0. Keys that every batch writes must lie next to the rows that fire soon. Above the rows,
they would make each new table overlap with all of them, so that each compaction would rewrite all pending requests.

Every read and delete has bounds. Without them RocksDB walks over the tombstones of everything that has ever fired. All
rows lie above the last sealed second, so reads start there.

No write waits for the disk, because rocksdict holds Python's lock during a write, and the whole process would stand
still. A write goes into memory or fails, and `is_behind` shows the feeding code when to wait.
"""

import struct
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from rocksdict import Rdict, RdictIter, ReadOptions, WriteBatch, WriteOptions

from kafka_timers.core import rows as batches
from kafka_timers.core.backlog import Count
from kafka_timers.core.changes import Changes, Head, Mark, Row
from kafka_timers.core.keys import FIRST_MS, first_key, moment_of, parts_of, row_key
from kafka_timers.core.versions import Answer, Version
from kafka_timers.errors import NewerFormatError
from kafka_timers.worker.room import DiskFullError, Room
from kafka_timers.worker.store_head import FORMAT, format_of, pack_head, unpack_head
from kafka_timers.worker.store_memory import StoreMemory

_CHUNK = struct.Struct(">Q")
_COUNT = struct.Struct(">IQ")
_OFFSET = struct.Struct(">Q")
_DUE = struct.Struct(">Q")
_CHUNKS, _META = first_key(0) + b"c", first_key(0) + b"m"
_ROWS, _END = first_key(FIRST_MS), b"\xff"
_IDS, _SIDE = "ids", "side"
_MARKS, _IGNORED, _EXPIRING, _ANSWERS = b"b", b"i", b"p", b"r"
_CANCELLED, _SUPERSEDED = b"c", b"m"
_NUMBER, _IDS_NUMBER, _SIDE_NUMBER = first_key(0) + b"n", b"\xff", b"n"
_ABOVE_ALL = b"\xff" * 8
# A store with this many full buffers, or unsorted tables, is behind.
_BUFFERS_MAX, _TABLES_MAX = 2, 36
# Up to this number, rows are deleted one by one.
_SINGLY_MAX = 128

_T = TypeVar("_T")


class TimerStore:
    """
    The open store of one partition.

    Args:
        folder: folder of this store; created if it is missing.
        identity: names the Kafka cluster and topic. A store with another identity is not used.

    Raises:
        Exception: RocksDB cannot open the folder, because it is damaged, not writable, or already open.
    """

    def __init__(self, folder: Path, identity: bytes, memory: StoreMemory) -> None:
        self.folder = folder
        self._identity = identity
        folder.mkdir(parents=True, exist_ok=True)
        families = {name: memory.options() for name in (_IDS, _SIDE)}
        self._db = Rdict(str(folder), options=memory.options(), column_families=families)
        self._ids, self._side = [self._db.get_column_family(name) for name in (_IDS, _SIDE)]
        self._id_family, self._side_family = [self._db.get_column_family_handle(name) for name in (_IDS, _SIDE)]
        # Without RocksDB's own log a crash loses rows that are not in a table yet, together with the read position.
        # They are read from `timer-request` again.
        unlogged = WriteOptions()
        unlogged.disable_wal = True  # type: ignore[method-assign,assignment]  # the stub takes it for a method
        # If RocksDB wants a write to wait all the same, the write fails.
        unlogged.no_slowdown = True
        self._db.set_write_options(unlogged)
        # RocksDB keeps the folder locked while an iterator exists.
        self._iterators: WeakSet[Generator[Any]] = WeakSet()
        # A lower bound of all row keys; None if it must be looked up. It is needed every second for every partition.
        self._lowest: bytes | None = None
        # A lower bound of the keys by kind, so that reads do not walk over deleted keys below it.
        self._least = {kind: kind for kind in (_ROWS, _MARKS, _EXPIRING, _ANSWERS)}
        number = self._db.get(_NUMBER)
        self._number: int = _OFFSET.unpack(number)[0] if number else 0
        # True if there may be requests that do not fire, and if there may be ids to forget.
        self._has_marks = self._has_expiring = True
        self._room = Room(folder)
        self._has_failed = False  # whether the last write was refused

    def end_reading(self) -> None:
        """End all iterators over the store."""
        for iterator in list(self._iterators):
            # `close` is not enough: on Python 3.12 an iterator that has not begun would keep RocksDB's iterator.
            with suppress(GeneratorExit):
                iterator.throw(GeneratorExit)

    def close(self) -> None:
        """
        Close the store. Its folder may then be opened again.

        All writes are kept, unless the disk is full or has failed; then the lost ones are read from the log again. This
        takes as long as the disk needs, and some seconds after a failed flush; other threads run meanwhile. A second
        call does nothing.
        """
        if not hasattr(self, "_db"):
            return
        self.end_reading()
        if not self._is_sound():
            # Memory is flushed on close, unless all background work has ended.
            self._db.cancel_all_background(False)
        # Each of these keeps the store open. The last one to be released waits for RocksDB's work in progress.
        del self._id_family, self._side_family
        for each in (self._db, self._ids, self._side):
            with suppress(Exception):
                each.close()
        # If that failed, this releases the folder.
        del self._ids, self._side, self._db

    def _is_sound(self) -> bool:
        """Tell whether the disk will probably take the data in memory. After a failure RocksDB pauses for a second."""
        in_memory = [db.property_int_value("rocksdb.cur-size-all-mem-tables") or 0 for db in (self._db, self._ids)]
        try:
            self._room.check(sum(in_memory))
        except DiskFullError:
            return False
        return not self._has_failed

    @property
    def is_open(self) -> bool:
        """True if the store can be read. Reads that were in progress at its closing may have ended early."""
        return hasattr(self, "_db")

    @property
    def is_new(self) -> bool:
        """True if nothing was ever stored here."""
        families = (self._db, self._ids, self._side)
        return all(next(self._track(_items(each, b"", _ABOVE_ALL)), None) is None for each in families)

    # --- reading -----------------------------------------------------------------------------------------------------

    def head(self) -> Head | None:
        """
        Return the state of the store.

        None if it is new, of another Kafka cluster or of an older format, or if its families are of different moments.

        Raises:
            NewerFormatError: a later version has written the store, and this version may not understand it.
        """
        meta = self._db.get(_META)
        if meta is not None and format_of(meta) > FORMAT:
            raise NewerFormatError(
                f"the store in {self.folder} is of format {format_of(meta)}, and this version knows those up to "
                f"{FORMAT}: run the version that wrote it, or delete the folder, and the log is read again"
            )
        if meta is None or format_of(meta) != FORMAT or not self._is_whole():
            return None
        return unpack_head(meta, self._identity)

    def _is_whole(self) -> bool:
        return self._db.get(_NUMBER) == self._ids.get(_IDS_NUMBER) == self._side.get(_SIDE_NUMBER)

    def counts(self) -> dict[int, Count]:
        """Return the counts of all chunks that have one."""
        counts = {}
        for key, row in self._items(_CHUNKS, _META):
            count, until_s = _COUNT.unpack(row)
            counts[_CHUNK.unpack_from(key, len(_CHUNKS))[0]] = count, until_s * 1000
        return counts

    def ignored(self) -> dict[int, int]:
        """Return the requests whose condition does not hold, as offset and due time in UNIX milliseconds."""
        kept = self._side_items(_IGNORED, _IGNORED + _END)
        return {_OFFSET.unpack_from(key, 1)[0]: _DUE.unpack(due)[0] for key, due in kept}

    def rows(self, start: bytes, before: bytes) -> Iterator[Row]:
        """
        Yield the rows with *start* <= key < *before*, in order, as of the call. You may stop at any time.

        Withdrawn requests are left out.
        """
        rows = self._items(start, before)
        return batches.without(rows, (key for key, _ in self._marks(start, before))) if self._has_marks else rows

    def keys(self, start: bytes, before: bytes) -> Iterator[bytes]:
        """Yield the keys of all rows with *start* <= key < *before*, as of the call, withdrawn requests included."""
        return self._track(_walked_keys(*_sought(self._db, start, before)))

    def withdrawn(self, start: bytes, before: bytes) -> Iterator[bytes]:
        """Yield the keys of withdrawn requests from the moment of *start* on and below *before*."""
        return (key for key, _ in self._marks(first_key(moment_of(start)), before)) if self._has_marks else iter(())

    def kept_rows(self, before: bytes, start: bytes = _ROWS) -> Iterator[Row]:
        """Yield all rows with *start* <= key < *before*, withdrawn requests included."""
        return self._items(start, before)

    def marks(self, before: bytes) -> dict[bytes, Mark]:
        """Return the mark of each withdrawn request with a key below *before*."""
        return {key: Mark(row[1:], row[:1] == _SUPERSEDED) for key, row in self._marks(_ROWS, before)}

    def count_withdrawn(self, start: bytes, before: bytes) -> tuple[int, int]:
        """Return how many requests with *start* <= key < *before* were cancelled, and how many were superseded."""
        kinds = Counter(row[:1] for _, row in self._marks(start, before)) if self._has_marks else {}
        return kinds.get(_CANCELLED, 0), kinds.get(_SUPERSEDED, 0)

    def versions(self, names: Sequence[bytes]) -> Iterator[Version | None]:
        """Yield the version of each of *names*; None if it is unknown."""
        return (row and Version.unpack(row) for row in self._ids.get(list(names)) or ())

    def named(self, prefix: bytes) -> Iterator[Version]:
        """Yield the versions of timer ids that begin with *prefix*, in the order of the ids."""
        # No id begins with ff, which is not valid in UTF-8.
        known = self._track(_items(self._ids, prefix, prefix + _END))
        return (Version.unpack(row) for _, row in known)

    @property
    def has_ids(self) -> bool:
        """True if any timer id is known."""
        return next(self._track(_items(self._ids, b"", _END)), None) is not None

    def answers(self) -> Iterator[Answer]:
        """Yield the stored answers, ordered by the offset that they answer."""
        kept = self._side_items(self._least[_ANSWERS], _ANSWERS + _END)
        return (Answer.unpack(_OFFSET.unpack_from(key, 1)[0], row) for key, row in kept)

    def has_due(self, sealed_ms: int, end_ms: int) -> bool:
        """Tell whether any row is due before *end_ms*. No row may be left before *sealed_ms*."""
        return self._lowest_key(sealed_ms) < first_key(end_ms)

    def first_ms(self, sealed_ms: int) -> int | None:
        """
        Return the moment from which the first row may fire; None without rows. No row may be left before *sealed_ms*.
        """
        lowest = self._lowest_key(sealed_ms)
        return None if lowest == _END else moment_of(lowest)

    def _lowest_key(self, sealed_ms: int) -> bytes:
        if self._lowest is None:
            self._lowest = next(self.keys(max(first_key(sealed_ms), self._least[_ROWS]), _END), _END)
        return self._lowest

    def last_second(self) -> int:
        """Return the last second in which a row is due; 0 without rows."""
        # A store with rows has no tombstones above them, because fired rows are dropped from below.
        last: Any = next(self._db.keys(backwards=True), b"")
        return parts_of(last)[0] // 1000 if last >= _ROWS else 0

    @property
    def bytes_on_disk(self) -> int:
        """Size of the table files in bytes."""
        return self._db.property_int_value("rocksdb.total-sst-files-size") or 0

    def _marks(self, start: bytes, before: bytes) -> Iterator[Row]:
        return ((key[1:], row) for key, row in self._side_items(_MARKS + start, _MARKS + before))

    def _items(self, start: bytes, before: bytes) -> Generator[Row]:
        return self._track(_items(self._db, start, before))

    def _side_items(self, start: bytes, before: bytes) -> Generator[Row]:
        return self._track(_items(self._side, start, before))

    def _track(self, iterator: Generator[_T]) -> Generator[_T]:
        self._iterators.add(iterator)
        return iterator

    # --- writing -----------------------------------------------------------------------------------------------------

    def write(self, changes: Changes) -> None:
        """
        Apply *changes*, all of them or none, without waiting.

        Raises:
            DiskFullError: the disk has no room left; nothing has changed.
        """
        batch = WriteBatch(raw_mode=True)
        before, dropped = changes.drop_before, dict[bytes, bytes]()
        if before is not None:
            dropped[_ROWS] = before
            if self._has_marks:
                dropped[_MARKS] = _MARKS + before
        if changes.answered_before is not None:
            dropped[_ANSWERS] = _ANSWERS + _OFFSET.pack(changes.answered_before)
        for kind, below in dropped.items():
            self._delete_below(batch, kind, below)
        for key in changes.removed:
            batch.delete(key)
        put = batch.put
        for key, value in changes.rows:
            put(key, value)
        lowest = min(changes.rows)[0] if changes.rows else _END
        self._may_have(_ROWS, lowest)
        self._write_side(batch, changes)
        for chunk, (count, until_ms) in changes.counts.items():
            if count or until_ms:
                # Rounded up to a whole second: a longer memory does no harm.
                batch.put(_CHUNKS + _CHUNK.pack(chunk), _COUNT.pack(count, -(-until_ms // 1000)))
            else:
                batch.delete(_CHUNKS + _CHUNK.pack(chunk))
        batch.put(_META, pack_head(changes.head, self._identity))
        self._write(batch)
        for kind, below in dropped.items():
            self._least[kind] = max(self._least[kind], below)
        if before is not None or changes.removed:
            self._lowest = None
        elif self._lowest is not None:
            self._lowest = min(self._lowest, lowest)
        self._has_expiring |= bool(changes.expiring)
        self._has_marks |= bool(changes.marks)
        if before is not None and self._has_marks:
            self._has_marks = next(self._marks(before, _END), None) is not None

    def _delete_below(self, batch: WriteBatch, kind: bytes, before: bytes) -> None:
        """
        Delete all rows of a *kind* below the key *before*.

        Before a read that follows a write, RocksDB splits all ranges that were deleted since its buffer was emptied.
        For nested ranges the time grows with the square of their number. So few rows are deleted one by one, and a
        range begins with the first existing row.
        """
        db, family = (self._db, None) if kind == _ROWS else (self._side, self._side_family)
        keys = list(islice(self._track(_walked_keys(*_sought(db, self._least[kind], before))), _SINGLY_MAX + 1))
        if len(keys) > _SINGLY_MAX:
            batch.delete_range(keys[0], before, family)
            return
        for key in keys:
            batch.delete(key, family)

    def _may_have(self, kind: bytes, key: bytes) -> None:
        self._least[kind] = min(self._least[kind], key)

    def _write_side(self, batch: WriteBatch, changes: Changes) -> None:
        put, delete, ids, side = batch.put, batch.delete, self._id_family, self._side_family
        for name, version in changes.versions.items():
            if version is None:
                delete(name, ids)
            else:
                put(name, version.pack(), ids)
        for key, mark in changes.marks.items():
            if mark is None:
                delete(_MARKS + key, side)
            else:
                self._may_have(_MARKS, _MARKS + key)
                put(_MARKS + key, (_SUPERSEDED if mark.superseded else _CANCELLED) + mark.timer_id, side)
        for second, (names, offsets) in changes.expiring.items():
            self._may_have(_EXPIRING, key := _expiring_key(second, changes.last))
            put(key, batches.pack(batches.framed(names), offsets), side)
        for answer in changes.answers:
            if answer.offset >= (changes.answered_before or 0):
                self._may_have(_ANSWERS, key := _ANSWERS + _OFFSET.pack(answer.offset))
                put(key, answer.pack(), side)
        for offset, due_ms in changes.ignored.items():
            put(_IGNORED + _OFFSET.pack(offset), _DUE.pack(due_ms), side)
        for offset in changes.unignored:
            delete(_IGNORED + _OFFSET.pack(offset), side)

    def forget(self, begun_s: int) -> bool:
        """Forget some ids whose hour began at the UNIX second *begun_s* or earlier; False if there are none left."""
        if not self._has_expiring:
            return False
        oldest = next(self._side_items(self._least[_EXPIRING], _EXPIRING + _END), None)
        if oldest is None or oldest[0] >= _expiring_key(max(begun_s + 1, 0), 0):
            self._has_expiring = oldest is not None
            return False
        key, row = oldest
        expiring = list(batches.ids_in(row))
        batch = WriteBatch(raw_mode=True)
        for (name, offset), version in zip(expiring, self.versions([name for name, _ in expiring]), strict=True):
            # If a later record is known, keep that one.
            if version and version.made_at == offset:
                batch.delete(name, self._id_family)
        batch.delete(key, self._side_family)
        self._write(batch)
        self._least[_EXPIRING] = key
        return True

    def _write(self, batch: WriteBatch) -> None:
        """Write *batch* into all families, with its number, if there is room."""
        self._room.check()
        self._number += 1
        number = _OFFSET.pack(self._number)
        batch.put(_NUMBER, number)
        batch.put(_IDS_NUMBER, number, self._id_family)
        batch.put(_SIDE_NUMBER, number, self._side_family)
        self._has_failed = True
        self._db.write(batch)
        self._has_failed = False

    def flush(self) -> None:
        """
        Write what is in memory to the disk, and wait for that: the log does not have all of it.

        Raises:
            Exception: the disk does not take it.
        """
        for family in (self._ids, self._side, self._db):
            family.flush()

    @property
    def is_behind(self) -> bool:
        """
        True if writes are faster than the disk, so that the caller must wait.

        Raises:
            DiskFullError: the disk has no room left, so that waiting would not help.
        """
        buffers = self._db.property_int_value("rocksdb.num-immutable-mem-table") or 0
        tables = self._db.property_value("rocksdb.num-files-at-level0") or "0"
        if buffers < _BUFFERS_MAX and int(tables) < _TABLES_MAX:
            return False
        self._room.check()
        return True


def _items(db: Rdict, start: bytes, before: bytes) -> Generator[Row]:
    """
    Yield the rows with *start* <= key < *before*, as of the call.

    Raises:
        Exception: the disk does not return all of them, or has damaged them.
    """
    return _walked(*_sought(db, start, before))


def _sought(db: Rdict, start: bytes, before: bytes) -> tuple[RdictIter, ReadOptions]:
    """Return an iterator that ends before *before*, and its options, which it does not keep alive."""
    options = ReadOptions()
    options.set_iterate_upper_bound(before)
    rows = db.iter(options)
    rows.seek(start)
    return rows, options


def _walked(rows: RdictIter, options: ReadOptions) -> Generator[Row]:
    # Once the options are freed the iterator ends early without an error; the argument keeps them. `db.items` takes a
    # tenth less time, but ends without an error at an unreadable row: all rows after it would count as done, and be
    # dropped.
    while rows.valid():
        yield rows.key(), rows.value()
        rows.next()
    rows.status()


def _walked_keys(rows: RdictIter, options: ReadOptions) -> Generator[bytes]:
    # See `_walked`. A value may be large, and is not copied here.
    while rows.valid():
        yield rows.key()
        rows.next()
    rows.status()


def _expiring_key(second: int, offset: int) -> bytes:
    return _EXPIRING + row_key(second * 1000, offset)
