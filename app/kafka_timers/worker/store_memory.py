"""Memory and options that all stores of a process share."""

from pathlib import Path

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, WriteBufferManager

_OPTIONS = Path(__file__).with_name("rocksdb")
_NEVER = 1 << 30


class StoreMemory:
    """
    Shared by all stores of a process: one block cache, and one budget for data that is not on disk yet.

    So memory depends neither on the number of partitions nor on the number of pending requests.
    """

    def __init__(self, cache_bytes: int = 32 << 20, write_buffer_bytes: int = 32 << 20) -> None:
        self.cache = Cache(cache_bytes)
        self.write_buffers = WriteBufferManager(write_buffer_bytes, False)

    def options(self) -> Options:
        """Return the options for opening one store."""
        table = BlockBasedOptions()
        table.set_block_cache(self.cache)
        table.set_cache_index_and_filter_blocks(True)
        table.set_block_size(16 << 10)
        table.set_bloom_filter(10, block_based=False)
        options, _ = Options.load_latest(str(_OPTIONS))
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        # Without RocksDB's own log the column families would come back as of different moments.
        options.set_atomic_flush(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(self.write_buffers)
        options.set_write_buffer_size(8 << 20)
        # Never let RocksDB delay a write until its disk has caught up; see `is_behind`.
        options.set_max_write_buffer_number(_NEVER)
        options.set_level_zero_slowdown_writes_trigger(_NEVER)
        options.set_level_zero_stop_writes_trigger(_NEVER)
        options.set_soft_pending_compaction_bytes_limit(0)
        options.set_hard_pending_compaction_bytes_limit(0)
        # Rows that fire soon are compacted all the time, together with each file that they overlap. Small files contain
        # few rows that are due later.
        options.set_target_file_size_base(2 << 20)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_max_background_jobs(2)
        options.set_keep_log_file_num(2)
        options.set_max_log_file_size(1 << 20)
        options.set_max_open_files(64)
        return options
