"""Spark for the demo: executors in processes of their own, and nothing written outside the demo's directory."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLUSTER = "local-cluster[2,1,1024]"
YOUNG_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.python.worker.reuse": "true",
    # The data is small and the processes are young: compiling, by Spark and by the JVM, takes longer than running.
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.extraJavaOptions": YOUNG_JVM,
    "spark.executor.extraJavaOptions": YOUNG_JVM,
    "spark.databricks.delta.snapshotPartitions": "1",
}


def link_spark_home(directory: Path) -> Path:
    """A directory of links to the installed Spark, so that what its executors leave (`work/`) is not left in site-packages."""
    import pyspark

    home = directory / "spark-home"
    home.mkdir(parents=True, exist_ok=True)
    for entry in Path(pyspark.__file__).parent.iterdir():
        link = home / entry.name
        if entry.name != "work":
            with suppress(FileExistsError):  # of an earlier session, or of one that starts at the same time
                link.symlink_to(entry)
    return home


def start_session(directory: Path, *, master: str = CLUSTER, delta: bool = False) -> "SparkSession":
    """A session that writes below `directory` only; with `delta`, one that can read the ledger."""
    # Workers start `python3` from PATH otherwise, which need not have what this interpreter has.
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    os.environ["SPARK_HOME"] = str(link_spark_home(directory))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("holdfast-demo").config(map={**SETTINGS})
    builder = builder.config("spark.local.dir", str(directory / "spark-local"))
    builder = builder.config("spark.sql.warehouse.dir", str(directory / "spark-warehouse"))
    if delta:
        from delta import configure_spark_with_delta_pip

        builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        builder = configure_spark_with_delta_pip(builder)
    session: SparkSession = builder.getOrCreate()
    return session
