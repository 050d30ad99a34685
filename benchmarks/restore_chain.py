"""`restore_chain`: reading a base with change sets of 1 % above it, against `spark.read.parquet` of the merged state.

Ours opens the checkpoint, digests every byte, and merges; Spark reads files that somebody has merged before.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from benchmarks.changes import LONG_CHAIN
from benchmarks.harness import Result, interleave, ratio, seconds, spread, tell
from benchmarks.spark_support import KEY, ROWS, STATE, changed, scan, session, state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 7
JOB = "aircraft"
CHAINS = {"one": (1, 2.5), "ten": (10, 5.0)}  # change sets, and the goal


def run(scratch: Path, rows: int = ROWS, rounds: int = ROUNDS) -> list[Result]:
    """`one` and `ten`."""
    with session() as spark, holdfast.open(scratch / "catalog", create=True) as catalog:
        tell("restore_chain: writing the checkpoints")
        write_chain(catalog, spark, rows)
        merged = scratch / "merged"
        with catalog.checkpoint(JOB) as checkpoint:
            checkpoint.read(spark, STATE).write.parquet(str(merged))
        sides = {name: _side(catalog, spark, 1 + count) for name, (count, _) in CHAINS.items()}
        sides["spark"] = lambda _: seconds(lambda: scan(spark.read.parquet(str(merged))))
        tell("restore_chain: warming up")
        for side in sides.values():
            side(0)
        taken = interleave(sides, rounds, what="restore_chain")
    return [
        Result(
            benchmark="restore_chain",
            measures=name,
            ratio=ratio(taken[name], taken["spark"]),
            at_most=at_most,
            figures={"holdfast": spread(taken[name]), "spark": spread(taken["spark"]), "rows": rows, "change_sets": count},
        )
        for name, (count, at_most) in CHAINS.items()
    ]


def write_chain(catalog: holdfast.Catalog, spark: "SparkSession", rows: int) -> None:
    """Checkpoint 1 is the base, checkpoint n + 1 has n change sets above it."""
    base = state(spark, rows)
    with catalog.coordinate(JOB, retention=holdfast.KeepAll(), chain=LONG_CHAIN) as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write(STATE, base, key=KEY)
        for n in range(1, max(count for count, _ in CHAINS.values()) + 1):
            with job.checkpoint() as checkpoint:
                checkpoint.write_changes(STATE, upserts=changed(base, n), key=KEY)


def _side(catalog: holdfast.Catalog, spark: "SparkSession", number: int):  # type: ignore[no-untyped-def]
    def restore() -> None:
        with catalog.checkpoint(JOB, number) as checkpoint:
            scan(checkpoint.read(spark, STATE))

    return lambda _: seconds(restore)
