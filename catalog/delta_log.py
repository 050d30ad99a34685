"""The files of a Delta log on a local file system: what an entry says, whether that is what its writer said, and how one is made.

An entry of ours says in its commitInfo which version it is, who wrote it, and a digest over all that it says (design, section 4c). It is
one of three: whole; *torn*, which a loss of power leaves (empty, cut or zeroed, and nothing else); or *damaged*, which is everything
else that is not what was written. The two are told apart by their shape alone: a flipped bit never looks like a cut.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

OPERATION_ID = "operation_id"
ACTIONS = "actions"  # in commitInfo: how many add and txn lines belong to it, or a cut between two lines would go unseen
VERSION = "entry_version"
WRITER = "writer"
DIGEST = "sha256"
VOID = "VOID"

_BLOCK_BYTES = 512  # no disk writes less: a zeroed part begins and ends at a multiple of it
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_DIGEST_IN_NAME = re.compile(r"-([0-9a-f]{64})\.parquet")
_ACTION_NAMES = frozenset({"commitInfo", "add", "txn", "remove", "metaData", "protocol", "cdc", "domainMetadata"})
_SPLIT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")


class TornCommitError(Exception):
    """An entry is empty, cut or zeroed; the message says how."""


class DamagedCommitError(Exception):
    """An entry is not what was written, in a way that no loss of power leaves; the message says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data file that a commit adds. `path` is relative to the table."""

    path: str
    size_bytes: int
    data_change: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCommit:
    """What an entry says. `writer` and `is_digested` are of those that carry a digest; `sha256` is of the file's bytes.

    `changes_table` is of one that says what the table is (its columns, properties or features).
    """

    version: int
    operation_id: str | None
    keys: frozenset[str]
    added: tuple[DataFile, ...]
    removed: tuple[str, ...]
    sha256: str
    writer: str | None = None
    is_digested: bool = False
    is_void: bool = False
    changes_table: bool = False


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


def digest_in_name(path: str) -> str | None:
    """The SHA-256 that a data file's name says its bytes have; None for a file of before names said so."""
    found = _DIGEST_IN_NAME.search(path)
    return found[1] if found else None


def digest_of(version: int, writer: str | None, operation_id: str | None, actions: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """The SHA-256 over all that an entry says but what the engine adds to commitInfo (times, its own version).

    `actions` are (name, body) of each line but commitInfo, in any order. A field that is null says nothing.
    """
    lines = sorted(json.dumps([name, {k: v for k, v in body.items() if v is not None}], sort_keys=True) for name, body in actions)
    return hashlib.sha256(json.dumps([version, writer, operation_id, lines]).encode()).hexdigest()


def read_commit(log: Path, version: int) -> LogCommit:
    """One commit of the log.

    Raises:
        FileNotFoundError: there is none of this version.
        TornCommitError, DamagedCommitError: it is not whole.
    """
    return parse_commit(version, (log / commit_name(version)).read_bytes())


def parse_commit(version: int, data: bytes) -> LogCommit:
    """The commit that these bytes are, or TornCommitError, or DamagedCommitError."""
    lines = _parse_lines(data)
    infos = [body for name, body in lines if name == "commitInfo"]
    if len(infos) != 1:
        msg = f"has {len(infos)} lines of commitInfo"
        raise DamagedCommitError(msg)
    info, actions = infos[0], [(name, body) for name, body in lines if name != "commitInfo"]
    _require_as_said(version, info, actions)
    try:
        return LogCommit(
            version=version,
            operation_id=info.get(OPERATION_ID),
            keys=frozenset(body["appId"] for name, body in actions if name == "txn"),
            added=tuple(_data_file(body) for name, body in actions if name == "add"),
            removed=tuple(unquote(body["path"]) for name, body in actions if name == "remove"),
            sha256=hashlib.sha256(data).hexdigest(),
            writer=info.get(WRITER),
            is_digested=DIGEST in info,
            is_void=info.get("operation") == VOID,
            changes_table=any(name in ("metaData", "protocol") for name, _ in actions),
        )
    except (KeyError, TypeError, AttributeError) as error:
        msg = f"does not read as a commit ({error!r})"
        raise DamagedCommitError(msg) from error


def _data_file(body: Mapping[str, Any]) -> DataFile:
    path, size_bytes = unquote(body["path"]), body["size"]
    if "/" in path or "\0" in path or not isinstance(size_bytes, int):
        msg = f"{path!r} of size {size_bytes!r} cannot be a data file of the table"
        raise TypeError(msg)
    return DataFile(path=path, size_bytes=size_bytes, data_change=bool(body["dataChange"]))


def _require_as_said(version: int, info: Mapping[str, Any], actions: list[tuple[str, Mapping[str, Any]]]) -> None:
    """Raises unless the entry holds its digest, or, of before there were any, the number of its actions."""
    if DIGEST in info:
        if info.get(VERSION) != version:
            msg = f"says that it is version {info.get(VERSION)}: it was put in the place of another"
            raise DamagedCommitError(msg)
        if info[DIGEST] == digest_of(version, info.get(WRITER), info.get(OPERATION_ID), actions):
            return
    elif any(name == "add" and digest_in_name(str(body.get("path"))) for name, body in actions):
        msg = "adds a file of a writer that gives each entry a digest, and has none"
        raise DamagedCommitError(msg)
    promised = info.get(ACTIONS)
    if isinstance(promised, int) and len(actions) < promised:
        msg = f"has {len(actions)} of its {promised} actions"
        raise TornCommitError(msg)
    if DIGEST in info or (promised is not None and len(actions) != promised):
        msg = "does not hold what its writer said: its digest, or the number of its actions, is another"
        raise DamagedCommitError(msg)


def _parse_lines(data: bytes) -> list[tuple[str, Mapping[str, Any]]]:
    """(name, body) of each line, or how the bytes are torn or damaged."""
    text = _without_zeros(data)
    *whole, last = text.split(b"\n")
    lines = [_parse_line(line) for line in whole if line.strip()]
    if last.strip():
        if _is_cut(last):
            msg = "is cut"
            raise TornCommitError(msg)
        lines.append(_parse_line(last))
    return lines


def _without_zeros(data: bytes) -> bytes:
    """The bytes of an entry that has no zeroed part; or TornCommitError where it has one, DamagedCommitError where it has other zeros."""
    text = data.rstrip(b"\0")
    if not text.strip():
        msg = "is empty" if not data else "is zeroed"
        raise TornCommitError(msg)
    runs = [(run.start(), run.end()) for run in re.finditer(rb"\0+", text)]
    is_part = all(start % _BLOCK_BYTES == 0 and end % _BLOCK_BYTES == 0 for start, end in runs)
    if runs and not is_part:
        msg = "has bytes of zero"
        raise DamagedCommitError(msg)
    if runs or len(text) < len(data):
        msg = "is zeroed in part"
        raise TornCommitError(msg)
    return text


def _parse_line(line: bytes) -> tuple[str, Mapping[str, Any]]:
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError) as error:
        msg = "is garbled"
        raise DamagedCommitError(msg) from error
    if not isinstance(parsed, dict) or len(parsed) != 1:
        msg = "has a line that is not one action"
        raise DamagedCommitError(msg)
    ((name, body),) = parsed.items()
    if name not in _ACTION_NAMES or not isinstance(body, dict):
        msg = f"has an action {name!r}, which is not known"
        raise DamagedCommitError(msg)
    return name, body


def _is_cut(line: bytes) -> bool:
    """Whether the last line is the beginning of one: it breaks off, and not in the way that a line ends.

    A line ends in "}}" and has it nowhere else, so that a whole one in which a bit has flipped does not pass for a cut one.
    """
    if line.endswith(b"}}"):
        return False
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        if error.end != len(line) or error.reason != "unexpected end of data":
            return False
        text = line[: error.start].decode()  # in the middle of a character
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        rest = text[error.pos :]
        ended = not rest or error.msg.startswith("Unterminated string")
        return ended or any(word.startswith(rest) for word in ("true", "false", "null", "-")) or bool(_SPLIT_ESCAPE.search(text))
    except RecursionError:
        return False
    return False


def read_metadata(log: Path) -> TableMetadata | None:
    """What the first commit says of its table; None where that commit is missing, torn or says nothing. Changes nothing."""
    try:
        (body,) = (body for name, body in _parse_lines((log / commit_name(0)).read_bytes()) if name == "metaData")
        return TableMetadata(columns=json.loads(body["schemaString"]), properties=dict(body["configuration"]))
    except (OSError, TornCommitError, DamagedCommitError, KeyError, TypeError, ValueError):
        return None


def with_digest(version: int, data: bytes) -> bytes:
    """The entry in these bytes, with its version and a digest over what it says."""
    lines = _parse_lines(data)
    actions = [(name, body) for name, body in lines if name != "commitInfo"]
    (info,) = (body for name, body in lines if name == "commitInfo")
    said = {VERSION: version, DIGEST: digest_of(version, None, info.get(OPERATION_ID), actions)}
    return b"\n".join(json.dumps({name: body}).encode() for name, body in [("commitInfo", {**info, **said}), *actions])


def void_entry(version: int, timestamp_ms: int, reason: str) -> bytes:
    """An entry that says nothing but why: equal bytes for equal arguments, so that two processes that mend write the same."""
    info = {
        "timestamp": timestamp_ms,
        "operation": VOID,
        OPERATION_ID: None,
        "reason": reason,
        VERSION: version,
        DIGEST: digest_of(version, None, None, ()),
    }
    return json.dumps({"commitInfo": info}).encode() + b"\n"


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


def keep_beside(log: Path, name: str) -> None:
    """Keep what a file of the log holds under a name that no engine reads, before it is replaced or removed."""
    digest = hashlib.sha256((log / name).read_bytes()).hexdigest()
    with suppress(FileExistsError):  # kept already, by a mending that died or that runs beside this one
        os.link(log / name, log / f".{name}.{digest[:16]}.kept")
    sync(log)


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
