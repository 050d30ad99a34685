"""The orphan rule of scrub: what an object in storage is to the ledger (design, section 4). Pure."""

from dataclasses import dataclass
from enum import StrEnum

from holdfast.catalog import facts as f
from holdfast.catalog import paths
from holdfast.catalog.state import CatalogState
from holdfast.catalog.types import AttemptToken, CheckpointId, JobId, Purpose, Status


class Verdict(StrEnum):
    """What an object in storage is to the ledger."""

    KNOWN = "known"  # has a file row that is not gone
    IN_FLIGHT = "in flight"  # its attempt is open
    ORPHAN = "orphan"  # its attempt has ended, and it has no file row or a gone one
    FOREIGN = "foreign"  # not one of our names, or not the name that its attempt gives
    UNKNOWN_TOKEN = "unknown token"  # well-formed, but the ledger never knew it
    INTERNAL = "internal"  # the marker and the ledger itself


@dataclass(slots=True)
class OrphanRule:
    """The rule of scrub over one snapshot of the ledger, read after the listing (I3)."""

    attempts: dict[AttemptToken, tuple[f.AttemptOpened, Status]]
    attempt_of_checkpoint: dict[tuple[JobId, int], AttemptToken]
    present: set[str]  # paths of file rows that are not gone

    @classmethod
    def over(cls, state: CatalogState, present: set[str]) -> "OrphanRule":
        attempts, of_checkpoint = {}, {}
        for job in state.jobs.values():
            for token, attempt in job.attempts.items():
                attempts[token] = (attempt.opened, attempt.status)
                if attempt.opened.checkpoint_id is not None:
                    of_checkpoint[job.job_id, int(attempt.opened.checkpoint_id)] = token
        return cls(attempts, of_checkpoint, present)

    def judge(self, path: str) -> Verdict:
        """The verdict on one object or directory by its path."""
        parsed = paths.parse(path)
        if isinstance(parsed, paths.InternalPath):
            return Verdict.INTERNAL
        if isinstance(parsed, paths.ForeignPath):
            return Verdict.FOREIGN
        if isinstance(parsed, paths.ChkPath):
            token = self.attempt_of_checkpoint.get((parsed.job_id, int(parsed.checkpoint_id)))
        else:
            token = parsed.attempt
        known = self.attempts.get(token) if token is not None else None
        if known is None or known[0].job_id != parsed.job_id:
            return Verdict.UNKNOWN_TOKEN
        if path in self.present:
            return Verdict.KNOWN
        opened, status = known
        if isinstance(parsed, paths.AttemptPath) and (parsed.checkpoint_id, parsed.name) != _place_of(opened):
            return Verdict.FOREIGN  # somebody copied or renamed what the attempt had written
        return Verdict.IN_FLIGHT if status is Status.OPEN else Verdict.ORPHAN


def _place_of(opened: f.AttemptOpened) -> tuple[CheckpointId | None, str | None]:
    """What the paths of an attempt say alongside its token: see `paths.AttemptPath`."""
    if opened.purpose is Purpose.SAVEPOINT:
        return None, paths.slug(str(opened.name))
    if opened.purpose is Purpose.OWNER:
        return paths.NO_CHECKPOINT, paths.slug(str(opened.name))
    return opened.checkpoint_id, None
