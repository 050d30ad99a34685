"""`restore`: reading a state of 10 million rows from a checkpoint, against `spark.read.parquet` of the same files.

Ours opens the checkpoint (which pins it, a commit), checks its manifest and files, scans all rows and columns, and lets go of the
checkpoint (another commit); `verified` digests
every byte before it returns, `plain` (verify=False) looks at sizes and footers. Spark infers the schema from a footer, as it does when
it is given paths only, and leaves the key groups unread, as ours does. All files are in the page cache.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from benchmarks.harness import Result, interleave, ratio, seconds, spread, tell
from benchmarks.spark_support import KEY, ROWS, STATE, scan, session, state
from holdfast.catalog.key_groups import KEY_GROUP_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 15
JOB = "aircraft"
VERIFIED_AT_MOST, PLAIN_AT_MOST = 1.6, 1.15


def run(scratch: Path, rows: int = ROWS, rounds: int = ROUNDS) -> list[Result]:
    """`verified` and `plain`, against one median of Spark's."""
    with session() as spark, holdfast.open(scratch / "catalog", create=True) as catalog:
        tell("restore: writing the checkpoint")
        with catalog.coordinate(JOB) as job, job.checkpoint() as checkpoint:
            checkpoint.write(STATE, state(spark, rows), key=KEY)
        with catalog.checkpoint(JOB) as committed:  # let go of it again: while one reader pins it, another's pin costs no commit
            manifest = committed.manifest
        files = [f"{catalog.address}/{file.path}" for file in manifest.files.values()]
        sides = {
            "verified": lambda _: seconds(lambda: _restore(catalog, spark, verify=True)),
            "plain": lambda _: seconds(lambda: _restore(catalog, spark, verify=False)),
            "spark": lambda _: seconds(lambda: scan(spark.read.parquet(*files).drop(KEY_GROUP_COLUMN))),
        }
        tell("restore: warming up")
        for side in sides.values():
            side(0)
        taken = interleave(sides, rounds, what="restore")
        size_bytes = sum(file.size_bytes for file in manifest.files.values())
    return [
        Result(
            benchmark="restore",
            measures=name,
            ratio=ratio(taken[name], taken["spark"]),
            at_most=at_most,
            figures={
                "holdfast": spread(taken[name]),
                "spark": spread(taken["spark"]),
                "rows": rows,
                "bytes": size_bytes,
                "files": len(files),
            },
        )
        for name, at_most in (("verified", VERIFIED_AT_MOST), ("plain", PLAIN_AT_MOST))
    ]


def _restore(catalog: "holdfast.Catalog", spark: "SparkSession", *, verify: bool) -> None:
    with catalog.checkpoint(JOB) as checkpoint:
        scan(checkpoint.read(spark, STATE, verify=verify))
