"""`rescale`: reading half of the key groups of a savepoint (sorted, small row groups), against reading all of them."""

from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from benchmarks.harness import Result, interleave, ratio, seconds, spread, tell
from benchmarks.spark_support import KEY, ROWS, STATE, scan, session, state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 9
BYTES_AT_MOST, TIME_AT_MOST = 0.6, 0.7
GROUPS = 128
VECTORED = "parquet.hadoop.vectored.io.enabled"


def run(scratch: Path, rows: int = ROWS, rounds: int = ROUNDS) -> list[Result]:
    """`bytes` that Spark's readers read, and `time`, digests included."""
    with session() as spark, holdfast.open(scratch / "catalog", create=True) as catalog:
        tell("rescale: writing the savepoint")
        with catalog.coordinate("aircraft", max_parallelism=GROUPS) as job:
            with job.checkpoint() as checkpoint:
                checkpoint.write(STATE, state(spark, rows), key=KEY)
            savepoint = job.savepoint("measured", spark=spark)
        half = range(GROUPS // 2)
        sides = {
            "half": lambda _: seconds(lambda: scan(savepoint.read(spark, STATE, key_groups=half))),
            "whole": lambda _: seconds(lambda: scan(savepoint.read(spark, STATE))),
        }
        tell("rescale: warming up")
        for side in sides.values():
            side(0)
        taken = interleave(sides, rounds, what="rescale")
        sizes = {
            "half_bytes": _bytes_read(spark, savepoint.read(spark, STATE, key_groups=half)),
            "whole_bytes": _bytes_read(spark, savepoint.read(spark, STATE)),
        }
    figures = {name: spread(found) for name, found in taken.items()}
    return [
        Result(
            benchmark="rescale",
            measures="bytes",
            ratio=round(sizes["half_bytes"] / sizes["whole_bytes"], 3),
            at_most=BYTES_AT_MOST,
            figures=sizes,
        ),
        Result(benchmark="rescale", measures="time", ratio=ratio(taken["half"], taken["whole"]), at_most=TIME_AT_MOST, figures=figures),
    ]


def _bytes_read(spark: "SparkSession", df: "DataFrame") -> int:
    """What the tasks of one scan say that they read. Reads that Parquet puts together (vectored) are not counted on a local disk."""
    context, group = spark.sparkContext, f"scan {id(df)}"
    spark.conf.set(VECTORED, "false")
    context.setJobGroup(group, group)
    scan(df)
    context.setLocalProperty("spark.jobGroup.id", "")
    spark.conf.unset(VECTORED)
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    infos = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = {stage for info in infos if info is not None for stage in info.stageIds}
    return sum(int(store.lastStageAttempt(stage).inputBytes()) for stage in stages)
