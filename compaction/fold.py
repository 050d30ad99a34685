"""A fold, carried out: the history is told what is new, then the ledger's files give way to what is kept (design, section 4b).

Each step is durable before the next, may be interrupted anywhere and repeated, at once with others, beside writers and cleaners. A crash
between the two leaves facts in both tables, which whoever reads both tells apart by their operation.
"""

from dataclasses import dataclass

from holdfast.catalog import folding
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import DamagedLedgerError
from holdfast.catalog.ledger import History, Ledger, LedgerConflictError
from holdfast.catalog.schema import Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldReport:
    """What a fold did: rows of the ledger before and after, and how many the history was told of.

    `is_folded` is false where another fold came first, and where nothing was new.
    """

    is_folded: bool
    rows_before: int
    rows_after: int
    told_rows: int


def run_fold(ledger: Ledger, history: History, environment: Environment) -> FoldReport:
    """Fold the newest version of the ledger. The handles are the caller's own, and move.

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
        return FoldReport(is_folded=False, rows_before=0, rows_after=0, told_rows=0)
    if new:
        try:
            history.tell(new, new[-1].version)
        except LedgerConflictError:
            return FoldReport(is_folded=False, rows_before=0, rows_after=0, told_rows=0)  # another folds
    rows = ledger.rows()
    operation = Operation.new(environment)
    kept = folding.fold(rows, operation)
    folding.require_equal(rows, kept)
    is_folded = ledger.fold(kept, operation)
    return FoldReport(is_folded=is_folded, rows_before=len(rows), rows_after=len(kept), told_rows=sum(len(commit.rows) for commit in new))


def _require_same_past(ledger: Ledger, history: History) -> None:
    """Raises DamagedLedgerError unless the ledger's commit at the last version that the history was told of is the one that it was told."""
    last = history.told_to
    if last < 0:
        return
    if last > ledger.version:
        what = f"it was told of version {last}, and the ledger stands at {ledger.version}"
    elif (told := history.operation_at(last)) != (here := ledger.operation_at(last)):
        what = f"of version {last} it was told operation {told}, and the ledger has {here} there"
    else:
        return
    msg = (
        f"the history knows another past of this ledger ({what}): one of them was restored from a backup. Nothing was folded: restore "
        "both from one backup"
    )
    raise DamagedLedgerError(msg)
