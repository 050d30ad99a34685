"""Run by test_connect: the main path on a Spark Connect session, whose server is another process. Prints what it found as JSON."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast.demo.sessions import SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id bigint, name string"


def connect(scratch: Path) -> "SparkSession":
    """A session of Spark Connect; the server, of this machine, has Delta Lake, so that it can read the ledger."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_TESTING": "1"}  # testing: any free port
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote("local[2]")
    for name, value in {
        **SETTINGS,
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }.items():
        builder = builder.config(name, value)
    session: SparkSession = configure_spark_with_delta_pip(builder).getOrCreate()
    return session


def rows_of(df: Any) -> list[list[Any]]:
    return sorted([*row] for row in df.collect())


def error_of(act: Any) -> str:
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def main_path(spark: "SparkSession", catalog: holdfast.Catalog, upload: Any) -> dict[str, Any]:
    """Everything that a job does with DataFrames, by one of the two uploaders."""

    def frame(rows: list[tuple[int, str]]) -> Any:
        return spark.createDataFrame(rows, SCHEMA)

    found: dict[str, Any] = {}
    whole = [(n, f"name {n}") for n in range(100)]
    groups = spark.range(2000).selectExpr("id", "concat('name ', id) AS name")
    chain = holdfast.ChainLimit(change_sets=2, share_of_base=1e9)
    with catalog.coordinate(f"job-{upload}", max_parallelism=16, upload=upload, chain=chain, retention=holdfast.KeepLast(1)) as job:
        with job.checkpoint() as cp:
            cp.write("full", frame(whole).repartition(3), key=["id"])
            cp.write("keyless", frame(whole))
            cp.write("none", frame(whole).where("id < 0"), key=["id"])
            cp.write("empty", frame([]), key=["id"])
            cp.write("groups", groups, key=["id"], mode="changed-groups")
        for n in range(3):  # the third passes the limit: the state is read and written anew
            with job.checkpoint() as cp:
                cp.write_changes("full", upserts=frame([(n, "new"), (200 + n, "more")]), deletes=frame([(50 + n, "")]), key=["id"])
                changed = groups.selectExpr("id", f"if(id = 7, 'changed {n}', name) AS name")
                cp.write("groups", changed, key=["id"], mode="changed-groups")
                cp.write_bytes("offsets", b"%d" % n)
            latest = job.latest()
            found[f"full {n}"] = rows_of(latest.read(spark, "full"))
            found[f"reused {n}"] = cp.result.reused_bytes > 0
        found["groups"] = [row for row in rows_of(latest.read(spark, "groups")) if row[0] in (6, 7)]
        found["group rows"] = latest.read(spark, "groups").count()
        found["keyless"] = rows_of(latest.read(spark, "keyless")) == [list(row) for row in whole]
        found["no rows"] = [latest.read(spark, state).count() for state in ("none", "empty")]
        found["parts"] = sum(latest.read(spark, "groups", key_groups=range(n, n + 8)).count() for n in (0, 8))
        found["subtasks"] = latest.read(spark, "groups", parallelism=4).count()
        found["double key"] = error_of(lambda: twice(job, frame))
        savepoint = job.savepoint(f"mine-{upload}", spark=spark)
        found["savepoint"] = rows_of(savepoint.read(spark, "full")) == found["full 2"]
    with catalog.coordinate(f"restored-{upload}", start=savepoint, upload=upload, retention=holdfast.KeepLast(1)) as job:
        found["restored"] = rows_of(job.latest().read(spark, "full")) == found["full 2"]
    return found


def twice(job: holdfast.Coordinator, frame: Any) -> None:
    with job.checkpoint() as cp:
        cp.write_changes("full", upserts=frame([(1, "a"), (1, "b")]), key=["id"])


def errors(spark: "SparkSession", catalog: holdfast.Catalog) -> dict[str, str]:
    """What cannot be, or must not be, on Connect: told with what to do instead."""
    with catalog.coordinate("errors", retention=holdfast.KeepLast(1)) as job:
        with job.checkpoint() as cp:
            cp.write("ids", spark.range(10), key=["id"])
        found = {
            "stream": error_of(lambda: holdfast.foreach_batch(job, lambda cp, batch, number: None)),
            "unknown column": error_of(lambda: failing(job, spark)),
        }
    with catalog.checkpoint("errors") as checkpoint:
        outlives = checkpoint.read(spark, "ids")
    found["outlives"] = error_of(outlives.collect)
    file = next(Path(catalog.address).glob("jobs/errors-*/shared/*/*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])
    found["damaged"] = error_of(lambda: catalog.checkpoint("errors").read(spark, "ids"))
    return found


def failing(job: holdfast.Coordinator, spark: "SparkSession") -> None:
    with job.checkpoint() as cp:
        cp.write("ids", spark.range(10), key=["other"])


def run(directory: Path) -> dict[str, Any]:
    spark = connect(directory / "scratch")
    with holdfast.open(directory / "catalog", create=True) as catalog:
        found: dict[str, Any] = {"session": type(spark).__module__}
        for upload in ("native", "streamed"):
            found[upload] = main_path(spark, catalog, upload)
        catalog.register(spark)
        found["views"] = spark.sql("SELECT count(*) FROM checkpoints WHERE is_savepoint").collect()[0][0]
        found["errors"] = errors(spark, catalog)
    spark.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]))))
