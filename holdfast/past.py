"""The catalog as it was at a version or a time, as its analysts see it."""

from typing import TYPE_CHECKING

from holdfast.catalog import arguments
from holdfast.catalog.views.past import Past

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import SparkSession


class PastCatalog:
    """What `Catalog.at` gives. It stays the same whatever is committed, folded or deleted since; it changes nothing and pins nothing."""

    def __init__(self, past: Past, address: str) -> None:
        self._past, self._address = past, address

    @property
    def version(self) -> int:
        return self._past.version

    @property
    def ledger(self) -> str:
        """The name of the ledger's directory that the version is of."""
        return self._past.ledger

    def __repr__(self) -> str:
        return f"<catalog at {self._address}, as of version {self.version} of {self.ledger}>"

    def duckdb(self) -> "duckdb.DuckDBPyConnection":
        """A connection as `Catalog.duckdb` gives it. The column `inline` of the view `handles` is empty."""
        return self._past.connect(self._address)

    def register(self, spark: "SparkSession") -> None:
        """Make the views temporary views of a Spark session, in place of those of now. Raises as `Catalog.register`."""
        from holdfast.writers.spark.views import register_past

        arguments.spark_session(spark)
        register_past(spark, self._past)
