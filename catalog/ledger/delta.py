"""The ledger as a Delta table: facts go in and come out, over `delta_table.OurTable`."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from holdfast.catalog import paths
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import DamagedLedgerError, HoldfastError
from holdfast.catalog.facts import BIG_KINDS, KINDS, Fact, JobRegistered
from holdfast.catalog.ledger import delta_data, delta_fold
from holdfast.catalog.ledger.delta_commit import read_whole
from holdfast.catalog.ledger.delta_table import OurTable
from holdfast.catalog.ledger.log_repair import LogPlan
from holdfast.catalog.ledger.port import FILE_ROWS, Alike, BigFile, LoggedCommit, Row, SnapshotLostError, Tidied, ToldCommit
from holdfast.catalog.schema import SCHEMA, FactColumns, Operation, from_table, to_table
from holdfast.catalog.types import FileId, Identity

_HANDLE = ["file_id", "offset_bytes", "from_seq"]  # by which an end names what it ends
_KNOWN = pa.array(sorted(KINDS))


class DeltaLedger(OurTable):
    """A handle on the ledger's table. Not for two threads at once: callers hold one lock over refresh, validate and append."""

    def __init__(
        self, directory: str | os.PathLike[str], table: DeltaTable, environment: Environment | None = None, plan: LogPlan | None = None
    ) -> None:
        super().__init__(directory, table, environment, plan)
        self._own: dict[str, Sequence[Fact]] = {}  # by data file: one's own facts need not be read back
        self._folded_to: int | None = None  # not asked for yet
        self._read: dict[str, tuple[Row, ...]] = {}  # by data file, for the fold that is being made
        self.require_named: Callable[[], None] = _nothing  # whether the catalog still has this ledger: of one that a marker named

    @classmethod
    def create(cls, directory: str | os.PathLike[str], *, catalog_id: str, environment: Environment | None = None) -> "DeltaLedger":
        """Make an empty ledger that carries the catalog's id, durable when this returns. Of several at once exactly one succeeds.

        Raises:
            AlreadyExistsError: the directory holds a Delta table.
        """
        return cls.make(directory, SCHEMA, catalog_id=catalog_id, environment=environment)

    def refresh(self) -> Sequence[LoggedCommit]:
        self.require_named()  # also between each commit and its acknowledgement, for which the commit is looked for here
        own, self._own, self._read = self._own, {}, {}
        passed = []
        before = self._folded_to
        self._folded_to = None
        moved = self.move()
        if not any(delta_fold.FOLD_KEY in commit.keys for commit in moved):
            self._folded_to = before
        for commit in moved:
            files = tuple(file.path for file in commit.added if file.data_change)
            if files:
                passed.append(LoggedCommit(commit.version, commit.operation_id, commit.keys, partial(self._facts_of, files, own)))
        return passed

    def append(self, facts: Sequence[Fact], *, keys: Mapping[str, int], operation: Operation) -> None:
        name = self.add(to_table(facts, operation), keys=keys, operation=operation)
        self._own[name] = facts if isinstance(facts, FactColumns) else tuple(facts)

    def scan(self, kinds: Iterable[str] | None = None, job_id: str | None = None, scope: str | None = None) -> Sequence[Fact]:
        """The facts at the held snapshot.

        Order: of two commits of which the later one's writer had seen the earlier (so of any two with a key in common), the earlier
        comes first. Delta's own compaction forgets that order (it was seen to reverse it); where it has run, facts come in the order
        of `seq`, those without one last, and those of one commit in the commit's order.
        """
        bounds: dict[str, tuple[str, str]] = {}
        condition = pc.scalar(True)
        wanted = None if kinds is None else frozenset(kinds)
        if wanted is not None:
            if not wanted:
                return []
            bounds["kind"] = min(wanted), max(wanted)
            condition &= pc.field("kind").isin(sorted(wanted)) | ~pc.field("kind").isin(_KNOWN)  # what is not known is not passed over
        if job_id is not None:
            bounds["job_id"] = job_id, job_id
            condition &= pc.field("job_id") == job_id
        if scope is not None:
            condition &= pc.field("scope") == scope
        return self._facts(bounds, condition, wanted)

    def registered(self, name: str) -> JobRegistered | None:
        condition = (pc.field("kind") == "job") & (pc.field("job") == name)
        of_name = f"{paths.slug(name)}-"  # as ids begin that are given to it: the files of other jobs are not opened
        for bounds in ({"kind": ("job", "job"), "job_id": (of_name, f"{of_name}g")}, {"kind": ("job", "job")}):
            for fact in self._facts(bounds, condition, frozenset({"job"})):
                if isinstance(fact, JobRegistered):
                    return fact
        return None

    def open_handles(self, job_id: str) -> Mapping[Identity, int]:
        is_added, is_end = pc.field("kind") == "handle", pc.field("kind") == "handle_end"
        condition = (pc.field("job_id") == job_id) & (is_end | (is_added & pc.field("to_seq").is_null()))
        names = [file.path for file in self.files({"kind": ("handle", "handle_end"), "job_id": (job_id, job_id)})]
        rows = self.read(names, SCHEMA, condition, ["kind", *_HANDLE])
        if any(rows[name].null_count for name in _HANDLE):
            msg = f"the ledger {self.directory} has a handle of job {job_id} without a chunk or a beginning: restore it from a backup"
            raise DamagedLedgerError(msg)
        added, ended = (rows.filter(each).select(_HANDLE) for each in (is_added, is_end))
        file_ids, offsets, begins = (added.join(ended, _HANDLE, join_type="left anti")[name].to_pylist() for name in _HANDLE)
        return dict(zip(zip(file_ids, offsets, strict=True), begins, strict=True))

    def _facts(self, bounds: Mapping[str, tuple[str, str]], condition: pc.Expression, wanted: frozenset[str] | None) -> Sequence[Fact]:
        found = [file.path for file in self.files(bounds, {"kind": _KNOWN})]
        if wanted is not None and wanted.isdisjoint(BIG_KINDS):
            found = [path for path in found if not delta_data.is_big(path)]
        names, are_ours = delta_data.in_order_of_writing(found)
        table = self.read(names, SCHEMA, condition, _columns_of(wanted))
        with self._believing():
            return list(from_table(table if are_ours else delta_data.by_seq(table)))

    @contextmanager
    def _believing(self) -> Iterator[None]:
        """Raises DamagedLedgerError for what makes no fact."""
        try:
            yield
        except HoldfastError:
            raise
        except (ValueError, TypeError) as error:
            msg = f"the ledger {self.directory} says what no version of Holdfast writes: {error}; restore it from a backup"
            raise DamagedLedgerError(msg) from error

    def has_operation(self, operation_id: str) -> bool:
        names = [file.path for file in self.files({"operation_id": (operation_id, operation_id)})]
        return bool(self.read(names, SCHEMA, pc.field("operation_id") == operation_id, ["kind"]).num_rows)

    # ---- folding --------------------------------------------------------------------------------------------------------

    @property
    def folded_to(self) -> int:
        if self._folded_to is None:
            self._folded_to = self.transaction_version(delta_fold.FOLD_KEY)
        return self._folded_to

    def rows(self) -> Sequence[Row]:
        return self._rows_in([file.path for file in self.files()])

    def small_rows(self) -> Sequence[Row]:
        return self._rows_in([file.path for file in self.files() if not delta_data.is_big(file.path)])

    def big_files(self, about: Collection[FileId]) -> Sequence[BigFile]:
        ids = pa.array(sorted(about), pa.string())
        return [self._big_file(name, ids) for name in sorted(file.path for file in self.files()) if delta_data.is_big(name)]

    def big_rows(self, names: Collection[str]) -> Sequence[Row]:
        return self._rows_in([file.path for file in self.files() if file.path in names])

    def _big_file(self, name: str, ids: pa.Array) -> BigFile:
        columns = self.read([name], SCHEMA, pc.scalar(True), [*Alike._fields, "file_id"])
        counted = columns.group_by([*Alike._fields]).aggregate([([], "count_all")])
        alike = zip(*(counted[column].to_pylist() for column in Alike._fields), strict=True)
        counts = dict(zip(map(Alike._make, alike), counted["count_all"].to_pylist(), strict=True))
        about: Sequence[Row] = ()
        if pc.any(pc.is_in(columns["file_id"], ids)).as_py():
            with self._believing():
                about = delta_data.rows_of(self.read([name], SCHEMA, pc.field("file_id").isin(ids), list(SCHEMA.names)))
        return BigFile(name=name, counts=counts, about=tuple(about))

    def _rows_in(self, found: Sequence[str]) -> Sequence[Row]:
        names, are_ours = delta_data.in_order_of_writing(found)
        rows = [row for name in names for row in self._rows_of(name)]
        return rows if are_ours else sorted(rows, key=_by_seq)

    def commits(self, above: int) -> Sequence[ToldCommit]:
        told = []
        for version in range(above + 1, self.version + 1):
            try:
                commit = read_whole(self.log, version)
            except FileNotFoundError as error:
                msg = f"version {version} of {self.directory} is no longer in the log"
                raise SnapshotLostError(msg) from error
            if rows := tuple(row for file in commit.added if file.data_change for row in self._rows_of(file.path)):
                told.append(ToldCommit(version, rows))
        return told

    def fold(self, kept: Sequence[Row], operation: Operation, *, big: Sequence[Sequence[Row]] = (), staying: Collection[str] = ()) -> bool:
        self._read = {}
        replaced = [file for file in self.files() if file.path not in staying]
        small = (kept[n : n + FILE_ROWS] for n in range(0, len(kept), FILE_ROWS))
        return self.replace(replaced, map(delta_data.table_of, small), operation, big=map(delta_data.table_of, big))

    def take_over(self, rows: Sequence[Row], operation: Operation) -> None:
        """Add what the ledger before this one said after it was folded into this one. Without data change: the history has it by then.

        Nobody else has this ledger yet.
        """
        self.replace((), [delta_data.table_of(rows)], operation)
        self._folded_to = None
        self.move()

    def operation_at(self, version: int) -> str | None:
        try:
            return read_whole(self.log, version).operation_id
        except FileNotFoundError:
            return None

    def tidy(self, told_to: int) -> Tidied:
        self.make_durable()
        return self.clean(told_to)

    def _rows_of(self, name: str) -> tuple[Row, ...]:
        """A data file's rows, read once for a fold: what it keeps and what the history is told are mostly the same."""
        if name not in self._read:
            self._read[name] = tuple(delta_data.read_rows(self.directory, name))
            self._verified.add(name)
        return self._read[name]

    # ---- reading --------------------------------------------------------------------------------------------------------

    def _facts_of(self, files: Sequence[str], own: Mapping[str, Sequence[Fact]]) -> Sequence[Fact]:
        facts: list[Fact] = []
        for file in files:
            facts += own[file] if file in own else delta_data.read_facts(self.directory, file)
        return facts


def _nothing() -> None:
    """Of a ledger that no marker named."""


def _by_seq(row: Row) -> int:
    return getattr(row.fact, "seq", None) or 2**62


def _columns_of(kinds: frozenset[str] | None) -> list[str]:
    """The columns that facts of these kinds are made of (None: all); enough to filter and to sort by as well."""
    if kinds is None:
        return list(SCHEMA.names)
    wanted = {"kind", "job_id", "seq"}.union(*({f.name for f in fields(KINDS[kind])} for kind in kinds if kind in KINDS))
    return [name for name in SCHEMA.names if name in wanted]
