"""Bringing another checkpoint's states into one that is being written, by copying their files: nothing of the source is used afterwards.

For savepoints, which may be moved, for checkpoints of other catalogs, and for jobs that start in the mode no-claim.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from holdfast.catalog import paths
from holdfast.catalog.errors import DamagedFileError, RefusedError, UsageError
from holdfast.catalog.storage import Storage, copy_stream
from holdfast.catalog.types import Ack, CheckpointMetrics, Chunk, FileId, Role, Scope, StateInfo, StoredFile
from holdfast.writers.checkpoint import Checkpoint
from holdfast.writers.upload import UploadContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """Which states of a source come, and under which names.

    `states` are those that the program has (None: whatever there is); a state of the source that is not among them is refused, unless
    it is named in `allow_non_restored`. `renamed` says old name -> new name. A state that only the program has starts empty.
    What was renamed or left before may be named again: a program is restarted with the arguments that it was restored with.

    Raises:
        UsageError: one of them is not what it must be.
    """

    states: Collection[str] | None = None
    allow_non_restored: Collection[str] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, given in (("states", self.states), ("allow_non_restored", self.allow_non_restored)):
            if (given is not None or name != "states") and (isinstance(given, str) or not _are_names(given)):
                msg = f"{name}={given!r} is no collection of names: give a list of them"
                raise UsageError(msg)
        if not _is_renaming(self.renamed):
            msg = f"renamed={self.renamed!r} does not map names: give {{old name: new name}}"
            raise UsageError(msg)

    def names_in(self, source: Checkpoint, *, copies: bool = True) -> dict[str, str]:
        """Old name -> new name of every state that comes.

        Raises:
            RefusedError: a state would be lost; a state to be renamed is under neither name, or is not copied; two would get one name.
        """
        there = source.states
        for old, new in self.renamed.items():
            if old not in there and new not in there:
                msg = f"{source!r} has no state {old!r} that could be renamed to {new!r}; it has: {', '.join(there) or 'none'}"
                raise RefusedError(msg)
            if old in there and not copies:
                msg = (
                    f"state {old!r} of {source!r} cannot be renamed to {new!r} where the files are shared under their names: start from a "
                    "savepoint of it, or from another job's checkpoint with mode='no-claim'"
                )
                raise RefusedError(msg)
        names = {old: self.renamed.get(old, old) for old in there if old not in self.allow_non_restored}
        lost = [old for old, new in names.items() if self.states is not None and new not in self.states]
        if lost:
            msg = (
                f"{source!r} has state {lost[0]!r}, which the program does not have: rename it (renamed={{{lost[0]!r}: ...}}), "
                f"or give it up by name (allow_non_restored=[{lost[0]!r}])"
            )
            raise RefusedError(msg)
        if len({*names.values()}) < len(names):
            msg = f"{source!r}: two states would get one name: {names}"
            raise RefusedError(msg)
        return names


def _is_renaming(given: object) -> bool:
    return isinstance(given, Mapping) and _are_names([*given, *given.values()])


def _are_names(given: object) -> bool:
    return isinstance(given, Collection) and all(isinstance(name, str) for name in given)


def copy_state(source: Checkpoint, info: StateInfo, context: UploadContext) -> tuple[list[Ack], StateInfo]:
    """Copy every file of a state, verified by its digest on the way, and describe it under the context's name. Layers are kept.

    The copies are the checkpoint's own: of task-owned files too, which then nobody has to release.

    Raises:
        DamagedFileError: a file of the source is missing or is not what was committed.
    """
    scope = Scope.EXCLUSIVE if info.format == "bytes" or context.metadata.is_savepoint else Scope.SHARED
    files: dict[FileId, StoredFile] = {}
    chunks: list[Chunk] = []
    for number, chunk in enumerate(source.manifest.in_given_order(info) if info.format == "files" else source.manifest.chunks_of(info)):
        moved = replace(chunk, operator=context.operator, state=context.state, scope=scope)
        if chunk.inline is not None:
            own = Scope.EXCLUSIVE if chunk.role is Role.FILE else scope  # a small file of a store, which changes it
            chunks.append(replace(moved, scope=own, file_id=paths.file_id(context.attempt, context.call, f"i{number}")))
            continue
        if chunk.file_id not in files:
            files[chunk.file_id] = _copy_file(source, source.manifest.files[chunk.file_id], scope, len(files), context)
        chunks.append(replace(moved, file_id=files[chunk.file_id].file_id))
    ack = Ack(
        checkpoint_id=context.metadata.checkpoint_id,
        attempt=context.attempt,
        operator=context.operator,
        state=context.state,
        subtask=None,
        files=tuple(files.values()),
        chunks=tuple(chunks),
        metrics=CheckpointMetrics(bytes_written=sum(chunk.length_bytes for chunk in chunks), rows=info.rows),
    )
    return [ack], replace(info, operator=context.operator, state=context.state)


def copy_object(source: Checkpoint, path: str, expected: tuple[int, str], target: Storage, target_path: str) -> None:
    """Copy one file of a checkpoint, of this size and SHA-256. Raises DamagedFileError; then there is no copy."""
    try:
        with source.storage.open_stream(path) as data, target.create_stream(target_path) as copy:
            copied = copy_stream(data, copy, expected[0])
            if (copied.size_bytes, copied.sha256) != expected:
                msg = f"{path} of {source!r} is damaged: it was not copied. Restore it from a copy, or use another checkpoint"
                raise DamagedFileError(msg)
    except FileNotFoundError as error:
        msg = f"{path} of {source!r} is missing: it was not copied. Restore it from a copy, or use another checkpoint"
        raise DamagedFileError(msg) from error


def _copy_file(source: Checkpoint, file: StoredFile, scope: Scope, number: int, context: UploadContext) -> StoredFile:
    path = _path(file, scope, number, context)
    copy_object(source, file.path, (file.size_bytes, file.sha256), context.storage, path)
    return StoredFile(
        file_id=paths.file_id(context.attempt, context.call, number),
        path=path,
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        scope=scope,
    )


def _path(file: StoredFile, scope: Scope, number: int, context: UploadContext) -> str:
    task, extension = f"{context.call}_copy{number}", file.path.rpartition(".")[2]
    if context.directory is not None:
        return f"{context.directory}/{task}.{extension}"
    place = paths.exclusive_file if scope is Scope.EXCLUSIVE else paths.shared_file
    return place(context.job_id, context.metadata.checkpoint_id, context.attempt, task, extension)
