"""The ledger in memory: the reference adapter, and what the model checker runs on. Facts are kept as objects.

A `MemoryLog` is the shared log; each `MemoryLedger` is one process's handle on it, at a version of its own.
"""

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from holdfast.catalog.facts import Fact, HandleAdded, HandleEnded, JobRegistered
from holdfast.catalog.ledger.port import Alike, BigFile, LedgerConflictError, LoggedCommit, Row, SnapshotLostError, Tidied, ToldCommit
from holdfast.catalog.schema import Operation
from holdfast.catalog.types import FileId, Identity

NO_FOLD = -1


@dataclass(frozen=True, slots=True)
class _Commit:
    """`folds` is the version that a fold stands for; `kept` and the rows in `big` files are what it put in the place of all up to there."""

    operation: Operation | None
    keys: frozenset[str]
    facts: tuple[Fact, ...]
    has_data_change: bool = True
    folds: int = NO_FOLD
    kept: tuple[Row, ...] = ()
    big: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)  # by name

    @property
    def operation_id(self) -> str | None:
        return None if self.operation is None else self.operation.operation_id

    @property
    def rows(self) -> tuple[Row, ...]:
        """What it says that nothing said before."""
        return () if self.operation is None else tuple(Row(fact, self.operation) for fact in self.facts)

    @property
    def big_rows(self) -> list[Row]:
        return [row for rows in self.big.values() for row in rows]


class MemoryLog:
    """A log that handles share. Commit n of the list is version n; version 0 made the ledger and holds nothing."""

    def __init__(self) -> None:
        self.commits: list[_Commit] = [_Commit(None, frozenset(), (), has_data_change=False)]
        self.durable_version = 0
        self.cleaned_below = 0
        self._last_version: dict[str, int] = {}  # by key
        self._lock = threading.Lock()

    @property
    def version(self) -> int:
        return len(self.commits) - 1

    def commit(self, snapshot: int, commit: _Commit) -> None:
        """Append unless a key was committed since the snapshot. One at a time, as the file system's link is."""
        with self._lock:
            if snapshot < self.cleaned_below:
                msg = f"version {snapshot} is no longer in the log"
                raise SnapshotLostError(msg)
            for key in commit.keys:
                if self._last_version.get(key, 0) > snapshot:
                    msg = f"{key} was committed after version {snapshot}"
                    raise LedgerConflictError(msg)
            self.commits.append(commit)
            for key in commit.keys:
                self._last_version[key] = self.version

    def fold(
        self, snapshot: int, kept: Sequence[Row], operation: Operation, big: Sequence[Sequence[Row]] = (), staying: Collection[str] = ()
    ) -> bool:
        """Replace what there was at the snapshot, but for the big files that stay, unless something took rows out since."""
        with self._lock:
            if self._is_overtaken(snapshot):
                return False
            self.durable_version = self.version
            before = self.newest_fold(snapshot).big
            files = {name: before[name] for name in before if name in staying}
            files |= {f"{self.version + 1}-{n}": tuple(rows) for n, rows in enumerate(big)}
            fold = _Commit(operation, frozenset(), (), has_data_change=False, folds=snapshot, kept=tuple(kept), big=files)
            self.commits.append(fold)
            return True

    def _is_overtaken(self, snapshot: int) -> bool:
        return snapshot < self.cleaned_below or not all(commit.has_data_change for commit in self.commits[snapshot + 1 :])

    def compact(self) -> None:
        """A commit that changes no data, as the upkeep of a Delta table makes them."""
        self.commit(self.version, _Commit(None, frozenset(), (), has_data_change=False))

    def clean(self, below: int | None = None) -> None:
        """Forget the single commits below a version (the newest), as a Delta log's cleaning below a checkpoint does; facts stay."""
        self.cleaned_below = max(self.cleaned_below, self.version if below is None else min(below, self.version))

    def lose_unsynced(self) -> None:
        """Power loss: commits above the last one made durable are gone. Handles that stood above it are invalid."""
        del self.commits[self.durable_version + 1 :]
        self._last_version = {key: version for version, commit in enumerate(self.commits) for key in commit.keys}

    def newest_fold(self, version: int) -> _Commit:
        """The newest fold up to this version; the commit that made the ledger where there is none."""
        return next(commit for commit in reversed(self.commits[: version + 1]) if commit.folds != NO_FOLD or commit is self.commits[0])

    def since(self, fold: _Commit, version: int) -> list[_Commit]:
        """The commits up to this version that the fold does not stand for."""
        return self.commits[max(fold.folds, 0) + 1 : version + 1]


class MemoryLedger:
    """A handle on a `MemoryLog`, at its newest version."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._version = log.version

    @property
    def version(self) -> int:
        return self._version

    def refresh(self) -> Sequence[LoggedCommit]:
        old, self._version = self._version, self._log.version
        self._require_logged(old)
        passed = self._log.commits[old + 1 : self._version + 1]
        return [
            LoggedCommit(version, commit.operation_id, commit.keys, partial(_same, commit.facts))
            for version, commit in enumerate(passed, old + 1)
            if commit.has_data_change
        ]

    def turn(self) -> AbstractContextManager[object]:
        return nullcontext()

    def mend(self) -> Sequence[str]:
        return ()

    def append(self, facts: Sequence[Fact], *, keys: Mapping[str, int], operation: Operation) -> None:
        self._log.commit(self._version, _Commit(operation, frozenset(keys), tuple(facts)))

    def make_durable(self) -> None:
        self._log.durable_version = max(self._log.durable_version, self._version)

    def scan(self, kinds: Iterable[str] | None = None, job_id: str | None = None, scope: str | None = None) -> Sequence[Fact]:
        wanted = None if kinds is None else frozenset(kinds)
        fold = self._log.newest_fold(self._version)
        facts = [row.fact for row in (*fold.big_rows, *fold.kept)]
        facts += [fact for commit in self._log.since(fold, self._version) for fact in commit.facts]
        if wanted is not None:
            facts = [fact for fact in facts if fact.kind in wanted]
        if job_id is not None:
            facts = [fact for fact in facts if getattr(fact, "job_id", None) == job_id]
        if scope is not None:
            facts = [fact for fact in facts if getattr(fact, "scope", None) == scope]
        return facts

    def registered(self, name: str) -> JobRegistered | None:
        return next((fact for fact in self.scan(["job"]) if isinstance(fact, JobRegistered) and fact.job == name), None)

    def open_handles(self, job_id: str) -> Mapping[Identity, int]:
        facts = self.scan(["handle", "handle_end"], job_id)
        ended = {(fact.file_id, fact.offset_bytes, fact.from_seq) for fact in facts if isinstance(fact, HandleEnded)}
        added = (fact for fact in facts if isinstance(fact, HandleAdded) and fact.to_seq is None)
        return {(x.file_id, x.offset_bytes): x.from_seq for x in added if (x.file_id, x.offset_bytes, x.from_seq) not in ended}

    def has_operation(self, operation_id: str) -> bool:
        return any(row.operation.operation_id == operation_id for row in self.rows())

    def rows(self) -> Sequence[Row]:
        return [*self._log.newest_fold(self._version).big_rows, *self.small_rows()]

    def small_rows(self) -> Sequence[Row]:
        fold = self._log.newest_fold(self._version)
        return [*fold.kept, *(row for commit in self._log.since(fold, self._version) for row in commit.rows)]

    def big_files(self, about: Collection[FileId]) -> Sequence[BigFile]:
        return [
            BigFile(
                name=name,
                counts=Counter(Alike.of(row.fact) for row in rows),
                about=tuple(row for row in rows if getattr(row.fact, "file_id", None) in about),
            )
            for name, rows in self._log.newest_fold(self._version).big.items()
        ]

    def big_rows(self, names: Collection[str]) -> Sequence[Row]:
        return [row for name, rows in self._log.newest_fold(self._version).big.items() if name in names for row in rows]

    @property
    def folded_to(self) -> int:
        return self._log.newest_fold(self._version).folds

    def commits(self, above: int) -> Sequence[ToldCommit]:
        self._require_logged(above)
        newer = self._log.commits[above + 1 : self._version + 1]
        return [ToldCommit(version, commit.rows) for version, commit in enumerate(newer, above + 1) if commit.has_data_change]

    def operation_at(self, version: int) -> str | None:
        commit = self._log.commits[version]
        return commit.operation.operation_id if commit.operation is not None and version >= self._log.cleaned_below else None

    def fold(self, kept: Sequence[Row], operation: Operation, *, big: Sequence[Sequence[Row]] = (), staying: Collection[str] = ()) -> bool:
        return self._log.fold(self._version, kept, operation, big, staying)

    def tidy(self, told_to: int) -> Tidied:
        before = self._log.cleaned_below
        self._log.clean(told_to)
        return Tidied(entries=self._log.cleaned_below - before, data_files=0)

    def _require_logged(self, above: int) -> None:
        """Raises SnapshotLostError unless the log has every commit above this version, up to the held one."""
        if above < self._version and above + 1 < self._log.cleaned_below:
            msg = f"the commits from {above + 1} to {self._version} are no longer in the log"
            raise SnapshotLostError(msg)


def _same(facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
    return facts
