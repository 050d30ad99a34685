"""DuckDB over the ledger: the only module that knows it. Nothing here touches the network or writes."""

import os
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import duckdb_extension_delta

from holdfast.catalog.errors import CorruptionError, DamagedLedgerError, FormatError, UsageError
from holdfast.catalog.forks import ledger_engine
from holdfast.catalog.sql_text import literal, unpatterned
from holdfast.catalog.views.definitions import Engine, views_for

if TYPE_CHECKING:
    import pyarrow as pa


@ledger_engine()
def connect(ledger_address: str, *, version: int | None = None, root: str | None = None) -> duckdb.DuckDBPyConnection:
    """A connection with the views of the ledger at this path, which is read-only there, times in UTC. It is locked (`lock`), on the
    ledger or on the whole `root` of its catalog.

    With a version, every statement sees the ledger at that version. Without, each statement (or explicit transaction) sees one
    snapshot, the newest when it began.
    Raises:
        UsageError: no delta extension is installed for this duckdb, or there is no such version.
        DamagedLedgerError: there is no ledger, or it cannot be read.
        FormatError: it lacks columns that the views need.
    """
    extension = extension_path()
    connection = offline_connection(trusts_extensions=_stamp(extension) in _SIGNED)
    try:
        _load_delta(connection, extension)
        _attach(connection, ledger_address, version)
        # The attached table is named by itself alone: the snapshot is the transaction's, or the pinned one.
        connection.execute("CREATE TEMP VIEW facts AS SELECT * FROM ledger")
        _create_views(connection)
        lock(connection, root or ledger_address)  # after ATTACH and LOAD, which are refused from here
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
    return connection


def _scratch() -> str:
    """Where this process may spill: the first of Spark's local directories, in a task; else the system's temporary directory."""
    return (os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()).split(",")[0]


def lock(connection: duckdb.DuckDBPyConnection, address: str) -> None:
    """From here the connection reads what lies below this address, and neither the network nor any other file; for good.

    DuckDB knows no directory that is for reading only: a caller that may run statements on it can still write below the address.
    """
    # A path that is a pattern is held against the list as it stands, and so is the file that it finds.
    places = ", ".join(literal(f"{each}/") for each in dict.fromkeys((address, unpatterned(address))))
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
    _create_views(connection)


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


def _attach(connection: duckdb.DuckDBPyConnection, ledger_address: str, version: int | None) -> None:
    # READ_ONLY: without it, an INSERT of an analyst would be committed behind delta-rs's back.
    at = "" if version is None else f", PIN_SNAPSHOT, VERSION {int(version)}"
    try:
        connection.execute(f"ATTACH {literal(ledger_address)} AS ledger (TYPE delta, READ_ONLY{at})")
        connection.execute("SELECT kind FROM ledger LIMIT 0")
    except duckdb.Error as error:
        if version is not None:
            msg = f"the ledger {ledger_address} cannot be read at version {version}: {error}; give a version that its log still has"
            raise UsageError(msg) from error
        msg = f"the ledger {ledger_address} cannot be read: {error}; nothing was changed: open the catalog to have its log examined"
        raise DamagedLedgerError(msg) from error


def _create_views(connection: duckdb.DuckDBPyConnection) -> None:
    try:
        for name, select in views_for(Engine.DUCKDB).items():
            connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {select}")
    except duckdb.BinderException as error:
        msg = f"the facts lack a column that the views need: {error}; read this ledger with the version that wrote it"
        raise FormatError(msg) from error
