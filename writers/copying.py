"""Bringing another checkpoint's states into one that is being written, by copying their files: nothing of the source is used afterwards.

For savepoints, which may be moved, for checkpoints of other catalogs, and for jobs that start in the mode no-claim.
"""

from dataclasses import replace

from holdfast.catalog import paths
from holdfast.catalog.errors import DamagedFileError
from holdfast.catalog.storage import Storage, copy_stream
from holdfast.catalog.types import Ack, CheckpointMetrics, Chunk, FileId, Format, Scope, StateInfo, StoredFile
from holdfast.writers.checkpoint import Checkpoint
from holdfast.writers.upload import UploadContext


def copy_state(source: Checkpoint, info: StateInfo, context: UploadContext) -> tuple[list[Ack], StateInfo]:
    """Copy every file of a state, verified by its digest on the way, and describe it under the context's name. Layers are kept.

    The copies are the checkpoint's own: of task-owned files too, which then nobody has to release.

    Raises:
        DamagedFileError: a file of the source is missing or is not what was committed.
    """
    scope = Scope.EXCLUSIVE if info.format == Format.BYTES or context.metadata.is_savepoint else Scope.SHARED
    files: dict[FileId, StoredFile] = {}
    chunks: list[Chunk] = []
    given = source.manifest.in_given_order(info) if info.format == Format.FILES else source.manifest.chunks_of(info)
    for number, chunk in enumerate(given):
        moved = replace(chunk, operator=context.operator, state=context.state, scope=scope)
        if chunk.inline is not None:
            own = paths.file_id(context.attempt, context.call, f"i{number}")
            chunks.append(replace(moved, scope=context.inline_scope, file_id=own))
            continue
        if chunk.file_id not in files:
            files[chunk.file_id] = _copy_file(source, source.manifest.files[chunk.file_id], scope, len(files), context)
        chunks.append(replace(moved, file_id=files[chunk.file_id].file_id))
    metrics = CheckpointMetrics(bytes_written=sum(chunk.length_bytes for chunk in chunks), rows=info.rows)
    return [context.ack(chunks, files.values(), metrics)], replace(info, operator=context.operator, state=context.state)


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
    path = context.place(f"{context.call}_copy{number}", file.path.rpartition(".")[2], scope)
    copy_object(source, file.path, (file.size_bytes, file.sha256), context.storage, path)
    return StoredFile(
        file_id=paths.file_id(context.attempt, context.call, number),
        path=path,
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        scope=scope,
    )
