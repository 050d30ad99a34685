"""Run by test_streaming_kills: a streaming query that keeps totals by key, and dies where it is told to, with everything it started.

`python -m tests.programs.streaming_program DIRECTORY [DEATH]`, where DEATH is one of
    file N       at the N-th file or directory that this process makes, opens or removes in the catalog
    told N       after our commit of the N-th batch of this life, before Spark hears of it
    later N MS   some milliseconds after Spark has heard of the N-th batch of this life: Spark may be writing its own commit
Without a death the query ends by itself; then a batch run over all files writes the same totals as another job.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from holdfast.demo.processes import session_members
from holdfast.demo.sessions import start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id bigint, key string, amount bigint"
STREAM, BATCH = "stream", "batch"
FILE_EVENTS = frozenset({"open", "os.mkdir", "os.link", "os.rename", "os.remove", "os.rmdir"})


def die() -> None:
    """SIGKILL to this process and everything of its session, Spark's JVM and Python workers included."""
    me = os.getpid()
    for pid in session_members(me) - {me}:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # it ended since it was listed
            pass
    os.kill(me, signal.SIGKILL)


def die_at_file(catalog: Path, n: int) -> None:
    """At the n-th event of the catalog's files from here on. The ledger's own, which Rust writes, are between two of them."""
    left = [n]

    def on_event(event: str, arguments: tuple[object, ...]) -> None:
        if event in FILE_EVENTS and str(arguments[0]).startswith(str(catalog)):
            left[0] -= 1
            if left[0] == 0:
                die()

    sys.addaudithook(on_event)


class Dying:
    """The function of a query, which dies after its n-th call: before Spark hears of it, or some milliseconds later."""

    def __init__(self, run, n: int, later_s: float | None) -> None:
        self.run, self.left, self.later_s = run, n, later_s

    def __call__(self, batch: "DataFrame", batch_id: int) -> None:
        self.run(batch, batch_id)
        self.left -= 1
        if self.left == 0 and self.later_s is None:
            die()
        if self.left == 0:
            threading.Timer(self.later_s, die).start()


def totals(rows: "DataFrame") -> "DataFrame":
    return rows.groupBy("key").agg({"amount": "sum", "id": "count"}).toDF("key", "amount", "rows")


def run_stream(spark: "SparkSession", directory: Path, job: holdfast.Coordinator, death: list[str]) -> None:
    """Totals by key as change sets, and every row as it came: what comes twice is there twice."""

    def update(checkpoint: holdfast.CheckpointWriter, batch: "DataFrame", batch_id: int) -> None:
        latest = job.latest()
        new = totals(batch)
        if latest is not None:
            touched = latest.read(spark, "totals").join(new.select("key"), "key", "left_semi")
            new = new.unionByName(touched).groupBy("key").agg({"amount": "sum", "rows": "sum"}).toDF("key", "amount", "rows")
        checkpoint.write_changes("totals", upserts=new.select("key", "amount", "rows"), key=["key"])
        rows = batch.selectExpr("id", "key", "amount", f"{batch_id} AS batch_id")
        checkpoint.write_changes("rows", upserts=rows, key=["id", "batch_id"])

    run = holdfast.foreach_batch(job, update)
    if death and death[0] in ("told", "later"):
        run = Dying(run, int(death[1]), int(death[2]) / 1000 if death[0] == "later" else None)
    if death and death[0] == "file":
        die_at_file(directory / "catalog", int(death[1]))
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(directory / "in"))
    writer = stream.writeStream.foreachBatch(run).option("checkpointLocation", str(directory / "offsets"))
    writer.trigger(availableNow=True).start().awaitTermination()


def main(directory: Path, death: list[str]) -> None:
    spark = start_session(directory / "scratch", master="local[2]")
    with holdfast.open(directory / "catalog", create=True) as catalog:
        with catalog.coordinate(STREAM, retention=holdfast.KeepAll()) as job:
            run_stream(spark, directory, job, death)
        if death:  # it outlived what it was to die at; the next life goes on
            return
        with catalog.coordinate(BATCH, retention=holdfast.KeepLast(1)) as job, job.checkpoint() as checkpoint:
            rows = spark.read.schema(SCHEMA).json(str(directory / "in"))
            checkpoint.write("totals", totals(rows), key=["key"])
            checkpoint.write("rows", rows, key=["id"])
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
