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
    """A state's base, and by layer the rows and the keys of its change sets; `changed` has the key columns of upserts and deletes."""

    key_columns: tuple[str, ...]
    base: "DataFrame"
    upserts: "Sequence[tuple[int, DataFrame]]"
    changed: "Sequence[tuple[int, DataFrame]]"
    changed_rows: int
    changed_bytes: int


def merged(layered: Layered) -> "DataFrame":
    """The rows that no higher layer replaces or deletes. Keys are compared as Spark groups them: nulls, NaNs and zeros are equal."""
    from pyspark.sql import functions

    ranks = {layer: rank for rank, layer in enumerate(sorted({layer for layer, _ in layered.changed}), BASE_RANK + 1)}
    names = [f"k{i}" for i in range(len(layered.key_columns))]
    keys_by_rank = [
        keys.select(*[keys[quoted(column)].alias(name) for column, name in zip(layered.key_columns, names, strict=True)])
        .withColumn("rank", functions.lit(ranks[layer]))
        .withColumn("hash", functions.xxhash64(*names))
        for layer, keys in layered.changed
    ]
    changed = reduce(lambda left, right: left.unionAll(right), keys_by_rank)
    is_small = max(layered.changed_bytes, layered.changed_rows * ROW_BYTES) <= BROADCAST_BYTES
    join = _broadcast_join if is_small else _shuffled_join
    rows = join(layered.base, changed, layered.key_columns, names, functions.lit(BASE_RANK))
    if not layered.upserts:
        return rows
    rank = _free_name("rank", layered.base.columns)
    upserts = reduce(
        lambda left, right: left.unionAll(right),
        [frame.withColumn(rank, functions.lit(ranks[layer])) for layer, frame in layered.upserts],
    )
    return rows.unionAll(join(upserts, changed, layered.key_columns, names, upserts[rank]).drop(rank))


def _broadcast_join(rows: "DataFrame", changed: "DataFrame", columns: Sequence[str], names: Sequence[str], rank: "Column") -> "DataFrame":
    """By a hash of the key, as a long: Spark finds a row by a single long in much less time than by columns of other types."""
    from pyspark.sql import functions

    # A product, because Spark would take a plain equality out of the condition, and join by the key's columns as well as by the hash.
    above = _equal(rows, changed, columns, names).cast("int") * changed["rank"] > rank
    hashed = functions.xxhash64(*[rows[quoted(column)] for column in columns]) == changed["hash"]
    return rows.join(functions.broadcast(changed), hashed & above, "left_anti")


def _shuffled_join(rows: "DataFrame", changed: "DataFrame", columns: Sequence[str], names: Sequence[str], rank: "Column") -> "DataFrame":
    return rows.join(changed, _equal(rows, changed, columns, names) & (changed["rank"] > rank), "left_anti")


def _equal(rows: "DataFrame", changed: "DataFrame", columns: Sequence[str], names: Sequence[str]) -> "Column":
    equal = [rows[quoted(column)].eqNullSafe(changed[name]) for column, name in zip(columns, names, strict=True)]
    return reduce(lambda left, right: left & right, equal)


def _free_name(name: str, taken: Sequence[str]) -> str:
    lower = {each.lower() for each in taken}
    while name in lower:
        name = f"_{name}"
    return name
