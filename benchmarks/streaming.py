"""`streaming`: what a checkpoint adds to a micro-batch, against a bare ledger commit and a `df.write.parquet` of the same rows.

Two queries over the same files take turns of 25 batches: one writes each batch as upserts through `holdfast.foreach_batch`, the
other computes the same rows and throws them away. A batch's time is what Spark says of the whole trigger, so that everything is in
it that a checkpoint causes. What is added is the median of the differences between the two triggers of the same file: a slow batch
does not matter, nor does a load that comes or goes between turns, for the two are of one turn.

The floor takes its turns too: the rows, ready in Spark's cache, written by Spark, which syncs nothing; and the rows of a checkpoint
appended to a ledger as in `commit`.
"""

import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from benchmarks import commit
from benchmarks.harness import Result, ratio, seconds, spread, tell
from benchmarks.spark_support import KEY, STATE, session, state
from holdfast.catalog.facts import Fact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCHES, TURN = 200, 25
ROWS = 5_000  # of a batch
AT_MOST = 3.0

ForEachBatch = Callable[["DataFrame", int], None]


def run(scratch: Path, batches: int = BATCHES, turn: int = TURN, rows: int = ROWS) -> list[Result]:
    """`overhead`: the added time of a batch against the floor's."""
    with session() as spark, holdfast.open(scratch / "catalog", create=True) as catalog, catalog.coordinate("stream") as job:
        files = _files(spark, scratch / "files", batches, rows)
        with job.checkpoint() as first:  # what the stream changes rows of
            first.write(STATE, state(spark, batches * rows), key=KEY)
        sides = {
            "with": Query(spark, scratch / "with", holdfast.foreach_batch(job, _update)),
            "without": Query(spark, scratch / "without", _compute),
        }
        floor = Floor.over(spark, scratch / "floor", files[0])
        for n in range(0, batches, turn):
            for name, query in sides.items():
                tell(f"streaming: batches {n} to {n + turn - 1} of {batches}, {name} checkpoints")
                query.take(files[n : n + turn])
            floor.take(turn)
        tell("")
        _require_changed(spark, job, batches * rows)
    return [_overhead(sides["with"], sides["without"], floor, rows)]


def _overhead(ours: "Query", other: "Query", floor: "Floor", rows: int) -> Result:
    added = [one - two for one, two in zip(ours.triggers, other.triggers, strict=True)]
    bare = [sum(both) for both in zip(floor.commits, floor.writes, strict=True)]
    figures = {
        "added": {**spread(added, "ms"), "mean_ms": round(1000 * statistics.mean(added), 3)},  # with the new bases of long chains
        "with": spread(ours.triggers, "ms"),
        "without": spread(other.triggers, "ms"),
        "floor": spread(bare, "ms"),
        "floor_commit": spread(floor.commits, "ms"),
        "floor_parquet": spread(floor.writes, "ms"),
        "nothing_subtracted": ratio(ours.functions, bare),
        "batch_rows": rows,
    }
    return Result(benchmark="streaming", measures="overhead", ratio=ratio(added, bare), at_most=AT_MOST, figures=figures)


def _require_changed(spark: "SparkSession", job: holdfast.Coordinator, rows: int) -> None:
    """Raises AssertionError unless the state has these rows, each changed once."""
    from pyspark.sql import functions as F

    latest = job.latest()
    assert latest is not None
    found = latest.read(spark, STATE).agg(F.count("*"), F.sum("flights")).first()
    expected = _rows(state(spark, rows)).agg(F.count("*"), F.sum("flights")).first()
    if found != expected:
        msg = f"the state has {found}, and all batches together make {expected}"
        raise AssertionError(msg)


def _files(spark: "SparkSession", directory: Path, batches: int, rows: int) -> list[Path]:
    """A file for each batch, of rows that no other has."""
    state(spark, batches * rows).repartitionByRange(batches, "tailnum").write.parquet(str(directory))
    return sorted(directory.glob("part-*"))


def _rows(batch: "DataFrame") -> "DataFrame":
    """The rows of the state that a batch makes."""
    return batch.selectExpr("tailnum", "flights + 1 AS flights", "distance", "mean_delay", "last_airport")


def _update(checkpoint: holdfast.CheckpointWriter, batch: "DataFrame", _: int) -> None:
    checkpoint.write_changes(STATE, upserts=_rows(batch), key=KEY)


def _compute(batch: "DataFrame", _: int) -> None:
    _rows(batch).write.format("noop").mode("overwrite").save()


@dataclass(slots=True)
class Query:
    """A query that stops after each turn and goes on in the next where it was. Its batches' seconds, as Spark tells them."""

    spark: "SparkSession"
    directory: Path
    run: ForEachBatch
    triggers: list[float] = field(default_factory=list)
    functions: list[float] = field(default_factory=list)  # what of it is the call of `run`

    def take(self, files: Sequence[Path]) -> None:
        """A batch for each file."""
        source = self.directory / "in"
        source.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(file, source)
        stream = self.spark.readStream.schema(state(self.spark, 1).schema).option("maxFilesPerTrigger", 1).parquet(str(source))
        query = stream.writeStream.foreachBatch(self.run).option("checkpointLocation", str(self.directory / "location"))
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()
        told = [each["durationMs"] for each in running.recentProgress if each["numInputRows"]]
        if len(told) != len(files):
            msg = f"{len(files)} files were {len(told)} batches"
            raise AssertionError(msg)
        self.triggers += [each["triggerExecution"] / 1000 for each in told]
        self.functions += [each["addBatch"] / 1000 for each in told]


@dataclass(slots=True)
class Floor:
    """Spark writing the rows of one batch, which it has, and a bare commit. Their seconds."""

    directory: Path
    rows: "DataFrame"
    ledger: commit.Floor
    facts: Sequence[Fact]
    writes: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)

    @classmethod
    def over(cls, spark: "SparkSession", directory: Path, file: Path) -> "Floor":
        rows = _rows(spark.read.parquet(str(file))).cache()
        rows.count()
        checkpoint = commit.Job.start(directory / "checkpoint")
        checkpoint.commit(0)
        return cls(directory, rows, commit.Floor.create(directory / "ledger"), checkpoint.facts)

    def take(self, times: int) -> None:
        for _ in range(times):
            target = str(self.directory / f"rows-{len(self.writes)}")
            self.writes.append(seconds(lambda: self.rows.write.parquet(target)))  # noqa: B023 - called here
            self.commits.append(self.ledger.commit(self.facts))
