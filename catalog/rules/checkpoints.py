"""The lifecycle transactions of checkpoints (design, section 5) as pure decisions: state in, facts and keys out, or why not, as an error.

Each decision is made against one snapshot and committed by compare-and-swap on the keys it names (`transactions.py`), so that what it
required still holds when it lands. A transaction that reads another job's checkpoint touches that job's key at its current version.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.catalog import facts as f
from holdfast.catalog.errors import AlreadyExistsError, AttemptEndedError, FencedError, RefusedError
from holdfast.catalog.rules import owned_files
from holdfast.catalog.rules.commit_facts import CommitRequest, ack_fact, checkpoint_fact, file_facts, manifest_handle, state_facts
from holdfast.catalog.rules.handles import handle_changes, retired, retired_by_claim
from holdfast.catalog.state import Attempt, CatalogState, JobState, Ref
from holdfast.catalog.types import AttemptToken, CheckpointId, JobId, Purpose, Scope, Status, StoredFile


@dataclass(frozen=True, slots=True)
class Transaction:
    """Facts to append and the keys whose versions must not have moved. `result` is told to the caller once it is committed."""

    facts: Sequence[f.Fact]
    keys: Mapping[str, int]
    result: Any = None


def job_key(job_id: JobId) -> str:
    return f"holdfast/job/{job_id}"


def open_checkpoint(state: CatalogState, job_id: JobId, epoch: int, token: AttemptToken, parent: Ref | None) -> Transaction:
    """An attempt for the job's next checkpoint id on a live parent, which is pinned from here."""
    job = state.job(job_id)
    require_newest_epoch(job, epoch, "open a checkpoint")
    if parent is not None:
        require_live(state, parent, "build on")
    seq = job.seq + 1
    opened = attempt_opened(job, seq, token, CheckpointId(job.last_checkpoint_id + 1), epoch, parent)
    return Transaction([opened], touched_keys(state, job_id, seq, parent), opened)


def open_reading(state: CatalogState, ref: Ref, token: AttemptToken, process: str | None = None) -> Transaction:
    """A reading attempt that pins a live checkpoint until it is released; `process` says whose it is (`processes.this_process`)."""
    job = state.job(ref.job_id)
    require_live(state, ref, "read")
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
    return Transaction([opened], {job_key(ref.job_id): seq}, opened)


def commit_checkpoint(state: CatalogState, job_id: JobId, request: CommitRequest) -> Transaction:
    """The commit of design section 5, step 4: all of it in one transaction, or an error and nothing."""
    job = state.job(job_id)
    attempt = require_open(job, request.attempt, "commit")
    number = attempt.opened.checkpoint_id
    if number is None or number <= job.last_committed_id:
        msg = (
            f"checkpoint {number} of job {job.name!r} is not above {job.last_committed_id}, which was committed meanwhile: "
            "what it uploaded is garbage; go on from the newer one"
        )
        raise AttemptEndedError(msg)
    _require_own_or_inherited(job, request)
    if request.inherited and attempt.parent and state.checkpoint(attempt.parent).fact.is_savepoint:
        msg = f"attempt {request.attempt} of job {job.name!r} takes over chunks of a savepoint, whose files are its own: they are copied"
        raise RefusedError(msg)
    seq, parent = job.seq + 1, attempt.parent
    keys = {job_key(job_id): seq}
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
    facts.append(attempt_ended(job_id, seq, request.attempt, Status.COMMITTED, None))
    facts += [
        attempt_ended(job_id, seq, token, Status.ABORTED, f"checkpoint {number} was committed first")
        for token, other in job.open_attempts.items()
        if other.opened.purpose is Purpose.CHECKPOINT and (other.opened.checkpoint_id or 0) < number
    ]
    own_parent = parent.checkpoint_id if parent and parent.job_id == job_id else None
    if attempt.opened.epoch == job.epoch:
        dropped = retired(job, number, own_parent, seq, request.retention)
        facts += [f.Dropped(job_id=job_id, seq=seq, checkpoint_id=n, reason=str(request.retention)) for n in dropped]
        for claimed, numbers in retired_by_claim(state, job, parent, request.retention):
            keys[job_key(claimed.job_id)] = claimed.seq + 1
            facts += [
                f.Dropped(job_id=claimed.job_id, seq=claimed.seq + 1, checkpoint_id=n, reason=f"{request.retention} of {job.name}")
                for n in numbers
            ]
    if request.next_attempt is not None:
        next_id = CheckpointId(job.last_checkpoint_id + 1)
        facts.append(attempt_opened(job, seq, request.next_attempt, next_id, attempt.opened.epoch, Ref(job_id, number)))
    return Transaction(facts, keys, committed)


def end_attempt(
    state: CatalogState,
    job_id: JobId,
    token: AttemptToken,
    status: Status,
    reason: str | None,
    files: Sequence[StoredFile] = (),
    next_attempt: AttemptToken | None = None,
) -> Transaction:
    """Abort, kill or release an open attempt, but an owner; the files of acks that arrived become file rows without handles.

    `next_attempt` takes over its epoch, its parent and the pin on it: also of one that was dropped, for it was pinned all the time.
    """
    job = state.job(job_id)
    attempt = require_open(job, token, "end")
    if attempt.opened.purpose is Purpose.OWNER:
        name = attempt.opened.name
        msg = (
            f"attempt {token} of job {job.name!r} is the owner {name!r} of files that a task may need: nothing but its release ends it. If "
            f"the task is gone for good, release it, catalog.release({job.name!r}, {name!r}) or `holdfast release`"
        )
        raise RefusedError(msg)
    seq = job.seq + 1
    facts: list[f.Fact] = [attempt_ended(job_id, seq, token, status, reason), *file_facts(job_id, seq, token, files)]
    if next_attempt is None:
        return Transaction(facts, {job_key(job_id): seq})
    number = CheckpointId(job.last_checkpoint_id + 1)
    opened = attempt_opened(job, seq, next_attempt, number, attempt.opened.epoch, attempt.parent)
    return Transaction([*facts, opened], touched_keys(state, job_id, seq, attempt.parent), opened)


def drop(state: CatalogState, ref: Ref, reason: str, epoch: int | None = None) -> Transaction:
    """The checkpoint is no longer live. Refused while held, and for the head. With an epoch: by a coordinator's retention.

    A savepoint goes by `savepoints.dispose` alone.
    """
    job = state.job(ref.job_id)
    if epoch is not None:
        require_newest_epoch(job, epoch, "drop a checkpoint")
    require_live(state, ref, "drop")
    committed = state.checkpoint(ref).fact
    if committed.is_savepoint:
        msg = (
            f"checkpoint {ref.checkpoint_id} of job {job.name!r} is the savepoint {committed.name!r}, which is never dropped: "
            f"dispose of it, catalog.dispose({job.name!r}, {committed.name!r}) or `holdfast dispose`"
        )
        raise RefusedError(msg)
    require_free(job, ref)
    seq = job.seq + 1
    fact = f.Dropped(job_id=ref.job_id, seq=seq, checkpoint_id=ref.checkpoint_id, reason=reason)
    return Transaction([fact], {job_key(ref.job_id): seq})


def require_free(job: JobState, ref: Ref) -> None:
    """Raises RefusedError for a checkpoint that is held, and for the head."""
    if job.is_held(ref.checkpoint_id):
        names = ", ".join(sorted(name for n, name in job.holds if n == ref.checkpoint_id))
        msg = f"checkpoint {ref.checkpoint_id} of job {job.name!r} is held by {names}: unhold it first"
        raise RefusedError(msg)
    if ref.checkpoint_id == job.head:
        msg = (
            f"checkpoint {ref.checkpoint_id} is the head of job {job.name!r}, which the job continues from: "
            "it can go after another is committed"
        )
        raise RefusedError(msg)


def hold(state: CatalogState, ref: Ref, name: str, note: str | None) -> Transaction:
    """A named hold on a live checkpoint: neither retention nor drop takes it."""
    job = state.job(ref.job_id)
    require_live(state, ref, "hold")
    if (ref.checkpoint_id, name) in job.holds:
        msg = f"checkpoint {ref.checkpoint_id} of job {job.name!r} already has a hold named {name!r}: choose another name"
        raise AlreadyExistsError(msg)
    seq = job.seq + 1
    fact = f.Held(job_id=ref.job_id, seq=seq, checkpoint_id=ref.checkpoint_id, hold=name, note=note)
    return Transaction([fact], {job_key(ref.job_id): seq})


def unhold(state: CatalogState, ref: Ref, name: str) -> Transaction:
    """Ends a hold by its name."""
    job = state.job(ref.job_id)
    if (ref.checkpoint_id, name) not in job.holds:
        held = ", ".join(sorted(f"{hold!r} on {n}" for n, hold in job.holds)) or "none"
        msg = f"checkpoint {ref.checkpoint_id} of job {job.name!r} has no hold named {name!r}; its job's holds: {held}"
        raise RefusedError(msg)
    seq = job.seq + 1
    fact = f.Unheld(job_id=ref.job_id, seq=seq, checkpoint_id=ref.checkpoint_id, hold=name)
    return Transaction([fact], {job_key(ref.job_id): seq})


# ---- what must hold -------------------------------------------------------------------------------------------------


def require_newest_epoch(job: JobState, epoch: int, what: str) -> None:
    """Raises FencedError unless `epoch` is the job's newest."""
    if epoch != job.epoch:
        msg = f"coordinator of epoch {epoch} cannot {what} of job {job.name!r}: epoch {job.epoch} has started since; stop this process"
        raise FencedError(msg)


def require_live(state: CatalogState, ref: Ref, what: str) -> None:
    """Raises RefusedError for a checkpoint that was dropped, NotFoundError for none."""
    row = state.checkpoint(ref)
    if not row.live:
        job = state.job(ref.job_id)
        live = ", ".join(str(n) for n in sorted(job.live)) or "none"
        msg = f"cannot {what} checkpoint {ref.checkpoint_id} of job {job.name!r}: it was dropped; live ones: {live}"
        raise RefusedError(msg)


def require_open(job: JobState, token: AttemptToken, what: str) -> Attempt:
    """The attempt. Raises AttemptEndedError, or FencedError where a newer epoch ended it."""
    attempt = job.attempts.get(token)
    if attempt is None:
        msg = f"job {job.name!r} never opened attempt {token}: nothing can be committed without an opening"
        raise RefusedError(msg)
    if attempt.status is Status.OPEN:
        return attempt
    number, why = attempt.opened.checkpoint_id, f" ({attempt.reason})" if attempt.reason else ""
    if attempt.opened.epoch is not None and attempt.opened.epoch < job.epoch:
        msg = (
            f"cannot {what} checkpoint {number} of job {job.name!r}: epoch {job.epoch} fenced epoch {attempt.opened.epoch}; "
            "stop this process"
        )
        raise FencedError(msg)
    msg = f"cannot {what} checkpoint {number} of job {job.name!r}: its attempt {token} is already {attempt.status}{why}; begin another"
    raise AttemptEndedError(msg)


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


def touched_keys(state: CatalogState, job_id: JobId, seq: int, read: Ref | None) -> dict[str, int]:
    touched = {job_key(read.job_id): state.job(read.job_id).seq} if read is not None and read.job_id != job_id else {}
    return {job_key(job_id): seq, **touched}


def attempt_opened(
    job: JobState, seq: int, token: AttemptToken, number: CheckpointId, epoch: int | None, parent: Ref | None
) -> f.AttemptOpened:
    return f.AttemptOpened(
        job_id=job.job_id,
        seq=seq,
        attempt=token,
        checkpoint_id=number,
        purpose=Purpose.CHECKPOINT,
        epoch=epoch,
        parent_job_id=parent.job_id if parent else None,
        parent_checkpoint_id=parent.checkpoint_id if parent else None,
    )


def attempt_ended(job_id: JobId, seq: int, token: AttemptToken, status: Status, reason: str | None) -> f.AttemptEnded:
    """The one end of an attempt."""
    return f.AttemptEnded(job_id=job_id, seq=seq, attempt=token, status=status, reason=reason)
