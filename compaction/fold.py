"""A fold, carried out: the history is told what is new, then the ledger's files give way to what is kept (design, section 4b).

Each step is durable before the next, may be interrupted anywhere and repeated, at once with others, beside writers and cleaners. A crash
between the two leaves facts in both tables, which whoever reads both tells apart by their operation.

Where much is live, most of it stays where it is, and no facts are made of it (`catalog/big_files.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.catalog import big_files, folding
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import DamagedLedgerError
from holdfast.catalog.ledger import FILE_ROWS, History, Ledger, LedgerConflictError, Row, SnapshotLostError
from holdfast.catalog.schema import Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldReport:
    """What a fold did: rows of the ledger before and after, of how many it made facts, and how many the history was told of.

    `is_folded` is false where another fold came first, and where nothing was new.
    """

    is_folded: bool
    rows_before: int
    rows_after: int
    read_rows: int
    told_rows: int

    @classmethod
    def nothing(cls) -> "FoldReport":
        return cls(is_folded=False, rows_before=0, rows_after=0, read_rows=0, told_rows=0)


def run_fold(ledger: Ledger, history: History, environment: Environment, *, file_rows: int = FILE_ROWS) -> FoldReport:
    """Fold the newest version of the ledger. The handles are the caller's own, and move.

    More than `file_rows` rows of big kinds become files of about so many each, which later folds may leave as they are.

    Raises:
        DamagedLedgerError: a file of either is not what was written; the fold would change an answer; or the history knows another past
            of this ledger, as after one of them was restored from a backup. Nothing was taken out of the ledger.
        FormatError: the ledger has facts that this version has no rule for.
    """
    ledger.refresh()
    ledger.make_durable()  # what the history is told is never taken back
    history.refresh()
    _require_same_past(ledger, history)
    new = ledger.commits(max(history.told_to, ledger.folded_to))
    if not new and history.told_to <= ledger.folded_to:  # else a folder died between its telling and its fold
        return FoldReport.nothing()
    if new:
        try:
            history.tell(new, new[-1].version)
        except LedgerConflictError:
            return FoldReport.nothing()  # another folds
    operation = Operation.new(environment)
    plan = plan_fold(ledger, operation, file_rows)
    return FoldReport(
        is_folded=ledger.fold(plan.small, operation, big=plan.big, staying=plan.staying),
        rows_before=plan.rows_before,
        rows_after=plan.rows_after,
        read_rows=plan.read_rows,
        told_rows=sum(len(commit.rows) for commit in new),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPlan:
    """What a fold puts in the place of a snapshot: small rows and the rows of each new big file; and the names of big files that stay."""

    small: Sequence[Row]
    big: Sequence[Sequence[Row]]
    staying: Sequence[str]
    rows_before: int
    rows_after: int
    read_rows: int


def plan_fold(ledger: Ledger, operation: Operation, file_rows: int = FILE_ROWS) -> FoldPlan:
    """The fold of the held snapshot, compared with what it is of. Changes nothing, and raises as `run_fold` does."""
    small = ledger.small_rows()
    files = ledger.big_files(big_files.named(small))
    again = big_files.written_again(small, files)
    left = [file for file in files if file.name not in again]
    staying = [row for file in left for row in file.about]
    rows = [*staying, *ledger.big_rows(again), *small]
    kept = folding.fold(rows, operation, staying=range(len(staying)))
    folding.require_equal(rows, [*staying, *kept])
    few, many = big_files.parted(kept, file_rows)
    return FoldPlan(
        small=few,
        big=many,
        staying=[file.name for file in left],
        rows_before=len(small) + sum(file.rows for file in files),
        rows_after=len(kept) + sum(file.rows for file in left),
        read_rows=len(rows),
    )


def _require_same_past(ledger: Ledger, history: History) -> None:
    """Raises DamagedLedgerError unless the ledger's commit at the last version that the history was told of is the one that it was told."""
    last = history.told_to
    if last < 0:
        return
    if last > ledger.version:
        what = f"it was told of version {last}, and the ledger stands at {ledger.version}"
    elif _has_folded_untold(ledger, last):
        what = f"it was told of version {last}, and what the ledger said since is folded up to version {ledger.folded_to}"
    elif (told := history.operation_at(last)) != (here := ledger.operation_at(last)):
        what = f"of version {last} it was told operation {told}, and the ledger has {here} there"
    else:
        return
    msg = (
        f"the history knows another past of this ledger ({what}): one of them was restored from a backup. Nothing was folded: restore "
        "both from one backup"
    )
    raise DamagedLedgerError(msg)


def _has_folded_untold(ledger: Ledger, told_to: int) -> bool:
    """Whether a fold stands for facts above this version: the history is told of all of them before."""
    if told_to >= ledger.folded_to:
        return False
    try:
        return any(commit.version <= ledger.folded_to for commit in ledger.commits(told_to))
    except SnapshotLostError:
        return True  # the log is cleaned of what the history has, and no further
