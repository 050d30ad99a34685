"""The views of the ledger in a Spark session: read by delta-spark, never written through it."""

from typing import TYPE_CHECKING

from holdfast.catalog.errors import DamagedLedgerError, UsageError
from holdfast.catalog.views import Engine, views_for
from holdfast.writers.spark_frame import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def register_views(spark: "SparkSession", ledger_address: str, *, version: int | None = None) -> None:
    """Make `facts` and every view of the catalog temporary views of the session, of the ledger at this address.

    Replaces temporary views of the same names, those of another catalog too. Times show in the session's time zone.
    With a version, the views stay at it. Without, they stay at the version that was newest now: register again to see more.
    Raises:
        UsageError: the session has no Delta Lake, or the ledger no such version.
        DamagedLedgerError: there is no ledger there that Delta Lake can read.
    """
    _facts(spark, ledger_address, version).createOrReplaceTempView("facts")
    for name, select in views_for(Engine.SPARK).items():
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {select}")


def _facts(spark: "SparkSession", ledger_address: str, version: int | None) -> "DataFrame":
    from pyspark.errors import PySparkException

    try:
        # A view without a version follows the table, each of its readings for itself: one query of it could see two ledgers.
        at = _newest_version(spark, ledger_address) if version is None else version
        return spark.read.format("delta").option("versionAsOf", at).load(ledger_address)
    except PySparkException as error:
        condition = error.getCondition() or ""
        if "DATA_SOURCE_NOT_FOUND" in condition:
            msg = "the session has no Delta Lake: build it with delta.configure_spark_with_delta_pip (package delta-spark)"
            raise UsageError(msg) from error
        if version is not None:
            msg = f"the ledger {ledger_address} cannot be read at version {version}: {error}; give a version that its log still has"
            raise UsageError(msg) from error
        msg = f"the ledger {ledger_address} cannot be read: {error}; nothing was changed: open the catalog to have its log examined"
        raise DamagedLedgerError(msg) from error


def _newest_version(spark: "SparkSession", ledger_address: str) -> int:
    spark.read.format("delta").load(ledger_address)  # tells a session without Delta Lake from a ledger that is not there
    # By SQL: the class DeltaTable needs a JVM beside it, or a plugin of Delta's in the server of Spark Connect.
    newest = spark.sql(f"DESCRIBE HISTORY delta.{quoted(ledger_address)} LIMIT 1").select("version").first()
    assert newest is not None  # a table has a version 0
    return int(newest[0])
