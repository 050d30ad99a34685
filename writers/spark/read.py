"""Reading a state of a checkpoint: what is to be read of its files is checked, then handed to Spark's own Parquet reader."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from holdfast.catalog.errors import FormatError
from holdfast.catalog.file_checks import may_be_misplaced
from holdfast.catalog.key_groups import KEY_GROUP_COLUMN, groups_of, require_groups, require_parallelism
from holdfast.catalog.state_schema import for_engine
from holdfast.catalog.storage import Storage
from holdfast.catalog.types import Chunk, FileId, StateInfo
from holdfast.writers.engine_errors import explaining
from holdfast.writers.parquet.checks import require_footers
from holdfast.writers.parquet.key_group_checks import is_by_groups, require_right_groups
from holdfast.writers.parquet.plan import (
    FileRow,
    ReadPlan,
    Scan,
    as_one,
    free_name,
    plan_reading,
    require_key_groups,
    require_part,
    require_readable,
    together,
)
from holdfast.writers.spark.file_jobs import require_digests
from holdfast.writers.spark.frames import quoted
from holdfast.writers.spark.merge import Layered, merged, rank_of
from holdfast.writers.spark.partitioning import by_subtask
from holdfast.writers.spark.session import spark_pattern

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Options of the reader, so that no setting of the session can drop a file, or shift old dates of files that pyarrow wrote.
READ_OPTIONS = {
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}
# The reader that tells the file of a row, whichever `spark.sql.sources.useV1SourceList` would have "parquet" be.
PARQUET_V1 = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"

# With a scan for each subtask, bytes of row groups that several subtasks want are read again for each: up to this share, that is less
# work than a shuffle of all rows.
DIRECT_AT_MOST = 1.5
DIRECT_SUBTASKS = 64  # a scan costs the driver some milliseconds
FEW_RANGES = 8


def read_state(
    spark: "SparkSession",
    storage: Storage,
    info: StateInfo,
    chunks: Sequence[Chunk],
    files: Mapping[FileId, FileRow],
    *,
    max_parallelism: int,
    key_groups: range | None = None,
    parallelism: int | None = None,
    verify: bool = True,
) -> "DataFrame":
    """The rows of a state, without their key groups; all that is read of its files was checked before it returns.

    With `key_groups`, the rows of these, of files and row groups that have any. With `parallelism`, so many partitions, each with the
    rows of one subtask's key groups. With `verify`, executors digest all bytes that are read. Without, sizes, footers and row counts
    are checked, and damage inside a file may go unseen. `files` gives path, size in bytes and SHA-256 of each file that the chunks name.

    Raises:
        DamagedFileError: a file is missing or is not what was committed; names it, with what was expected and found.
        CorruptionError: the chunks are not the whole state; or a part is asked for, and rows lie in groups that are not their keys'.
        RefusedError: a part of a state without key columns is asked for.
        UsageError: there are no such key groups, or more subtasks than key groups.
        FormatError: the state needs a newer Holdfast.
        EngineSetupError: the executors' Python is not the one that is needed.
    """
    require_part(key_groups, parallelism)
    require_readable(info, chunks, files, max_parallelism)
    if key_groups is not None or parallelism is not None:
        require_key_groups(info)
    if key_groups is not None:
        require_groups(key_groups, max_parallelism)
    if parallelism is not None:
        require_parallelism(parallelism, max_parallelism)
    plan = plan_reading(chunks, files, max_parallelism, key_groups)
    sizes = {path: size_bytes for path, size_bytes, _ in files.values()}
    if verify:
        with explaining(f"reading state {info.state!r}", storage.address):
            require_digests(spark, storage, plan.parts, sizes)
    else:
        require_footers(storage, plan.parts, sizes)
    if may_be_misplaced(info) and (key_groups is not None or parallelism is not None or is_by_groups(plan)):
        # All of the state: a row that is missing here lies in a file that this reading passes over.
        require_right_groups(spark, storage, info, plan_reading(chunks, files, max_parallelism), sizes, max_parallelism)
    reader = _Reader(spark, storage, info)
    if parallelism is None:
        return reader.rows(plan)
    groups = range(max_parallelism) if key_groups is None else key_groups
    subtasks = [_common(groups, groups_of(i, parallelism, max_parallelism)) for i in range(parallelism)]
    plans = [plan_reading(chunks, files, max_parallelism, wanted) for wanted in subtasks] if parallelism <= DIRECT_SUBTASKS else []
    if plans and not plan.has_changes and sum(each.size_bytes for each in plans) <= DIRECT_AT_MOST * plan.size_bytes:
        return reader.rows_of_each(plans)
    return by_subtask(reader.rows(plan, with_group=True), parallelism, max_parallelism).drop(KEY_GROUP_COLUMN)


def _common(one: range, other: range) -> range:
    start = max(one.start, other.start)
    return range(start, max(start, min(one.stop, other.stop)))


@dataclass(frozen=True, slots=True)
class _Reader:
    """Makes DataFrames of the files of one state."""

    spark: "SparkSession"
    storage: Storage
    info: StateInfo

    def rows(self, plan: ReadPlan, *, with_group: bool = False) -> "DataFrame":
        """The user's columns; last, if wanted, the key group."""
        schema = self._schema()
        base = self._scans(plan.base, schema, with_group=with_group)
        if not plan.has_changes:
            return base
        keys = type(schema)([schema[name] for name in self.info.key_columns])
        rank = free_name("rank", schema.names)
        layered = Layered(
            key_columns=self.info.key_columns,
            base=base,
            upserts=self._ranked(plan.upserts, schema, rank, with_group=with_group),
            deletes=self._ranked(plan.deletes, keys, rank),
            rank=rank,
            has_hidden_upserts=plan.has_hidden_upserts,
            changed_rows=plan.change_rows,
            changed_bytes=plan.change_bytes,
        )
        return merged(layered)

    def rows_of_each(self, plans: Sequence[ReadPlan]) -> "DataFrame":
        """As `rows`, with a partition for each plan, in their order, and no shuffle."""
        partitions = [self.rows(plan).coalesce(1) for plan in plans]
        # Spark takes a union of single partitions for a single partition, unless something else is among them: no files have no partition.
        partitions.append(self._scans((), self._schema()))
        return reduce(lambda left, right: left.unionAll(right), partitions)

    def _scans(self, scans: Sequence[Scan], schema: "StructType", *, with_group: bool = False) -> "DataFrame":
        frames = [self._scan(scan, schema, with_group=with_group) for scan in scans or [Scan(layer=0, paths=())]]
        return reduce(lambda left, right: left.unionAll(right), frames)

    def _ranked(self, scans: Sequence[Scan], schema: "StructType", rank: str, *, with_group: bool = False) -> "DataFrame | None":
        """Rows of change sets, each with the rank of its layer in one column more; None without any."""
        if not scans:
            return None
        wanted = ((self._wanted(as_one(alike), schema, with_group=with_group), alike) for alike in together(scans))
        frames = [_plain(_with_rank(frame, rank, alike), with_group=with_group) for frame, alike in wanted]
        return reduce(lambda left, right: left.unionAll(right), frames)

    def _scan(self, scan: Scan, schema: "StructType", *, with_group: bool = False) -> "DataFrame":
        """Only the columns that are asked for are read."""
        return _plain(self._wanted(scan, schema, with_group=with_group), with_group=with_group)

    def _wanted(self, scan: Scan, schema: "StructType", *, with_group: bool) -> "DataFrame":
        """The rows of a scan; last, if that is wanted or was needed to choose them, the key group."""
        asked = schema if scan.groups is None and not with_group else type(schema)([*schema.fields]).add(KEY_GROUP_COLUMN, "integer")
        paths = (spark_pattern(self.storage, path) for path in scan.paths)
        frame = self.spark.read.format(PARQUET_V1).schema(asked).options(**READ_OPTIONS).load([*paths])
        return frame if scan.groups is None else frame.where(_within(scan.groups))

    def _schema(self) -> "StructType":
        return state_schema(self.info)


def _plain(frame: "DataFrame", *, with_group: bool) -> "DataFrame":
    return frame if with_group else frame.drop(KEY_GROUP_COLUMN)


def _with_rank(frame: "DataFrame", rank: str, scans: Sequence[Scan]) -> "DataFrame":
    """With the rank of each row's layer, by the name of its file."""
    from pyspark.sql import functions

    name = frame.metadataColumn("_metadata").getField("file_name")  # by this call: a column of the user may have the name
    named = frame.withColumn(rank, name)
    found = functions.col(quoted(rank))
    # A rank of null would bring back what the row replaces: it cannot be, and must not be silent.
    ranks = functions.raise_error(functions.concat(functions.lit("a file of no layer: "), found))
    for scan in scans:  # as literals: a name that is a part of a text would be a part of a program
        ranks = functions.when(found.isin(*scan.names), functions.lit(rank_of(scan.layer))).otherwise(ranks)
    return named.withColumn(rank, ranks)


def state_schema(info: StateInfo) -> "StructType":
    """The columns of a state of rows, as they were written; without field ids and whatever else an engine would act on.

    Raises FormatError for types that this version cannot read.
    """
    from pyspark.sql.types import StructType

    try:
        return StructType.fromJson(for_engine(info.schema or ""))
    except ValueError as error:
        msg = f"state {info.state!r} of operator {info.operator!r} has a schema that this version cannot read: {error}"
        raise FormatError(msg) from error


def _within(groups: Sequence[range]) -> str:
    """As SQL: Spark's reader leaves out the row groups whose statistics exclude it."""
    if len(groups) <= FEW_RANGES:
        return " OR ".join(f"{KEY_GROUP_COLUMN} BETWEEN {group.start} AND {group.stop - 1}" for group in groups) or "false"
    return f"{KEY_GROUP_COLUMN} IN ({', '.join(str(group) for each in groups for group in each)})"
