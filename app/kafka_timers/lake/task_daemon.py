"""
The process from which Spark forks those that run the lake's Python functions, in place of `pyspark.daemon`.

Spark puts archives on Python's path: pyspark, the jar of its core, and all jars of Maven packages. Before each task
Python reads the lists of files in all of them again. With tables of a few rows, that takes longer than the task. Where
pyspark is installed, nothing is imported from an archive.
"""

import sys
from importlib.machinery import PathFinder
from zipimport import zipimporter

_NEEDED = ("kafka_timers", "pyspark", "py4j")


def _leave_archives() -> None:
    """Import from folders alone from now on, unless something that is needed is only in an archive."""
    finders = sys.path_importer_cache
    archives = {path: finder for path, finder in finders.items() if isinstance(finder, zipimporter)}
    for path in archives:
        del finders[path]
    at = sys.path_hooks.index(zipimporter)
    del sys.path_hooks[at]
    if not all(map(PathFinder.find_spec, _NEEDED)):
        sys.path_hooks.insert(at, zipimporter)
        finders.update(archives)


if __name__ == "__main__":
    _leave_archives()
    # Only now, because it would be imported from an archive.
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]
