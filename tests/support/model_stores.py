"""Directories of embedded stores in the model: runs that subtasks share with their parents, tasks that are tried again or never heard of.

Which files of the parent a subtask may refer to, and what becomes of the acknowledgements, the project's own code decides.
"""

from holdfast.catalog import paths
from holdfast.catalog.facts import AttemptOpened
from holdfast.catalog.types import Ack, CheckpointMetaData, CheckpointMetrics, Chunk, Role, Scope, StateInfo, StoredFile
from holdfast.writers.stores import writer
from holdfast.writers.stores.shares import DirectoryShares, shares_of
from holdfast.writers.stores.snapshot import IMMUTABLE
from holdfast.writers.stores.writer import FILE_LAYER, Share
from holdfast.writers.upload import ParentState, UploadContext
from tests.support.model_layers import GROUPS, Layered
from tests.support.model_world import World

STATE = "rocks"
NAMES = ("1.sst", "2.sst", "3.sst")
SUBTASKS = 2
SIZE_BYTES = 150


def write(w: World, opened: AttemptOpened, parent: Layered | None, call: int) -> tuple[Layered, list[StoredFile]]:
    """The state after a step of every subtask, and what was uploaded for it. Raises RefusedError: a subtask was not heard of."""
    shares = _shares(w, opened, parent, call)
    for subtask in range(SUBTASKS):
        if w.random.random() < 0.04:
            continue  # its executor is gone
        for number in range(w.random.choice((1, 1, 2))):
            shares._arrived(_try(w, shares, subtask, number))
    written = shares.finish()
    value = {key: row for chunk in written.content for key, row in w.sheets.rows[chunk.identity].items()}
    return Layered(written.content, value), [file for ack in written.acks for file in ack.files]


def _shares(w: World, opened: AttemptOpened, parent: Layered | None, call: int) -> DirectoryShares:
    assert opened.checkpoint_id is not None
    context = UploadContext(
        storage=w.storage, job_id=opened.job_id, attempt=opened.attempt, call=call, operator="main", state=STATE, layer=0, key_columns=(),
        metadata=CheckpointMetaData(checkpoint_id=opened.checkpoint_id, timestamp=w.environment.now()), max_parallelism=GROUPS,
    )  # fmt: skip
    if parent is None:
        return shares_of(context, w.environment, None, None, SUBTASKS, IMMUTABLE)
    info = StateInfo(operator="main", state=STATE, format="directory")
    files = {chunk.file_id: _stored(w, chunk) for chunk in parent.chunks}
    known = ParentState(max_parallelism=GROUPS, info=info, chunks=parent.chunks, files=files)
    return shares_of(context, w.environment, known, None, SUBTASKS, IMMUTABLE)


def _try(w: World, shares: DirectoryShares, subtask: int, number: int) -> Ack:
    """Some of the runs that the parent has of the subtask, and a new one, which may have the name of one that went."""
    context = shares.writer.context
    known = writer._known(shares.writer.parent, Share(subtask=subtask))
    kept = {name: chunk for name, (chunk, _) in known.items() if w.random.random() < 0.6 and len(known) < len(NAMES)}
    label = f"{context.call}_{subtask}_{number}"
    path = paths.shared_file(context.job_id, context.metadata.checkpoint_id, context.attempt, label, "bin")
    new = Chunk(
        operator="main", state=STATE, file_id=paths.file_id(context.attempt, label, 0), scope=Scope.SHARED, role=Role.FILE, layer=FILE_LAYER,
        offset_bytes=0, length_bytes=SIZE_BYTES, sha256="", subtask=subtask, name=w.random.choice(sorted({*NAMES} - kept.keys())),
    )  # fmt: skip
    w.upload(new.file_id, path)
    w.sheets.whole(new)
    return Ack(
        checkpoint_id=context.metadata.checkpoint_id, attempt=context.attempt, operator="main", state=STATE, subtask=subtask,
        files=(_stored(w, new),), chunks=(*kept.values(), new), metrics=CheckpointMetrics(),
    )  # fmt: skip


def _stored(w: World, chunk: Chunk) -> StoredFile:
    return StoredFile(file_id=chunk.file_id, path=w.path_of[chunk.file_id], size_bytes=SIZE_BYTES, sha256="", scope=chunk.scope)
