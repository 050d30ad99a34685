"""A state read by DuckDB: one SQL query over its Parquet files, which anybody can run without Holdfast."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.catalog.errors import FormatError
from holdfast.catalog.file_checks import may_be_misplaced
from holdfast.catalog.key_groups import KEY_GROUP_COLUMN
from holdfast.catalog.sql_text import identifier, literal, unpatterned
from holdfast.catalog.state_schema import Array, Decimal, Interval, Map, Plain, Struct, Type, parse_schema
from holdfast.catalog.storage import Storage
from holdfast.catalog.types import Chunk, FileId, StateInfo
from holdfast.writers.parquet.checks import require_digests_here, require_footers
from holdfast.writers.parquet.key_group_checks import is_by_groups, require_calendar, require_right_groups_here
from holdfast.writers.parquet.plan import FileRow, ReadPlan, Scan, free_name, plan_reading, require_readable
from holdfast.writers.parquet.task_limits import limits_of_this_task

if TYPE_CHECKING:
    import duckdb

_TYPES = {
    "string": "VARCHAR",
    "binary": "BLOB",
    "boolean": "BOOLEAN",
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
}
_BASE = -1  # below every layer of a change set


def read_duckdb(
    storage: Storage,
    info: StateInfo,
    chunks: Sequence[Chunk],
    files: Mapping[FileId, FileRow],
    *,
    max_parallelism: int,
    verify: bool = True,
) -> "duckdb.DuckDBPyRelation":
    """The rows of a state, without their key groups, on a connection of their own that never uses the network. In a task of Spark it
    takes what falls to the task.

    Its files were checked before it returns: by their digests, or with `verify=False` by sizes and footers.
    Raises as `spark.read.read_state`; RefusedError also for dates that a session wrote in the old calendar.
    """
    from holdfast.catalog.views.duckdb_engine import offline_connection

    require_readable(info, chunks, files, max_parallelism)
    plan = plan_reading(chunks, files, max_parallelism)
    check = require_digests_here if verify else require_footers
    sizes = {path: size_bytes for path, size_bytes, _ in files.values()}
    check(storage, plan.parts, sizes)
    require_calendar(storage, info, plan, max_parallelism)
    if may_be_misplaced(info) and is_by_groups(plan):
        require_right_groups_here(storage, info, plan, sizes, max_parallelism)
    limits = limits_of_this_task()
    connection = offline_connection(threads=limits.threads, memory_bytes=limits.memory_bytes)
    return rows_of(connection, storage, info, plan)


def rows_of(connection: "duckdb.DuckDBPyConnection", storage: Storage, info: StateInfo, plan: ReadPlan) -> "duckdb.DuckDBPyRelation":
    """The rows of a state, by a connection that can read nothing but what lies below the storage's address from here."""
    from holdfast.catalog.views.duckdb_engine import lock, query

    statement = state_sql(storage.address, info, plan)
    lock(connection, storage.address)
    return query(connection, statement)


def state_sql(address: str, info: StateInfo, plan: ReadPlan) -> str:
    """The query for the rows of a state, with its files below this address.

    Of a state that is one base: `SELECT * EXCLUDE (_key_group) FROM read_parquet([...])`. With change sets, a row stays unless
    a higher layer has its key, be it to replace or to delete it.
    """
    if not plan.has_changes:
        return f"SELECT * EXCLUDE ({KEY_GROUP_COLUMN}) FROM ({_all(address, info, plan.base)})"
    layer = free_name("_layer", _schema(info).names)
    keys = ", ".join(identifier(name) for name in info.key_columns)
    same_key = " AND ".join(f"changed.{identifier(name)} IS NOT DISTINCT FROM versions.{identifier(name)}" for name in info.key_columns)
    base = f"SELECT *, {_BASE} AS {layer} FROM ({_all(address, info, plan.base)})"
    upserts = [f"SELECT *, {scan.layer} AS {layer} FROM ({_files(address, scan)})" for scan in plan.upserts]
    changed = [f"SELECT {keys}, {scan.layer} AS {layer} FROM ({_files(address, scan)})" for scan in (*plan.upserts, *plan.deletes)]
    return (
        f"WITH versions AS ({_union([base, *upserts])}),\n"
        f"changed AS (SELECT {keys}, max({layer}) AS {layer} FROM ({_union(changed)}) GROUP BY ALL)\n"
        f"SELECT versions.* EXCLUDE ({KEY_GROUP_COLUMN}, {layer})\n"
        f"FROM versions LEFT JOIN changed ON {same_key}\n"
        f"WHERE coalesce(changed.{layer}, {_BASE}) <= versions.{layer}"
    )


def _all(address: str, info: StateInfo, scans: Sequence[Scan]) -> str:
    return _union([_files(address, scan) for scan in scans] or [_no_rows(info)])


def _files(address: str, scan: Scan) -> str:
    # No partition and no pattern, whatever the names of the directories look like.
    paths = ", ".join(literal(unpatterned(f"{address}/{path}")) for path in scan.paths)
    where = "" if scan.groups is None else " WHERE " + _within(scan.groups)
    return f"SELECT * FROM read_parquet([{paths}], hive_partitioning = false){where}"


def _no_rows(info: StateInfo) -> str:
    columns = ", ".join(f"NULL::{_type(field.type)} AS {identifier(field.name)}" for field in _schema(info).fields)
    return f"SELECT {columns}, NULL::INTEGER AS {KEY_GROUP_COLUMN} WHERE false"


def _schema(info: StateInfo) -> Struct:
    """Raises FormatError for a schema that no state has."""
    try:
        return parse_schema(info.schema or "")
    except ValueError as error:
        msg = f"state {info.state!r} of operator {info.operator!r} has a schema that this version cannot read: {error}"
        raise FormatError(msg) from error


def _type(dtype: Type) -> str:
    """The type that DuckDB sees in a file where Spark's schema has this one."""
    match dtype:
        case Struct(fields):
            return f"STRUCT({', '.join(f'{identifier(field.name)} {_type(field.type)}' for field in fields)})"
        case Array(element):
            return f"{_type(element)}[]"
        case Map(key, value):
            return f"MAP({_type(key)}, {_type(value)})"
        case Decimal(precision, scale):
            return f"DECIMAL({precision},{scale})"
        case Interval():
            return "BIGINT"  # kept as numbers
        case Plain(name):
            return _TYPES[name]


def _within(groups: Iterable[range]) -> str:
    return " OR ".join(f"{KEY_GROUP_COLUMN} BETWEEN {group.start} AND {group.stop - 1}" for group in groups)


def _union(selects: Sequence[str]) -> str:
    return " UNION ALL BY NAME ".join(selects)
