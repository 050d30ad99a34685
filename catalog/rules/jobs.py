"""A job's own transactions, as pure decisions like those of `checkpoints`: it is registered, its coordinators start, and it ends."""

from holdfast.catalog import facts as f
from holdfast.catalog.errors import AlreadyExistsError, RefusedError
from holdfast.catalog.rules import decision
from holdfast.catalog.rules.decision import Decision, attempt_ended, attempt_opened, job_key, touched_keys
from holdfast.catalog.state import CatalogState, JobState, Ref
from holdfast.catalog.types import MAX_PARALLELISM_LIMIT, AttemptToken, CheckpointId, JobId, OnEnd, Outcome, Status


def register(state: CatalogState, job_id: JobId, name: str, max_parallelism: int) -> Decision:
    """A new job. Registering carries its name as a key as well: one name never gets two jobs."""
    if (taken := state.find_named(name)) is not None:
        msg = f"the catalog already has a job named {name!r} ({taken.job_id}): coordinate it, or choose another name"
        raise AlreadyExistsError(msg)
    if state.find(job_id) is not None:
        msg = f"the id {job_id} for job {name!r} is taken: call again, which takes another id"
        raise AlreadyExistsError(msg)
    if not 1 <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        msg = f"job {name!r} cannot have max_parallelism={max_parallelism}: give 1 to {MAX_PARALLELISM_LIMIT}"
        raise RefusedError(msg)
    fact = f.JobRegistered(job_id=job_id, seq=1, job=name, max_parallelism=max_parallelism)
    return Decision([fact], {job_key(job_id): 1, _name_key(name): 1}, job_id)


def _name_key(name: str) -> str:
    """What two registrations of one name meet by. Braces would look like the end of an entry of the log (`delta_entry`)."""
    return f"holdfast/name/{name.replace('}', '%7D')}"


def start(
    state: CatalogState,
    job_id: JobId,
    begin: Ref | None,
    *,
    claim: bool = False,
    first: AttemptToken | None = None,
    source: Ref | None = None,
) -> Decision:
    """A coordinator's start: a new epoch that begins with `begin`; ends the open attempts of older epochs and no others.

    With `claim`, the job of `begin` gets a new epoch as well, which fences its coordinator, and this job's retention owns its
    checkpoints from here, until a coordinator of its own starts. Every later start of this job raises the epochs of all it has claimed.
    `first` is opened at once, and pins `begin`, or the `source` that is copied: what is another job's goes at no version unpinned.
    """
    job, keys = state.job(job_id), touched_keys(state, job_id, state.job(job_id).seq + 1, begin)
    if begin is not None:
        decision.require_live(state, begin, "begin with")
        if state.checkpoint(begin).fact.is_savepoint:
            msg = f"job {job.name!r} cannot continue from a savepoint itself ({begin.checkpoint_id} of {begin.job_id}): it is copied first"
            raise RefusedError(msg)
    claimed = state.claimed_by(job_id)
    if claim and begin is not None and begin.job_id != job_id and state.job(begin.job_id) not in claimed:
        claimed.append(state.job(begin.job_id))
    facts = _epoch(job, begin, None)
    for other in claimed:
        facts += _epoch(other, other.begin, job_id)
        keys[job_key(other.job_id)] = other.seq + 1
    if first is not None:
        pinned = source or begin
        if pinned is not None:
            decision.require_live(state, pinned, "build on")
            keys = {**touched_keys(state, job_id, job.seq + 1, pinned), **keys}
        facts.append(attempt_opened(job, job.seq + 1, first, CheckpointId(job.last_checkpoint_id + 1), job.epoch + 1, pinned))
    return Decision(facts, keys, job.epoch + 1)


def _epoch(job: JobState, begin: Ref | None, claimed_by: JobId | None) -> list[f.Fact]:
    seq, epoch = job.seq + 1, job.epoch + 1
    started = f.Started(
        job_id=job.job_id,
        seq=seq,
        epoch=epoch,
        parent_job_id=begin.job_id if begin else None,
        parent_checkpoint_id=begin.checkpoint_id if begin else None,
        claimed_by=claimed_by,
    )
    why = f"epoch {epoch} started" if claimed_by is None else f"job {claimed_by} claimed it with epoch {epoch}"
    ended = [
        attempt_ended(job.job_id, seq, token, Status.KILLED, why)
        for token, attempt in job.open_attempts.items()
        if attempt.opened.epoch is not None
    ]
    return [started, *ended]


def end_job(state: CatalogState, job_id: JobId, epoch: int, outcome: Outcome, reason: str | None, on_end: OnEnd) -> Decision:
    """The program is done. Its checkpoints stay, or go where the policy names the outcome, and with them those of the jobs that it has
    claimed; held ones and savepoints always stay."""
    job = state.job(job_id)
    decision.require_newest_epoch(job, epoch, "end the job")
    seq = job.seq + 1
    keys = {job_key(job_id): seq}
    facts: list[f.Fact] = [f.JobEnded(job_id=job_id, seq=seq, outcome=outcome, reason=reason)]
    facts += [
        attempt_ended(job_id, seq, token, Status.ABORTED, f"the job has {outcome}")
        for token, attempt in job.open_attempts.items()
        if attempt.opened.epoch is not None
    ]
    if outcome in on_end.drop:
        for owned in (job, *state.claimed_by(job_id)):
            keys[job_key(owned.job_id)] = owned.seq + 1
            facts += [
                f.Dropped(job_id=owned.job_id, seq=owned.seq + 1, checkpoint_id=n, reason=f"the job {job.name} has {outcome}")
                for n, _ in owned.droppable()
            ]
    return Decision(facts, keys, None)
