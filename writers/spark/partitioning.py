"""Rows by key group: in partitions of their own, and sorted."""

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from holdfast.catalog.key_groups import KEY_GROUP_COLUMN
from holdfast.catalog.murmur3 import key_group_of
from holdfast.writers.upload import UploadContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PARTITIONS = "spark.sql.shuffle.partitions"
_INITIAL_PARTITIONS = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"


def arranged(frame: "DataFrame", context: UploadContext) -> "DataFrame":
    """The rows of a savepoint by key group: each partition has a range of them, sorted. Anything else is left as it is.

    There are as many partitions as the session makes of a shuffle: with adaptive execution, few of a small state. That is only done
    where a shuffle is by the hash of a column, so each range gets a number whose hash leads to the partition of the same place, and
    adjacent partitions, which are what Spark puts together, have adjacent ranges. The bounds do not depend on the rows: to find
    them by a sample, as `repartitionByRange` does, the plan would have to run twice.
    """
    from pyspark.sql import functions

    if not is_arranged(context):
        return frame
    partitions = _shuffle_partitions(frame.sparkSession)
    ranges = min(partitions, context.max_parallelism)
    numbers = ", ".join(map(str, _numbers_for(ranges, partitions)))
    place = f"cast({KEY_GROUP_COLUMN} * {ranges} div {context.max_parallelism} AS int)"
    return frame.repartition(functions.expr(f"element_at(array({numbers}), {place} + 1)")).sortWithinPartitions(KEY_GROUP_COLUMN)


def is_arranged(context: UploadContext) -> bool:
    """Whether what is written is a savepoint's state that has keys."""
    return context.metadata.is_savepoint and bool(context.key_columns)


def by_subtask(frame: "DataFrame", parallelism: int, max_parallelism: int) -> "DataFrame":
    """The rows in as many partitions, each with the key groups of one subtask (`key_groups.groups_of`)."""
    from pyspark.sql import functions

    subtask = functions.expr(f"cast({KEY_GROUP_COLUMN} * {parallelism} div {max_parallelism} AS int)")
    return frame.repartitionById(parallelism, subtask)


def _shuffle_partitions(spark: "SparkSession") -> int:
    return int(spark.conf.get(_INITIAL_PARTITIONS, None) or spark.conf.get(_PARTITIONS) or 1)


def _numbers_for(count: int, partitions: int) -> list[int]:
    """For each of the first `count` partitions, a number that Spark sends there."""
    tried = 16 * partitions + 256
    while True:
        places, first = np.unique(key_group_of([pa.array(np.arange(tried, dtype=np.int32))], partitions).to_numpy(), return_index=True)
        if len(places) == partitions:
            return [int(number) for number in first[:count]]
        tried *= 2
