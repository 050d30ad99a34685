"""The lifecycle transactions of checkpoints (design, section 5) as pure decisions: state in, facts and keys out, or why not, as an error.

Each decision is made against one snapshot and committed by compare-and-swap on the keys it names (`transactions.py`), so that what it
required still holds when it lands. A transaction that reads another job's checkpoint touches that job's key at its current version.
"""

from collections.abc import Sequence

from holdfast.catalog import facts as f
from holdfast.catalog.errors import AlreadyExistsError, AttemptEndedError, RefusedError
from holdfast.catalog.rules import decision, owned_files
from holdfast.catalog.rules.commit_facts import CommitRequest, ack_fact, checkpoint_fact, file_facts, manifest_handle, state_facts
from holdfast.catalog.rules.decision import Decision
from holdfast.catalog.rules.handles import handle_changes
from holdfast.catalog.rules.retention import retired, retired_by_claim
from holdfast.catalog.state import CatalogState, JobState, Ref
from holdfast.catalog.types import AttemptToken, CheckpointId, JobId, Purpose, Scope, Status, StoredFile


def open_checkpoint(state: CatalogState, job_id: JobId, epoch: int, token: AttemptToken, parent: Ref | None) -> Decision:
    """An attempt for the job's next checkpoint id on a live parent, which is pinned from here."""
    job = state.job(job_id)
    decision.require_newest_epoch(job, epoch, "open a checkpoint")
    if parent is not None:
        decision.require_live(state, parent, "build on")
    seq = job.seq + 1
    opened = decision.attempt_opened(job, seq, token, CheckpointId(job.last_checkpoint_id + 1), epoch, parent)
    return Decision([opened], decision.touched_keys(state, job_id, seq, parent), opened)


def open_reading(state: CatalogState, ref: Ref, token: AttemptToken, process: str | None = None) -> Decision:
    """A reading attempt that pins a live checkpoint until it is released; `process` says whose it is (`process_identity.this_process`)."""
    job = state.job(ref.job_id)
    decision.require_live(state, ref, "read")
    seq = job.seq + 1
    opened = f.AttemptOpened(
        job_id=ref.job_id,
        seq=seq,
        attempt=token,
        checkpoint_id=None,
        purpose=Purpose.READ,
        epoch=None,
        parent_job_id=ref.job_id,
        parent_checkpoint_id=ref.checkpoint_id,
        note=process,
    )
    return Decision([opened], {decision.job_key(ref.job_id): seq}, opened)


def commit_checkpoint(state: CatalogState, job_id: JobId, request: CommitRequest) -> Decision:
    """The commit of the design, section 5, step 4: all of it in one transaction, or an error and nothing."""
    job = state.job(job_id)
    attempt = decision.require_open(job, request.attempt, "commit")
    number = attempt.opened.checkpoint_id
    if number is None or number <= job.last_committed_id:
        msg = (
            f"checkpoint {number} of job {job.name!r} is not above {job.last_committed_id}, which was committed meanwhile: "
            "what it uploaded is garbage; continue from the newer one"
        )
        raise AttemptEndedError(msg)
    _require_own_or_inherited(job, request)
    if request.inherited and attempt.parent and state.checkpoint(attempt.parent).fact.is_savepoint:
        msg = f"attempt {request.attempt} of job {job.name!r} takes over chunks of a savepoint, whose files are its own: they are copied"
        raise RefusedError(msg)
    seq, parent = job.seq + 1, attempt.parent
    keys = {decision.job_key(job_id): seq}
    # What is open is what the last commit left open, so that after its parent's the two can differ only in what the request changed.
    among = request.touched if parent == Ref(job_id, CheckpointId(job.last_committed_id)) else None
    ends, added = handle_changes(job_id, seq, request.chunks, job.open_handles, among)
    committed = checkpoint_fact(job, attempt.opened, request, seq, new_handles=len(added))
    facts: list[f.Fact] = [
        committed,
        *state_facts(job_id, seq, number, request.states),
        *ends,
        *added,
        manifest_handle(job_id, seq, request),
    ]
    facts += file_facts(job_id, seq, request.attempt, (*request.files, request.manifest))
    facts += owned_files.first_rows(job, seq, request.owned)
    facts += [ack_fact(job_id, seq, ack) for ack in request.acks]
    facts.append(decision.attempt_ended(job_id, seq, request.attempt, Status.COMMITTED, None))
    facts += [
        decision.attempt_ended(job_id, seq, token, Status.ABORTED, f"checkpoint {number} was committed first")
        for token, other in job.open_attempts.items()
        if other.opened.purpose is Purpose.CHECKPOINT and (other.opened.checkpoint_id or 0) < number
    ]
    own_parent = parent.checkpoint_id if parent and parent.job_id == job_id else None
    if attempt.opened.epoch == job.epoch:
        dropped = retired(job, number, own_parent, seq, request.retention)
        facts += [f.Dropped(job_id=job_id, seq=seq, checkpoint_id=n, reason=str(request.retention)) for n in dropped]
        for claimed, numbers in retired_by_claim(state, job, parent, request.retention):
            keys[decision.job_key(claimed.job_id)] = claimed.seq + 1
            facts += [
                f.Dropped(job_id=claimed.job_id, seq=claimed.seq + 1, checkpoint_id=n, reason=f"{request.retention} of {job.name}")
                for n in numbers
            ]
    if request.next_attempt is not None:
        next_id = CheckpointId(job.last_checkpoint_id + 1)
        facts.append(decision.attempt_opened(job, seq, request.next_attempt, next_id, attempt.opened.epoch, Ref(job_id, number)))
    return Decision(facts, keys, committed)


def end_attempt(
    state: CatalogState,
    job_id: JobId,
    token: AttemptToken,
    status: Status,
    reason: str | None,
    files: Sequence[StoredFile] = (),
    next_attempt: AttemptToken | None = None,
) -> Decision:
    """Abort, kill or release an open attempt, but an owner; the files of acks that arrived become file rows without handles.

    `next_attempt` takes over its epoch, its parent and the pin on it: also of one that was dropped, for it was pinned all the time.
    """
    job = state.job(job_id)
    attempt = decision.require_open(job, token, "end")
    if attempt.opened.purpose is Purpose.OWNER:
        name = attempt.opened.name
        msg = (
            f"attempt {token} of job {job.name!r} is the owner {name!r} of files that a task may need: nothing but its release ends it. If "
            f"the task is gone for good, release it, catalog.release({job.name!r}, {name!r}) or `holdfast release`"
        )
        raise RefusedError(msg)
    seq = job.seq + 1
    facts: list[f.Fact] = [decision.attempt_ended(job_id, seq, token, status, reason), *file_facts(job_id, seq, token, files)]
    if next_attempt is None:
        return Decision(facts, {decision.job_key(job_id): seq})
    number = CheckpointId(job.last_checkpoint_id + 1)
    opened = decision.attempt_opened(job, seq, next_attempt, number, attempt.opened.epoch, attempt.parent)
    return Decision([*facts, opened], decision.touched_keys(state, job_id, seq, attempt.parent), opened)


def drop(state: CatalogState, ref: Ref, reason: str, epoch: int | None = None) -> Decision:
    """The checkpoint is no longer live. Refused while held, and for the head. With an epoch: by a coordinator's retention.

    A savepoint goes by `savepoints.dispose` alone.
    """
    job = state.job(ref.job_id)
    if epoch is not None:
        decision.require_newest_epoch(job, epoch, "drop a checkpoint")
    decision.require_live(state, ref, "drop")
    committed = state.checkpoint(ref).fact
    if committed.is_savepoint:
        msg = (
            f"checkpoint {ref.checkpoint_id} of job {job.name!r} is the savepoint {committed.name!r}, which is never dropped: "
            f"dispose of it, catalog.dispose({job.name!r}, {committed.name!r}) or `holdfast dispose`"
        )
        raise RefusedError(msg)
    decision.require_free(job, ref)
    seq = job.seq + 1
    fact = f.Dropped(job_id=ref.job_id, seq=seq, checkpoint_id=ref.checkpoint_id, reason=reason)
    return Decision([fact], {decision.job_key(ref.job_id): seq})


def hold(state: CatalogState, ref: Ref, name: str, note: str | None) -> Decision:
    """A named hold on a live checkpoint: neither retention nor drop takes it."""
    job = state.job(ref.job_id)
    decision.require_live(state, ref, "hold")
    if (ref.checkpoint_id, name) in job.holds:
        msg = f"checkpoint {ref.checkpoint_id} of job {job.name!r} already has a hold named {name!r}: choose another name"
        raise AlreadyExistsError(msg)
    seq = job.seq + 1
    fact = f.Held(job_id=ref.job_id, seq=seq, checkpoint_id=ref.checkpoint_id, hold=name, note=note)
    return Decision([fact], {decision.job_key(ref.job_id): seq})


def unhold(state: CatalogState, ref: Ref, name: str) -> Decision:
    """Ends a hold by its name."""
    job = state.job(ref.job_id)
    if (ref.checkpoint_id, name) not in job.holds:
        held = ", ".join(sorted(f"{hold!r} on {n}" for n, hold in job.holds)) or "none"
        msg = f"checkpoint {ref.checkpoint_id} of job {job.name!r} has no hold named {name!r}; its job's holds: {held}"
        raise RefusedError(msg)
    seq = job.seq + 1
    fact = f.Unheld(job_id=ref.job_id, seq=seq, checkpoint_id=ref.checkpoint_id, hold=name)
    return Decision([fact], {decision.job_key(ref.job_id): seq})


# ---- what must hold -------------------------------------------------------------------------------------------------


def _require_own_or_inherited(job: JobState, request: CommitRequest) -> None:
    """I2: a new handle is to a file of this attempt, to a chunk of its pinned parent, or to an unreleased file of an owner.

    An open handle does not do instead: of a branch that a rollback left, it may be the last thing that refers to a released file.
    """
    own = {file.file_id for file in request.files}
    for identity in request.fresh:
        chunk = request.chunks[identity]
        if chunk.file_id in own or chunk.inline is not None:
            continue
        if chunk.scope is Scope.TASKOWNED:
            owned_files.require_unreleased(job, request, chunk)
            continue
        msg = f"attempt {request.attempt} of job {job.name!r} refers to file {chunk.file_id}, neither its own nor of its pinned parent"
        raise RefusedError(msg)


# ---- facts ----------------------------------------------------------------------------------------------------------
