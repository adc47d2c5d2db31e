"""
A small file on whatever storage the lake is on, by the file systems of Hadoop that Spark has.

PySpark offers no way to them but by private names of its session: this is the one module that touches these.
"""

from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

__all__ = ["SmallFile"]


class SmallFile:
    """
    A small file where the lake is, of which whoever reads has what was written last.

    Args:
        spark: the session.
        uri: of the file.
    """

    def __init__(self, spark: SparkSession, uri: str) -> None:
        context: Any = spark.sparkContext
        self._jvm = context._jvm  # there is no other way to a file system of Hadoop
        self._path = self._jvm.org.apache.hadoop.fs.Path(uri)
        self._files = self._path.getFileSystem(context._jsc.hadoopConfiguration())
        if uri.startswith("file:"):
            # Without checksums in files of their own, which cannot be written at the same moment.
            self._files = self._files.getRaw()

    def read(self) -> str | None:
        """Return what it holds; None if there is none."""
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
        """Replace it."""
        stream = self._files.create(self._path, True)
        try:
            stream.writeBytes(text)
        finally:
            stream.close()

    def delete(self) -> None:
        """Delete it."""
        self._files.delete(self._path, False)
