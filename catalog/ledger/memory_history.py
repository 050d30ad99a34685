"""The history in memory: the reference adapter. A `MemoryTold` is shared; each `MemoryHistory` is one process's handle on it."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from holdfast.catalog.facts import AttemptEnded, AttemptOpened, Fact
from holdfast.catalog.ledger.port import LedgerConflictError, Tidied, ToldCommit
from holdfast.catalog.schema import FactColumns


@dataclass(slots=True)
class MemoryTold:
    """What was told: each telling is one commit, durable at once, and has its commits and the version that they end at."""

    tellings: list[tuple[tuple[ToldCommit, ...], int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def commits(self) -> list[ToldCommit]:
        return [commit for commits, _ in self.tellings for commit in commits]

    @property
    def told_to(self) -> int:
        return self.tellings[-1][1] if self.tellings else -1


class MemoryHistory:
    """A handle on what was told, at its newest version."""

    def __init__(self, told: MemoryTold) -> None:
        self._told = told
        self._version = len(told.tellings)

    @property
    def told_to(self) -> int:
        return self._told.tellings[self._version - 1][1] if self._version else -1

    def tell(self, commits: Sequence[ToldCommit], upto: int) -> None:
        with self._told.lock:
            if self._version != len(self._told.tellings) or upto <= self.told_to:
                msg = f"the history was told up to version {self._told.told_to} of the ledger, and this telling begins above {self.told_to}"
                raise LedgerConflictError(msg)
            self._told.tellings.append((tuple(commits), upto))

    def refresh(self) -> None:
        self._version = len(self._told.tellings)

    def operation_at(self, version: int) -> str | None:
        return next((row.operation.operation_id for commit in self._commits() if commit.version == version for row in commit.rows), None)

    def tidy(self) -> Tidied:
        return Tidied(entries=0, data_files=0)

    def has_operation(self, operation_id: str) -> bool:
        return any(row.operation.operation_id == operation_id for commit in self._commits() for row in commit.rows)

    def ended_attempts(self, upto: int) -> FactColumns:
        facts = list(self._facts(upto))
        opened = {fact.attempt: fact for fact in facts if isinstance(fact, AttemptOpened)}
        ended = {fact.attempt for fact in facts if isinstance(fact, AttemptEnded)}
        return FactColumns.of([opened[token] for token in sorted(ended)])

    def _facts(self, upto: int) -> Iterator[Fact]:
        return (row.fact for commit in self._commits() if commit.version <= upto for row in commit.rows)

    def _commits(self) -> Iterator[ToldCommit]:
        return (commit for commits, _ in self._told.tellings[: self._version] for commit in commits)
