"""Task-owned files in commits, as pure decisions (design, sections 3 and 5; I2).

A commit may refer to a file of an owner that is open and has not released it, or to one that its pinned parent has. Nothing else says
that the file is still there: once it is released, it is deleted as soon as no live or pinned checkpoint has it (docs/decisions/0009).
"""

from collections.abc import Iterable, Sequence

from holdfast.catalog import facts as f
from holdfast.catalog import paths
from holdfast.catalog.errors import RefusedError
from holdfast.catalog.rules.commit_facts import CommitRequest, file_facts
from holdfast.catalog.state import JobState, OwnerState
from holdfast.catalog.types import AttemptToken, Chunk, FileId, JobId, OwnedFile, Scope, StoredFile


def owner_of(job: JobState, file_id: FileId) -> OwnerState | None:
    """The open owner that gave this id."""
    return job.owners.get(paths.token_of(file_id))


def require_unreleased(job: JobState, request: CommitRequest, chunk: Chunk) -> None:
    """Raises RefusedError unless an open owner of the job has written the file and not released it."""
    owner = owner_of(job, chunk.file_id)
    if owner is not None and chunk.file_id not in owner.released:
        return
    number = job.attempts[request.attempt].opened.checkpoint_id
    file = f"file {chunk.name!r} ({chunk.file_id}) of owner {chunk.state!r}"
    begin = f"checkpoint {number} of job {job.name!r} cannot refer to {file}"
    if owner is None and paths.token_of(chunk.file_id) not in job.attempts:
        msg = f"{begin}: the job never had that owner; only an owner of the same job, opened with catalog.own(...), can be referred to"
    else:
        msg = f"{begin}: it was released meanwhile, and may be gone; nothing was committed. Write the checkpoint again without it"
    raise RefusedError(msg)


def first_rows(job: JobState, seq: int, files: Sequence[StoredFile]) -> list[f.Fact]:
    """File rows of those files of open owners that have none yet."""
    rows: list[f.Fact] = []
    for file in files:
        owner = owner_of(job, file.file_id)
        if owner is not None and file.file_id not in owner.rows:
            rows += file_facts(job.job_id, seq, owner.opened.attempt, [file])
    return rows


def stored(owner: str, files: Iterable[OwnedFile]) -> list[StoredFile]:
    """The files as their rows have them."""
    return [
        StoredFile(file_id=file.file_id, path=file.path, size_bytes=file.size_bytes, sha256=file.sha256, scope=Scope.TASKOWNED, owner=owner)
        for file in files
    ]


def require_written_by(job_id: JobId, owner: str, token: AttemptToken, files: Iterable[OwnedFile]) -> None:
    """Raises RefusedError for a file that this owner has not written: its place and its id say whose it is."""
    own = paths.AttemptPath(job_id=job_id, checkpoint_id=paths.NO_CHECKPOINT, attempt=token, name=paths.slug(owner))
    for file in files:
        if paths.token_of(file.file_id) == token and paths.parse(file.path) == own:
            continue
        msg = (
            f"file {file.name!r} ({file.path}) was not written by owner {owner!r} of job {job_id} (attempt {token}): only a file's own "
            "owner refers to it and releases it. A copy, of a savepoint or a start from one, has no owner: it is deleted with its "
            "checkpoints"
        )
        raise RefusedError(msg)
