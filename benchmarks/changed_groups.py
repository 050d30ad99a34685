"""`changed_groups`: 10 million rows with changes in 1 % of the key groups, against `df.write.parquet` of everything."""

from pathlib import Path

from benchmarks.changes import MAX_PARALLELISM, run_changes
from benchmarks.harness import Result
from benchmarks.spark_support import KEY, ROWS, STATE

ROUNDS = 7
TIMES_LESS = 1.7
CHANGED = max(1, MAX_PARALLELISM // 100)  # of the key groups


def run(scratch: Path, rows: int = ROWS, rounds: int = ROUNDS) -> list[Result]:
    """`bytes` and `time`. Each round changes the rows of the same groups again."""

    def change(everything, n):  # type: ignore[no-untyped-def]
        group = f"pmod(hash(tailnum), {MAX_PARALLELISM})"
        changed = f"{group} >= 7 AND {group} < {7 + CHANGED}"
        return everything.selectExpr(
            "tailnum", f"if({changed}, flights + {n + 1}, flights) AS flights", "distance", "mean_delay", "last_airport"
        )

    def write(checkpoint, given):  # type: ignore[no-untyped-def]
        checkpoint.write(STATE, given, key=KEY, mode="changed-groups")

    return run_changes("changed_groups", scratch, rows, rounds, change, write, TIMES_LESS, is_whole=True)
