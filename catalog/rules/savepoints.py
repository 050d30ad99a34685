"""The lifecycle of savepoints, as pure decisions (design, sections 1, 3 and 5).

A savepoint is the user's: self-contained, never dropped by retention. It shares the counter of checkpoint ids and nothing else with
the job's line: its handles are its own, it neither opens nor ends any interval of the line, and it carries no epoch.
"""

from holdfast.catalog import facts as f
from holdfast.catalog.errors import AlreadyExistsError, RefusedError
from holdfast.catalog.rules import decision
from holdfast.catalog.rules.commit_facts import CommitRequest, ack_fact, checkpoint_fact, file_facts, manifest_handle, state_facts
from holdfast.catalog.rules.decision import Decision, attempt_ended, job_key
from holdfast.catalog.rules.handles import handle
from holdfast.catalog.state import CatalogState, JobState, Ref
from holdfast.catalog.types import AttemptToken, CheckpointId, Purpose, Scope, Status


def open_savepoint(state: CatalogState, ref: Ref, token: AttemptToken, name: str, process: str | None = None) -> Decision:
    """An attempt for a savepoint of a live checkpoint, which is pinned from here. Its name is taken for ever.

    `process` says whose it is (`process_identity.this_process`), so that it is found and ended if that dies.
    """
    job = state.job(ref.job_id)
    if name in job.savepoints:
        raise AlreadyExistsError(taken(job, name))
    decision.require_live(state, ref, "take a savepoint of")
    seq = job.seq + 1
    opened = f.AttemptOpened(
        job_id=ref.job_id,
        seq=seq,
        attempt=token,
        checkpoint_id=CheckpointId(job.last_checkpoint_id + 1),
        purpose=Purpose.SAVEPOINT,
        epoch=None,
        parent_job_id=ref.job_id,
        parent_checkpoint_id=ref.checkpoint_id,
        name=name,
        note=process,
    )
    return Decision([opened], {job_key(ref.job_id): seq}, opened)


def taken(job: JobState, name: str) -> str:
    """By what a name is taken, and what to do: a sentence for an error."""
    token = job.savepoints[name]
    attempt = job.attempts[token]
    if attempt.status is Status.COMMITTED:
        return f"job {job.name!r} has had a savepoint named {name!r} (attempt {token}): a name is never used again: choose another"
    if attempt.status is Status.OPEN:
        who = attempt.opened.note or "an unknown process"
        return f"savepoint {name!r} of job {job.name!r} is being taken (attempt {token} of {who}): wait, or kill it and give another name"
    why = f" ({attempt.reason})" if attempt.reason else ""
    return (
        f"savepoint {name!r} of job {job.name!r} was tried and {attempt.status}{why}, attempt {token}; a name is never used again: "
        "take another"
    )


def dispose(state: CatalogState, ref: Ref, *, deletes_now: bool) -> Decision:
    """The savepoint is no longer live: the one way it goes. Refused while held; no more is said of one that is dropped.

    `deletes_now` is for one outside the catalog, whose files no pin protects from the deletion that follows: refused while it is read.
    """
    job, row = state.job(ref.job_id), state.checkpoint(ref)
    if not row.fact.is_savepoint:
        msg = f"checkpoint {ref.checkpoint_id} of job {job.name!r} is not a savepoint: drop it"
        raise RefusedError(msg)
    if deletes_now:
        _require_unread(state, ref, f"savepoint {row.fact.name!r} of job {job.name!r}")
    if not row.live:
        return Decision([], {})
    decision.require_free(job, ref)
    seq = job.seq + 1
    fact = f.Dropped(job_id=ref.job_id, seq=seq, checkpoint_id=ref.checkpoint_id, reason="disposed")
    return Decision([fact], {job_key(ref.job_id): seq})


def _require_unread(state: CatalogState, ref: Ref, what: str) -> None:
    for job in state.whole().jobs.values():  # each of their pins carries the key of the savepoint's job
        for token, attempt in job.open_attempts.items():
            if attempt.parent == ref:
                who = f" of {attempt.opened.note}" if attempt.opened.note else ""
                msg = (
                    f"{what} is being read: attempt {token} of job {job.name!r} ({attempt.opened.purpose}{who}) pins it, and its files "
                    "would be deleted at once. Close its reader, or kill the attempt, then dispose of it"
                )
                raise RefusedError(msg)


def commit_savepoint(state: CatalogState, ref: Ref, request: CommitRequest, *, is_outside: bool) -> Decision:
    """The savepoint's own handles and files, all EXCLUSIVE. One outside the catalog is a row with its address and no more: its files
    are no cleaner's business."""
    job = state.job(ref.job_id)
    attempt = decision.require_open(job, request.attempt, "commit")
    shared = [chunk.file_id for chunk in request.content if chunk.scope is not Scope.EXCLUSIVE]
    if shared or request.inherited:
        msg = f"savepoint {attempt.opened.name!r} of job {job.name!r} is not self-contained: {shared or 'it inherits chunks'}"
        raise RefusedError(msg)
    number = attempt.opened.checkpoint_id
    assert number is not None
    seq = job.seq + 1
    committed = checkpoint_fact(job, attempt.opened, request, seq, new_handles=0 if is_outside else len(request.content))
    facts: list[f.Fact] = [committed, *state_facts(job.job_id, seq, number, request.states)]
    if not is_outside:
        facts += [handle(job.job_id, seq, chunk, savepoint=request.attempt) for chunk in request.content]
        facts.append(manifest_handle(job.job_id, seq, request, savepoint=request.attempt))
        facts += file_facts(job.job_id, seq, request.attempt, (*request.files, request.manifest))
    facts += [ack_fact(job.job_id, seq, ack) for ack in request.acks]
    facts.append(attempt_ended(job.job_id, seq, request.attempt, Status.COMMITTED, None))
    return Decision(facts, {job_key(job.job_id): seq}, committed)
