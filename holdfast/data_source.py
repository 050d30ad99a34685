"""`spark.read.format("holdfast")` and `df.write.format("holdfast")`: thin facades for users of SQL, as a Python data source.

Spark makes a new source for each planning, in Python processes of its own on the driver's host, and pickles readers and writers to its
executors. So nothing here holds a session, a lock or a pin. Rows go through Python, as Arrow batches: `Checkpoint.read`, which gives the
files to Spark's own reader, is faster, and prunes columns.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import ArrayType, MapType, StructField, StructType

from holdfast.catalog.creation import open_transactor
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.errors import DamagedFileError, UsageError
from holdfast.catalog.file_checks import may_be_misplaced
from holdfast.catalog.key_groups import groups_of
from holdfast.catalog.marker import read_marker
from holdfast.catalog.rules import decision
from holdfast.catalog.state import Ref
from holdfast.catalog.storage import Storage
from holdfast.catalog.storage.guard import GuardedStorage
from holdfast.catalog.storage.local import open_storage
from holdfast.catalog.types import Chunk, FileId, Format, StateInfo
from holdfast.writers.checkpoint import drops_are_told, kept_by, open_committed, ref_of
from holdfast.writers.parquet.checks import require_digests_here
from holdfast.writers.parquet.duckdb_read import rows_of
from holdfast.writers.parquet.key_group_checks import is_by_groups, require_calendar, require_right_groups_here
from holdfast.writers.parquet.plan import FileRow, ReadPlan, file_rows, plan_reading, require_readable
from holdfast.writers.parquet.task_limits import limits_of_this_task
from holdfast.writers.spark.read import state_schema

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from holdfast.data_source_writer import SourceWriter

READ_OPTIONS = ("path", "job", "checkpoint", "state")
WRITE_OPTIONS = ("path", "job", "state", "key")
OPTIONAL = frozenset({"checkpoint", "key"})
PARTITION_BYTES = 64 * 1024 * 1024  # for a state with change sets, which is read by key groups
BATCH_ROWS = 100_000


class HoldfastDataSource(DataSource):
    """For `spark.dataSource.register(holdfast.HoldfastDataSource)`: the format "holdfast", in this session.

    Reading takes the options `path` (of the catalog), `job`, `state` and `checkpoint` (a number; the head, as it is when the DataFrame is
    made, if left out), and gives what `Checkpoint.read` does, every byte checked by its digest. It pins nothing: hold the checkpoint, or
    a read fails with RefusedError once retention has dropped it and vacuum came by.

    Writing, in mode "overwrite" only, takes `path`, `job`, `state` and `key` (names with commas between): one checkpoint, in which these
    rows are the whole state, and everything else is as before. It is a start of the job: a coordinator at work is fenced.
    """

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> StructType:
        return nullable(self._found.schema)

    def reader(self, schema: StructType) -> "SourceReader":
        """Raises UsageError for a schema of the user's that is not the state's."""
        own = self.schema()
        if schema != own:
            msg = (
                f"{self._found.what} has the schema {own.simpleString()}, not {schema.simpleString()}: leave out schema(...), "
                "and select or cast from what is read"
            )
            raise UsageError(msg)
        return SourceReader(self._found, schema)

    def writer(self, schema: StructType, overwrite: bool) -> "SourceWriter":
        from holdfast.data_source_writer import open_write

        given = _options(self.options, WRITE_OPTIONS, "write")
        if not overwrite:
            msg = (
                f"state {given['state']!r} of job {given['job']!r} cannot be appended to by format('holdfast'), which would not look at "
                "its keys: give mode('overwrite') for a new whole state, or write changes by checkpoint.write_changes in the job's program"
            )
            raise UsageError(msg)
        key = tuple(name.strip() for name in given.get("key", "").split(",") if name.strip())
        return open_write(given["path"], given["job"], given["state"], key, schema)

    @cached_property
    def _found(self) -> "FoundState":
        """Pickled with this object after the first planning: later ones read the same checkpoint."""
        return find_state(_options(self.options, READ_OPTIONS, "read"))


@dataclass(frozen=True, kw_only=True)
class FoundState:
    """A state of one checkpoint, in a catalog, and where its paths begin (of a savepoint's: elsewhere). Picklable."""

    catalog: Storage
    storage: Storage
    what: str
    ref: Ref
    info: StateInfo
    schema: StructType
    chunks: tuple[Chunk, ...]
    files: Mapping[FileId, FileRow]
    max_parallelism: int

    def is_kept(self) -> bool:
        """Whether the ledger, as it is now, says that the files must be there."""
        return kept_by(open_transactor(self.catalog, SystemEnvironment()), self.ref)()


def find_state(options: Mapping[str, str]) -> FoundState:
    """Raises NotFoundError, RefusedError (the checkpoint was dropped, or the state is no DataFrame), DamagedFileError."""
    place = open_storage(options["path"])
    storage = GuardedStorage(place, read_marker(place).catalog_id)
    transactor = open_transactor(storage, SystemEnvironment())
    number = _number(options.get("checkpoint"))
    ref = transactor.look(lambda state: ref_of(state, options["job"], number))
    transactor.look(lambda state: decision.require_live(state, ref, "read"))
    checkpoint = open_committed(storage, transactor.look(lambda state: state.checkpoint(ref)).fact, is_kept=kept_by(transactor, ref))
    info = checkpoint.require_state(options["state"], Format.PARQUET)
    chunks, files = tuple(checkpoint.manifest.chunks_of(info)), file_rows(checkpoint.manifest.files.values())
    require_readable(info, chunks, files, checkpoint.manifest.max_parallelism)
    return FoundState(
        catalog=storage,
        storage=checkpoint.storage,
        what=f"state {info.state!r} of checkpoint {checkpoint.checkpoint_id} of job {checkpoint.job!r}",
        ref=ref,
        info=info,
        schema=state_schema(info),
        chunks=chunks,
        files=files,
        max_parallelism=checkpoint.manifest.max_parallelism,
    )


class SourceReader(DataSourceReader):
    """Reads one partition for each file; a state with change sets by ranges of key groups, each a merge of its own."""

    def __init__(self, found: FoundState, schema: StructType) -> None:
        self._found, self._schema = found, schema

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(plan) for plan in plans_for(self._found)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor: what this partition reads is checked by its digests before the first row leaves.

        Raises DamagedFileError; RefusedError if the checkpoint was dropped meanwhile.
        """
        plan: ReadPlan | None = partition.value
        if plan is None:  # Spark asks for one partition where there is none
            return
        with drops_are_told(self._found.what, self._found.is_kept, "format('holdfast') pins nothing: hold the checkpoint while it is read"):
            yield from self._batches(plan)

    def _batches(self, plan: ReadPlan) -> Iterator[pa.RecordBatch]:
        import duckdb
        from pyspark.sql.pandas.types import to_arrow_schema

        from holdfast.catalog.views.duckdb_engine import offline_connection

        found = self._found
        sizes = {path: size_bytes for path, size_bytes, _ in found.files.values()}
        require_digests_here(found.storage, plan.parts, sizes)
        require_calendar(found.storage, found.info, plan, found.max_parallelism)
        if may_be_misplaced(found.info) and is_by_groups(plan):
            require_right_groups_here(found.storage, found.info, plan, sizes, found.max_parallelism)
        target = to_arrow_schema(self._schema, timezone="UTC")
        limits = limits_of_this_task()
        try:
            with offline_connection(threads=limits.threads, memory_bytes=limits.memory_bytes) as connection:
                rows = rows_of(connection, found.storage, found.info, plan)
                for batch in rows.to_arrow_reader(BATCH_ROWS):
                    yield _completed(batch, target)
        except duckdb.IOException as error:
            msg = f"a file of {found.what} cannot be read any more: {error}"
            raise DamagedFileError(msg) from error


def _completed(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The columns of the state. One that a change set brought is null in rows of older files, and of them alone there is no such column."""
    there = {*batch.schema.names}
    columns = [
        batch.column(name).cast(kind) if name in there else pa.nulls(len(batch), kind)
        for name, kind in zip(target.names, target.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def plans_for(found: FoundState) -> list[ReadPlan]:
    """What each partition reads."""
    plan = plan_reading(found.chunks, found.files, found.max_parallelism)
    if plan.has_changes:
        count = min(found.max_parallelism, max(1, -(-plan.size_bytes // PARTITION_BYTES)))
        shares = [groups_of(i, count, found.max_parallelism) for i in range(count)]
        return [plan_reading(found.chunks, found.files, found.max_parallelism, groups) for groups in shares]
    return [
        replace(plan, base=(replace(scan, paths=(path,)),), parts={path: plan.parts[path]}) for scan in plan.base for path in scan.paths
    ]


def nullable(schema: StructType) -> StructType:
    """The schema as Spark's own reader of files gives it: nothing in it promises that there are no nulls."""
    return StructType([StructField(field.name, _nullable(field.dataType), metadata=field.metadata) for field in schema.fields])


def _nullable(dtype: "DataType") -> "DataType":
    if isinstance(dtype, StructType):
        return nullable(dtype)
    if isinstance(dtype, ArrayType):
        return ArrayType(_nullable(dtype.elementType))
    if isinstance(dtype, MapType):
        return MapType(_nullable(dtype.keyType), _nullable(dtype.valueType))
    return dtype


def _options(given: Mapping[str, str], known: Sequence[str], what: str) -> dict[str, str]:
    """Raises UsageError for an option that is missing, or that nobody reads: a misspelt one would be passed over."""
    options = {name.lower(): value for name, value in given.items()}
    missing = [name for name in known if not options.get(name) and name not in OPTIONAL]
    unknown = sorted(options.keys() - set(known))
    if missing or unknown:
        told = "; ".join([*(f"there is no {name!r}" for name in missing), *(f"{name!r} is not one" for name in unknown)])
        free = " and ".join(name for name in known if name in OPTIONAL)
        msg = f"options to {what} by format('holdfast'): {told}. They are {', '.join(known)} ({free} may be left out)"
        raise UsageError(msg)
    return options


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal():
        msg = f"checkpoint={text!r} is not the number of a checkpoint: give one, or leave the option out for the head"
        raise UsageError(msg)
    return int(text)
