"""DuckDB over the ledger and its history: the only module that knows it. Nothing here touches the network or writes."""

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import duckdb_extension_delta

from holdfast.catalog.errors import CorruptionError, DamagedLedgerError, FormatError, UsageError
from holdfast.catalog.forks import ledger_engine
from holdfast.catalog.schema import SCHEMA
from holdfast.catalog.sql_text import literal, unpatterned
from holdfast.catalog.views.definitions import Engine, as_facts, every_fact, views_for

if TYPE_CHECKING:
    import pyarrow as pa


# Names that an analyst hardly gives to anything: the views would read that instead.
HISTORY, _TAIL = "holdfast_history", "holdfast_tail"

Columns = list[tuple[str, str]]  # name and type of each


@dataclass(frozen=True, slots=True)
class Table:
    """A Delta table at a path. With a version, every statement sees it at that version; without, each statement (or explicit transaction)
    sees one snapshot, the newest when it began."""

    address: str
    version: int | None = None


@ledger_engine()
def connect(
    ledger_address: str, *, version: int | None = None, history: Table | None = None, root: str | None = None
) -> duckdb.DuckDBPyConnection:
    """A connection with the views of the ledger at this path and of its history; both are read-only there, times in UTC. It is locked
    (`lock`), on both or on the whole `root` of their catalog.

    Without a history, the views over all time have what is in the ledger.
    Raises:
        UsageError: no delta extension is installed for this duckdb, or there is no such version.
        DamagedLedgerError: there is no ledger or history, or it cannot be read.
        FormatError: it lacks columns that the views need.
    """
    connection = _unlocked_connection()
    try:
        columns = _attach(connection, "ledger", Table(ledger_address, version))
        if history is not None:
            _attach(connection, HISTORY, history)
        # The attached table is named by itself alone: the snapshot is the transaction's, or the pinned one.
        _create_views(connection, columns, "SELECT * FROM ledger", None if history is None else every_fact("ledger", HISTORY))
        places = [root] if root else [ledger_address, *([history.address] if history else [])]
        lock(connection, *places)  # after ATTACH and LOAD, which are refused from here
    except BaseException:
        connection.close()
        raise
    return connection


@ledger_engine()
def connect_files(files: Sequence[str], root: str, *, memory_bytes: int | None = None) -> duckdb.DuckDBPyConnection:
    """A connection as `connect` gives it, over the rows of these data files of a ledger and no others: for who has held each against its
    digest. It is locked on `root`. Above `memory_bytes` it spills to the temporary directory.

    The extension for Delta tables is not loaded: it looks at the log by itself, and keeps some 50 kB of each filtered scan for good
    (duckdb 1.5.5, 300 files), which in a process that cleans for years are gigabytes.
    Raises FormatError as `connect` does.
    """
    connection = offline_connection(memory_bytes=memory_bytes)
    try:
        _hold(connection, _TAIL, SCHEMA.empty_table())  # data files lack the columns of which all is null
        connection.execute("SET parquet_metadata_cache = true")  # a query of ten scans would read each footer ten times
        names = ", ".join(literal(unpatterned(file)) for file in files)
        rows = f" UNION ALL BY NAME SELECT * FROM read_parquet([{names}], union_by_name = true, hive_partitioning = false)" if files else ""
        facts = f"SELECT * FROM {_TAIL}{rows}"
        _create_views(connection, _columns(connection, facts), facts)
        lock(connection, root)
    except BaseException:
        connection.close()
        raise
    return connection


@ledger_engine()
def connect_past(history: Table, condition: str, tail: "pa.Table", root: str) -> duckdb.DuckDBPyConnection:
    """A connection as `connect` gives it, with the same views, over the rows of a history for which a condition holds, and over others.

    Raises UsageError, DamagedLedgerError, FormatError as `connect` does.
    """
    connection = _unlocked_connection()
    try:
        _attach(connection, HISTORY, history)
        _hold(connection, _TAIL, tail)  # some joins cannot be pushed down into Arrow, and fail
        facts = f"{as_facts(_TAIL)} UNION ALL {as_facts(HISTORY)} WHERE {condition}"
        _create_views(connection, _columns(connection, facts), facts)
        lock(connection, root)
    except BaseException:
        connection.close()
        raise
    return connection


@ledger_engine()
def first_versions(history: Table, after: datetime) -> list[tuple[str, int, int | None]]:
    """Of each ledger that the history was told of, its name, its first version with a fact, and the first with one of after this time."""
    with _unlocked_connection() as connection:
        _attach(connection, HISTORY, history)
        query = f'SELECT ledger, min(version), min(version) FILTER (WHERE h."at" > ?::TIMESTAMPTZ) FROM {HISTORY} h GROUP BY ledger'
        return connection.execute(query, [after.isoformat()]).fetchall()


def _unlocked_connection() -> duckdb.DuckDBPyConnection:
    extension = extension_path()
    connection = offline_connection(trusts_extensions=_stamp(extension) in _SIGNED)
    try:
        _load_delta(connection, extension)
    except BaseException:
        connection.close()
        raise
    return connection


def offline_connection(
    *, threads: int | None = None, memory_bytes: int | None = None, trusts_extensions: bool = False
) -> duckdb.DuckDBPyConnection:
    """A connection in memory that never goes to the network, times in UTC; for `views_over`, say.

    By itself DuckDB takes all cores and four fifths of the host's memory: one of many on a host gets a limit. One that trusts
    extensions does not look at their signatures.
    """
    config: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }
    if trusts_extensions:
        config["allow_unsigned_extensions"] = "true"
    connection = duckdb.connect(config=config)
    if threads is not None:
        connection.execute(f"SET threads = {int(threads)}")
    if memory_bytes is not None:
        connection.execute(f"SET memory_limit = '{int(memory_bytes)}B'")
    # DuckDB's default is one directory for all processes that stand in the same one, with the same names in each: two that spill at once
    # read each other's bytes, or die. This one is made when it is needed, and ends with the connection.
    spills = os.path.join(_scratch(), f"holdfast-duckdb-{os.getpid()}-{os.urandom(4).hex()}")
    connection.execute(f"SET temp_directory = {literal(spills)}")
    connection.execute("SET TimeZone = 'UTC'")
    # In a program without a file (`python -c`, a child of multiprocessing) DuckDB draws it on standard output, which is the program's own.
    with suppress(duckdb.InvalidInputException):  # in a notebook without ipywidgets, which has none to draw it with
        connection.execute("SET enable_progress_bar = false")
    return connection


def _scratch() -> str:
    """Where this process may spill: the first of Spark's local directories, in a task; else the system's temporary directory."""
    return (os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()).split(",")[0]


def lock(connection: duckdb.DuckDBPyConnection, *addresses: str) -> None:
    """From here the connection reads what lies below these addresses, and neither the network nor any other file; for good.

    DuckDB knows no directory that is for reading only: a caller that may run statements on it can still write below an address.
    """
    # A path that is a pattern is held against the list as it stands, and so is the file that it finds.
    spelt = dict.fromkeys(each for address in addresses for each in (address, unpatterned(address)))
    places = ", ".join(literal(f"{each}/") for each in spelt)
    connection.execute(f"SET allowed_directories = [{places}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def query(connection: duckdb.DuckDBPyConnection, statement: str) -> duckdb.DuckDBPyRelation:
    """The rows of one SELECT, run when they are fetched.

    Raises CorruptionError for anything else, which was made of data that is hostile; and where its files lack a column of it.
    """
    found = connection.extract_statements(statement)
    if [each.type for each in found] != [duckdb.StatementType.SELECT]:
        msg = f"names or types of a state make {len(found)} statements of the query for its rows: nothing was run; its manifest is forged"
        raise CorruptionError(msg)
    try:
        return connection.sql(statement)
    except duckdb.BinderException as error:
        msg = f"the files of a state do not have the columns that its manifest says ({error}): use another checkpoint, or another copy"
        raise CorruptionError(msg) from error


def views_over(connection: duckdb.DuckDBPyConnection, facts_table: "pa.Table") -> None:
    """Create the views in a connection, over facts in memory (`schema.to_table`). Replaces those made before; sets the zone to UTC."""
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("facts", facts_table)
    _bind_views(connection)


def extension_path() -> Path:
    """Where the delta extension for this very version of duckdb is installed.

    Raises:
        UsageError: it is not; the two packages have different versions.
    """
    folder = Path(duckdb_extension_delta.__file__).parent / "extensions"
    path = folder / f"v{duckdb.__version__}" / "delta.duckdb_extension"
    if not path.is_file():
        installed = metadata.version("duckdb-extension-delta")
        msg = (
            f"duckdb is {duckdb.__version__} and duckdb-extension-delta {installed}: the extension loads into its own version only; "
            f"install duckdb-extension-delta=={duckdb.__version__}"
        )
        raise UsageError(msg)
    return path


def _load_delta(connection: duckdb.DuckDBPyConnection, extension: Path) -> None:
    stamp = _stamp(extension)
    connection.execute(f"LOAD {literal(str(extension))}")
    _SIGNED.add(stamp)


# The extensions whose signatures DuckDB has looked at in this process. It hashes all 80 MB at each LOAD, a quarter of a second, for as
# long as it has to look; a file that has not changed since is the same.
_SIGNED: set[tuple[str, int, int, int]] = set()


def _stamp(extension: Path) -> tuple[str, int, int, int]:
    found = extension.stat()
    return str(extension), found.st_ino, found.st_size, found.st_mtime_ns


def _attach(connection: duckdb.DuckDBPyConnection, name: str, table: Table) -> Columns:
    """Attach a Delta table by this name; its columns."""
    # READ_ONLY: without it, an INSERT of an analyst would be committed behind delta-rs's back.
    what = name.removeprefix("holdfast_")
    at = "" if table.version is None else f", PIN_SNAPSHOT, VERSION {int(table.version)}"
    try:
        connection.execute(f"ATTACH {literal(table.address)} AS {name} (TYPE delta, READ_ONLY{at})")
        return _columns(connection, f"SELECT * FROM {name}")
    except duckdb.Error as error:
        if table.version is not None:
            msg = f"the {what} {table.address} cannot be read at version {table.version}: {error}; give a version that its log still has"
            raise UsageError(msg) from error
        msg = f"the {what} {table.address} cannot be read: {error}; nothing was changed: open the catalog to have its log examined"
        raise DamagedLedgerError(msg) from error


def _hold(connection: duckdb.DuckDBPyConnection, name: str, rows: "pa.Table") -> None:
    """Copy the rows into a table of the connection's own."""
    connection.register("given", rows)
    connection.execute(f"CREATE TEMP TABLE {name} AS FROM given")
    connection.unregister("given")


def _columns(connection: duckdb.DuckDBPyConnection, select: str) -> Columns:
    description = connection.execute(f"{select} LIMIT 0").description
    return [(name, str(kind)) for name, kind, *_ in description or ()]


def _create_views(connection: duckdb.DuckDBPyConnection, columns: Columns, facts: str, all_facts: str | None = None) -> None:
    """The views over the SELECTs of `facts`, which has these columns, and of `all_facts` (None: the same rows). Raises FormatError.

    A view is bound when it is created, and a Delta table costs milliseconds each time that it is bound, which is a hundred times in all
    views. So they are bound over an empty table with the columns of the ledger, which is exchanged afterwards.
    """
    _hold(connection, "facts", SCHEMA.empty_table())
    is_known = _columns(connection, "FROM facts") == columns
    if is_known:
        _bind_views(connection)
    connection.execute("DROP TABLE facts")
    _create_view(connection, "facts", facts)
    if not is_known:  # another version's: a view keeps the columns that it was bound to
        _bind_views(connection)
    if all_facts is not None:
        _create_view(connection, "all_facts", all_facts)


def _bind_views(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the views over what is called `facts` now. Raises FormatError."""
    for name, select in {"all_facts": "SELECT * FROM facts", **views_for(Engine.DUCKDB)}.items():
        _create_view(connection, name, select)


def _create_view(connection: duckdb.DuckDBPyConnection, name: str, select: str) -> None:
    try:
        connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {select}")
    except duckdb.BinderException as error:
        msg = f"the facts lack a column that the views need: {error}; read this ledger with the version that wrote it"
        raise FormatError(msg) from error
