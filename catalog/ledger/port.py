"""The ports of the ledger, an append-only log of commits with a compare-and-swap per key, and of its history. Adapters: `delta`, `memory`.

A handle stands at one version, its snapshot. `append` is validated by the adapter against that snapshot alone: it fails if any
commit since carries one of the same keys. It never moves the snapshot; only `refresh` does, and it reports what it passed over.
Callers hold one lock over refresh, validate and append (design, section 5).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from holdfast.catalog.facts import Fact, JobRegistered
from holdfast.catalog.schema import FactColumns, Operation
from holdfast.catalog.types import AttemptToken, CheckpointId, FileId, Identity, JobId

FILE_ROWS = 20_000  # of what a fold keeps, in one data file


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


@dataclass(frozen=True, slots=True)
class Row:
    """A fact of the ledger, and the operation that wrote it."""

    fact: Fact
    operation: Operation


class Alike(NamedTuple):
    """What rows of a big file have in common that all live or die by: the interval on its line, or the checkpoint. Empty where a row has
    none of it."""

    kind: str
    job_id: JobId
    savepoint: AttemptToken | None
    from_seq: int | None
    to_seq: int | None
    checkpoint_id: CheckpointId | None

    @classmethod
    def of(cls, fact: Fact) -> "Alike":
        return cls._make(getattr(fact, name, None) for name in cls._fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class BigFile:
    """A file of rows of big kinds, which a fold may leave as it is: how many it has that are alike, and those about certain files."""

    name: str
    counts: Mapping[Alike, int]
    about: tuple[Row, ...]

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class ToldCommit:
    """What one commit said: what the history is told of it."""

    version: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tidied:
    """How many files went: entries of the log, and data files that were replaced."""

    entries: int
    data_files: int


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

    def registered(self, name: str) -> JobRegistered | None:
        """The registration of the job of this name at the held snapshot, if there is one."""

    def open_handles(self, job_id: str) -> Mapping[Identity, int]:
        """Of each handle of the job that is open at the held snapshot, the chunk and where its interval begins.

        It costs nothing for the handles that have ended but their columns.
        """

    def has_operation(self, operation_id: str) -> bool:
        """Whether a row of the held snapshot carries this operation id; for when the log no longer has it."""

    def rows(self) -> Sequence[Row]:
        """Every row at the held snapshot, in the order of `scan`."""

    def small_rows(self) -> Sequence[Row]:
        """Every row that is in no big file, in the order of `scan`."""

    def big_files(self, about: Collection[FileId]) -> Sequence[BigFile]:
        """The big files, each with its rows about these files. It costs a look at columns, and facts for those rows alone."""

    def big_rows(self, names: Collection[str]) -> Sequence[Row]:
        """Every row of the big files of these names, in the order of `scan`."""

    @property
    def folded_to(self) -> int:
        """The version whose facts the newest fold at the held snapshot stands for; -1: there was none."""

    def commits(self, above: int) -> Sequence[ToldCommit]:
        """Every commit with data change above this version, up to the held one, oldest first.

        Raises SnapshotLostError if the log lacks one of them.
        """

    def operation_at(self, version: int) -> str | None:
        """The operation of one commit up to the held snapshot; None where the log lacks it, and for one without facts."""

    def tidy(self, told_to: int) -> Tidied:
        """After a fold: make opening cheap, and delete what nobody needs any more of the log and of the files that folds replaced.

        `told_to` is the version up to which the history has the facts: what it was told last stays. Safe to interrupt anywhere.
        """

    def fold(self, kept: Sequence[Row], operation: Operation, *, big: Sequence[Sequence[Row]] = (), staying: Collection[str] = ()) -> bool:
        """One commit: every data file of the held snapshot is replaced by these rows, without data change.

        Rows that are `big` become big files, one of each sequence; the big files of the names that are `staying` are left as they are.
        What was appended since the snapshot stays. Every commit below it is durable first. It carries no key, and never moves the snapshot.
        False: another fold, or a change of the table, came first; nothing was changed. Any exception leaves the outcome unknown.
        """


class History(Protocol):
    """Duties of an adapter of the second table: every fact ever, told version by version. A handle stands at one snapshot of it."""

    @property
    def told_to(self) -> int:
        """The version of the ledger up to which it was told; -1: nothing."""

    def tell(self, commits: Sequence[ToldCommit], upto: int) -> None:
        """Add what these commits of the ledger said, which are all with data change above `told_to` up to this version. Durable on return.

        The snapshot may move. Raises LedgerConflictError where another has told it since: nothing was added.
        """

    def refresh(self) -> None:
        """Move the snapshot to the newest version."""

    def operation_at(self, version: int) -> str | None:
        """The operation of the ledger's commit of this version, as it was told; None where it was told of none."""

    def tidy(self) -> Tidied:
        """As the ledger's own, and its small files become few."""

    def has_operation(self, operation_id: str) -> bool:
        """Whether a row of the snapshot carries this operation id."""

    def ended_attempts(self, upto: int) -> FactColumns:
        """How the attempts were opened that had ended by what was told up to this version of the ledger, and no further; in the order of
        their tokens.

        Raises FormatError for a purpose or an end that this version does not know.
        """
