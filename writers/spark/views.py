"""The views of a catalog in a Spark session: read by delta-spark, never written through it."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from holdfast.catalog.errors import DamagedLedgerError, RefusedError, UsageError
from holdfast.catalog.views.definitions import Engine, as_facts, every_fact, views_for
from holdfast.catalog.views.past import Past
from holdfast.writers.spark.frames import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


LEDGER = "holdfast_ledger"  # the rows of the ledger, as they were read; `facts` is a view of it
HISTORY = "holdfast_history"  # those of the history
MARK = {"holdfast": "view"}  # on the first column of our views, by which they are told from a user's


def register_views(spark: "SparkSession", ledger_address: str, *, version: int | None = None, history_address: str | None = None) -> None:
    """Make `facts`, `all_facts` and every view of the catalog temporary views of the session, of the ledger and history at these addresses.

    The ledger is read once, here, and kept in the session's cache: queries of the views read no files of it; the history when a view needs
    it first. Replaces those that this made before, those of another catalog too. Times show in the session's time zone.
    With a version, the views are of it. Without, of the one that is newest now: register again to see more.
    Without a history, the views over all time have what is in the ledger.
    Raises:
        UsageError: the session has no Delta Lake, or the ledger no such version.
        RefusedError: the session has temporary views of the user's own with such names; nothing was replaced.
        DamagedLedgerError: there is no ledger or history there that Delta Lake can read.
    """
    all_facts = "SELECT * FROM facts" if history_address is None else every_fact(LEDGER, HISTORY)
    views = {"facts": f"SELECT * FROM {LEDGER}", "all_facts": all_facts, **views_for(Engine.SPARK)}
    _refuse_to_replace(spark, views)
    tables = {LEDGER: _table(spark, "ledger", ledger_address, version)}
    if history_address is not None:  # after the ledger: what a fold took out of that, the history had been told before
        tables[HISTORY] = _table(spark, "history", history_address, None)
    _make(spark, tables, views)


def register_past(spark: "SparkSession", past: Past) -> None:
    """As `register_views`, of a catalog as it was."""
    views = {"facts": f"SELECT * FROM {LEDGER}", "all_facts": "SELECT * FROM facts", **views_for(Engine.SPARK)}
    _refuse_to_replace(spark, views)
    history = _table(spark, "history", past.history.address, past.history.version).where(past.condition)
    select = f"{as_facts('{tail}')} UNION ALL {as_facts('{history}')}"
    facts = spark.sql(select, tail=spark.createDataFrame(past.tail), history=history)
    _make(spark, {LEDGER: facts}, views)


def _make(spark: "SparkSession", tables: Mapping[str, "DataFrame"], views: Mapping[str, str]) -> None:
    for name in (LEDGER, HISTORY):
        if spark.catalog.tableExists(name):  # an earlier call's
            spark.catalog.uncacheTable(name)
            spark.catalog.dropTempView(name)
    for name, table in tables.items():
        table.createOrReplaceTempView(name)
        spark.catalog.cacheTable(name)
    spark.table(LEDGER).count()
    for name, select in views.items():
        view = spark.sql(select)
        view.withMetadata(view.columns[0], MARK).createOrReplaceTempView(name)


def _refuse_to_replace(spark: "SparkSession", names: Iterable[str]) -> None:
    """Raises RefusedError, which names them, for temporary views that somebody else made."""
    if own := [name for name in names if _is_users_own(spark, name)]:
        msg = (
            f"the session has temporary views of your own named {', '.join(map(repr, own))}, which the views of the catalog would replace: "
            f"drop or rename them, or register in a session of its own, catalog.register(spark.newSession()); nothing was replaced"
        )
        raise RefusedError(msg)


def _is_users_own(spark: "SparkSession", name: str) -> bool:
    if not spark.catalog.tableExists(name):
        return False
    return spark.catalog.getTable(name).isTemporary and not any(field.metadata == MARK for field in spark.table(name).schema.fields)


def _table(spark: "SparkSession", what: str, address: str, version: int | None) -> "DataFrame":
    from pyspark.errors import PySparkException

    try:
        # A view without a version follows the table, each of its readings for itself: one query of it could see two ledgers.
        at = _newest_version(spark, address) if version is None else version
        return spark.read.format("delta").option("versionAsOf", at).load(address)
    except PySparkException as error:
        condition = error.getCondition() or ""
        if "DATA_SOURCE_NOT_FOUND" in condition:
            msg = "the session has no Delta Lake: build it with delta.configure_spark_with_delta_pip (package delta-spark)"
            raise UsageError(msg) from error
        if version is not None:
            msg = f"the {what} {address} cannot be read at version {version}: {error}; give a version that its log still has"
            raise UsageError(msg) from error
        msg = f"the {what} {address} cannot be read: {error}; nothing was changed: open the catalog to have its log examined"
        raise DamagedLedgerError(msg) from error


def _newest_version(spark: "SparkSession", address: str) -> int:
    spark.read.format("delta").load(address)  # tells a session without Delta Lake from a ledger that is not there
    # By SQL: the class DeltaTable needs a JVM of its own, or a plugin of Delta's in the server of Spark Connect.
    newest = spark.sql(f"DESCRIBE HISTORY delta.{quoted(address)} LIMIT 1").select("version").first()
    assert newest is not None  # a table has a version 0
    return int(newest[0])
