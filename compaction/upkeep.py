"""Upkeep keeps a catalog small and fast for years (design, section 4b): a vacuum, a fold of what it has freed, and tidying up after both.

Coordinators do it by themselves, about every hundred commits, in a thread of their own and never inside a checkpoint's block. That it fails
is a warning and a fact, and no error of the job. Anybody may do it at any time, at once with others.
"""

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread

from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import DamagedLedgerError, HoldfastError
from holdfast.catalog.ledger import History, Ledger, Tidied
from holdfast.catalog.storage import Storage
from holdfast.catalog.transactions import Transactor
from holdfast.compaction.evidence import require_unneeded
from holdfast.compaction.fold import FoldReport, run_fold
from holdfast.compaction.queries import Queries
from holdfast.compaction.runs import MaintenanceRun, Progress
from holdfast.compaction.vacuum import VacuumReport, plan_vacuum, run_vacuum

FOLD_EVERY = 100  # commits: an opening reads one small file for each since the last fold
LATE = FOLD_EVERY * 3 // 2  # from here on it is anybody's: who was to fold has died, or failed, or was no coordinator
AGAIN_EVERY = 25  # commits


class EndVacuum(Exception):  # noqa: N818 - it is no error
    """Raised by a progress function: the vacuum ends after the batch that it has just deleted, a later one goes on. The fold is made."""


class UpkeepWarning(UserWarning):
    """Upkeep failed. The job goes on, and so does the growth of the catalog until upkeep runs well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepReport:
    """What upkeep did. `vacuum` is None where it was ended early; `tidied` is of ledger and history together."""

    vacuum: VacuumReport | None
    fold: FoldReport
    tidied: Tidied


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """Upkeep of one catalog, each run over handles of its own."""

    storage: Storage
    environment: Environment
    queries: Queries
    open_ledger: Callable[[], Ledger]
    open_history: Callable[[], History]

    def run(self, progress: Progress | None = None) -> UpkeepReport:
        """Vacuum, fold, tidy up. Safe to interrupt anywhere and to repeat.

        Raises what `vacuum` does, after the fold was made, and what `run_fold` does.
        """
        run = MaintenanceRun.begin("upkeep", self.environment)
        transactor = Transactor(self.open_ledger(), self.environment)
        failure: HoldfastError | None = None
        vacuum = None
        try:
            plan = require_unneeded(plan_vacuum(self.queries.garbage()), transactor, self.storage)
            vacuum = run_vacuum(plan, transactor, self.storage, self.environment, progress)
        except DamagedLedgerError:
            raise
        except EndVacuum:
            pass  # what it has deleted has been called gone
        except HoldfastError as error:
            failure = error
        ledger, history = self.open_ledger(), self.open_history()
        fold = run_fold(ledger, history, self.environment)
        ledger.refresh()
        of_ledger, of_history = ledger.tidy(history.told_to), history.tidy()
        tidied = Tidied(entries=of_ledger.entries + of_history.entries, data_files=of_ledger.data_files + of_history.data_files)
        if fold.is_folded:
            figures = {
                "rows_before": fold.rows_before,
                "rows_after": fold.rows_after,
                "told_rows": fold.told_rows,
                "deleted_entries": tidied.entries,
                "deleted_data_files": tidied.data_files,
            }
            transactor.append([run.ended(self.environment, "incomplete" if failure else "done", figures)])
        if failure is not None:
            raise failure
        return UpkeepReport(vacuum=vacuum, fold=fold, tidied=tidied)

    def failed(self, error: Exception) -> None:
        """Write down that a run failed, if that can be written."""
        run = MaintenanceRun.begin("upkeep", self.environment)
        ended = run.ended(self.environment, f"failed: {type(error).__name__}", {})
        Transactor(self.open_ledger(), self.environment).append([ended])


def is_due(landed: int, folded_to: int) -> bool:
    """Whether upkeep is due for the coordinator that committed version `landed` of a ledger whose newest fold stands for `folded_to`.

    On the hundredth commit, it is one committer's: compare-and-swap is no mutual exclusion, and 64 that fold at once would read everything
    for nothing. That commit may have been a reader's, who never folds, and a lone coordinator may land on every fifth version for ever. So
    of the 25 commits from the 150th on, the first is due, then of each 25 the first two, four, eight, ...: from the 275th on, all.
    """
    since = landed - max(folded_to, 0)
    return since == FOLD_EVERY or (since >= LATE and since % AGAIN_EVERY < 2 ** ((since - LATE) // AGAIN_EVERY))


class BackgroundUpkeep:
    """Runs upkeep in a thread, when a commit makes it due; one at a time."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._upkeep = upkeep
        self._thread: Thread | None = None
        self._stop = Event()
        self._tried: int | None = None  # what had landed when the last run began

    def after_commit(self, landed: int, folded_to: int) -> None:
        """Begin a run if it is due by what landed, none is under way, and the last one, which may have failed, is 25 commits ago. Returns
        at once."""
        if self._stop.is_set() or (self._thread and self._thread.is_alive()):
            return
        if is_due(landed, folded_to) and (self._tried is None or landed - self._tried >= AGAIN_EVERY):
            self._tried = landed
            self._thread = Thread(target=self._run, name="holdfast-upkeep")
            self._thread.start()

    def close(self) -> None:
        """Bring what is under way to an end, and wait for it: the vacuum after the batch that it is deleting, then the fold."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._upkeep.run(self._progress)
        except Exception as error:  # noqa: BLE001 - whatever it is: the job does not fail of it
            warnings.warn(f"the catalog's upkeep failed ({error}); run `holdfast upkeep` once that is mended", UpkeepWarning, stacklevel=1)
            with suppress(Exception):  # what failed above may well fail here, and was warned of
                self._upkeep.failed(error)

    def _progress(self, _done: int, _total: int) -> None:
        if self._stop.is_set():
            raise EndVacuum
