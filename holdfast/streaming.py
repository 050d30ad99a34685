"""Checkpoints of a Structured Streaming query, one for each micro-batch, triggered in the stream.

A failed batch comes again with the same id: what was committed for it is not committed twice (Spark's `foreachBatch` asks for that).
Batches are numbered from 0 in each query, without a gap, and a query is its checkpointLocation, where Spark keeps its id: a batch of
another query, whatever its number, is another batch.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.catalog.arguments import is_whole
from holdfast.catalog.errors import RefusedError, UsageError
from holdfast.catalog.types import QUERY_ID
from holdfast.writers.checkpoint_writer import CheckpointWriter

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame

    from holdfast.writers.checkpoint import Checkpoint

BATCH_ID = "batch_id"  # in the progress of each checkpoint, as QUERY_ID is
NO_BATCH = -1  # the last batch of a state that has none
QUERY_PROPERTY = "sql.streaming.queryId"  # which Spark sets on the thread that runs a batch

Update = Callable[[CheckpointWriter, "DataFrame", int], None]


class Checkpointing(Protocol):
    """What is asked of a coordinator."""

    @property
    def tolerated_failures(self) -> int: ...

    def latest(self) -> "Checkpoint | None": ...

    def past_progress(self) -> Iterable[Mapping[str, Any]]: ...

    def checkpoint(self, progress: dict[str, Any]) -> "AbstractContextManager[CheckpointWriter]": ...


def foreach_batch(job: Checkpointing, update: Update) -> "Callable[[DataFrame, int], None]":
    """A function for `writeStream.foreachBatch`: `update(checkpoint, batch, batch_id)` writes the state with the batch in it.

    Each micro-batch is one checkpoint, whose progress has the ids of batch and query. Of one query each batch is in the state exactly once,
    however often driver, query and batch fail and begin again: a batch is passed over if the checkpoint that the job continues from has it,
    and refused if that lacks one before it. The first batch (0) of a query is written on any state that has none of its batches.
    For `update`, `job.latest()` is the state without the batch. What it does apart from the checkpoint may happen more than once.
    Raises UsageError for what is no job or no function, and on a client of Spark Connect, whose server would run the function in a process
    of its own; RefusedError for a job that tolerates failed checkpoints, for a batch whose checkpoint failed must come again.
    In Spark, as the cause of a StreamingQueryException, the function raises what `job.checkpoint` does, and
        RefusedError: batches before this one are not in the state, or that cannot be known, because somebody else wrote the job's last
            checkpoint: job and checkpointLocation do not belong together. Nothing was written.
        UsageError: the batch's query cannot be identified (called by hand, or in another thread).
    """
    from pyspark.sql.utils import is_remote

    _require_usable(job, update)
    if is_remote():
        msg = (
            "foreach_batch is not available on Spark Connect: its server would run the function in a process of its own, without the job's "
            "coordinator. Run the query in a classic session, SparkSession.builder.master(...), in the program that coordinates the job"
        )
        raise UsageError(msg)
    if job.tolerated_failures:
        msg = (
            f"the job tolerates {job.tolerated_failures} failed checkpoints in a row, and a micro-batch whose checkpoint failed would be "
            "lost: coordinate it with tolerated_failures=0; Spark sends a batch that failed again"
        )
        raise RefusedError(msg)
    return _EachBatch(job, update)


def _require_usable(job: object, update: object) -> None:
    if not callable(update) or not all(hasattr(job, each) for each in ("checkpoint", "latest", "past_progress")):
        msg = (
            f"foreach_batch({job!r}, {update!r}) is not a job and a function: give what catalog.coordinate(...) returned, and the function "
            "that writes a batch, called with (checkpoint, batch, batch_id)"
        )
        raise UsageError(msg)


@dataclass(frozen=True, slots=True)
class _EachBatch:
    job: Checkpointing
    update: Update

    def __call__(self, batch: "DataFrame", batch_id: int) -> None:
        query_id = _query_of(batch, batch_id)
        latest = self.job.latest()
        if _is_done(latest, query_id, batch_id):
            return
        if latest is not None and not _is_of(latest.progress, query_id):
            self._require_none_before(latest, query_id, batch_id)
        with self.job.checkpoint({BATCH_ID: batch_id, QUERY_ID: query_id}) as checkpoint:
            self.update(checkpoint, batch, batch_id)

    def _require_none_before(self, latest: "Checkpoint", query_id: str, batch_id: int) -> None:
        """The last checkpoint is somebody else's. Raises RefusedError if one before it has batches of the query: this may be one."""
        before = next((progress for progress in self.job.past_progress() if _is_of(progress, query_id)), None)
        if before is not None and before.get(BATCH_ID) != NO_BATCH:
            msg = (
                f"batch {batch_id} of the streaming query {query_id} cannot be written: checkpoint {latest.checkpoint_id} of job "
                f"{latest.job!r} does not say which batches of it the state has, and one before has them up to {before.get(BATCH_ID)}: "
                f"somebody else wrote the job's last checkpoint. Nothing was written: {_say_so(query_id, '<the last batch it has>')}"
                f"; {NO_BATCH} if it has none"
            )
            raise RefusedError(msg)


def _is_of(progress: Mapping[str, Any] | None, query_id: str) -> bool:
    return progress is not None and progress.get(QUERY_ID) == query_id


def _last_batch(latest: "Checkpoint | None", query_id: str) -> int:
    """The last batch of the query that the checkpoint has. Raises RefusedError if it names the query and no batch: written by hand."""
    if latest is None or latest.progress is None or not _is_of(latest.progress, query_id):
        return NO_BATCH
    last = latest.progress.get(BATCH_ID)
    if not is_whole(last):
        msg = (
            f"checkpoint {latest.checkpoint_id} of job {latest.job!r} has a progress of the streaming query {query_id} whose {BATCH_ID!r} "
            f"is {last!r}, which is not the number of a batch. Nothing was written: {_say_so(query_id, '<the last batch it has>')}"
        )
        raise RefusedError(msg)
    return int(last)


def _say_so(query_id: str, last_batch: object) -> str:
    return f'say what the state has: write a checkpoint with the progress {{"{BATCH_ID}": {last_batch}, "{QUERY_ID}": "{query_id}"}}'


def _is_done(latest: "Checkpoint | None", query_id: str, batch_id: int) -> bool:
    """Whether the state has the batch. Raises RefusedError if it lacks batches before this one, or may."""
    last_batch = _last_batch(latest, query_id)
    if batch_id > last_batch + 1:
        raise RefusedError(_gap(latest, query_id, batch_id, last_batch))
    return batch_id <= last_batch


def _gap(latest: "Checkpoint | None", query_id: str, batch_id: int, last_batch: int) -> str:
    state = "the job has no checkpoint" if latest is None else f"checkpoint {latest.checkpoint_id} of job {latest.job!r}"
    has = "" if latest is None else " has none of its batches" if last_batch < 0 else f" has its batches up to {last_batch}"
    return (
        f"batch {batch_id} of the streaming query {query_id} cannot be written: {state}{has}. The query's checkpointLocation and the job "
        "do not belong together: one of them was rolled back, lost or begun again, or somebody else wrote the job's last checkpoint. "
        "Nothing was written: bring back the one that fits, or give the query a new location and a source that begins where the state "
        f"ends. If the state has all batches before this one, {_say_so(query_id, batch_id - 1)}"
    )


def _query_of(batch: "DataFrame", batch_id: int) -> str:
    context = getattr(batch.sparkSession, "sparkContext", None)
    query_id = None if context is None else context.getLocalProperty(QUERY_PROPERTY)
    if not query_id:
        msg = (
            f"the streaming query of batch {batch_id} cannot be identified: pass the function of foreach_batch to writeStream.foreachBatch "
            "of a classic (not Connect) session, and do not call it on a thread of your own. Nothing was written"
        )
        raise UsageError(msg)
    return str(query_id)
