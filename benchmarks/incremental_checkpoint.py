"""`incremental_checkpoint`: a change set of 1 % of 10 million rows, against `df.write.parquet` of everything."""

from pathlib import Path

from benchmarks.changes import run_changes
from benchmarks.harness import Result
from benchmarks.spark_support import KEY, ROWS, STATE, changed

ROUNDS = 7
TIMES_LESS = 6


def run(scratch: Path, rows: int = ROWS, rounds: int = ROUNDS) -> list[Result]:
    """`bytes` and `time`."""

    def write(checkpoint, given):  # type: ignore[no-untyped-def]
        checkpoint.write_changes(STATE, upserts=given, key=KEY)

    return run_changes("incremental_checkpoint", scratch, rows, rounds, changed, write, TIMES_LESS, is_whole=False)
