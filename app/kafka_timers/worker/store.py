"""
The rows of one partition, in one RocksDB on this host's disk.

A cache of `timer-request` and nothing else: it may be lost, stale or damaged at any time, and is then read again from
the log. So nothing is synced to disk, or logged before it is in a table; what matters is that each batch holds its rows
and how far the log was read.

    second 0 + c + chunk     how many requests wait in one chunk of offsets, and until when it is worth to be read again
    second 0 + m             position, sealed second and fence, where reading began, open scan; what this belongs to
    key of partition.py      the request as it came; a run: runs.pack; a refused one: requests.pack_refused

Two more column families are for timer ids and stay empty without any:

    ids    timer id                  its last request, Version.pack
           CopyOf.name               the copy of that request
    side   b + key of partition.py   this request does not fire: c or m (cancelled, moved) + its timer id
           p + second, last offset   ids to be forgotten an hour after that second, unless a later record is known
           r + offset                what that record is answered, Answer.pack

No request is due in second 0. What every batch writes has to lie next to what fires soon: above the rows it would make
each new table overlap with all of them, and each compaction would rewrite everything that is pending.

Every read and delete has bounds: without them RocksDB walks over the tombstones of all that has ever fired. All rows
lie above the last sealed second, so reads start there.
"""

import shutil
import struct
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from kafka_timers.core import rows as runs
from kafka_timers.core.partition import (
    Local,
    Partition,
    Scan,
    Version,
    counted_under,
    first_key,
    is_run,
    parts_of,
    row_key,
)
from kafka_timers.core.rows import Row
from kafka_timers.core.versions import Answer, Decided
from kafka_timers.core.wire import ID_MEMORY_S
from kafka_timers.errors import SettingsError

_FORMAT = 4
_HEAD = struct.Struct(">BQQQQB")
_SCAN = struct.Struct(">QQ")
_CHUNK = struct.Struct(">Q")
_COUNT = struct.Struct(">IQ")
_OFFSET = struct.Struct(">Q")
_CHUNKS, _META = first_key(0) + b"c", first_key(0) + b"m"
_ROWS, _END = first_key(1), b"\xff"
_IDS, _SIDE = "ids", "side"
_BACK, _PAST, _REPLY = b"b", b"p", b"r"
_CANCELLED, _MOVED = b"c", b"m"


class StoreMemory:
    """
    What all stores of a process share: one block cache and one budget for what is not written to disk yet.

    Memory then depends neither on the number of partitions nor on what is pending.
    """

    def __init__(self, cache_bytes: int = 32 << 20, write_buffer_bytes: int = 32 << 20) -> None:
        self.cache = Cache(cache_bytes)
        self.write_buffers = WriteBufferManager(write_buffer_bytes, False)

    def options(self) -> Options:
        """Return the options to open one store with."""
        table = BlockBasedOptions()
        table.set_block_cache(self.cache)
        table.set_cache_index_and_filter_blocks(True)
        table.set_block_size(16 << 10)
        table.set_bloom_filter(10, block_based=False)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        # Without RocksDB's own log the column families would come back as of different moments.
        options.set_atomic_flush(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(self.write_buffers)
        options.set_write_buffer_size(8 << 20)
        options.set_max_write_buffer_number(2)
        # What fires soon is compacted all the time, and with it every file that it overlaps: small files hold little of
        # what is due later.
        options.set_target_file_size_base(2 << 20)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_max_background_jobs(2)
        options.set_keep_log_file_num(2)
        options.set_max_log_file_size(1 << 20)
        options.set_max_open_files(64)
        return options


class TimerStore:
    """
    The store of one partition, open.

    Args:
        folder: of this store alone; made when missing.
        identity: names the Kafka cluster and topic; a store of another one is not this one's.
        memory: shared with the other stores of the process.

    Raises:
        Exception: RocksDB cannot open the folder, because it is damaged or not writable.
    """

    def __init__(self, folder: Path, identity: bytes, memory: StoreMemory) -> None:
        self.folder = folder
        self._identity = identity
        folder.mkdir(parents=True, exist_ok=True)
        families = {name: memory.options() for name in (_IDS, _SIDE)}
        self._db = Rdict(str(folder), options=memory.options(), column_families=families)
        self._ids, self._side = [self._db.get_column_family(name) for name in (_IDS, _SIDE)]
        self._id_family, self._side_family = [self._db.get_column_family_handle(name) for name in (_IDS, _SIDE)]
        # Without RocksDB's own log a crash takes what is not in a table yet, the read position with it: it is read from
        # `timer-request` again.
        unlogged = WriteOptions()
        unlogged.disable_wal = True  # type: ignore[method-assign,assignment]  # the stub takes it for a method
        self._db.set_write_options(unlogged)
        # No row has a lower key; None when that has to be looked up. It is asked for every second of every partition.
        self._lowest: bytes | None = None
        # Whether requests may lie here that do not fire, and whether ids may be due to be forgotten.
        self._has_taken_back = True
        self._has_past = True

    def close(self) -> None:
        """Close the store, with all that was written if the disk takes it; its folder may be opened again."""
        # A disk that is full or gone: what it does not take is read from the log again.
        with suppress(Exception):
            self._db.flush()
        with suppress(Exception):
            self._db.close()
        # Where that has failed, this lets go of the folder.
        del self._ids, self._side, self._id_family, self._side_family, self._db

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever kept here."""
        return next(self._items(b"", _END), None) is None

    # --- reading -----------------------------------------------------------------------------------------------------

    def local(self) -> Local | None:
        """
        Return what this store says of itself; None when it is new, of another Kafka or of an older format.

        Raises:
            SettingsError: a later version has written it, and may keep there what this one does not understand.
        """
        meta = self._db.get(_META)
        if meta is not None and meta[0] > _FORMAT:
            raise SettingsError(
                f"the store in {self.folder} is of format {meta[0]}, and this version knows those up to "
                f"{_FORMAT}: run the version that wrote it, or delete the folder, and the log is read again"
            )
        if meta is None or meta[0] != _FORMAT:
            return None
        _, position, second, fence, known_from, scanning = _HEAD.unpack_from(meta)
        scan = Scan(*_SCAN.unpack_from(meta, _HEAD.size)) if scanning else None
        if meta[_HEAD.size + _SCAN.size * scanning :] != self._identity:
            return None
        return Local(position, second, fence, scan, known_from)

    def chunks(self) -> dict[int, tuple[int, int]]:
        """Return what `Partition.restore` takes."""
        counts = self._items(_CHUNKS, _META)
        return {_CHUNK.unpack_from(key, len(_CHUNKS))[0]: _COUNT.unpack(count) for key, count in counts}

    def rows(self, start: bytes, before: bytes) -> Iterator[Row]:
        """
        Yield (key, value) with *start* <= key < *before*, in order, as they are now; one may stop anywhere.

        Requests that were taken back are left out.
        """
        rows = self._items(start, before)
        return runs.without(rows, (key for key, _ in self._taken_back(start, before))) if self._has_taken_back else rows

    def count_taken_back(self, start: bytes, before: bytes) -> tuple[int, int]:
        """Return how many requests with *start* <= key < *before* were cancelled, and how many were moved."""
        kinds = Counter(row[:1] for _, row in self._taken_back(start, before)) if self._has_taken_back else {}
        return kinds.get(_CANCELLED, 0), kinds.get(_MOVED, 0)

    def versions(self, ids: Sequence[bytes]) -> Iterator[Version | None]:
        """Yield the last request of each of *ids*."""
        return (row and Version.unpack(row) for row in self._ids.get(list(ids)) or ())

    def _taken_back(self, start: bytes, before: bytes) -> Iterator[Row]:
        """Yield the key of each request that does not fire, and why."""
        return ((key[1:], row) for key, row in _items(self._side, _BACK + start, _BACK + before))

    def has_due(self, sealed_second: int, second: int) -> bool:
        """Tell whether any row is due at or before *second*, given that none is left up to *sealed_second*."""
        if self._lowest is None:
            self._lowest = next((key for key, _ in self._items(first_key(sealed_second + 1), _END)), _END)
        return self._lowest < first_key(second + 1)

    def last_second(self) -> int:
        """Return the last second in which any row is due; 0 without rows."""
        # A store that holds a row has no tombstones above it: what fires is dropped from below.
        last: Any = next(self._db.keys(backwards=True), b"")
        return parts_of(last)[0] if last >= _ROWS else 0

    def _items(self, start: bytes, before: bytes) -> Iterator[Row]:
        return _items(self._db, start, before)

    @property
    def bytes_on_disk(self) -> int:
        """Size of the table files."""
        return self._db.property_int_value("rocksdb.total-sst-files-size") or 0

    # --- writing -----------------------------------------------------------------------------------------------------

    def add(self, rows: Iterable[Row], partition: Partition, decided: Decided | None = None) -> None:
        """Keep *rows* and what was *decided* with them, with how far *partition* has read."""
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        for key, value in rows:
            put(key, value)
            if self._lowest is not None and key < self._lowest:
                self._lowest = key
        if decided is not None:
            self._add_decided(batch, decided)
        self._write(batch, partition)

    def _add_decided(self, batch: WriteBatch, decided: Decided) -> None:
        put, ids, side = batch.put, self._id_family, self._side_family
        for timer_id, version in decided.versions.items():
            if version is None:
                batch.delete(timer_id, ids)
            else:
                put(timer_id, version.pack(), ids)
        for each in decided.taken_back:
            put(_BACK + each.key, (_MOVED if each.moved else _CANCELLED) + each.timer_id, side)
            self._has_taken_back = True
        for minute, (past, offsets) in decided.past.items():
            put(_past_key(minute, decided.last), runs.pack(runs.framed(past), offsets), side)
            self._has_past = True
        for answer in decided.answers:
            put(_REPLY + _OFFSET.pack(answer.offset), answer.pack(), side)

    def save(self, partition: Partition) -> None:
        """Keep the state of *partition* alone."""
        self._write(WriteBatch(raw_mode=True), partition)

    def drop(self, before: bytes, partition: Partition) -> None:
        """Drop the rows below key *before*, and keep *partition*, with whose last seal all has been answered."""
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(_ROWS, before)
        if self._has_taken_back:
            batch.delete_range(_BACK, _BACK + before, self._side_family)
        self._lowest = None
        self._write(batch, partition)
        if self._has_taken_back:
            self._has_taken_back = next(self._taken_back(before, _END), None) is not None

    def answered(self, before: int) -> None:
        """Drop the answers to records below offset *before*: a seal covers them."""
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(_REPLY, _REPLY + _OFFSET.pack(before), self._side_family)
        self._db.write(batch)

    def answers(self) -> Iterator[Answer]:
        """Yield the answers that are kept, in the order of what they answer."""
        kept = _items(self._side, _REPLY, _REPLY + _END)
        return (Answer.unpack(_OFFSET.unpack_from(key, 1)[0], row) for key, row in kept)

    def forget(self, second: int) -> bool:
        """Forget some ids that are worth nothing more from *second* on; False when there are none left."""
        if not self._has_past:
            return False
        oldest = next(_items(self._side, _PAST, _PAST + _END), None)
        if oldest is None or oldest[0] >= _past_key(max(second - ID_MEMORY_S + 1, 0), 0):
            self._has_past = oldest is not None
            return False
        key, row = oldest
        past = list(runs.ids_in(row))
        batch = WriteBatch(raw_mode=True)
        for (timer_id, offset), version in zip(past, self.versions([timer_id for timer_id, _ in past]), strict=True):
            # Of an id with a later request that one is kept.
            if version and version.latest == offset:
                batch.delete(timer_id, self._id_family)
        # Single tombstones in front of what is looked for next would be walked over each time.
        batch.delete_range(_PAST, key + b"\0", self._side_family)
        self._db.write(batch)
        return True

    def settle(self, partition: Partition, local: Local) -> None:
        """Bring what was here before in line with *partition*, which has just taken over from the seals and *local*."""
        partition.restore(self.chunks())
        batch, end = WriteBatch(raw_mode=True), first_key(partition.unsettled(local))
        done: list[bytes] = []
        kept_runs: list[tuple[bytes, bytes]] = []
        moved: list[bytes] = []
        self._lowest = None
        taken_back = dict(self._taken_back(_ROWS, end))
        unsure = {}
        for key, why in taken_back.items():
            by_now = partition.settle(key)
            if by_now == key:
                continue
            batch.delete(_BACK + key, self._side_family)
            if by_now is None:
                unsure[why[1:]] = parts_of(key)[2]
            else:
                batch.put(_BACK + by_now, why, self._side_family)
        for old, row in self._items(_ROWS, end):
            singles = runs.singles(old, row)
            keys = [partition.settle(key) for key, _ in singles]
            if keys == [key for key, _ in singles]:
                if is_run(old):
                    kept_runs.append((singles[0][0], old))
                continue
            batch.delete(old)
            for new, (was, value) in zip(keys, singles, strict=True):
                if was in taken_back:
                    continue
                if new is None:
                    done.append(was)
                else:
                    batch.put(new, value)
                    moved.append(new)
        # A slice tells by its last key alone what is done, so nothing may come to lie within a run:
        #  1. A run of offsets 6 and 9 for second 14 lies under 9; offset 7 for 13 comes late, and lies under 14, 7 now
        #  2. a slice ends with offset 7: whoever takes over believes offset 6 done
        # Held by test_what_comes_late_does_not_lie_within_a_run.
        moved.sort()
        for first, run in kept_runs:
            if bisect(moved, first) != bisect(moved, run):
                batch.delete(run)
                for key, value in runs.singles(run, cast(bytes, self._db[run])):
                    batch.put(key, value)
        partition.removed([counted_under(was) for was in done])
        if next(_items(self._ids, b"", _END), None) is not None:
            for was in done:
                partition.remember(counted_under(was), parts_of(was)[0])
        # It was cancelled here, and done by another owner, who may have fired it before the cancel could be read.
        for timer_id, version in zip(unsure, self.versions(list(unsure)), strict=True):
            if version and version.cancelled and version.offset == unsure[timer_id]:
                batch.delete(timer_id, self._id_family)
        self._write(batch, partition)

    def _write(self, batch: WriteBatch, partition: Partition) -> None:
        for chunk, (count, until) in partition.take_touched().items():
            if count or until:
                batch.put(_CHUNKS + _CHUNK.pack(chunk), _COUNT.pack(count, until))
            else:
                batch.delete(_CHUNKS + _CHUNK.pack(chunk))
        scan = partition.scan
        read = partition.position, partition.second, partition.fence, partition.known_from
        head = _HEAD.pack(_FORMAT, *read, scan is not None)
        tail = _SCAN.pack(scan.second, scan.fence) if scan else b""
        batch.put(_META, head + tail + self._identity)
        self._db.write(batch)


def _items(db: Rdict, start: bytes, before: bytes) -> Iterator[Row]:
    # The iterator does not keep the options alive; freed, they silently end it early. The local name does.
    options = ReadOptions()
    options.set_iterate_upper_bound(before)
    yield from db.items(from_key=start, read_opt=options)


def _past_key(second: int, offset: int) -> bytes:
    return _PAST + row_key(second, 0, offset)


def is_damage(error: Exception) -> bool:
    """Tell whether *error* says that the files of a store are damaged; RocksDB tells by its message alone."""
    return any(sign in str(error) for sign in ("Corruption:", "No such file or directory", "Not implemented"))


def destroy(folder: Path) -> None:
    """Remove the store in *folder*, whatever state it is in."""
    shutil.rmtree(folder, ignore_errors=True)
