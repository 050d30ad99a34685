"""What every manifest keeps to, whichever program made it: pure rules, so that a reader may believe what it is handed.

A digest says that the bytes are the ones that were written, not that Holdfast wrote them: a savepoint comes by mail. So types, ranges,
enumerations, names and paths are looked at once, when a manifest is decoded, and by the writer of one before it is stored.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NoReturn

from holdfast.catalog import paths
from holdfast.catalog.state import Ref
from holdfast.catalog.state_schema import parse_schema
from holdfast.catalog.types import MAX_PARALLELISM_LIMIT, Ack, Chunk, FileId, Format, Role, StateInfo, StoredFile

ROLES: Mapping[Format, frozenset[Role]] = {
    Format.PARQUET: frozenset({Role.BASE, Role.UPSERTS, Role.DELETES, Role.FOOTER}),
    Format.BYTES: frozenset({Role.BASE}),
    Format.FILES: frozenset({Role.FILE}),
    Format.DIRECTORY: frozenset({Role.FILE}),
}
LONGEST_NAME = 255  # bytes of a part of a path, as file systems have it
LONGEST_PATH = 4096

_INT64 = 2**63
_SHA256 = re.compile(r"[0-9a-f]{64}")
_BYTES_OF_A_GROUP = 28  # a group's digest has them (`writers/spark/group_digests.py`), before it is compressed


def require_header(
    *,
    job_id: object,
    job: object,
    max_parallelism: object,
    checkpoint_id: object,
    attempt: object,
    savepoint: object,
    parent: Ref | None,
    created_at: datetime,
    progress: object,
) -> None:
    """Raises ValueError for what no checkpoint can be; says what."""
    _require_id(job_id, checkpoint_id)
    _require_name(job, "the job's name")
    if savepoint is not None:
        _require_name(savepoint, "the savepoint's name")
    if not (_is_number(max_parallelism, MAX_PARALLELISM_LIMIT) and max_parallelism):
        _refuse(f"max_parallelism {max_parallelism!r} is not 1 to {MAX_PARALLELISM_LIMIT}")
    if not paths.is_token(attempt):
        _refuse(f"the attempt {attempt!r} is not a token")
    if parent is not None:
        _require_id(parent.job_id, parent.checkpoint_id)
    if created_at.tzinfo is None:
        _refuse(f"the time {created_at} has no zone")
    if progress is not None and not isinstance(progress, Mapping):
        _refuse("the progress is not a mapping")


def require_states(states: Iterable[StateInfo], max_parallelism: int) -> None:
    """Raises ValueError unless each is what a state can be, and is there once."""
    seen = set()
    for info in states:
        _require_name(info.operator, "an operator")
        _require_name(info.state, "a state")
        if info.key in seen:
            _refuse(f"state {info.state!r} of operator {info.operator!r} appears twice")
        seen.add(info.key)
        try:
            _require_state(info, max_parallelism)
        except ValueError as error:
            _refuse(f"state {info.state!r}: {error}")


def require_chunks(
    chunks: Iterable[Chunk],
    files: Mapping[FileId, StoredFile],
    states: Iterable[StateInfo],
    max_parallelism: int,
) -> None:
    """Raises ValueError unless each chunk is a piece of one of the states, within its file, and no other is the same."""
    formats = {info.key: info.format for info in states}
    seen: set[tuple[FileId, int]] = set()
    names: dict[tuple[str, str, int | None], set[str]] = {}
    for chunk in chunks:
        form = formats.get((chunk.operator, chunk.state))
        if form is None:
            _refuse(f"chunk {chunk.file_id!r} belongs to no state of the checkpoint")
        if chunk.role not in ROLES[form]:
            _refuse(f"chunk {chunk.file_id!r} is {chunk.role.value}, and its state is kept as '{form}'")
        if chunk.identity in seen:
            _refuse(f"chunk {chunk.file_id!r} from byte {chunk.offset_bytes} appears twice")
        seen.add(chunk.identity)
        _require_numbers(chunk, max_parallelism)
        _require_bytes(chunk, files.get(chunk.file_id))
        if chunk.role is Role.FILE:
            _require_file_name(chunk, form, names.setdefault((chunk.operator, chunk.state, chunk.subtask), set()))
    for taken in names.values():
        _require_no_file_is_a_directory(taken)


def require_files(files: Mapping[FileId, StoredFile], *, of_savepoint: bool) -> None:
    """Raises ValueError unless each file lies where its kind lies, alone."""
    seen = set()
    for file in files.values():
        if not paths.is_state_file(file.path, of_savepoint=of_savepoint):
            _refuse(f"{file.path[:200]!r} is not the path of a file of state")
        if file.path in seen:
            _refuse(f"two files have the path {file.path}")
        seen.add(file.path)
        if not 0 <= file.size_bytes < _INT64 or not _SHA256.fullmatch(file.sha256):
            _refuse(f"the size or the digest of {file.path} is not valid")


def require_ack(ack: Ack) -> None:
    """Raises ValueError unless each file is one that its attempt can have written, and each chunk is of one of them, or of an older one."""
    files = {file.file_id: file for file in ack.files}
    _require_name(ack.operator, "an operator")
    _require_name(ack.state, "a state")
    require_files(files, of_savepoint=False)
    for file in ack.files:
        if not (paths.is_file_id(file.file_id) and paths.is_of(ack.attempt, file.file_id) and paths.attempt_of(file.path) == ack.attempt):
            _refuse(f"the file {file.path} does not belong to attempt {ack.attempt}")
    for chunk in ack.chunks:
        _require_numbers(chunk, MAX_PARALLELISM_LIMIT)
        if chunk.inline is not None or paths.is_of(ack.attempt, chunk.file_id):
            _require_bytes(chunk, files.get(chunk.file_id))
        if chunk.role is Role.FILE:
            _require_file_name(chunk, Format.DIRECTORY, set())


def _require_id(job_id: object, checkpoint_id: object) -> None:
    if not paths.is_job_id(job_id) or not _is_number(checkpoint_id, 10**18 - 1):
        _refuse(f"checkpoint {checkpoint_id!r} of job {job_id!r} is not one that a job can have")


def _require_name(name: object, what: str) -> None:
    if not isinstance(name, str) or not name or not name.isprintable():
        _refuse(f"{name!r} cannot be {what}")


def _require_state(info: StateInfo, max_parallelism: int) -> None:
    if not (_is_number(info.layers) and _is_number(info.total_bytes) and (info.rows is None or _is_number(info.rows))):
        _refuse("its layers, rows or bytes are not valid numbers")
    keys = info.key_columns
    if len(set(keys)) < len(keys):
        _refuse("a key column is named twice")
    if info.schema is not None:
        columns = parse_schema(info.schema).names
        if not columns:
            _refuse("its schema has no column")
        if missing := [name for name in keys if name not in columns]:
            _refuse(f"its key column {missing[0]!r} is not among its columns")
    digests = info.group_digests
    if digests is not None and (not digests.isascii() or len(digests) > 2 * _BYTES_OF_A_GROUP * max_parallelism + 200):
        _refuse("its digests of key groups are more than it has key groups")


def _require_numbers(chunk: Chunk, max_parallelism: int) -> None:
    if not paths.is_file_id(chunk.file_id):
        _refuse(f"{chunk.file_id[:100]!r} is not the id of a file")
    if min(chunk.layer, chunk.offset_bytes, chunk.length_bytes, chunk.rows or 0, chunk.subtask or 0) < 0:
        _refuse(f"chunk {chunk.file_id} has a number below zero")
    first, last = chunk.key_group_from, chunk.key_group_to
    if (first is None) != (last is None) or (first is not None and last is not None and not 0 <= first <= last < max_parallelism):
        _refuse(f"chunk {chunk.file_id} has the key groups {first} to {last}, of {max_parallelism}")
    if not _SHA256.fullmatch(chunk.sha256):
        _refuse(f"the digest of chunk {chunk.file_id} is not valid")


def _require_bytes(chunk: Chunk, file: StoredFile | None) -> None:
    """Its bytes are in the manifest, and have their digest; or in a file, which has so many."""
    if (chunk.inline is None) == (file is None):
        _refuse(f"chunk {chunk.file_id} is in no file" if file is None else f"chunk {chunk.file_id} is in a file and in the manifest")
    if chunk.inline is not None:
        if chunk.offset_bytes or len(chunk.inline) != chunk.length_bytes or hashlib.sha256(chunk.inline).hexdigest() != chunk.sha256:
            _refuse(f"the bytes of chunk {chunk.file_id} do not have its length and digest")
    elif file is not None and chunk.offset_bytes + chunk.length_bytes > file.size_bytes:
        _refuse(f"chunk {chunk.file_id} ends beyond the end of its file {file.path}, which has {file.size_bytes} bytes")


def _require_file_name(chunk: Chunk, form: Format, taken: set[str]) -> None:
    """A file is given back under its name: within its directory, over no other."""
    name = chunk.name
    if name is None or name in taken:
        _refuse(f"file {name!r} of state {chunk.state!r} has no name of its own")
    taken.add(name)
    if form == Format.FILES:
        _require_name(name, "the name of a file")
        return
    if chunk.subtask is None:
        _refuse(f"file {name!r} of state {chunk.state!r} belongs to no subtask")
    paths.require_relative(name)
    if len(name.encode()) > LONGEST_PATH or any(len(part.encode()) > LONGEST_NAME for part in name.split("/")):
        _refuse(f"{name[:100]!r}... is longer than the name of a file can be")


def _require_no_file_is_a_directory(names: set[str]) -> None:
    for name in names:
        parts = name.split("/")
        if clash := next((above for i in range(1, len(parts)) if (above := "/".join(parts[:i])) in names), None):
            _refuse(f"{clash!r} is a file, and the directory of {name!r}")


def _is_number(given: object, most: int = _INT64 - 1) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= most


def _refuse(what: str) -> NoReturn:
    raise ValueError(what)
