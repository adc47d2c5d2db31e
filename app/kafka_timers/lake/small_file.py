"""
A small file on the lake's storage, by Spark's Hadoop file systems.

PySpark reaches them only by private names of its session. Only this module uses these names.
"""

from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

__all__ = ["SmallFile"]


class SmallFile:
    """
    A small file on the lake's storage. A read returns the last write.

    Args:
        spark: session to use.
        uri: URI of the file.
    """

    def __init__(self, spark: SparkSession, uri: str) -> None:
        context: Any = spark.sparkContext
        self._jvm = context._jvm  # there is no other way to a file system of Hadoop
        self._path = self._jvm.org.apache.hadoop.fs.Path(uri)
        self._files = self._path.getFileSystem(context._jsc.hadoopConfiguration())
        if uri.startswith("file:"):
            # Without checksums, which lie in files of their own and cannot be written at the same moment.
            self._files = self._files.getRaw()

    def read(self) -> str | None:
        """Return the content of the file; None if there is no file."""
        try:
            stream = self._files.open(self._path)
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()
        except Py4JError as error:
            if "FileNotFoundException" in str(error):
                return None
            raise

    def write(self, text: str) -> None:
        """Replace the content of the file."""
        stream = self._files.create(self._path, True)
        try:
            stream.writeBytes(text)
        finally:
            stream.close()

    def delete(self) -> None:
        """Delete the file."""
        self._files.delete(self._path, False)
