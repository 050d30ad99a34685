"""The lifecycle of owners of files, as pure decisions (design, sections 1, 3 and 5).

An owner is an attempt that produces no checkpoint: it carries no epoch and pins nothing, so that no start of a coordinator ends it, and
no kill: its files may be all that a task has. Only its release does, which its task or an operator asks for by its name.
"""

from collections.abc import Sequence

from holdfast.catalog import facts as f
from holdfast.catalog.errors import AlreadyExistsError, NotFoundError
from holdfast.catalog.rules import owned_files
from holdfast.catalog.rules.commit_facts import file_facts
from holdfast.catalog.rules.decision import Decision, attempt_ended, job_key
from holdfast.catalog.state import CatalogState, JobState
from holdfast.catalog.types import AttemptToken, JobId, OwnedFile, Purpose, Status


def open_owner(state: CatalogState, job_id: JobId, name: str, token: AttemptToken, process: str | None = None) -> Decision:
    """The owner of this name: a new one, or the one that is open, whose task was started again. A released name never comes back.

    `process` says who opened it (`process_identity.this_process`). The result is its opening.
    """
    job = state.job(job_id)
    known = job.owner_names.get(name)
    if known is not None:
        if known not in job.owners:
            raise AlreadyExistsError(_ended(job, name, known))
        return Decision([], {}, job.owners[known].opened)
    seq = job.seq + 1
    opened = f.AttemptOpened(
        job_id=job_id,
        seq=seq,
        attempt=token,
        checkpoint_id=None,
        purpose=Purpose.OWNER,
        epoch=None,
        parent_job_id=None,
        parent_checkpoint_id=None,
        name=name,
        note=process,
    )
    return Decision([opened], {job_key(job_id): seq}, opened)


def release_files(state: CatalogState, job_id: JobId, name: str, files: Sequence[OwnedFile]) -> Decision:
    """The owner needs these files no more. No more is said of those that are released already.

    A file that no checkpoint has referred to gets its row here, so that cleanup finds it by query.
    """
    job = state.job(job_id)
    token = _token(job, name)
    owned_files.require_written_by(job_id, name, token, files)
    owner = job.owners.get(token)
    todo = {file.file_id: file for file in files if owner is not None and file.file_id not in owner.released}
    if owner is None or not todo:
        return Decision([], {})
    seq = job.seq + 1
    rows = owned_files.stored(name, (file for file in todo.values() if file.file_id not in owner.rows))
    facts: list[f.Fact] = [*file_facts(job_id, seq, token, rows)]
    facts += [f.Released(job_id=job_id, seq=seq, attempt=token, file_id=file_id) for file_id in todo]
    return Decision(facts, {job_key(job_id): seq})


def release_owner(state: CatalogState, job_id: JobId, name: str, reason: str | None = None) -> Decision:
    """The owner ends, and with it all its files are released: those without a row are scrub's. No more is said of one that has ended."""
    job = state.job(job_id)
    token = _token(job, name)
    if token not in job.owners:
        return Decision([], {})
    seq = job.seq + 1
    return Decision([attempt_ended(job_id, seq, token, Status.RELEASED, reason)], {job_key(job_id): seq})


def _token(job: JobState, name: str) -> AttemptToken:
    token = job.owner_names.get(name)
    if token is None:
        names = ", ".join(sorted(repr(owner.opened.name) for owner in job.owners.values())) or "none"
        msg = f"job {job.name!r} never had an owner named {name!r}; open ones: {names} (the view owners lists them)"
        raise NotFoundError(msg)
    return token


def _ended(job: JobState, name: str, token: AttemptToken) -> str:
    return (
        f"job {job.name!r} has had an owner named {name!r} (attempt {token}), which was released: a name is never used again, because a "
        "release that is sent twice would end another's files; choose another"
    )
