"""A world that lives for years: its log and its history keep in memory what somebody may still ask for, and a plain record the rest.

The reference adapters keep every fact as an object. Here the log forgets the commits that its cleaning took, as a Delta log does, and the
history knows tokens and operations and no more; both compare what passes through them with what was committed.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.catalog import facts as f
from holdfast.catalog.ledger import LedgerConflictError, Row, SnapshotLostError, Tidied, ToldCommit
from holdfast.catalog.ledger.memory import MemoryLedger, MemoryLog
from holdfast.catalog.references import References
from holdfast.catalog.schema import FactColumns, Operation
from holdfast.catalog.types import AttemptToken, JobId
from tests.support.faults import Faults
from tests.support.world import FakeEnvironment, Process, World

Number = tuple[JobId, int]  # a job, and the number of a checkpoint or savepoint of it


class RecentCommits:
    """The commits of a log as a list of which the first is kept and, from some version on, the others: version n is item n all the same."""

    def __init__(self, first: Any) -> None:
        self._first, self.kept, self._below = first, list[Any](), 1

    def __len__(self) -> int:
        return self._below + len(self.kept)

    def append(self, commit: Any) -> None:
        self.kept.append(commit)

    def __getitem__(self, at: int | slice) -> Any:
        """Raises SnapshotLostError for what is forgotten."""
        if isinstance(at, int):
            if at == 0:
                return self._first
            if (at if at >= 0 else len(self) + at) < self._below:
                raise SnapshotLostError(f"version {at} is forgotten")
            return self.kept[at - self._below if at >= 0 else at]
        begin, end, _ = at.indices(len(self))
        if begin == 0:  # to look for the newest fold in: what it is followed by is asked for then
            return [self._first, *self.kept[: max(end - self._below, 0)]]
        if begin < min(self._below, end):
            raise SnapshotLostError(f"version {begin} is forgotten")
        return self.kept[begin - self._below : end - self._below]

    def forget(self, below: int) -> None:
        del self.kept[: max(below - self._below, 0)]
        self._below = max(below, self._below)


class RecentLog(MemoryLog):
    """A log whose cleaning forgets. `landed` is called with the version of each commit and what it said."""

    def __init__(self, landed: Callable[[int, Any], None]) -> None:
        super().__init__()
        self.commits: Any = RecentCommits(self.commits[0])
        self.landed = landed

    @property
    def entries(self) -> int:
        """How many commits are remembered."""
        return len(self.commits.kept)

    def commit(self, snapshot: int, commit: Any) -> None:
        super().commit(snapshot, commit)
        self.landed(self.version, commit)

    def fold(
        self, snapshot: int, kept: Sequence[Row], operation: Operation, big: Sequence[Sequence[Row]] = (), staying: Collection[str] = ()
    ) -> bool:
        folded = super().fold(snapshot, kept, operation, big, staying)
        if folded:
            self.landed(self.version, self.commits[-1])
        return folded

    def clean(self, below: int | None = None) -> None:
        super().clean(below)
        self.commits.forget(self.cleaned_below)


@dataclass(slots=True)
class PlainRecord:
    """What ever happened, fact by fact: numbers alone of what is past, and of each live checkpoint what its caller was told that it holds."""

    committed: set[Number] = field(default_factory=set)
    live: set[Number] = field(default_factory=set)
    promised: dict[Number, dict[str, bytes]] = field(default_factory=dict)
    tokens: set[AttemptToken] = field(default_factory=set)
    names: int = 0  # that were ever taken
    untold: list[tuple[int, Any]] = field(default_factory=list)  # commits that the history was not told of
    window: list[tuple[f.Fact, ...]] | None = None  # what each commit said since somebody began to watch

    def landed(self, version: int, commit: Any) -> None:
        if self.window is not None:
            self.window.append(commit.facts)
        if commit.has_data_change:
            self.untold.append((version, commit))
        for fact in commit.facts:
            if isinstance(fact, f.CheckpointCommitted):
                number = (fact.job_id, int(fact.checkpoint_id))
                assert number not in self.committed, f"I5: {number} was committed twice"
                self.committed.add(number)
                self.live.add(number)
            elif isinstance(fact, f.Dropped):
                self.live.discard((fact.job_id, int(fact.checkpoint_id)))
                self.promised.pop((fact.job_id, int(fact.checkpoint_id)), None)
            elif isinstance(fact, f.AttemptOpened):
                assert fact.attempt not in self.tokens, f"I5: {fact.attempt} was opened twice"
                self.tokens.add(fact.attempt)
                self.names += fact.name is not None

    def told(self, job_id: JobId, number: int, states: dict[str, bytes]) -> None:
        """A caller was told that this is committed."""
        assert (job_id, number) in self.committed, f"I7: checkpoint {number} of {job_id} was acknowledged and is not committed"
        if (job_id, number) in self.live:
            self.promised[job_id, number] = states


class LeanTold:
    """What the history was told: which attempts have ended, and which operations there were. Shared; durable at once."""

    def __init__(self, record: PlainRecord) -> None:
        self.record = record
        self.told_to, self.tellings, self.rows = -1, 0, 0
        self.opened: dict[AttemptToken, f.AttemptOpened] = {}
        self.ended: list[tuple[int, f.AttemptOpened]] = []  # with the version that ended it
        self.operations: set[str] = set()
        self.last_operation: str | None = None

    def add(self, commits: Sequence[ToldCommit], upto: int) -> None:
        """Raises AssertionError unless this is, commit by commit, what was committed since the last telling."""
        new = [(version, commit) for version, commit in self.record.untold if version <= upto]
        assert [(each.version, each.rows) for each in commits] == [(version, commit.rows) for version, commit in new], (
            f"I5: the history was told of {self.told_to + 1} to {upto} what the ledger did not say"
        )
        del self.record.untold[: len(new)]
        for commit in commits:
            self.operations.update(row.operation.operation_id for row in commit.rows)
            self.rows += len(commit.rows)
            for fact in (row.fact for row in commit.rows):
                if isinstance(fact, f.AttemptOpened):
                    self.opened[fact.attempt] = fact
                elif isinstance(fact, f.AttemptEnded):
                    self.ended.append((commit.version, self.opened.pop(fact.attempt)))
        self.told_to, self.tellings = upto, self.tellings + 1
        self.last_operation = commits[-1].rows[0].operation.operation_id


class LeanHistory:
    """A handle on it."""

    def __init__(self, told: LeanTold) -> None:
        self._told, self.told_to, self._tellings = told, told.told_to, told.tellings

    def tell(self, commits: Sequence[ToldCommit], upto: int) -> None:
        if self._tellings != self._told.tellings:
            raise LedgerConflictError("another has told the history")
        self._told.add(commits, upto)

    def refresh(self) -> None:
        self.told_to, self._tellings = self._told.told_to, self._told.tellings

    def operation_at(self, version: int) -> str | None:
        """Of the last version that it was told of: nobody asks for another."""
        assert version == self._told.told_to
        return self._told.last_operation

    def tidy(self) -> Tidied:
        return Tidied(entries=0, data_files=0)

    def has_operation(self, operation_id: str) -> bool:
        return operation_id in self._told.operations

    def ended_attempts(self, upto: int) -> FactColumns:
        ended = (opened for version, opened in self._told.ended if version <= upto)
        return FactColumns.of(sorted(ended, key=lambda opened: opened.attempt))


class LongProcess(Process):
    """One process of a long world."""

    world: "LongWorld"

    def history(self) -> Any:
        return LeanHistory(self.world.lean)


class LongWorld(World):
    """A world whose log forgets. Nothing of it grows with its age but the numbers of its record, and tokens."""

    def __init__(self) -> None:
        self.record = PlainRecord()
        self.lean = LeanTold(self.record)
        self.recent = RecentLog(self.record.landed)
        super().__init__(log=self.recent)

    def process(self, faults: Faults | None = None) -> LongProcess:
        self.processes += 1
        return LongProcess(self, FakeEnvironment(f"process {self.processes}", self._ids), faults or Faults())

    def references(self) -> References:
        """What the ledger says now."""
        return References.of(MemoryLedger(self.log).scan())
