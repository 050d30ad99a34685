"""The files of a Delta log on a local file system: what a commit says, and how one is made."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

OPERATION_ID = "operation_id"
ACTIONS = "actions"  # in commitInfo: how many add and txn lines belong to it, or a cut between two lines would go unseen

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")


class TornCommitError(Exception):
    """A commit file is empty or cut; the message says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data file that a commit adds. `path` is relative to the table."""

    path: str
    size_bytes: int
    data_change: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCommit:
    """What a commit file says."""

    version: int
    operation_id: str | None
    keys: frozenset[str]
    added: tuple[DataFile, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMetadata:
    """What the commit that made a table says of it: the columns as Delta describes them, and the table's properties."""

    columns: Any
    properties: Mapping[str, str]


def commit_name(version: int) -> str:
    """The name of a commit's file in the log."""
    return f"{version:020d}.json"


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
        TornCommitError: it is empty, does not parse, or lacks lines.
    """
    return parse_commit(version, (log / commit_name(version)).read_bytes())


def parse_commit(version: int, data: bytes) -> LogCommit:
    """The commit that these bytes are, or TornCommitError."""
    actions = _parse_actions(data)
    if not actions.get("commitInfo"):
        msg = "has no commitInfo"
        raise TornCommitError(msg)
    info = actions["commitInfo"][0]
    added, keys = actions.get("add", []), actions.get("txn", [])
    if info.get(ACTIONS) is not None and info[ACTIONS] != len(added) + len(keys):
        msg = f"has {len(added) + len(keys)} of its {info[ACTIONS]} actions"
        raise TornCommitError(msg)
    return LogCommit(
        version=version,
        operation_id=info.get(OPERATION_ID),
        keys=frozenset(key["appId"] for key in keys),
        added=tuple(DataFile(path=unquote(a["path"]), size_bytes=a["size"], data_change=a["dataChange"]) for a in added),
        removed=tuple(unquote(remove["path"]) for remove in actions.get("remove", [])),
    )


def _parse_actions(data: bytes) -> dict[str, list[Any]]:
    """The bodies of a commit's lines by the name of their action, or TornCommitError."""
    if not data.strip(b"\0\n "):
        msg = "is empty"
        raise TornCommitError(msg)
    actions: dict[str, list[Any]] = {}
    for line in data.splitlines():
        if not line.strip():
            continue
        try:
            for name, body in json.loads(line).items():
                actions.setdefault(name, []).append(body)
        except (ValueError, AttributeError) as error:
            msg = "is cut or garbled"
            raise TornCommitError(msg) from error
    return actions


def read_metadata(log: Path) -> TableMetadata | None:
    """What the first commit says of its table; None where that commit is missing, torn or says nothing. Changes nothing."""
    try:
        (body,) = _parse_actions((log / commit_name(0)).read_bytes())["metaData"]
        return TableMetadata(columns=json.loads(body["schemaString"]), properties=dict(body["configuration"]))
    except (OSError, TornCommitError, KeyError, TypeError, ValueError):
        return None


def create_commit(log: Path, version: int, data: bytes) -> None:
    """Make a commit file, whole and durable, as delta-rs does: under another name, then linked, which never replaces one.

    Raises:
        FileExistsError: there is one of this version.
    """
    temporary = write_aside(log, data)
    try:
        os.link(temporary, log / commit_name(version))
    finally:
        temporary.unlink()
    sync(log)


def write_aside(log: Path, data: bytes) -> Path:
    """A synced file in the log under a name that no engine reads; a crash may leave it, which harms nothing."""
    number = 0
    while True:
        path = log / f".{os.getpid()}-{number}.tmp"
        try:
            with open(path, "xb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        except FileExistsError:
            number += 1
        else:
            return path


def sync(path: Path) -> None:
    """Make a file's bytes, or a directory's names, survive power loss."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _versions(log: Path, pattern: re.Pattern[str]) -> list[int]:
    try:
        names = os.listdir(log)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))
