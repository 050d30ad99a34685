"""Checkpoints of a Structured Streaming query, one for each micro-batch, triggered in the stream.

A failed batch comes again with the same id: what was committed for it is not committed twice (Spark's `foreachBatch` asks for that).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from holdfast.writers.checkpoint_writer import CheckpointWriter

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame

    from holdfast.writers.restore import Checkpoint

BATCH_ID = "batch_id"  # in the progress of each checkpoint

WriteBatch = Callable[[CheckpointWriter, "DataFrame", int], None]


class Checkpointing(Protocol):
    """What is asked of a coordinator."""

    def latest(self) -> "Checkpoint | None": ...

    def checkpoint(self, progress: dict[str, int]) -> "AbstractContextManager[CheckpointWriter]": ...


def foreach_batch(job: Checkpointing, write: WriteBatch) -> Callable[["DataFrame", int], None]:
    """A function for `writeStream.foreachBatch`: `write(checkpoint, batch, batch_id)` in a checkpoint whose progress has the batch's id."""

    def run(batch: "DataFrame", batch_id: int) -> None:
        latest = job.latest()
        done = (latest.progress or {}).get(BATCH_ID) if latest is not None else None
        if done is not None and batch_id <= done:
            return
        with job.checkpoint({BATCH_ID: batch_id}) as checkpoint:
            write(checkpoint, batch, batch_id)

    return run
