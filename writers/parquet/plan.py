"""What a reading of a state touches: which chunks, hence which files, and which of their rows. Pure.

`FileRow` is (path, size in bytes, SHA-256) of a file that the chunks name.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.catalog.arguments import is_whole
from holdfast.catalog.errors import CorruptionError, FormatError, RefusedError, UsageError
from holdfast.catalog.layers import CHANGES, Layers, base_layers, is_seen_whole, only, seen_at, seen_groups
from holdfast.catalog.types import Chunk, FileId, Format, Role, StateInfo, StoredFile
from holdfast.writers.parquet.layout import Part

FileRow = tuple[str, int, str]

# A scan for each layer costs the driver milliseconds, and has a task at least; a layer more in one costs each of its rows some nanoseconds.
LAYERS_IN_A_SCAN = 32


def file_rows(files: Iterable[StoredFile]) -> dict[FileId, FileRow]:
    """The files by their ids."""
    return {file.file_id: (file.path, file.size_bytes, file.sha256) for file in files}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Files of one layer, and the key groups of which their rows are wanted; None: all rows."""

    layer: int
    paths: tuple[str, ...]
    groups: tuple[range, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of its files, without their directories."""
        return tuple(path.rpartition("/")[2] for path in self.paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The scans of base and change sets, and all parts of files that they read, footers included."""

    base: tuple[Scan, ...]
    upserts: tuple[Scan, ...]
    deletes: tuple[Scan, ...]
    parts: Mapping[str, tuple[Part, ...]]  # by path
    rows: int  # at most, of base and changes together
    change_rows: int

    @property
    def has_changes(self) -> bool:
        return bool(self.upserts or self.deletes)

    @property
    def has_hidden_upserts(self) -> bool:
        """Whether a change set lies above an upsert."""
        lowest = min((scan.layer for scan in self.upserts), default=None)
        return lowest is not None and any(scan.layer > lowest for scan in (*self.upserts, *self.deletes))

    @property
    def size_bytes(self) -> int:
        return sum(part.length_bytes for parts in self.parts.values() for part in parts)

    @property
    def change_bytes(self) -> int:
        """Of the files with change sets."""
        paths = {path for scan in (*self.upserts, *self.deletes) for path in scan.paths}
        return sum(part.length_bytes for path in paths for part in self.parts[path])


def plan_reading(
    chunks: Sequence[Chunk], files: Mapping[FileId, FileRow], max_parallelism: int, key_groups: range | None = None
) -> ReadPlan:
    """What to read of the chunks of one state for these key groups (None: all)."""
    base = base_layers(chunks, max_parallelism)
    if key_groups is not None:
        base = only(base, key_groups)
    seen = [chunk for chunk in chunks if chunk.role is not Role.FOOTER and chunk.inline is None and seen_groups(chunk, base)]
    touched = {chunk.file_id for chunk in seen}
    read = [*seen, *(chunk for chunk in chunks if chunk.role is Role.FOOTER and chunk.file_id in touched)]
    whole = _whole_files(read, files, base)
    return ReadPlan(
        base=_scans(seen, Role.BASE, files, whole, base),
        upserts=_scans(seen, Role.UPSERTS, files, whole, base),
        deletes=_scans(seen, Role.DELETES, files, whole, base),
        parts=_parts(read, files),
        rows=sum(chunk.rows or 0 for chunk in seen),
        change_rows=sum(chunk.rows or 0 for chunk in seen if chunk.role in CHANGES),
    )


def together(scans: Sequence[Scan]) -> list[list[Scan]]:
    """The scans of change sets that can be one: of the same key groups, not too many, and the name of a row's file tells its layer."""
    found: list[list[Scan]] = []
    last: dict[tuple[range, ...] | None, tuple[list[Scan], set[str]]] = {}
    for scan in scans:
        alike, names = last.get(scan.groups, ([], set()))
        if not alike or len(alike) == LAYERS_IN_A_SCAN or not names.isdisjoint(scan.names):
            alike, names = [], set()
            found.append(alike)
        alike.append(scan)
        last[scan.groups] = alike, names.union(scan.names)
    return found


def as_one(alike: Sequence[Scan]) -> Scan:
    """One scan of all their files."""
    return replace(alike[0], paths=tuple(path for scan in alike for path in scan.paths))


def free_name(name: str, taken: Iterable[str]) -> str:
    """The name, or one like it, that no column of these has; case does not tell columns apart."""
    lower = {each.lower() for each in taken}
    while name in lower:
        name = f"_{name}"
    return name


def require_readable(info: StateInfo, chunks: Sequence[Chunk], files: Mapping[FileId, FileRow], max_parallelism: int) -> None:
    """Raises UsageError, FormatError or CorruptionError unless the chunks are all of a state of rows."""
    where = f"state {info.state!r} of operator {info.operator!r}"
    if info.format != Format.PARQUET:
        msg = f"{where} is kept as '{info.format}', not as a DataFrame: read its bytes"
        raise UsageError(msg)
    if info.schema is None:
        msg = f"{where} has no schema: it was not written as a DataFrame"
        raise FormatError(msg)
    if strange := {chunk.role.value for chunk in chunks} - {Role.BASE, Role.UPSERTS, Role.DELETES, Role.FOOTER}:
        msg = f"{where} has chunks that are not rows ({', '.join(sorted(strange))}): read it with a newer Holdfast"
        raise FormatError(msg)
    problem = next(filter(None, (_chunk_problem(chunk, files) for chunk in chunks)), None)
    problem = problem or _footer_problem(chunks, files) or _rows_problem(info, chunks, max_parallelism)
    if problem is None and not info.key_columns and any(chunk.role in CHANGES for chunk in chunks):
        problem = "it has change sets and no key columns"
    if problem:
        msg = f"{where}: {problem}: the content of the checkpoint is incomplete"
        raise CorruptionError(msg)


def require_key_groups(info: StateInfo) -> None:
    """Raises RefusedError if the state cannot be split by key."""
    if not info.is_key_group_aware:
        msg = (
            f"state {info.state!r} of operator {info.operator!r} is not key-group aware (is_key_group_aware is false): it was written "
            "without key columns, and cannot be read in part. Read it whole, or write it with key=[...]"
        )
        raise RefusedError(msg)


def require_part(key_groups: object, parallelism: object) -> None:
    """Raises UsageError for what cannot be a part of any state, whatever its key groups."""
    if key_groups is not None and not (isinstance(key_groups, range) and key_groups.step == 1):
        msg = f"key_groups={key_groups!r} is not a range of key groups without gaps: pass range(first, last + 1)"
        raise UsageError(msg)
    if parallelism is not None and not is_whole(parallelism):
        msg = f"parallelism={parallelism!r} is not a number of subtasks: pass a whole number, for example 16"
        raise UsageError(msg)


def _chunk_problem(chunk: Chunk, files: Mapping[FileId, FileRow]) -> str | None:
    if chunk.inline is not None:
        return f"chunk {chunk.file_id} has rows without a file" if chunk.rows or chunk.role is not Role.BASE else None
    if chunk.file_id not in files:
        return f"its file {chunk.file_id} has no file row"
    path, size_bytes, _ = files[chunk.file_id]
    end = chunk.offset_bytes + chunk.length_bytes
    return f"its file {path} has {size_bytes} bytes, and a chunk that ends at {end}" if end > size_bytes else None


def _footer_problem(chunks: Sequence[Chunk], files: Mapping[FileId, FileRow]) -> str | None:
    """A file of several chunks is read by the one that ends it."""
    ended = {
        chunk.file_id for chunk in chunks if chunk.inline is None and chunk.offset_bytes + chunk.length_bytes == files[chunk.file_id][1]
    }
    missing = next((chunk.file_id for chunk in chunks if chunk.inline is None and chunk.file_id not in ended), None)
    return None if missing is None else f"its file {files[missing][0]} has no footer among the chunks"


def _rows_problem(info: StateInfo, chunks: Sequence[Chunk], max_parallelism: int) -> str | None:
    """Of a base chunk that is hidden in part, any number of rows may be seen."""
    if info.rows is None:
        return None
    base = base_layers(chunks, max_parallelism)
    seen = [chunk for chunk in chunks if seen_groups(chunk, base)]
    most = sum(chunk.rows or 0 for chunk in seen)
    least = sum(chunk.rows or 0 for chunk in seen if is_seen_whole(chunk, base))
    if any(chunk.role in CHANGES for chunk in seen) or least <= info.rows <= most:
        return None
    return f"it has {info.rows} rows, and its {len(chunks)} chunks have {most}"


def _whole_files(read: Sequence[Chunk], files: Mapping[FileId, FileRow], base: Layers) -> set[FileId]:
    """The files of which all rows are wanted."""
    lengths: dict[FileId, int] = {}
    for chunk in read:
        if chunk.role is Role.FOOTER or is_seen_whole(chunk, base):
            lengths[chunk.file_id] = lengths.get(chunk.file_id, 0) + chunk.length_bytes
    return {file_id for file_id, length_bytes in lengths.items() if length_bytes == files[file_id][1]}


def _scans(seen: Sequence[Chunk], role: Role, files: Mapping[FileId, FileRow], whole: set[FileId], base: Layers) -> tuple[Scan, ...]:
    """A scan for each layer; one more where some of its files are read whole and others not. Whole files of the base need no layer."""
    paths: dict[tuple[int, bool], dict[str, None]] = {}
    for chunk in seen:
        if chunk.role is role:
            all_rows = chunk.file_id in whole
            layer = 0 if all_rows and role is Role.BASE else chunk.layer
            paths.setdefault((layer, all_rows), {})[files[chunk.file_id][0]] = None
    return tuple(
        Scan(layer=layer, paths=tuple(found), groups=None if all_rows else tuple(seen_at(layer, base)))
        for (layer, all_rows), found in sorted(paths.items())
    )


def _parts(read: Sequence[Chunk], files: Mapping[FileId, FileRow]) -> dict[str, tuple[Part, ...]]:
    """What to read of each file; one part if that is the whole of it."""
    found: dict[FileId, list[Part]] = {}
    for chunk in read:
        part = Part(offset_bytes=chunk.offset_bytes, length_bytes=chunk.length_bytes, sha256=chunk.sha256, rows=chunk.rows)
        found.setdefault(chunk.file_id, []).append(part)
    parts: dict[str, tuple[Part, ...]] = {}
    for file_id, of_file in found.items():
        path, size_bytes, sha256 = files[file_id]
        ordered = sorted(of_file, key=lambda part: part.offset_bytes)
        if sum(part.length_bytes for part in ordered) == size_bytes:
            ordered = [Part(offset_bytes=0, length_bytes=size_bytes, sha256=sha256, rows=sum(part.rows or 0 for part in ordered))]
        parts[path] = tuple(ordered)
    return parts
