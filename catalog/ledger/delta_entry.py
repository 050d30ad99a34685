"""An entry of the ledger's log: what its bytes say, whether that is what its writer said, and what the bytes of one are. Pure.

An entry of ours says in its commitInfo which version it is, up to which version the log was durable before it, and a digest over all that
it says (design, section 4c). It is one of three: whole; *torn*, which a loss of power leaves (empty, cut or zeroed, and nothing else); or
*damaged*, which is everything else that is not what was written. The two are told apart by their shape alone: a flipped bit never looks
like a cut.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from holdfast.catalog.arguments import NAME_LIMIT_BYTES

OPERATION_ID = "operation_id"
ACTIONS = "actions"  # in commitInfo: how many add and txn lines belong to it, or a cut between two lines would go unseen
VERSION = "entry_version"
DURABLE_TO = "durable_to"  # in commitInfo: every entry up to this version was synced before this one was sent
DIGEST = "sha256"
VOID = "VOID"
SUCCESSOR = "holdfast.successor"  # among the table's properties: the directory of the table that has its facts since it was closed

_BLOCK_BYTES = 512  # no disk writes less: a zeroed part begins and ends at a multiple of it
_DIGEST_IN_NAME = re.compile(r"-([0-9a-f]{64})\.parquet")
_ACTION_NAMES = frozenset({"commitInfo", "add", "txn", "remove", "metaData", "protocol", "cdc", "domainMetadata"})
_SPLIT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,4})?\Z")


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
    """What an entry says. `durable_to` and `is_digested` are of those that carry a digest; `sha256` is of the file's bytes.

    `changes_table` is of one that says what the table is (its columns, properties or features); one that closes it names its `successor`.
    """

    version: int
    operation_id: str | None
    keys: frozenset[str]
    added: tuple[DataFile, ...]
    removed: tuple[str, ...]
    sha256: str
    durable_to: int | None = None
    is_digested: bool = False
    is_void: bool = False
    changes_table: bool = False
    successor: str | None = None


def digest_in_name(path: str) -> str | None:
    """The SHA-256 that a data file's name says its bytes have; None for a file of before names said so."""
    found = _DIGEST_IN_NAME.search(path)
    return found[1] if found else None


def digest_of(version: int, durable_to: int | None, operation_id: str | None, actions: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """The SHA-256 over all that an entry says but what the engine adds to commitInfo (times, its own version).

    `actions` are (name, body) of each line but commitInfo, in any order. A field that is null says nothing.
    """
    lines = sorted(json.dumps([name, {k: v for k, v in body.items() if v is not None}], sort_keys=True) for name, body in actions)
    return hashlib.sha256(json.dumps([version, durable_to, operation_id, lines]).encode()).hexdigest()


def parse_commit(version: int, data: bytes) -> LogCommit:
    """The commit that these bytes are, or TornCommitError, or DamagedCommitError."""
    lines = parse_lines(data)
    infos = [body for name, body in lines if name == "commitInfo"]
    if len(infos) != 1:
        msg = f"has {len(infos)} lines of commitInfo"
        raise DamagedCommitError(msg)
    info, actions = infos[0], [(name, body) for name, body in lines if name != "commitInfo"]
    _require_as_said(version, info, actions)
    try:
        _require_types(info)
        return LogCommit(
            version=version,
            operation_id=info.get(OPERATION_ID),
            keys=frozenset(body["appId"] for name, body in actions if name == "txn"),
            added=tuple(_data_file(body) for name, body in actions if name == "add"),
            removed=tuple(unquote(body["path"]) for name, body in actions if name == "remove"),
            sha256=hashlib.sha256(data).hexdigest(),
            durable_to=info.get(DURABLE_TO),
            is_digested=DIGEST in info,
            is_void=info.get("operation") == VOID,
            changes_table=any(name in ("metaData", "protocol") for name, _ in actions),
            successor=next(((body.get("configuration") or {}).get(SUCCESSOR) for name, body in actions if name == "metaData"), None),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        msg = f"does not read as a commit ({error!r})"
        raise DamagedCommitError(msg) from error


def _require_types(info: Mapping[str, Any]) -> None:
    """Raises TypeError."""
    for name, kind in ((OPERATION_ID, str), (DURABLE_TO, int), ("operation", str)):
        if not isinstance(info.get(name), kind | None) or isinstance(info.get(name), bool):
            msg = f"{name} is {info.get(name)!r}"
            raise TypeError(msg)


def _data_file(body: Mapping[str, Any]) -> DataFile:
    path, size_bytes = unquote(body["path"]), body["size"]
    if "/" in path or "\0" in path or len(os.fsencode(path)) > NAME_LIMIT_BYTES or not isinstance(size_bytes, int):
        msg = f"{path!r} of size {size_bytes!r} cannot be a data file of the table"
        raise TypeError(msg)
    return DataFile(path=path, size_bytes=size_bytes, data_change=bool(body["dataChange"]))


def _require_as_said(version: int, info: Mapping[str, Any], actions: list[tuple[str, Mapping[str, Any]]]) -> None:
    """Raises unless the entry holds its digest, or, of before there were any, the number of its actions."""
    if DIGEST in info:
        if info.get(VERSION) != version:
            msg = f"says that it is version {info.get(VERSION)}: it was put in the place of another"
            raise DamagedCommitError(msg)
        if info[DIGEST] == digest_of(version, info.get(DURABLE_TO), info.get(OPERATION_ID), actions):
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


def parse_lines(data: bytes) -> list[tuple[str, Mapping[str, Any]]]:
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


def with_digest(version: int, data: bytes) -> bytes:
    """The entry in these bytes, with its version and a digest over what it says."""
    lines = parse_lines(data)
    actions = [(name, body) for name, body in lines if name != "commitInfo"]
    (info,) = (body for name, body in lines if name == "commitInfo")
    said = {VERSION: version, DIGEST: digest_of(version, None, info.get(OPERATION_ID), actions)}
    return b"\n".join(json.dumps({name: body}).encode() for name, body in [("commitInfo", {**info, **said}), *actions])


def promises(version: int, durable_to: int, operation_id: str, actions: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """What commitInfo says of an entry of ours with these lines besides, whoever writes it."""
    return {
        OPERATION_ID: operation_id,
        ACTIONS: len(actions),
        VERSION: version,
        DURABLE_TO: durable_to,
        DIGEST: digest_of(version, durable_to, operation_id, actions),
    }


def own_entry(
    version: int, what: str, parameters: Mapping[str, str], operation_id: str, at_ms: int, actions: Sequence[tuple[str, Mapping[str, Any]]]
) -> bytes:
    """The bytes of an entry that delta-rs cannot write (decision 0012). Every entry below is durable."""
    said = {
        "timestamp": at_ms,
        "operation": what,
        "operationParameters": parameters,
        "isBlindAppend": False,
        **promises(version, version - 1, operation_id, actions),
    }
    return b"".join(_line(name, body) for name, body in [("commitInfo", said), *actions])


def _line(name: str, body: Mapping[str, Any]) -> bytes:
    """An action as a line that has "}}" at its end and nowhere else: inside a text, as in a schema, it has another spelling."""
    text = json.dumps({name: body})
    inside = text[:-2]
    while "}}" in inside:
        inside = inside.replace("}}", "}\\u007d")
    return (inside + text[-2:]).encode() + b"\n"


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
