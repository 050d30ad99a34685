"""`incremental_checkpoint`: a change set of 1 % of 10 million rows, against `df.write.parquet` of everything."""

from pathlib import Path

from benchmarks.changes import run_changes
from benchmarks.harness import Result
from benchmarks.spark_support import KEY, ROWS, STATE

ROUNDS = 7
TIMES_LESS = 6


def run(scratch: Path, rows: int = ROWS, rounds: int = ROUNDS) -> list[Result]:
    """`bytes` and `time`."""

    def change(everything, n):  # type: ignore[no-untyped-def]
        changed = everything.where(f"pmod(xxhash64(tailnum, {n}), 100) = 0")
        return changed.selectExpr("tailnum", f"flights + {n} AS flights", "distance", "mean_delay", "last_airport")

    def write(checkpoint, given):  # type: ignore[no-untyped-def]
        checkpoint.write_changes(STATE, upserts=given, key=KEY)

    return run_changes("incremental_checkpoint", scratch, rows, rounds, change, write, TIMES_LESS)
