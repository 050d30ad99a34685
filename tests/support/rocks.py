"""A keyed state in RocksDB, one database for each subtask: what a task does in each step. For tests, the demo of streams and documents."""

from collections.abc import Iterable
from pathlib import Path

from rocksdict import Checkpoint, Options, Rdict


def opened(directory: Path | str) -> Rdict:
    """The database, with bytes for keys and values; made where there is none."""
    return Rdict(str(directory), Options(raw_mode=True))


def snapshot_of(database: Rdict):  # type: ignore[no-untyped-def]
    """The function that takes the store's own snapshot: hard links, after what is in memory was written."""
    return Checkpoint(database).create_checkpoint


def contents(directory: Path | str) -> dict[bytes, bytes]:
    """All of a database that nobody has open."""
    database = opened(directory)
    try:
        return dict(database.items())
    finally:
        database.close()


def put_all(database: Rdict, entries: Iterable[tuple[bytes, bytes]]) -> None:
    for key, value in entries:
        database[key] = value
