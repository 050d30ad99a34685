"""What a whole Parquet file of a state can have wrong although its digest is right: it was written so. By its footer and its keys alone.

* Rows in other key groups than their keys have: Holdfast up to 0.1.0 rounded decimals to 28 digits where Python, and not Spark, hashed
  them (`format("holdfast")`). Whatever reads by key groups misses such rows, or finds both versions of them.
* Dates and times in the old calendar: a session with `datetimeRebaseModeInWrite=LEGACY` made Spark write them so. Spark finds the note of
  it in the footer and reads them as they were; no other reader knows it.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.catalog.errors import UsageError
from holdfast.catalog.key_groups import KEY_GROUP_COLUMN
from holdfast.catalog.manifest import Manifest
from holdfast.catalog.murmur3 import key_group_of
from holdfast.catalog.storage import Storage
from holdfast.catalog.types import Format, StateInfo

EXACT_DIGITS = 28  # decimals hashed by way of Python's default context kept this many
OLD_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")

_BATCH_ROWS = 65_536
_DECIMAL = re.compile(r"decimal\((\d+),").match
_OF_CALENDARS = frozenset({"date", "timestamp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOf:
    """Whose rows a file has, and what their groups are made of. Picklable. Without key columns all rows are of one group."""

    what: str  # how an error begins: "state 'planes' of job 'flights'"
    state: str
    key_columns: tuple[str, ...]
    max_parallelism: int
    has_times: bool = True  # columns that a calendar says something about


def rows_of(info: StateInfo, max_parallelism: int, what: str) -> RowsOf:
    """What a state's files are to be checked by."""
    kinds = {name.partition("(")[0] for name in _type_names(json.loads(info.schema or "{}").get("fields", []))}
    has_times = not kinds.isdisjoint(_OF_CALENDARS)
    return RowsOf(what=what, state=info.state, key_columns=info.key_columns, max_parallelism=max_parallelism, has_times=has_times)


def files_of_rows(manifest: Manifest) -> dict[str, RowsOf]:
    """The files of rows of a checkpoint, by their paths."""
    found = {}
    for info in manifest.states:
        if info.format == Format.PARQUET and info.schema is not None:
            what = f"state {info.state!r} of checkpoint {manifest.checkpoint_id} of job {manifest.job!r}"
            rows = rows_of(info, manifest.max_parallelism, what)
            chunks = (chunk for chunk in manifest.in_given_order(info) if chunk.inline is None)
            found.update({manifest.files[chunk.file_id].path: rows for chunk in chunks})
    return found


def may_be_misplaced(info: StateInfo) -> bool:
    """Whether a version of Holdfast is known that put rows with such a key into wrong groups: with decimals that it rounded."""
    fields = json.loads(info.schema or "{}").get("fields", [])
    keys = _type_names([field for field in fields if field["name"] in info.key_columns])
    return any((found := _DECIMAL(name)) is not None and int(found[1]) > EXACT_DIGITS for name in keys)


def problem_in(storage: Storage, path: str, rows: RowsOf) -> str | None:
    """What is wrong with a file, every row of it looked at, row group by row group. Raises OSError, pyarrow's errors."""
    with storage.open_stream(path) as stream, pq.ParquetFile(stream) as file:
        if problem := calendar_problem(file.metadata, rows):
            return problem
        return _misplaced(file, rows, range(file.num_row_groups), edges_only=False)


def edge_problem(storage: Storage, path: str, rows: RowsOf, row_groups: Sequence[int] | None = None) -> str | None:
    """As `problem_in`, of the first and the last row of these row groups (None: of all), and of groups alone."""
    with storage.open_stream(path) as stream, pq.ParquetFile(stream) as file:
        return _misplaced(file, rows, range(file.num_row_groups) if row_groups is None else row_groups, edges_only=True)


def calendar_problem(footer: Any, rows: RowsOf) -> str | None:
    """What pyarrow's footer of a file says of its calendar."""
    if not rows.has_times or not any(name in (footer.metadata or {}) for name in OLD_CALENDAR):
        return None
    return (
        f"{rows.what} was written in a session with datetimeRebaseModeInWrite=LEGACY: its dates before 1582 and its times before "
        f"1900 are in the old calendar, and only Spark reads them as they were. {_way_out(rows)}"
    )


def _way_out(rows: RowsOf) -> str:
    key = f", key={[*rows.key_columns]}" if rows.key_columns else ""
    return (
        f"Read the state with Spark, whole (read without key_groups and parallelism), and write it in full: "
        f"checkpoint.write({rows.state!r}, job.latest().read(spark, {rows.state!r}){key})"
    )


def _misplaced(file: Any, rows: RowsOf, row_groups: Sequence[int], *, edges_only: bool) -> str | None:
    names = [*rows.key_columns]
    if not names:
        return None
    for number in row_groups:
        for batch in _looked_at(file, number, [*names, KEY_GROUP_COLUMN], edges_only=edges_only):
            try:
                right = key_group_of([batch.column(name) for name in names], rows.max_parallelism)
            except UsageError:  # a type that only Spark hashes: these groups are its own
                return None
            found = batch.column(KEY_GROUP_COLUMN).to_numpy(zero_copy_only=False)
            wrong = np.flatnonzero(right.to_numpy() != found)
            if len(wrong):
                at = int(wrong[0])
                return (
                    f"{rows.what} has a row in key group {found[at]} (row group {number} of the file) whose key "
                    f"{', '.join(map(repr, names))} belongs to key group {right[at].as_py()}: Holdfast 0.1.0 rounded decimals of more than "
                    f"{EXACT_DIGITS} digits where format('holdfast') wrote them; a read by key groups would miss rows, or see old ones. "
                    f"{_way_out(rows)}"
                )
    return None


def _looked_at(file: Any, row_group: int, columns: list[str], *, edges_only: bool) -> Iterator[pa.RecordBatch]:
    """The rows of a row group in batches of these columns; or of its first batch the first row, and of its last the last."""
    batches = file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[row_group], columns=columns)
    last = None
    for batch in (each.select(columns) for each in batches if each.num_rows):
        if not edges_only:
            yield batch
            continue
        if last is None:
            yield batch.slice(0, 1)
        last = batch
    if last is not None:
        yield last.slice(last.num_rows - 1, 1)


def _type_names(schema: Any) -> Iterator[str]:
    """The names of all plain types in a part of Spark's JSON of a schema."""
    if isinstance(schema, str):
        yield schema
    elif isinstance(schema, list):
        for field in schema:
            yield from _type_names(field["type"])
    elif isinstance(schema, dict):
        for part in ("fields", "elementType", "keyType", "valueType"):
            if part in schema:
                yield from _type_names(schema[part])
