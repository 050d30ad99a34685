"""The ledger's data files: Parquet whose name ends with the SHA-256 of its bytes, compared before a fact of it is believed."""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.catalog.errors import DamagedLedgerError, HoldfastError
from holdfast.catalog.facts import Fact
from holdfast.catalog.ledger import delta_entry, delta_log
from holdfast.catalog.ledger.port import Row, SnapshotLostError
from holdfast.catalog.schema import SCHEMA, Operation, from_table, to_table

PRUNING_COLUMNS = ("kind", "operation_id", "job_id", "seq", "version")  # the last is of the history alone
DICTIONARY_FROM_ROWS = 1000  # below it, dictionaries cost more than they save

OF_OPERATION = ("operation_id", "at", "by")
_NOBODY = Operation(operation_id="", at=datetime.fromtimestamp(0, UTC), by="")  # stands for the operations of rows until theirs are put in
_BIG = "big."  # no operation id has a dot in a name
_OURS = re.compile(r"(\d{20})-(?:(\d{20})-)?(big\.)?.+-[0-9a-f]{64}\.parquet")


def encode(table: pa.Table) -> bytes:
    """The bytes of a data file. Columns without a value are left out, which halves the cost of a small commit: Delta reads them as null."""
    columns = [f.name for f in table.schema if not f.nullable or table.column(f.name).null_count < table.num_rows]
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.select(columns),
        sink,
        compression="snappy",
        store_schema=False,
        use_dictionary=table.num_rows >= DICTIONARY_FROM_ROWS,
        write_statistics=[name for name in PRUNING_COLUMNS if name in columns],
    )
    return bytes(sink.getvalue())


def statistics(table: pa.Table) -> str:
    """What engines skip files by, as Delta writes it. The counts come last: "}}" would look like the end of an entry."""
    bounds = {name: pc.min_max(table[name]).as_py() for name in PRUNING_COLUMNS if name in table.column_names}
    return json.dumps(
        {
            "minValues": {name: b["min"] for name, b in bounds.items() if b["min"] is not None},
            "maxValues": {name: b["max"] for name, b in bounds.items() if b["max"] is not None},
            "numRecords": table.num_rows,
        }
    )


def write_durably(directory: Path, version: int, operation_id: str, n: int, data: bytes) -> str:
    """Write a data file under a name of its own; the file, then its directory. Where that fails, nothing of it stays.

    The name sorts by the version that its writer had seen, and where the writer has seen none since, by `n`. Never an old name: that file
    may be committed.
    """
    return _write(directory, f"{version:020d}-{_safe(operation_id)}", n, data)


def _safe(operation_id: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", operation_id)


def _write(directory: Path, prefix: str, n: int, data: bytes) -> str:
    name, stream = _create_exclusively(directory, prefix, n, hashlib.sha256(data).hexdigest())
    try:
        with stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        delta_log.sync(directory)
    except BaseException:
        with suppress(OSError):  # it was not sent: no entry can name it
            os.unlink(directory / name)
        raise
    return name


def write_before_all(directory: Path, version: int, operation_id: str, n: int, data: bytes, *, is_big: bool = False) -> str:
    """As `write_durably`, for what a fold of this version keeps: its name comes before those of all commits, and says the version; and
    whether it is a big file."""
    return _write(directory, f"{0:020d}-{version:020d}-{_BIG if is_big else ''}{_safe(operation_id)}", n, data)


def is_big(name: str) -> bool:
    """Whether a data file has rows of big kinds alone, and may stay as it is at a fold."""
    found = _OURS.match(name)
    return found is not None and found[3] is not None


def seen_by_writer(name: str) -> int | None:
    """The version that the writer of a data file of ours had seen; None for a file of somebody else's."""
    found = _OURS.match(name)
    if found is None:
        return None
    return int(found[2]) if found[2] is not None else int(found[1])


def _create_exclusively(directory: Path, prefix: str, n: int, digest: str) -> tuple[str, BinaryIO]:
    while True:
        name = f"{prefix}-{n}-{digest}.parquet"
        try:
            return name, open(directory / name, "xb")
        except FileExistsError:
            n += 1


def read_facts(directory: Path, name: str) -> list[Fact]:
    """The facts of a data file, every byte of it verified where its name has a digest.

    Raises:
        SnapshotLostError: it is gone.
        DamagedLedgerError: it is not what was written.
    """
    return facts_in(directory / name, _read(directory, name))


def _read(directory: Path, name: str) -> bytes:
    try:
        return (directory / name).read_bytes()
    except FileNotFoundError as error:
        msg = f"{directory / name} is gone; if the ledger was folded, the newest snapshot holds its facts"
        raise SnapshotLostError(msg) from error


def facts_in(path: Path, data: bytes) -> list[Fact]:
    """The facts in the bytes of the data file at this path. Raises DamagedLedgerError if they are not what was written."""
    return [row.fact for row in _rows_in(path, data)]


def read_rows(directory: Path, name: str) -> list[Row]:
    """As `read_facts`, each fact with the operation that wrote it."""
    return _rows_in(directory / name, _read(directory, name))


def _rows_in(path: Path, data: bytes) -> list[Row]:
    _require(path, hashlib.sha256(data).hexdigest())
    try:
        with pq.ParquetFile(pa.BufferReader(data)) as parquet:
            return rows_of(with_all_columns(parquet.read()))
    except HoldfastError:
        raise
    except (pa.ArrowException, ValueError, TypeError, KeyError, OSError) as error:
        raise unreadable(path, error) from error


def rows_of(table: pa.Table) -> list[Row]:
    """The rows of a table of the ledger that has all columns. Raises what `from_table` does."""
    said = list(zip(*(table[name].to_pylist() for name in OF_OPERATION), strict=True))
    operations = {each: Operation(operation_id=each[0], at=each[1], by=each[2]) for each in dict.fromkeys(said)}
    return [Row(fact, operations[each]) for fact, each in zip(from_table(table), said, strict=True)]


def table_of(rows: Sequence[Row]) -> pa.Table:
    """The rows as a table of the ledger, each with its own operation."""
    table = to_table([row.fact for row in rows], _NOBODY)
    for name in OF_OPERATION:
        values = pa.array([getattr(row.operation, name) for row in rows], SCHEMA.field(name).type)
        table = table.set_column(SCHEMA.get_field_index(name), SCHEMA.field(name), values)
    return table


def require_digest(directory: Path, name: str) -> None:
    """Raises DamagedLedgerError if the name has a digest, and the file another or none."""
    if delta_entry.digest_in_name(name) is None:
        return
    try:
        with open(directory / name, "rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(directory / name, error) from error
    _require(directory / name, found)


def unreadable(path: Path, error: Exception) -> DamagedLedgerError:
    """The error of a data file that cannot be read."""
    return DamagedLedgerError(f"the ledger's data file {path} cannot be read: {error}; nothing was changed; restore it from a backup")


def _require(path: Path, found: str) -> None:
    wanted = delta_entry.digest_in_name(path.name)
    if wanted is not None and wanted != found:
        msg = f"the ledger's data file {path} is damaged: its bytes do not have the digest in its name; restore it from a backup"
        raise DamagedLedgerError(msg)


def with_all_columns(table: pa.Table) -> pa.Table:
    """The table with all columns of the ledger, those that it lacks empty."""
    columns = [table[f.name].cast(f.type) if f.name in table.column_names else pa.nulls(table.num_rows, f.type) for f in SCHEMA]
    return pa.table(columns, schema=SCHEMA)


def by_seq(table: pa.Table) -> pa.Table:
    """The rows in the order of `seq`, those without one last, those of one `seq` as they were."""
    keys = pa.table({"seq": table["seq"], "position": pa.array(range(table.num_rows), pa.int64())})
    return table.take(pc.sort_indices(keys, sort_keys=[("seq", "ascending"), ("position", "ascending")]))


def in_order_of_writing(names: Sequence[str]) -> tuple[list[str], bool]:
    """Names of data files, those of compactions first; and whether there are only ours, so that the order is that of their commits."""
    ours = re.compile(r"\d{20}-.*")
    return sorted(names, key=lambda name: (ours.fullmatch(name) is not None, name)), all(ours.fullmatch(name) for name in names)
