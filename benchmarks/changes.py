"""What `incremental_checkpoint` and `changed_groups` share: a checkpoint of what changed, against writing everything with Spark.

Both inputs are materialised in Spark's cache, so that neither side computes its rows. Spark syncs nothing; ours digests and syncs all.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from benchmarks.harness import Result, interleave, ratio, seconds, spread, tell
from benchmarks.spark_support import KEY, STATE, session, state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Change = Callable[["DataFrame", int], "DataFrame"]  # what is given to the checkpoint of a round: everything, or what changed
Write = Callable[[holdfast.CheckpointWriter, "DataFrame"], None]

MAX_PARALLELISM = 128
LONG_CHAIN = holdfast.ChainLimit(change_sets=1000, share_of_base=1000.0)  # a merged base is another checkpoint than the one measured


def run_changes(
    name: str, scratch: Path, rows: int, rounds: int, change: Change, write: Write, times_less: float, *, is_whole: bool
) -> list[Result]:
    """`bytes`: how many times fewer bytes than everything; `time`: how many times less time.

    If what a checkpoint is given is the whole state of its round (`is_whole`), Spark writes just that, as newly cached as ours was.
    """
    with session() as spark, holdfast.open(scratch / "catalog", create=True) as catalog:
        everything = _materialised(state(spark, rows))
        options = {"max_parallelism": MAX_PARALLELISM, "retention": holdfast.KeepAll(), "chain": LONG_CHAIN}
        with catalog.coordinate("aircraft", **options) as job:  # type: ignore[arg-type]
            tell(f"{name}: writing the first checkpoint")
            with job.checkpoint() as checkpoint:
                checkpoint.write(STATE, everything, key=KEY, mode="changed-groups")
            written: list[int] = []

            def ours(n: int) -> float:
                given = _materialised(change(everything, n + 1))
                os.sync()
                taken = seconds(lambda: written.append(_checkpoint(job, given, write)))
                given.unpersist()
                return taken

            def spark_alone(n: int) -> float:
                shutil.rmtree(scratch / "parquet", ignore_errors=True)
                given = _materialised(change(everything, n + 1)) if is_whole else everything
                os.sync()
                taken = seconds(lambda: given.write.parquet(str(scratch / "parquet")))
                if is_whole:
                    given.unpersist()
                return taken

            sides = {"holdfast": ours, "spark": spark_alone}
            tell(f"{name}: warming up")
            sides["holdfast"](-1)
            sides["spark"](-1)
            taken = interleave(sides, rounds, what=name)
            spark_bytes = sum(path.stat().st_size for path in (scratch / "parquet").glob("part-*"))
    figures = {"holdfast": spread(taken["holdfast"]), "spark": spread(taken["spark"]), "rows": rows}
    sizes = {"rows": rows, "new_bytes": written[-1], "spark_bytes": spark_bytes}
    return [
        Result(benchmark=name, measures="bytes", ratio=round(spark_bytes / written[-1], 2), at_least=10, figures=sizes),
        Result(benchmark=name, measures="time", ratio=ratio(taken["spark"], taken["holdfast"]), at_least=times_less, figures=figures),
    ]


def _checkpoint(job: holdfast.Coordinator, given: "DataFrame", write: Write) -> int:
    with job.checkpoint() as checkpoint:
        write(checkpoint, given)
    assert checkpoint.result is not None
    return checkpoint.result.new_bytes


def _materialised(df: "DataFrame") -> "DataFrame":
    cached = df.cache()
    cached.count()
    return cached
