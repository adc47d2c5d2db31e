"""
The rows of one partition, in one RocksDB on this host's disk.

A cache of `timer-request` and nothing else: it may be lost, stale or damaged at any time, and is then read again from
the log. So nothing is synced to disk, or logged before it is in a table; what matters is that each batch holds its rows
and how far the log was read.

    second 0 + c + chunk     how many requests wait in one chunk of offsets
    second 0 + m             position, sealed second and fence, open scan; which Kafka this belongs to
    key of partition.py      the request as it came; a run: runs.pack; a refused one: requests.pack_refused

No request is due in second 0. What every batch writes has to lie next to what fires soon: above the rows it would make
each new table overlap with all of them, and each compaction would rewrite everything that is pending.

Every read and delete has bounds: without them RocksDB walks over the tombstones of all that has ever fired. All rows
lie above the last sealed second, so reads start there.
"""

import shutil
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

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

from kafka_timers.service import runs
from kafka_timers.service.partition import Local, Partition, Scan, first_key, offsets_of
from kafka_timers.service.runs import Row

_FORMAT = 2
_HEAD = struct.Struct(">BQQQB")
_SCAN = struct.Struct(">QQ")
_CHUNK = struct.Struct(">Q")
_COUNT = struct.Struct(">I")
_CHUNKS, _META = first_key(0) + b"c", first_key(0) + b"m"
_ROWS, _END = first_key(1), b"\xff"


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
        options = Options(raw_mode=True)
        options.create_if_missing(True)
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
        self._db = Rdict(str(folder), options=memory.options())
        # Without RocksDB's own log a crash takes what is not in a table yet, the read position with it: it is read from
        # `timer-request` again.
        unlogged = WriteOptions()
        unlogged.disable_wal = True  # type: ignore[method-assign,assignment]  # the stub takes it for a method
        self._db.set_write_options(unlogged)
        # No row has a lower key; None when that has to be looked up. It is asked for every second of every partition.
        self._lowest: bytes | None = None

    def close(self) -> None:
        """Close the store, with all that was written if the disk takes it; its folder may be opened again."""
        # A disk that is full or gone: what it does not take is read from the log again.
        with suppress(Exception):
            self._db.flush()
        with suppress(Exception):
            self._db.close()
        # Where that has failed, this lets go of the folder.
        del self._db

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever kept here."""
        return next(self._items(b"", _END), None) is None

    # --- reading -----------------------------------------------------------------------------------------------------

    def local(self) -> Local | None:
        """Return what this store says of itself; None when it is new, of another Kafka or of another format."""
        meta = self._db.get(_META)
        if meta is None or meta[0] != _FORMAT:
            return None
        _, position, second, fence, scanning = _HEAD.unpack_from(meta)
        scan = Scan(*_SCAN.unpack_from(meta, _HEAD.size)) if scanning else None
        if meta[_HEAD.size + _SCAN.size * scanning :] != self._identity:
            return None
        return Local(position, second, fence, scan)

    def chunks(self) -> dict[int, int]:
        """Return how many requests wait in each chunk of offsets."""
        counts = self._items(_CHUNKS, _META)
        return {_CHUNK.unpack_from(key, len(_CHUNKS))[0]: _COUNT.unpack(count)[0] for key, count in counts}

    def rows(self, start: bytes, before: bytes) -> Iterator[Row]:
        """Yield (key, value) with *start* <= key < *before*, in order, as they are now; one may stop anywhere."""
        return self._items(start, before)

    def has_due(self, sealed_second: int, second: int) -> bool:
        """Tell whether any row is due at or before *second*, given that none is left up to *sealed_second*."""
        if self._lowest is None:
            self._lowest = next((key for key, _ in self._items(first_key(sealed_second + 1), _END)), _END)
        return self._lowest < first_key(second + 1)

    def _items(self, start: bytes, before: bytes) -> Iterator[Row]:
        # The iterator does not keep the options alive; freed, they silently end it early. The local name does.
        options = ReadOptions()
        options.set_iterate_upper_bound(before)
        yield from self._db.items(from_key=start, read_opt=options)

    @property
    def bytes_on_disk(self) -> int:
        """Size of the table files."""
        return self._db.property_int_value("rocksdb.total-sst-files-size") or 0

    # --- writing -----------------------------------------------------------------------------------------------------

    def add(self, rows: Iterable[Row], partition: Partition) -> None:
        """Keep *rows*, with how far *partition* has read."""
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        for key, value in rows:
            put(key, value)
            if self._lowest is not None and key < self._lowest:
                self._lowest = key
        self._write(batch, partition)

    def save(self, partition: Partition) -> None:
        """Keep the state of *partition* alone."""
        self._write(WriteBatch(raw_mode=True), partition)

    def drop(self, last: bytes, partition: Partition) -> None:
        """Drop the rows up to and including key *last*, and keep *partition*."""
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(_ROWS, last + b"\0")
        self._lowest = None
        self._write(batch, partition)

    def settle(self, partition: Partition, local: Local) -> None:
        """Bring what was here before in line with *partition*, which has just taken over from the seals and *local*."""
        partition.chunks.update(self.chunks())
        batch, done = WriteBatch(raw_mode=True), []
        self._lowest = None
        for old, row in self.rows(_ROWS, first_key(partition.unsettled(local))):
            singles = runs.singles(old, row)
            keys = [partition.settle(key) for key, _ in singles]
            if keys == [key for key, _ in singles]:
                continue
            batch.delete(old)
            for key, (was, value) in zip(keys, singles, strict=True):
                if key is None:
                    done.append(was)
                else:
                    batch.put(key, value)
        partition.removed(offsets_of(done))
        self._write(batch, partition)

    def _write(self, batch: WriteBatch, partition: Partition) -> None:
        for chunk, count in partition.take_touched().items():
            if count:
                batch.put(_CHUNKS + _CHUNK.pack(chunk), _COUNT.pack(count))
            else:
                batch.delete(_CHUNKS + _CHUNK.pack(chunk))
        scan = partition.scan
        head = _HEAD.pack(_FORMAT, partition.position, partition.second, partition.fence, scan is not None)
        tail = _SCAN.pack(scan.second, scan.fence) if scan else b""
        batch.put(_META, head + tail + self._identity)
        self._db.write(batch)


def is_damage(error: Exception) -> bool:
    """Tell whether *error* says that the files of a store are damaged; RocksDB tells by its message alone."""
    return any(sign in str(error) for sign in ("Corruption:", "No such file or directory", "Not implemented"))


def destroy(folder: Path) -> None:
    """Remove the store in *folder*, whatever state it is in."""
    shutil.rmtree(folder, ignore_errors=True)
