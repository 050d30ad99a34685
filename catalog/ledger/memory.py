"""The ledger in memory: the reference adapter, and what the model checker runs on. Facts are kept as objects.

A `MemoryLog` is the shared log; each `MemoryLedger` is one process's handle on it, at a version of its own.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from holdfast.catalog.facts import Fact
from holdfast.catalog.ledger.port import LedgerConflictError, LoggedCommit, SnapshotLostError
from holdfast.catalog.schema import Operation


@dataclass(frozen=True, slots=True)
class _Commit:
    operation_id: str | None
    keys: frozenset[str]
    facts: tuple[Fact, ...]
    has_data_change: bool = True


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

    def compact(self) -> None:
        """A commit that changes no data, as the upkeep of a Delta table makes them."""
        self.commit(self.version, _Commit(None, frozenset(), (), has_data_change=False))

    def clean(self) -> None:
        """Forget the single commits below the newest, as a Delta log's cleaning below a checkpoint does; facts stay."""
        self.cleaned_below = self.version

    def lose_unsynced(self) -> None:
        """Power loss: commits above the last one made durable are gone. Handles that stood above it are invalid."""
        del self.commits[self.durable_version + 1 :]
        self._last_version = {key: version for version, commit in enumerate(self.commits) for key in commit.keys}


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
        if old < self._version and old + 1 < self._log.cleaned_below:
            msg = f"the commits from {old + 1} to {self._version} are no longer in the log"
            raise SnapshotLostError(msg)
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
        self._log.commit(self._version, _Commit(operation.operation_id, frozenset(keys), tuple(facts)))

    def make_durable(self) -> None:
        self._log.durable_version = max(self._log.durable_version, self._version)

    def scan(self, kinds: Iterable[str] | None = None, job_id: str | None = None, scope: str | None = None) -> Sequence[Fact]:
        wanted = None if kinds is None else frozenset(kinds)
        facts = [fact for commit in self._log.commits[: self._version + 1] for fact in commit.facts]
        if wanted is not None:
            facts = [fact for fact in facts if fact.kind in wanted]
        if job_id is not None:
            facts = [fact for fact in facts if getattr(fact, "job_id", None) == job_id]
        if scope is not None:
            facts = [fact for fact in facts if getattr(fact, "scope", None) == scope]
        return facts

    def has_operation(self, operation_id: str) -> bool:
        return any(commit.operation_id == operation_id for commit in self._log.commits[: self._version + 1] if commit.facts)


def _same(facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
    return facts
