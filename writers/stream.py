"""Checkpoints of a Structured Streaming query, one for each micro-batch, triggered in the stream.

A failed batch comes again with the same id: what was committed for it is not committed twice (Spark's `foreachBatch` asks for that).
Batches are numbered from 0 in each query, and a query is its checkpointLocation, where Spark keeps its id: a batch of another query,
whatever its number, is another batch.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.catalog.errors import UsageError
from holdfast.writers.checkpoint_writer import CheckpointWriter

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame

    from holdfast.writers.restore import Checkpoint

BATCH_ID, QUERY_ID = "batch_id", "query_id"  # in the progress of each checkpoint
QUERY_PROPERTY = "sql.streaming.queryId"  # which Spark sets on the thread that runs a batch

WriteBatch = Callable[[CheckpointWriter, "DataFrame", int], None]


class Checkpointing(Protocol):
    """What is asked of a coordinator."""

    def latest(self) -> "Checkpoint | None": ...

    def checkpoint(self, progress: dict[str, Any]) -> "AbstractContextManager[CheckpointWriter]": ...


def foreach_batch(job: Checkpointing, write: WriteBatch) -> Callable[["DataFrame", int], None]:
    """A function for `writeStream.foreachBatch`: `write(checkpoint, batch, batch_id)` in a checkpoint whose progress has the batch's id.

    A batch is passed over if the checkpoint that the job goes on from is of the same query, and of this batch or a later one. Progress
    without a query's id (of an older version) is of no query that is known: its batches are written, for a lost one would be worse than
    one that is there twice.
    """

    def run(batch: "DataFrame", batch_id: int) -> None:
        query_id = _query_of(batch, batch_id)
        latest = job.latest()
        done = (latest.progress or {}) if latest is not None else {}
        if done.get(QUERY_ID) == query_id and batch_id <= done[BATCH_ID]:
            return
        with job.checkpoint({BATCH_ID: batch_id, QUERY_ID: query_id}) as checkpoint:
            write(checkpoint, batch, batch_id)

    return run


def _query_of(batch: "DataFrame", batch_id: int) -> str:
    context = getattr(batch.sparkSession, "sparkContext", None)  # Spark Connect has none
    query_id = None if context is None else context.getLocalProperty(QUERY_PROPERTY)
    if not query_id:
        msg = (
            f"batch {batch_id} is of no streaming query that can be told: give the function of foreach_batch to writeStream.foreachBatch "
            "of a classic (not Connect) session, and call it on no thread of your own. Nothing was written"
        )
        raise UsageError(msg)
    return str(query_id)
