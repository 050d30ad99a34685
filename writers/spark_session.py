"""What the vehicles ask of a Spark session: safe settings, settings for one action, and the address of a file as Spark takes it.

Nothing here needs `sparkContext`, which Spark Connect does not have.
"""

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.catalog.errors import UnsafeSettingsError
from holdfast.catalog.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A write's own options are ignored for these: they are the session's. Any other committer moves files in ways that were never tried here.
SAFE_SETTINGS: Mapping[str, str | None] = {
    "spark.sql.sources.commitProtocolClass": "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol",
    "spark.sql.parquet.output.committer.class": "org.apache.parquet.hadoop.ParquetOutputCommitter",
    "spark.sql.sources.outputCommitterClass": None,
}

_lock = threading.Lock()
_borrowed: dict[tuple[int, str], tuple[int, str | None]] = {}  # (session, setting) -> (actions that need it, the user's value)


def require_safe(spark: "SparkSession") -> None:
    """Pass only sessions that commit the files of a write with Spark's stock protocol and committer.

    Raises:
        UnsafeSettingsError: another one is set; under it, a failed or repeated task could lose or double rows.
    """
    for name, stock in SAFE_SETTINGS.items():
        value = spark.conf.get(name, None)
        if value not in (stock, None):
            msg = (
                f"{name} is {value}, and the native vehicle is proven only with "
                f"{stock or 'none'}: unset it in the session, or write with the streamed vehicle"
            )
            raise UnsafeSettingsError(msg)


@contextmanager
def settings(spark: "SparkSession", values: Mapping[str, str]) -> Iterator[None]:
    """Hold settings of the session at these values during the block; the user's come back when the last block that needs one ends.

    Blocks of several threads may overlap: each setting has one value wherever the vehicles ask for it.
    """
    for name, value in values.items():
        _borrow(spark, name, value)
    try:
        yield
    finally:
        for name in values:
            _give_back(spark, name)


def _borrow(spark: "SparkSession", name: str, value: str) -> None:
    with _lock:
        users, own = _borrowed.get((id(spark), name), (0, None))
        if users == 0:
            own = spark.conf.get(name, None)
            spark.conf.set(name, value)
        _borrowed[id(spark), name] = (users + 1, own)


def _give_back(spark: "SparkSession", name: str) -> None:
    with _lock:
        users, own = _borrowed.pop((id(spark), name))
        if users > 1:
            _borrowed[id(spark), name] = (users - 1, own)
        elif own is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, own)


def active_session() -> "SparkSession | None":
    """The session that is active in this process; None without one, and without Spark."""
    sql = sys.modules.get("pyspark.sql")  # who has a session has imported it
    return None if sql is None else sql.SparkSession.getActiveSession()


def session_parallelism() -> int:
    """How many tasks the active session runs at once by default; 1 without one, and over Spark Connect, which does not tell."""
    context = getattr(active_session(), "_sc", None)
    return 1 if context is None else int(context.defaultParallelism)


def spark_url(storage: Storage, path: str) -> str:
    """A path under the catalog's root as Spark's writer takes it: with its scheme, whatever the session's default file system is."""
    address = f"{storage.address}/{path}"
    return f"file://{address}" if address.startswith("/") else address


def spark_pattern(storage: Storage, path: str) -> str:
    """As `spark_url`, for Spark's readers, which take every path for a pattern."""
    return "".join(f"\\{c}" if c in "{}[]*?\\" else c for c in spark_url(storage, path))
