"""A ledger whose calls fail by script. Wrap it with the `Faults` that also breaks storage: one count over both."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

from holdfast.catalog.facts import Fact, JobRegistered
from holdfast.catalog.ledger import BigFile, Ledger, LedgerConflictError, LoggedCommit, Row, SnapshotLostError, Tidied, ToldCommit
from holdfast.catalog.schema import Operation
from holdfast.catalog.types import FileId, Identity
from tests.support.faults import Faults


class FaultyLedger:
    """Passes every call through `faults`, as verb and what: refresh, append <operation id>, make_durable,
    scan <job id>, registered <name>, open_handles <job id>, has_operation <operation id>, facts <version>, rows, small_rows,
    big_files, big_rows, commits <above>, fold <operation id>, tidy."""

    def __init__(self, inner: Ledger, faults: Faults) -> None:
        self.inner = inner
        self.faults = faults
        self._untold: list[LoggedCommit] = []
        self._lost: SnapshotLostError | None = None

    @property
    def version(self) -> int:
        self.faults.require_alive()
        return self.inner.version

    def refresh(self) -> Sequence[LoggedCommit]:
        """What a refresh passed over whose answer was lost is told by the next one, as the port demands."""
        self.faults.run("refresh", "", self._refresh)
        if self._lost is not None:
            error, self._lost, self._untold = self._lost, None, []
            raise error
        untold, self._untold = self._untold, []
        return [LoggedCommit(c.version, c.operation_id, c.keys, self._counted(c)) for c in untold]

    def turn(self) -> AbstractContextManager[object]:
        self.faults.require_alive()
        return self.inner.turn()

    def mend(self) -> Sequence[str]:
        self.faults.require_alive()
        return self.inner.mend()

    def append(self, facts: Sequence[Fact], *, keys: Mapping[str, int], operation: Operation) -> None:
        def effect() -> None:
            if self._untold or self._lost:
                msg = "a refresh failed before it told what it passed over"
                raise LedgerConflictError(msg)
            self.inner.append(facts, keys=keys, operation=operation)

        self.faults.run("append", operation.operation_id, effect)

    def make_durable(self) -> None:
        self.faults.run("make_durable", "", self.inner.make_durable)

    def scan(self, kinds: Iterable[str] | None = None, job_id: str | None = None, scope: str | None = None) -> Sequence[Fact]:
        return self.faults.run("scan", job_id or "", lambda: self.inner.scan(kinds, job_id, scope))

    def registered(self, name: str) -> JobRegistered | None:
        return self.faults.run("registered", name, lambda: self.inner.registered(name))

    def open_handles(self, job_id: str) -> Mapping[Identity, int]:
        return self.faults.run("open_handles", job_id, lambda: self.inner.open_handles(job_id))

    def has_operation(self, operation_id: str) -> bool:
        return self.faults.run("has_operation", operation_id, lambda: self.inner.has_operation(operation_id))

    def rows(self) -> Sequence[Row]:
        return self.faults.run("rows", "", self.inner.rows)

    def small_rows(self) -> Sequence[Row]:
        return self.faults.run("small_rows", "", self.inner.small_rows)

    def big_files(self, about: Collection[FileId]) -> Sequence[BigFile]:
        return self.faults.run("big_files", "", lambda: self.inner.big_files(about))

    def big_rows(self, names: Collection[str]) -> Sequence[Row]:
        return self.faults.run("big_rows", "", lambda: self.inner.big_rows(names))

    @property
    def folded_to(self) -> int:
        self.faults.require_alive()
        return self.inner.folded_to

    def commits(self, above: int) -> Sequence[ToldCommit]:
        return self.faults.run("commits", str(above), lambda: self.inner.commits(above))

    def operation_at(self, version: int) -> str | None:
        return self.faults.run("operation_at", str(version), lambda: self.inner.operation_at(version))

    def fold(self, kept: Sequence[Row], operation: Operation, *, big: Sequence[Sequence[Row]] = (), staying: Collection[str] = ()) -> bool:
        return self.faults.run("fold", operation.operation_id, lambda: self.inner.fold(kept, operation, big=big, staying=staying))

    def tidy(self, told_to: int) -> Tidied:
        return self.faults.run("tidy", "", lambda: self.inner.tidy(told_to))

    def _refresh(self) -> None:
        try:
            self._untold += self.inner.refresh()
        except SnapshotLostError as error:
            self._lost = error

    def _counted(self, commit: LoggedCommit) -> Callable[[], Sequence[Fact]]:
        return lambda: self.faults.run("facts", str(commit.version), commit.facts)
