"""The orphan rule of scrub: what an object in storage is to the ledger (design, section 4). Pure, but for what it asks of the past."""

import hashlib
import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from holdfast.catalog import facts as f
from holdfast.catalog import paths
from holdfast.catalog.ledger import History, Ledger
from holdfast.catalog.schema import FactColumns
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


Past = Callable[[AttemptToken], f.AttemptOpened | None]
"""The opening of an attempt that has ended and that the state may have forgotten (design, section 4b); None: it was never told of."""


def nothing_forgotten(_: AttemptToken) -> None:
    """Of a ledger that was never folded, by a process that remembers all of it."""


def past_of(ledger: Ledger, history: History) -> Past:
    """What the ledger at its held snapshot and its history say together of attempts that have ended; read at the first question.

    The history is believed up to the ledger's own fold and no further: beside a ledger that was restored from a backup it would know the
    newer state's tokens, and call that state's files orphans. It must have been refreshed after the ledger's snapshot was taken.
    """

    @cache
    def recent() -> dict[AttemptToken, f.AttemptOpened]:
        facts = ledger.scan([f.AttemptOpened.kind, f.AttemptEnded.kind])
        opened = {fact.attempt: fact for fact in facts if isinstance(fact, f.AttemptOpened)}
        return {fact.attempt: opened[fact.attempt] for fact in facts if isinstance(fact, f.AttemptEnded)}

    @cache
    def old() -> "_ByToken":
        return _ByToken(history.ended_attempts(ledger.folded_to))

    return lambda token: recent().get(token) or old().find(token)


class _ByToken:
    """Openings of attempts, found by their tokens: as columns, for years of attempts would be gigabytes of objects."""

    def __init__(self, openings: FactColumns) -> None:
        self._openings, self._tokens = openings, openings.column("attempt").combine_chunks() if openings else []

    def find(self, token: AttemptToken) -> f.AttemptOpened | None:
        at = bisect_left(range(len(self._tokens)), token, key=lambda n: self._tokens[n].as_py())
        found = self._openings[at] if at < len(self._tokens) else None
        return found if isinstance(found, f.AttemptOpened) and found.attempt == token else None


class KnownPaths:
    """Paths of file rows, 8 bytes each: 10 million take 80 MB, and as texts more than a gigabyte.

    What it has is always found. Of what it has not, one in 10^12 may be found too: such an orphan stays, and harms nobody.
    """

    HASH_IN_SQL = "md5_number_lower(path)"

    def __init__(self, ascending: Iterable[int]) -> None:
        self._hashes = array("Q", ascending)

    def __contains__(self, path: object) -> bool:
        if not isinstance(path, str):
            return False
        wanted = int.from_bytes(hashlib.md5(os.fsencode(path), usedforsecurity=False).digest()[8:], "little")
        at = bisect_left(self._hashes, wanted)
        return at < len(self._hashes) and self._hashes[at] == wanted


@dataclass(slots=True)
class OrphanRule:
    """The rule of scrub over one snapshot of the ledger, read after the listing (I3), and over what that snapshot has forgotten."""

    attempts: dict[AttemptToken, tuple[f.AttemptOpened, Status]]
    last_ids: dict[JobId, int]  # ids of checkpoints are given without a gap, each to one attempt
    open_ids: set[tuple[JobId, int]]  # of attempts that are open
    present: Container[str]  # paths of file rows that are not gone
    past: Past = nothing_forgotten

    @classmethod
    def over(cls, state: CatalogState, present: Container[str], past: Past = nothing_forgotten) -> "OrphanRule":
        jobs = state.whole().jobs.values()
        attempts = {token: (attempt.opened, attempt.status) for job in jobs for token, attempt in job.attempts.items()}
        opened = [attempt.opened for job in jobs for attempt in job.open_attempts.values()]
        open_ids = {(each.job_id, int(each.checkpoint_id)) for each in opened if each.checkpoint_id is not None}
        return cls(attempts, {job.job_id: job.last_checkpoint_id for job in jobs}, open_ids, present, past)

    def judge(self, path: str) -> Verdict:
        """The verdict on one object or directory by its path."""
        parsed = paths.parse(path)
        if isinstance(parsed, paths.InternalPath):
            return Verdict.INTERNAL
        if isinstance(parsed, paths.ForeignPath):
            return Verdict.FOREIGN
        if path in self.present:
            return Verdict.KNOWN
        if isinstance(parsed, paths.ChkPath):
            number = int(parsed.checkpoint_id)
            if not 1 <= number <= self.last_ids.get(parsed.job_id, 0):
                return Verdict.UNKNOWN_TOKEN
            return Verdict.IN_FLIGHT if (parsed.job_id, number) in self.open_ids else Verdict.ORPHAN
        known = self.attempt(parsed.attempt)
        if known is None or known[0].job_id != parsed.job_id:
            return Verdict.UNKNOWN_TOKEN
        opened, status = known
        if (parsed.checkpoint_id, parsed.name) != _place_of(opened):
            return Verdict.FOREIGN  # somebody copied or renamed what the attempt had written
        return Verdict.IN_FLIGHT if status is Status.OPEN else Verdict.ORPHAN

    def judge_manifest(self, path: paths.ChkPath, token: AttemptToken) -> Verdict:
        """The verdict on the manifest of an ended attempt, by the token in it: `chk-<n>` has none."""
        known = self.attempt(token)
        if known is None:
            return Verdict.UNKNOWN_TOKEN
        own = (known[0].job_id, known[0].checkpoint_id) == (path.job_id, path.checkpoint_id)
        return Verdict.ORPHAN if own else Verdict.FOREIGN

    def attempt(self, token: AttemptToken) -> tuple[f.AttemptOpened, Status] | None:
        """How an attempt was opened and where it stands; one that is forgotten has ended."""
        found = self.attempts.get(token)
        if found is not None:
            return found
        opened = self.past(token)
        return None if opened is None else (opened, Status.ABORTED)


def _place_of(opened: f.AttemptOpened) -> tuple[CheckpointId | None, str | None]:
    """What the paths of an attempt say alongside its token: see `paths.AttemptPath`."""
    if opened.purpose is Purpose.SAVEPOINT:
        return None, paths.slug(str(opened.name))
    if opened.purpose is Purpose.OWNER:
        return paths.NO_CHECKPOINT, paths.slug(str(opened.name))
    return opened.checkpoint_id, None
