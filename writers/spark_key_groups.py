"""Rows by key group: in partitions of their own, and sorted."""

from typing import TYPE_CHECKING

from holdfast.writers.upload import KEY_GROUP_COLUMN, UploadContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def arranged(frame: "DataFrame", context: UploadContext) -> "DataFrame":
    """The rows of a savepoint by key group: each partition has a range of them, sorted. Anything else is left as it is.

    As many partitions as the session gives a shuffle, at most one for each key group. The bounds do not depend on the rows:
    to find them by a sample, as `repartitionByRange` does, the plan would have to run twice.
    """
    if not (context.metadata.is_savepoint and context.key_columns):
        return frame
    partitions = min(int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1), context.max_parallelism)
    return by_subtask(frame, partitions, context.max_parallelism).sortWithinPartitions(KEY_GROUP_COLUMN)


def by_subtask(frame: "DataFrame", parallelism: int, max_parallelism: int) -> "DataFrame":
    """The rows in as many partitions, each with the key groups of one subtask (`key_groups.groups_of`)."""
    from pyspark.sql import functions

    subtask = functions.expr(f"cast({KEY_GROUP_COLUMN} * {parallelism} div {max_parallelism} AS int)")
    return frame.repartitionById(parallelism, subtask)
