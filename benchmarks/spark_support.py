"""The Spark session and the 10 million rows of `full_checkpoint` and `restore`."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 10_000_000
STATE, KEY = "per_aircraft", ("tailnum",)


@contextmanager
def session() -> Iterator["SparkSession"]:
    """A session of two cores, with Spark's defaults for everything that has to do with files. Stopped at the end."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("holdfast-benchmarks")
    for name, value in {
        "spark.driver.memory": "3g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def state(spark: "SparkSession", rows: int = ROWS) -> "DataFrame":
    """Five columns with a string key. Computed from the row's number: the same rows each time, and no side has to read anything."""
    from pyspark.sql import functions as F

    number = F.col("id")
    scattered = F.pmod(number * 2_654_435_761, F.lit(rows))
    return spark.range(0, rows, 1, 2).select(
        F.concat(F.lit("N"), F.lpad(number.cast("string"), 8, "0")).alias("tailnum"),
        F.pmod(number, F.lit(1_000)).alias("flights"),
        scattered.alias("distance"),
        (scattered / 977.0).alias("mean_delay"),
        F.concat(F.lit("A"), F.pmod(number, F.lit(400)).cast("string")).alias("last_airport"),
    )


def changed(rows: "DataFrame", n: int) -> "DataFrame":
    """1 % of the rows of `state`, others for each n, with other values."""
    some = rows.where(f"pmod(xxhash64(tailnum, {n}), 100) = 0")
    return some.selectExpr("tailnum", f"flights + {n} AS flights", "distance", "mean_delay", "last_airport")


def scan(df: "DataFrame") -> None:
    """Read every row, and do nothing with it."""
    df.write.format("noop").mode("overwrite").save()
