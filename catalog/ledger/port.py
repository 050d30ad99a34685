"""The ledger port: an append-only log of commits with a compare-and-swap per key. Adapters: `delta`, `memory`.

A handle stands at one version, its snapshot. `append` is validated by the adapter against that snapshot alone: it fails if any
commit since carries one of the same keys. It never moves the snapshot; only `refresh` does, and it reports what it passed over.
Callers hold one lock over refresh, validate and append (design, section 5).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from holdfast.catalog.facts import Fact
from holdfast.catalog.schema import Operation


class LedgerConflictError(Exception):
    """A commit with one of the same keys came after the handle's snapshot, or so it says: look for your own operation first."""


class SnapshotLostError(Exception):
    """Commits between the snapshot and the newest version are no longer in the log: read the whole snapshot again."""


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """One commit that a refresh passed over. `facts` reads its rows when called: only a caller that needs them pays."""

    version: int
    operation_id: str | None
    keys: frozenset[str]
    facts: Callable[[], Sequence[Fact]]


class Ledger(Protocol):
    """Duties of a ledger adapter."""

    @property
    def version(self) -> int:
        """The version of the held snapshot; an empty ledger stands at 0."""

    def refresh(self) -> Sequence[LoggedCommit]:
        """Move the snapshot to the newest version; returns every commit in between, own ones included, oldest first.

        Commits without data change (compaction) are left out.
        Raises:
            SnapshotLostError: the log was cleaned above the old snapshot; the snapshot has moved, read it with `scan`.
            FencedError: another ledger stands at this place.
        """

    def turn(self) -> AbstractContextManager[object]:
        """Wait for one's turn among the committers that are known of, for the block. It decides nothing: it saves lost races."""

    def mend(self) -> Sequence[str]:
        """Before the first append: make whole what a loss of power left torn, where opening found it so; what was mended, and why."""

    def append(self, facts: Sequence[Fact], *, keys: Mapping[str, int], operation: Operation) -> None:
        """Commit the facts as one transaction that carries `keys` (app id -> version) and the operation's id.

        Durable before it is committed: the data file, then its directory. Commits since the snapshot that carry none of the keys are
        passed over, however many they are. Any exception leaves the outcome unknown.
        Raises:
            LedgerConflictError: another commit since the snapshot carries one of the keys, or every race was lost for too long.
            SnapshotLostError: the commits since the snapshot are no longer in the log.
            FencedError: another ledger stands at this place.
            AddressError: none does.
        """

    def make_durable(self) -> None:
        """Make every commit up to the held snapshot, other writers' included, survive power loss: commit files, then the log directory."""

    def scan(self, kinds: Iterable[str] | None = None, job_id: str | None = None, scope: str | None = None) -> Sequence[Fact]:
        """The facts at the held snapshot; if given, only of these kinds, of this job and of this scope (facts without one left out).

        Of two commits with a key in common the earlier one's come first, unless compaction has moved rows: fold by `seq`.
        """

    def has_operation(self, operation_id: str) -> bool:
        """Whether a row of the held snapshot carries this operation id; for when the log no longer has it."""
