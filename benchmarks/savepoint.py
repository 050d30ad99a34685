"""`savepoint`: a savepoint of 10 million rows, against `df.write.parquet` of the same state repartitioned and sorted by key group.

Ours reads the checkpoint, verified, and commits; Spark reads the same files. Both sort; Spark digests and syncs nothing.
"""

import os
import shutil
from pathlib import Path

import holdfast
from benchmarks.harness import Result, interleave, ratio, seconds, spread, tell
from benchmarks.spark_support import KEY, ROWS, STATE, session, state

ROUNDS = 5
JOB = "aircraft"
AT_MOST = 1.3


def run(scratch: Path, rows: int = ROWS, rounds: int = ROUNDS) -> list[Result]:
    """`write`: the time until the savepoint is committed."""
    with session() as spark, holdfast.open(scratch / "catalog", create=True) as catalog:
        tell("savepoint: writing the checkpoint")
        with catalog.coordinate(JOB) as job, job.checkpoint() as checkpoint:
            checkpoint.write(STATE, state(spark, rows), key=KEY)
        with catalog.checkpoint(JOB) as committed:
            files = [f"{catalog.address}/{file.path}" for file in committed.manifest.files.values()]

        def ours(n: int) -> float:
            os.sync()
            taken = seconds(lambda: catalog.savepoint(JOB, f"round {n}", spark=spark))
            catalog.dispose(JOB, f"round {n}")
            catalog.vacuum()
            return taken

        def spark_alone(_: int) -> float:
            shutil.rmtree(scratch / "parquet", ignore_errors=True)
            os.sync()
            df = spark.read.parquet(*files)
            ordered = df.repartitionByRange(2, "_key_group").sortWithinPartitions("_key_group")
            return seconds(lambda: ordered.write.parquet(str(scratch / "parquet")))

        sides = {"holdfast": ours, "spark": spark_alone}
        tell("savepoint: warming up")
        for side in sides.values():
            side(-1)
        taken = interleave(sides, rounds, what="savepoint")
    figures = {"holdfast": spread(taken["holdfast"]), "spark": spread(taken["spark"]), "rows": rows}
    return [
        Result(benchmark="savepoint", measures="write", ratio=ratio(taken["holdfast"], taken["spark"]), at_most=AT_MOST, figures=figures)
    ]
