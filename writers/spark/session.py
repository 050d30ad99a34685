"""What the uploaders ask of a Spark session: safe settings, settings for one action, and the address of a file as Spark takes it.

Nothing here needs `sparkContext`, which Spark Connect does not have.
"""

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from holdfast.catalog.errors import UnsafeSettingsError
from holdfast.catalog.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A write's own options are ignored for these: they are the session's. Any other way moves files as was never tried here. They are
# borrowed and not demanded: with spark-hadoop-cloud on the classpath, Spark 4.1 and later switch the magic committer on by themselves.
STOCK_COMMIT: Mapping[str, str] = {
    "spark.sql.sources.commitProtocolClass": "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol",
    "spark.sql.parquet.output.committer.class": "org.apache.parquet.hadoop.ParquetOutputCommitter",
}
OWN_COMMITTER = "spark.sql.sources.outputCommitterClass"  # which nothing sets but a user

_lock = threading.Lock()
_borrowed: dict[tuple[int, str], tuple[int, str | None]] = {}  # (session, setting) -> (actions that need it, the user's value)


def refuse_own_committer(spark: "SparkSession") -> None:
    """Raises UnsafeSettingsError where a user has set a committer: under it, a failed or repeated task could lose or double rows."""
    value = spark.conf.get(OWN_COMMITTER, None)
    if value is not None:
        msg = (
            f"{OWN_COMMITTER} is {value}, and the native uploader is proven only with none: unset it in the session, or write with the "
            "streamed uploader"
        )
        raise UnsafeSettingsError(msg)


@contextmanager
def settings(spark: "SparkSession", values: Mapping[str, str]) -> Iterator[None]:
    """Hold settings of the session at these values during the block; the user's come back when the last block that needs one ends.

    Blocks of several threads may overlap: each setting has one value wherever the uploaders ask for it.
    Raises UnsafeSettingsError, before the block, if the session does not let one be set.
    """
    with ExitStack() as borrowed:
        for name, value in values.items():
            if _borrow(spark, name, value):
                borrowed.callback(_give_back, spark, name)
        yield


def _borrow(spark: "SparkSession", name: str, value: str) -> bool:
    """Whether it is to be given back: not what has the value anyway, for each call to the JVM counts where a state is small."""
    with _lock:
        users, own = _borrowed.get((id(spark), name), (0, None))
        if users == 0:
            own = spark.conf.get(name, None)
            if value in (own, None if own is not None else _by_default(spark, name)):
                return False
            _set(spark, name, value, own)
        _borrowed[id(spark), name] = (users + 1, own)
        return True


def _by_default(spark: "SparkSession", name: str) -> str | None:
    """The value of a setting that nobody set."""
    from pyspark.errors import PySparkException

    try:
        return spark.conf.get(name)
    except PySparkException:  # there is none
        return None


def _set(spark: "SparkSession", name: str, value: str, own: str | None) -> None:
    from pyspark.errors import PySparkException

    why = "it stays as it was"
    try:
        spark.conf.set(name, value)
    except PySparkException as error:
        why = str(error)
    if spark.conf.get(name, None) != value:
        msg = (
            f"{name} is {own}, the action needs {value}, and the session does not let it be set ({why}): set it where the session is "
            "built, or write with the streamed uploader"
        )
        raise UnsafeSettingsError(msg)


def _give_back(spark: "SparkSession", name: str) -> None:
    with _lock:
        users, own = _borrowed.pop((id(spark), name))
        if users > 1:
            _borrowed[id(spark), name] = (users - 1, own)
        elif own is None:
            spark.conf.unset(name)
        elif spark.conf.get(name, None) != own:
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
