"""`full_checkpoint`: a whole checkpoint of 10 million rows, against `df.write.parquet` of the same DataFrame.

Ours is all that a user's block does: key groups, Spark's write, digests, syncs, footers, manifest, commit. Both sides run the same
plan over `spark.range`, so that neither reads anything, and start with nothing left to write back to the disk. Spark syncs nothing.
"""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from benchmarks.harness import Result, interleave, ratio, seconds, spread, tell
from benchmarks.spark_support import KEY, ROWS, STATE, session, state
from holdfast.catalog.types import KeepLast

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROUNDS = 9
AT_MOST = 1.3


def run(scratch: Path, rows: int = ROWS, rounds: int = ROUNDS) -> list[Result]:
    """`write`: the time until the checkpoint is committed."""
    with session() as spark, holdfast.open(scratch / "catalog", create=True) as catalog:
        df = state(spark, rows)
        with catalog.coordinate("aircraft", retention=KeepLast(1)) as job:

            def ours(_: int) -> float:
                catalog.vacuum()  # of the round before last: the disk shall not fill
                os.sync()
                return seconds(lambda: _checkpoint(job, df))

            def spark_alone(_: int) -> float:
                shutil.rmtree(scratch / "parquet", ignore_errors=True)
                os.sync()
                return seconds(lambda: df.write.parquet(str(scratch / "parquet")))

            sides = {"holdfast": ours, "spark": spark_alone}
            tell("full_checkpoint: warming up")
            for side in sides.values():
                side(0)
            taken = interleave(sides, rounds, what="full_checkpoint")
            latest = job.latest()
            assert latest is not None
            figures = {
                "holdfast": spread(taken["holdfast"]),
                "spark": spread(taken["spark"]),
                "rows": rows,
                "state_bytes": sum(file.size_bytes for file in latest.manifest.files.values()),
                "spark_bytes": sum(path.stat().st_size for path in (scratch / "parquet").glob("part-*")),
            }
    return [
        Result(
            benchmark="full_checkpoint",
            measures="write",
            ratio=ratio(taken["holdfast"], taken["spark"]),
            at_most=AT_MOST,
            figures=figures,
        )
    ]


def _checkpoint(job: holdfast.Coordinator, df: "DataFrame") -> None:
    with job.checkpoint() as checkpoint:
        checkpoint.write(STATE, df, key=KEY)
