"""`small_states`: checkpoints and readings of states of kilobytes, against Spark's own writing and reading of the same rows.

Most states of most jobs are small, and so is every micro-batch: what counts is what is paid however few the rows are. Ours is all that a
user's block does: open, key groups, digests, syncs, manifest, commit; a reading opens the checkpoint, which pins it (a commit), digests
every byte, gives all rows to pandas, and lets go (another commit). Spark syncs nothing and checks nothing. Both sides run the same plans over
`spark.range` in one session, so that neither writes what it has read; the sides take turns.
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from benchmarks.changes import LONG_CHAIN
from benchmarks.harness import Result, interleave, ratio, seconds, spread, tell
from benchmarks.spark_support import KEY, STATE, session, state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 31
WARM_UP = 10  # Spark compiles, and the JVM does: a first checkpoint takes seconds
ROWS, FEW_ROWS, EVERY = 4_000, 300, 70  # changes are of every 70th row: 57 of 4,000
CHANGE_SETS = 10
GOALS = {"write": ("parquet", 1.5), "read": ("spark", 1.5), "chain": ("spark_chain", 2.5), "changes": ("parquet_changes", 1.5)}


def run(scratch: Path, rows: int = ROWS, rounds: int = ROUNDS, warm_up: int = WARM_UP) -> list[Result]:
    """`write`, `read`, `chain` and `changes`, each against its own peer."""
    with session() as spark, holdfast.open(scratch / "catalog", create=True) as catalog:
        everything, few = state(spark, rows), state(spark, FEW_ROWS)
        names = (str(scratch / f"parquet-{n}") for n in itertools.count())
        tell("small_states: writing the chain")
        _write_chain(catalog, everything)
        merged, whole = next(names), next(names)
        with catalog.checkpoint("chain") as checkpoint:
            checkpoint.read(spark, STATE).coalesce(1).write.parquet(merged)
            chain = sorted(file.size_bytes for file in checkpoint.manifest.files.values())
        everything.write.parquet(whole)
        with catalog.coordinate("states") as job, catalog.coordinate("changes") as changing:
            for each in (job, changing):
                _checkpoint(each, lambda cp: cp.write(STATE, everything, key=KEY))

            def write(checkpoint: holdfast.CheckpointWriter) -> None:
                checkpoint.write(STATE, everything, key=KEY)
                checkpoint.write("per_route", few, key=KEY)

            def write_parquet() -> None:
                everything.write.parquet(next(names))
                few.write.parquet(next(names))

            given: list[int] = []

            def write_changes(n: int) -> float:
                given.append(n)
                changes = _changed(everything, n)
                return seconds(lambda: _checkpoint(changing, lambda cp: cp.write_changes(STATE, upserts=changes, key=KEY)))

            def write_changes_parquet(n: int) -> float:
                changes = _changed(everything, n)
                return seconds(lambda: changes.write.parquet(next(names)))

            sides: dict[str, Callable[[int], float]] = {
                "write": lambda _: seconds(lambda: _checkpoint(job, write)),
                "parquet": lambda _: seconds(write_parquet),
                "read": lambda _: seconds(lambda: _read(catalog, spark, "states", rows)),
                "spark": lambda _: seconds(lambda: _take(spark.read.parquet(whole), rows)),
                "chain": lambda _: seconds(lambda: _read(catalog, spark, "chain", rows)),
                "spark_chain": lambda _: seconds(lambda: _take(spark.read.parquet(merged), rows)),
                "changes": write_changes,
                "parquet_changes": write_changes_parquet,
            }
            tell("small_states: warming up")
            for n in range(warm_up):
                for side in sides.values():
                    side(n)
            taken = interleave(sides, rounds, what="small_states")
            _require_changed(spark, changing, everything, given)
    about = {"rows": rows, "few_rows": FEW_ROWS, "changed_rows": rows // EVERY, "change_sets": CHANGE_SETS, "chain_files": len(chain)}
    return [
        Result(
            benchmark="small_states",
            measures=name,
            ratio=ratio(taken[name], taken[peer]),
            at_most=at_most,
            figures={"holdfast": spread(taken[name], "ms"), "spark": spread(taken[peer], "ms"), **about},
        )
        for name, (peer, at_most) in GOALS.items()
    ]


def _write_chain(catalog: holdfast.Catalog, everything: "DataFrame") -> None:
    with catalog.coordinate("chain", chain=LONG_CHAIN) as job:
        _checkpoint(job, lambda cp: cp.write(STATE, everything, key=KEY))
        for n in range(CHANGE_SETS):
            _checkpoint(job, lambda cp: cp.write_changes(STATE, upserts=_changed(everything, n), key=KEY))  # noqa: B023 - called here


def _changed(rows: "DataFrame", n: int) -> "DataFrame":
    """57 of 4,000 rows, others for each n below 60, with other values."""
    some = rows.where(f"pmod(CAST(substr(tailnum, 2) AS INT), {EVERY}) = {EVERY - 1 - n % 60}")
    return some.selectExpr("tailnum", f"flights + {n} AS flights", "distance", "mean_delay", "last_airport")


def _checkpoint(job: holdfast.Coordinator, write: Callable[[holdfast.CheckpointWriter], None]) -> None:
    with job.checkpoint() as checkpoint:
        write(checkpoint)


def _read(catalog: holdfast.Catalog, spark: "SparkSession", name: str, rows: int) -> None:
    with catalog.checkpoint(name) as checkpoint:
        _take(checkpoint.read(spark, STATE), rows)


def _take(df: "DataFrame", rows: int) -> None:
    """All rows, as pandas has them. Raises AssertionError for another number of them."""
    found = len(df.toPandas())
    if found != rows:
        msg = f"{found} rows were read, and there are {rows}"
        raise AssertionError(msg)


def _require_changed(spark: "SparkSession", job: holdfast.Coordinator, everything: "DataFrame", given: Sequence[int]) -> None:
    """Raises AssertionError unless each row has the value of the last change of it."""
    latest = job.latest()
    assert latest is not None
    found = {row.tailnum: row.flights for row in latest.read(spark, STATE).collect()}
    expected = {row.tailnum: row.flights for row in everything.collect()}
    for n in given:
        expected |= {row.tailnum: row.flights for row in _changed(everything, n).collect()}
    if found != expected:
        msg = f"the state has other rows than the changes {given} make"
        raise AssertionError(msg)
