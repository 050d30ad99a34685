"""Base and change sets as one: a row is left out if a change set above it has its key. Spark joins; the base is read once.

One rule serves base rows, upserts and deletes: what a key is worth is said by the highest layer that has it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from holdfast.writers.spark_frame import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The changed keys are broadcast up to this size, estimated by the files of the change sets (compressed, all columns) or, if that is more,
# by their rows. Two million short keys take some 400 MB of the driver while they are broadcast: what Spark's default of 1 GB bears.
# Beyond, everything is shuffled.
BROADCAST_BYTES = 32 * 1024 * 1024
ROW_BYTES = 16

BASE_RANK = 0  # ranks of the change sets count from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Layered:
    """A state's base, and the rows of all its change sets, each with the rank of its own in a column; deletes have the key columns only."""

    key_columns: tuple[str, ...]
    base: "DataFrame"
    upserts: "DataFrame | None"
    deletes: "DataFrame | None"
    rank: str  # the column's name
    has_hidden_upserts: bool  # whether a change set lies above an upsert
    changed_rows: int
    changed_bytes: int


def merged(layered: Layered) -> "DataFrame":
    """The rows that no higher layer replaces or deletes. Keys are compared as Spark groups them: nulls, NaNs and zeros are equal."""
    from pyspark.sql import functions

    names = [f"k{i}" for i in range(len(layered.key_columns))]
    keys_and_rank = [
        *(functions.col(quoted(column)).alias(name) for column, name in zip(layered.key_columns, names, strict=True)),
        functions.col(layered.rank).alias("rank"),
    ]
    changes = [frame.select(*keys_and_rank) for frame in (layered.upserts, layered.deletes) if frame is not None]
    changed = reduce(lambda left, right: left.unionAll(right), changes).withColumn("hash", functions.xxhash64(*names))
    is_small = max(layered.changed_bytes, layered.changed_rows * ROW_BYTES) <= BROADCAST_BYTES
    join = _broadcast_join if is_small else _shuffled_join
    rows = join(layered.base, changed, layered.key_columns, names, functions.lit(BASE_RANK))
    upserts = layered.upserts
    if upserts is None:
        return rows
    if layered.has_hidden_upserts:
        upserts = join(upserts, changed, layered.key_columns, names, upserts[layered.rank])
    return rows.unionAll(upserts.drop(layered.rank))


def _broadcast_join(rows: "DataFrame", changed: "DataFrame", columns: Sequence[str], names: Sequence[str], rank: "Column") -> "DataFrame":
    """By a hash of the key, as a long: Spark finds a row by a single long in much less time than by columns of other types."""
    from pyspark.sql import functions

    # A product, because Spark would take a plain equality out of the condition, and join by the key's columns as well as by the hash. It
    # does so where it knows that all ranks are one and the same, too: they must come from the rows.
    above = _equal(rows, changed, columns, names).cast("int") * changed["rank"] > rank
    hashed = functions.xxhash64(*[rows[quoted(column)] for column in columns]) == changed["hash"]
    return rows.join(functions.broadcast(changed), hashed & above, "left_anti")


def _shuffled_join(rows: "DataFrame", changed: "DataFrame", columns: Sequence[str], names: Sequence[str], rank: "Column") -> "DataFrame":
    return rows.join(changed, _equal(rows, changed, columns, names) & (changed["rank"] > rank), "left_anti")


def _equal(rows: "DataFrame", changed: "DataFrame", columns: Sequence[str], names: Sequence[str]) -> "Column":
    equal = [rows[quoted(column)].eqNullSafe(changed[name]) for column, name in zip(columns, names, strict=True)]
    return reduce(lambda left, right: left & right, equal)
