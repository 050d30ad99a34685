"""What every decision is made of: its facts and keys, and what must hold before it (design, section 5). Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.catalog import facts as f
from holdfast.catalog.errors import AttemptEndedError, FencedError, RefusedError
from holdfast.catalog.state import Attempt, CatalogState, JobState, Ref
from holdfast.catalog.types import AttemptToken, CheckpointId, JobId, Purpose, Status


@dataclass(frozen=True, slots=True)
class Decision:
    """Facts to append and the keys whose versions must not have moved. `result` is returned to the caller once it is committed."""

    facts: Sequence[f.Fact]
    keys: Mapping[str, int]
    result: Any = None


def job_key(job_id: JobId) -> str:
    return f"holdfast/job/{job_id}"


def require_free(job: JobState, ref: Ref) -> None:
    """Raises RefusedError for a checkpoint that is held, and for the head."""
    if job.is_held(ref.checkpoint_id):
        names = ", ".join(sorted(name for n, name in job.holds if n == ref.checkpoint_id))
        msg = f"checkpoint {ref.checkpoint_id} of job {job.name!r} is held by {names}: unhold it first"
        raise RefusedError(msg)
    if ref.checkpoint_id == job.head:
        msg = (
            f"checkpoint {ref.checkpoint_id} is the head of job {job.name!r}, which the job continues from: "
            "it can be dropped after another is committed"
        )
        raise RefusedError(msg)


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
    if attempt is None and job.folded_id:
        msg = f"cannot {what} attempt {token} of job {job.name!r}: it has ended long ago, or was never opened; begin another"
        raise AttemptEndedError(msg)
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
