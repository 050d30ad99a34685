"""Base and change sets as one: a row is left out if a change set above it has its key. Spark joins; the base is read once.

One rule serves base rows, upserts and deletes: what a key is worth is said by the highest layer that has it.
"""

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from holdfast.writers.parquet.plan import free_name
from holdfast.writers.spark.frames import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The changed keys are broadcast up to this size, estimated by the files of the change sets (compressed, all columns) or, if that is more,
# by their rows. Two million short keys take some 400 MB of the driver while they are broadcast: what Spark's default of 1 GB bears.
# Beyond, everything is shuffled.
BROADCAST_BYTES = 32 * 1024 * 1024
ROW_BYTES = 16

BASE_RANK = 0  # below those of all change sets


def rank_of(layer: int) -> int:
    """The rank of a change set in this layer."""
    return BASE_RANK + 1 + layer


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

    taken = [*layered.base.columns, layered.rank]  # a name says which side it is of
    rank, hashed = free_name("changed_rank", taken), free_name("changed_hash", taken)
    keys = [functions.col(quoted(column)) for column in layered.key_columns]
    names = [free_name(f"changed_k{i}", taken) for i in range(len(keys))]
    asked = [*(key.alias(name) for key, name in zip(keys, names, strict=True)), functions.col(layered.rank).alias(rank)]
    changes = [frame.select(*asked) for frame in (layered.upserts, layered.deletes) if frame is not None]
    changed = reduce(lambda left, right: left.unionAll(right), changes)
    equal = reduce(lambda left, right: left & right, [key.eqNullSafe(functions.col(name)) for key, name in zip(keys, names, strict=True)])
    if max(layered.changed_bytes, layered.changed_rows * ROW_BYTES) <= BROADCAST_BYTES:
        # By a hash of the key, as a long: Spark finds a row by a single long in much less time than by columns of other types.
        changed = functions.broadcast(changed.withColumn(hashed, functions.xxhash64(*names)))
        found = functions.xxhash64(*keys) == functions.col(hashed)
        # A product, because Spark would take a plain equality out of the condition, and join by the key's columns as well as by the hash.
        # It does so where it knows that all ranks are one and the same, too: they must come from the rows.
        worth = equal.cast("int") * functions.col(rank)
    else:
        found, worth = equal, functions.col(rank)
    rows = layered.base.join(changed, found & (worth > BASE_RANK), "left_anti")
    upserts = layered.upserts
    if upserts is None:
        return rows
    if layered.has_hidden_upserts:
        upserts = upserts.join(changed, found & (worth > functions.col(layered.rank)), "left_anti")
    return rows.unionAll(upserts.drop(layered.rank))
