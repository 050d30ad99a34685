"""A small state and its changes made one, in this process: the rule of `spark.merge`, without a plan that is larger than the data.

What is read is verified in the very bytes that are read. Whatever this does not know how to bring back unchanged, it leaves to Spark.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.catalog.file_checks import calendar_problem, may_be_misplaced, rows_of
from holdfast.catalog.storage import Storage, read_committed
from holdfast.catalog.types import FileId, Role
from holdfast.writers.parquet.checks import refuse_damaged
from holdfast.writers.parquet.few_files import in_threads
from holdfast.writers.parquet.layout import Part
from holdfast.writers.parquet.plan import FileRow, ReadPlan, Scan, plan_reading
from holdfast.writers.upload import ParentState

DECODED_BYTES = 32 * 1024 * 1024  # in memory, of all files: 145 kB of them have been 2 GB of rows
_BATCH_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The rows of one change set, each with its key group: of upserts all columns, of deletes the key's."""

    upserts: pa.Table | None
    deletes: pa.Table | None


@dataclass(frozen=True, slots=True)
class _Layer:
    """Rows of a state, or the keys of rows that are gone. Higher ranks win; within one they do not meet."""

    rank: int
    role: Role
    rows: pa.Table


def merged_here(
    storage: Storage, parent: ParentState, files: Mapping[FileId, FileRow], changes: Changes, key_columns: Sequence[str]
) -> pa.Table | None:
    """The state's rows with the changes, with their key groups, in the types of the parent's files; None where only Spark can tell.

    The keys' types must be ones whose values Arrow finds equal where Spark does.
    Raises DamagedFileError: a file of the parent is missing or is not what was committed.
    """
    if not _is_flat(parent) or may_be_misplaced(parent.info):
        return None
    plan = plan_reading(parent.chunks, files, parent.max_parallelism)
    if not _is_plain(plan):
        return None
    try:
        layers = _read(storage, parent, plan)
    except pa.ArrowException:  # the bytes are those that were committed, and pyarrow cannot read them
        return None
    if layers is None:
        return None
    target = next((layer.rows.schema for layer in layers if layer.role is not Role.DELETES), None)
    if target is None:
        return None
    target = pa.schema([pa.field(field.name, field.type) for field in target])  # nullable, whatever a file says: other rows may be null
    newest = max((layer.rank for layer in layers), default=0) + 1
    layers += [_Layer(newest, role, rows) for role, rows in _given(changes)]
    try:
        rows = [_as(layer, target, key_columns) for layer in layers]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError):  # its type is not that of the files: as if never seen
        return None
    return _winners(layers, pa.concat_tables(rows), key_columns)


def _given(changes: Changes) -> Iterator[tuple[Role, pa.Table]]:
    if changes.upserts is not None:
        yield Role.UPSERTS, changes.upserts
    if changes.deletes is not None:
        yield Role.DELETES, changes.deletes


def _is_flat(parent: ParentState) -> bool:
    """Whether no column is nested: of those Arrow and Spark name the parts otherwise."""
    return all(isinstance(field["type"], str) for field in json.loads(parent.info.schema or "{}").get("fields", []))


def _is_plain(plan: ReadPlan) -> bool:
    """Whether all rows of all files are wanted."""
    scans = (*plan.base, *plan.upserts, *plan.deletes)
    return bool(plan.base) and all(scan.groups is None for scan in scans) and all(len(parts) == 1 for parts in plan.parts.values())


def _read(storage: Storage, parent: ParentState, plan: ReadPlan) -> list[_Layer] | None:
    """The rows of every file, verified; None where other readers than Spark's would find other values. Raises DamagedFileError."""
    found = dict(zip(plan.parts, in_threads(lambda path: _opened(storage, path, plan.parts[path][0]), plan.parts), strict=True))
    refuse_damaged(storage, {path: _part_of(data) for path, data in found.items()}, plan.parts)
    opened = {path: pq.ParquetFile(pa.BufferReader(data)) for path, data in found.items() if data is not None}
    told = rows_of(parent.info, parent.max_parallelism, f"state {parent.info.state!r}")
    if any(calendar_problem(file.metadata, told) for file in opened.values()):
        return None

    rows = _decoded(opened)
    if rows is None:
        return None

    def layers(scans: Sequence[Scan], role: Role, above: int) -> Iterator[_Layer]:
        for scan in scans:
            yield from (_Layer(above + scan.layer, role, rows[path]) for path in scan.paths)

    base = [replace(layer, rank=0) for layer in layers(plan.base, Role.BASE, 0)]
    return [*base, *layers(plan.upserts, Role.UPSERTS, 1), *layers(plan.deletes, Role.DELETES, 1)]


def _decoded(files: Mapping[str, pq.ParquetFile]) -> dict[str, pa.Table] | None:
    """The rows of each file; None where they are more than the files' size lets one think: a dictionary keeps a long value once."""
    rows: dict[str, pa.Table] = {}
    decoded_bytes = 0
    for path, file in files.items():
        held = []
        for batch in file.iter_batches(batch_size=_BATCH_ROWS):
            held.append(batch)
            decoded_bytes += batch.nbytes
            if decoded_bytes > DECODED_BYTES:
                return None
        rows[path] = pa.Table.from_batches(held, file.schema_arrow)
    return rows


def _opened(storage: Storage, path: str, part: Part) -> bytes | None:
    try:
        return read_committed(storage, path, part.length_bytes)
    except FileNotFoundError:
        return None


def _part_of(data: bytes | None) -> Part | None:
    """The whole of what was read, as one part."""
    return None if data is None else Part(offset_bytes=0, length_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _as(layer: _Layer, target: pa.Schema, key_columns: Sequence[str]) -> pa.Table:
    """The layer's rows in these columns; of deletes, null in all but the key's. Raises for what has no such columns or values."""
    rows = layer.rows
    if layer.role is Role.DELETES:
        columns = [rows[field.name] if field.name in key_columns else pa.nulls(rows.num_rows, field.type) for field in target]
        rows = pa.table(columns, names=target.names)
    elif rows.column_names != target.names:
        raise KeyError(rows.column_names)
    return rows.replace_schema_metadata(None).cast(target)


def _winners(layers: Sequence[_Layer], together: pa.Table, key_columns: Sequence[str]) -> pa.Table:
    """The rows whose key no higher layer has, in the order in which they came."""
    ranks = np.repeat([layer.rank for layer in layers], [layer.rows.num_rows for layer in layers])
    is_row = np.repeat([layer.role is not Role.DELETES for layer in layers], [layer.rows.num_rows for layer in layers])
    numbers = _numbers([together[name] for name in key_columns], together.num_rows)
    highest = np.zeros(len(numbers), np.int64)
    np.maximum.at(highest, numbers, ranks)
    return together.filter(pa.array((ranks == highest[numbers]) & is_row))


def _numbers(columns: Sequence[pa.ChunkedArray], rows: int) -> Any:
    """A number for each row, below their count: the same of rows that are equal in all of these columns, nulls included."""
    numbers: Any = np.zeros(rows, np.int64)
    for column in columns:
        values = column.combine_chunks().dictionary_encode(null_encoding="encode")
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        _, numbers = np.unique(numbers * len(values.dictionary) + values.indices.to_numpy(), return_inverse=True)
    return numbers
