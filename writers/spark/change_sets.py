"""Change sets: the rows that are new or other, and the keys of those that are gone, in a layer above the state as it was."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import UsageError
from holdfast.catalog.types import Ack, ChainLimit, Format, Role, StateInfo
from holdfast.writers.parquet.plan import file_rows
from holdfast.writers.parquet.report import state_info
from holdfast.writers.parquet.small_merge import Changes, merged_here
from holdfast.writers.spark.chain_limit import is_base_cheaper, too_many_changes
from holdfast.writers.spark.frames import column_names, column_problems, quoted, widened
from holdfast.writers.spark.gathered import Gathered, gather, upload_rows
from holdfast.writers.spark.read import read_state
from holdfast.writers.upload import (
    ParentState,
    UploadContext,
    Uploader,
    WrittenState,
    bytes_of,
    chunks_of,
    in_full,
    on_parent,
    without_chunks,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

ROWS_HERE = 1_000_000  # the driver can hold the keys of a change set up to this size
PLAIN_TYPES = frozenset({"string", "binary", "boolean", "byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz"})
NAMED_KEYS = 3  # in an error


@dataclass(frozen=True, slots=True)
class ChangeWriter:
    """Writes change sets as they are gathered, by tasks or by the driver, and whole states by the uploader, or by the driver if small."""

    uploader: Uploader
    environment: Environment

    def write(
        self,
        upserts: "DataFrame | None",
        deletes: "DataFrame | None",
        context: UploadContext,
        parent: ParentState | None,
        limit: ChainLimit,
    ) -> WrittenState | None:
        """The parent's state with these changes, as a change set above it; as a new base if the limit would be passed or the
        state is small.

        Without a parent the upserts are the state, and without upserts there is none (None). Each plan runs once. The key may be left to
        the parent.
        Raises:
            UsageError: the columns or the key are not the state's, or a key appears twice.
        """
        if parent is not None and not context.key_columns:
            context = replace(context, key_columns=parent.info.key_columns)
        _check(upserts, deletes, context, parent)
        if parent is None:
            return self._write_base(upserts, deletes, context)
        context = replace(context, key_columns=parent.info.key_columns)  # in the state's order, by which rows find their groups
        assert parent.info.schema is not None
        schema = parent.info.schema
        given = []
        if upserts is not None:
            schema = widened(schema, upserts)
            given.append(self._gather(_in_order(upserts, schema), Role.UPSERTS, context))
        if deletes is not None:
            gone = _in_order(deletes, schema, context.key_columns)
            given.append(self._gather(gone, Role.DELETES, replace(context, call=context.call + 1)))
        of_base = replace(context, call=context.call + 2)
        if schema == parent.info.schema and (based := self._write_small_base(given, parent, of_base)) is not None:
            return based
        uploads = [each.uploaded() for each in given]
        _require_distinct(uploads, context)
        acks = tuple(ack for upload in uploads for ack in upload.acks or ())
        if not any(ack.chunks for ack in acks):
            return WrittenState(acks=acks, info=parent.info, content=parent.chunks)
        if not any(chunk.role is Role.UPSERTS for chunk in chunks_of(acks)):
            schema = parent.info.schema  # a column that no file has would be missing for readers of the files without us
        changed = on_parent(parent, acks, replace(parent.info, schema=schema, rows=None, group_digests=None))
        if not too_many_changes(parent, chunks_of(acks), limit):
            return changed
        return self._write_merged(uploads[0].frame.sparkSession, changed, parent, of_base)

    def _gather(self, frame: "DataFrame", role: Role, context: UploadContext) -> "_Given":
        return _Given(role=role, frame=frame, gathered=gather(frame, replace(context, role=role), self.environment))

    def _write_small_base(self, given: Sequence["_Given"], parent: ParentState, context: UploadContext) -> WrittenState | None:
        """The changed state as a base, where that costs no more than a change set; None where it does, or where Spark must merge."""
        rows = {each.role: each.rows_here() for each in given}
        changed = [table for table in rows.values() if table is not None]
        if (
            not changed
            or not all(each.is_here for each in given)
            or not is_base_cheaper(bytes_of(parent.chunks), sum(chunk.rows or 0 for chunk in parent.chunks) + sum(map(len, changed)))
            or not all(is_plain(each.frame, context.key_columns) for each in given)
            or not _is_distinct(changed, context.key_columns)
        ):
            return None
        changes = Changes(upserts=rows.get(Role.UPSERTS), deletes=rows.get(Role.DELETES))
        whole = merged_here(context.storage, parent, file_rows(parent.files.values()), changes, context.key_columns)
        if whole is None:
            return None
        gathered_ms = sum(each.gathered.upload_ms for each in given if each.gathered is not None)
        acks = upload_rows(whole, context, self.environment, gathered_ms)
        info = replace(parent.info, rows=whole.num_rows, layers=1, total_bytes=bytes_of(chunks_of(acks)), group_digests=None)
        return in_full(acks, info)

    def _write_base(self, upserts: "DataFrame | None", deletes: "DataFrame | None", context: UploadContext) -> WrittenState | None:
        """A change set without a base is a base; what it deletes was never there."""
        gone = [] if deletes is None else [_Given(role=Role.DELETES, frame=deletes)]
        if upserts is None:
            _require_distinct(gone, context)
            return None
        acks = self.uploader.write(upserts, context)
        _require_distinct([_Given(role=Role.UPSERTS, frame=upserts, acks=tuple(acks)), *gone], context)
        return in_full(acks, state_info(upserts, context, acks))

    def _write_merged(self, spark: "SparkSession", changed: WrittenState, parent: ParentState, context: UploadContext) -> WrittenState:
        """The changed state as a base: read as any reader would, all bytes of it verified, and written in full."""
        files = {**parent.files, **{file.file_id: file for ack in changed.acks for file in ack.files}}
        rows = read_state(
            spark, context.storage, changed.info, changed.content, file_rows(files.values()), max_parallelism=context.max_parallelism
        )
        acks = self.uploader.write(rows, context)
        info = replace(state_info(rows, context, acks), schema=changed.info.schema)
        return in_full([*acks, *map(without_chunks, changed.acks)], info)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """Upserts or deletes, and what was uploaded of them; None: nothing is."""

    role: Role
    frame: "DataFrame"
    gathered: Gathered | None = None
    acks: tuple[Ack, ...] | None = None

    @property
    def is_here(self) -> bool:
        """Whether no task uploaded any of it."""
        return self.gathered is not None and not self.gathered.reports

    def rows_here(self) -> pa.Table | None:
        return None if self.gathered is None else self.gathered.rows

    def uploaded(self) -> "_Given":
        """With the acks of all of it; files without rows are none of the change set's."""
        acks = [] if self.gathered is None else self.gathered.keep()
        return replace(self, acks=tuple(ack if ack.metrics.rows else without_chunks(ack) for ack in acks))


# ---- what a change set must be ------------------------------------------------------------------------------------------


def _check(upserts: "DataFrame | None", deletes: "DataFrame | None", context: UploadContext, parent: ParentState | None) -> None:
    """Raises UsageError before anything is written."""
    if problems := [*_problems(upserts, deletes, context, parent)]:
        msg = f"changes of state {context.state!r}: {'; '.join(problems)}"
        raise UsageError(msg)


def _problems(
    upserts: "DataFrame | None", deletes: "DataFrame | None", context: UploadContext, parent: ParentState | None
) -> Iterator[str]:
    if upserts is None and deletes is None:
        yield "there are none: give upserts, deletes or both"
    if parent is None and not context.key_columns:
        yield "they are the first of the state, which needs a key: give the columns that tell rows apart"
    if parent is not None and (problem := _parent_problem(parent, context)):
        yield problem
        return
    schema = parent.info.schema if parent is not None else None if upserts is None else upserts.schema.json()
    if upserts is not None and parent is not None and schema is not None:
        yield from (f"upserts: {problem}" for problem in column_problems(upserts, schema))
    if deletes is not None:
        missing = (f"there is no column {name!r}" for name in context.key_columns if name not in deletes.columns)
        found = missing if schema is None else column_problems(deletes, schema, context.key_columns)
        yield from (f"deletes: {problem}" for problem in found)


def _parent_problem(parent: ParentState, context: UploadContext) -> str | None:
    info = parent.info
    if info.format != Format.PARQUET or info.schema is None:
        return f"the state is kept as '{info.format}', not as a DataFrame: write it in full"
    if not info.key_columns:
        return "the state was written without a key: write it in full, with one"
    if context.key_columns and sorted(info.key_columns) != sorted(context.key_columns):
        return f"the key is given as {_listed(context.key_columns)}, and that of the state is {_listed(info.key_columns)}"
    if parent.max_parallelism != context.max_parallelism:
        return f"the state has {parent.max_parallelism} key groups and this job {context.max_parallelism}: write it in full"
    return None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


# ---- no key twice ---------------------------------------------------------------------------------------------------------


def _require_distinct(given: Sequence[_Given], context: UploadContext) -> None:
    """Raises UsageError, which names some of them, if a key appears twice in all of this together."""
    from pyspark.sql import functions

    if not given or _are_distinct_here(given, context):
        return
    together = reduce(lambda left, right: left.unionAll(right), [_keys_of(each, context) for each in given])
    counted = together.groupBy(*together.columns[:-1]).agg(
        functions.count(functions.lit(1)).alias("rows"), functions.collect_set("role").alias("roles")
    )
    twice = counted.filter("rows > 1").limit(NAMED_KEYS + 1).collect()
    if twice:
        named = "; ".join(_named(row, context.key_columns) for row in twice[:NAMED_KEYS])
        msg = (
            f"changes of state {context.state!r}: a key may appear once, and these appear more than once: {named}"
            f"{', and more' if len(twice) > NAMED_KEYS else ''}"
        )
        raise UsageError(msg)


def _are_distinct_here(given: Sequence[_Given], context: UploadContext) -> bool:
    """Whether no key appears twice, as far as this process can tell by itself: that takes a tenth of the time of a Spark job.

    Only of so many rows, and of types whose values are equal to Arrow where they are to Spark (not so NaNs and zeros).
    """
    acks = [ack for each in given for ack in each.acks or ()]
    rows = sum(ack.metrics.rows or 0 for ack in acks)
    if rows > ROWS_HERE or any(each.acks is None or not is_plain(each.frame, context.key_columns) for each in given):
        return False
    storage, names = context.storage, [*context.key_columns]
    if all(each.is_here for each in given):
        return _is_distinct([table for each in given if (table := each.rows_here()) is not None], names)
    files = [file for ack in acks for file in ack.files]
    return _is_distinct([pq.ParquetFile(f"{storage.address}/{file.path}").read(columns=names) for file in files], names, rows)


def _is_distinct(tables: Sequence[pa.Table], key_columns: Sequence[str], rows: int | None = None) -> bool:
    """Whether no key is there twice in all of these rows, which are as many."""
    if not tables:
        return True
    tables = [table.select([*key_columns]) for table in tables]
    schema = pa.schema([field.with_nullable(True) for field in tables[0].schema])  # upserts may allow nulls where deletes do not
    keys = pa.concat_tables([table.cast(schema) for table in tables]).rename_columns([f"k{i}" for i in range(len(key_columns))])
    distinct = keys.group_by(keys.column_names).aggregate([]).num_rows
    return bool(keys.num_rows == distinct and rows in (None, distinct))


def is_plain(frame: "DataFrame", key_columns: Sequence[str]) -> bool:
    """Whether keys of these columns are equal to Arrow just where they are to Spark."""
    return all(frame.schema[name].dataType.typeName() in PLAIN_TYPES for name in key_columns)


def _named(row: "Row", key_columns: Sequence[str]) -> str:
    values = ", ".join(f"{name}={value!r}" for name, value in zip(key_columns, row, strict=False))
    return f"{values} ({row['rows']} times, in {' and '.join(sorted(row['roles'], reverse=True))})"


# ---- DataFrames ---------------------------------------------------------------------------------------------------------


def _in_order(frame: "DataFrame", schema: str, only: Sequence[str] | None = None) -> "DataFrame":
    """The columns as the state has them; with `only`, just these."""
    names = column_names(schema) if only is None else [*only]
    return frame if frame.columns == names else frame.select(*map(quoted, names))


def _keys_of(given: _Given, context: UploadContext) -> "DataFrame":
    """The key of each row under plain names, and last what it is."""
    from pyspark.sql import functions

    frame = given.frame if given.acks is None else _read_back(given.frame, given.acks, context)
    keys = (functions.col(quoted(name)).alias(f"k{i}") for i, name in enumerate(context.key_columns))
    return frame.select(*keys, functions.lit(given.role.value).alias("role"))


def _read_back(frame: "DataFrame", acks: Sequence[Ack], context: UploadContext) -> "DataFrame":
    """The very rows that were uploaded: the plan of the frame, run again, could give others."""
    info = StateInfo(
        operator=context.operator, state=context.state, format=Format.PARQUET, key_columns=context.key_columns, schema=frame.schema.json()
    )
    chunks = [replace(chunk, role=Role.FOOTER if chunk.role is Role.FOOTER else Role.BASE) for chunk in chunks_of(acks)]
    files = file_rows(file for ack in acks for file in ack.files)
    return read_state(frame.sparkSession, context.storage, info, chunks, files, max_parallelism=context.max_parallelism, verify=False)
