"""The files of a Delta log on a local file system: found, read, and made whole and durable."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.catalog.ledger.delta_entry import DamagedCommitError, LogCommit, TornCommitError, parse_commit, parse_lines

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMetadata:
    """What the commit that made a table says of it: the columns as Delta describes them, and the table's properties."""

    columns: Any
    properties: Mapping[str, str]


def commit_name(version: int) -> str:
    """The name of a commit's file in the log."""
    return f"{version:020d}.json"


def checkpoint_name(version: int) -> str:
    """The name of a Delta checkpoint's file in the log."""
    return f"{version:020d}.checkpoint.parquet"


def commit_versions(log: Path) -> list[int]:
    """Every version with a commit file, ascending."""
    return _versions(log, _COMMIT)


def checkpoint_versions(log: Path) -> list[int]:
    """Every version with a Delta checkpoint, ascending."""
    return _versions(log, _CHECKPOINT)


def read_commit(log: Path, version: int) -> LogCommit:
    """One commit of the log.

    Raises:
        FileNotFoundError: there is none of this version.
        TornCommitError, DamagedCommitError: it is not whole.
    """
    return parse_commit(version, (log / commit_name(version)).read_bytes())


def read_metadata(log: Path) -> TableMetadata | None:
    """What the first commit says of its table; None where that commit is missing, torn or says nothing. Changes nothing."""
    try:
        (body,) = (body for name, body in parse_lines((log / commit_name(0)).read_bytes()) if name == "metaData")
        return TableMetadata(columns=json.loads(body["schemaString"]), properties=dict(body["configuration"]))
    except (OSError, TornCommitError, DamagedCommitError, KeyError, TypeError, ValueError):
        return None


def create_commit(log: Path, version: int, data: bytes) -> None:
    """Make a commit file, whole and durable, as delta-rs does: under another name, then linked, which never replaces one.

    Raises:
        FileExistsError: there is one of this version.
    """
    create_durably(log, commit_name(version), data)


def create_durably(log: Path, name: str, data: bytes) -> None:
    """Make a file of the log, whole and durable. Raises FileExistsError if there is one of this name."""
    with aside(log, data) as temporary:
        os.link(temporary, log / name)
    sync(log)


def replace_durably(log: Path, name: str, data: bytes) -> None:
    """Put a file of the log in the place of what is there, whole and durable."""
    with aside(log, data) as temporary:
        temporary.replace(log / name)
    sync(log)


@contextmanager
def aside(log: Path, data: bytes) -> Iterator[Path]:
    """A synced file in the log under a name that no engine reads, for the block; a crash may leave it, which harms nothing."""
    path = _write_aside(log, data)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _write_aside(log: Path, data: bytes) -> Path:
    # Never a name that was there before: the process that renamed or linked it may still be about to remove it.
    path = log / f".{os.getpid()}-{os.urandom(8).hex()}.tmp"
    with open(path, "xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    return path


def keep_beside(log: Path, name: str, data: bytes) -> None:
    """Keep what a file of the log holds under a name that no engine reads, before it is replaced or removed."""
    # A link to the name would be refused, or hold other bytes, where another process replaces the file at this moment.
    with suppress(FileExistsError):  # kept already, by a process that died while it repaired the log, or by one that does it now
        create_durably(log, f".{name}.{hashlib.sha256(data).hexdigest()[:16]}.kept", data)


class NotSyncedError(OSError):
    """The system could not sync a file: it reports that once, and calls the pages clean."""


def sync(path: Path) -> None:
    """Make a file's bytes, or a directory's names, survive power loss. Raises NotSyncedError; OSError if it cannot be opened."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        raise NotSyncedError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(handle)


def _versions(log: Path, pattern: re.Pattern[str]) -> list[int]:
    try:
        names = os.listdir(log)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))
