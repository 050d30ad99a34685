"""Vacuum: plan -> condemned, committed -> delete -> gone, committed. Needs no lock, no age limit, no conflict with writers.

Garbage is stable (I2): a plan may come from any snapshot, however old, and run alongside any other. A file is deleted only after its
condemnation is committed and durable (I3, I7), and called gone only after its deletion is confirmed (I6). A second vacuum picks up
what a crashed one condemned.

Of millions of files a run is some hundred commits and no object for a file: plan and facts are columns. A *batch* is what one commit
condemns, and the same commit calls gone what was deleted of the batch before it. It is deleted 1,000 files at a time, which is how often a
run reports its progress and can be ended.
"""

from dataclasses import dataclass

from holdfast.catalog import paths
from holdfast.catalog.environment import Environment
from holdfast.catalog.facts import Condemned, Gone
from holdfast.catalog.schema import FactColumns
from holdfast.catalog.storage import Storage
from holdfast.catalog.transactions import Transactor
from holdfast.compaction import runs
from holdfast.compaction.garbage import Garbage, GarbageFiles
from holdfast.compaction.runs import MaintenanceRun, Progress, batches, reasons

COMMITS = 100  # of a run, as long as its batches may grow
MOST_FILES = 100_000  # of a batch: the commit of so many has some 5 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumPlan:
    """What a vacuum will do: condemn and delete `unreferenced`, delete `condemned`, which an earlier run left."""

    unreferenced: GarbageFiles
    condemned: GarbageFiles

    @property
    def files(self) -> GarbageFiles:
        """All that will be deleted, oldest debts first."""
        return self.condemned + self.unreferenced

    @property
    def size_bytes(self) -> int:
        return self.condemned.size_bytes + self.unreferenced.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumReport:
    """What a vacuum did. `failed` names files whose deletion was not confirmed, which the next vacuum takes up, and directories that could
    not be removed after their files, which scrub takes up."""

    plan: VacuumPlan
    deleted_files: int
    deleted_bytes: int
    failed: tuple[str, ...]


def plan_vacuum(garbage: Garbage) -> VacuumPlan:
    """Everything that the ledger calls unreferenced at some version, and what was condemned by then."""
    return VacuumPlan(unreferenced=garbage.unreferenced, condemned=garbage.condemned)


def batch_size(files: int) -> int:
    """How many files one commit condemns, of so many: the record of a batch is what a kill loses.

    Two commits for each thousand of millions would cost more than the deletion of the files, and every process of the catalog reads each of
    them. So batches grow with the run, to a hundredth of it in whole thousands, and not beyond MOST_FILES, which bounds a commit's bytes.
    """
    thousands = -(-files // (COMMITS * runs.BATCH))
    return min(max(thousands, 1) * runs.BATCH, MOST_FILES)


def run_vacuum(
    plan: VacuumPlan, transactor: Transactor, storage: Storage, environment: Environment, progress: Progress | None = None
) -> VacuumReport:
    """Carry a plan out. Safe to interrupt anywhere and to repeat; a plan with nothing in it writes nothing.

    `progress` is called after each 1,000 files. If it raises, the run ends: what was deleted is called gone, then the exception is raised.
    """
    run = MaintenanceRun.begin("vacuum", environment)
    todo, new = plan.files, len(plan.condemned)  # from this one on they have to be condemned
    deleted = _Deleted(storage, progress, len(todo))
    if plan.condemned:  # by a run that may have died before its commit was durable
        transactor.settle()
    gone = FactColumns.of([])
    for batch in batches(todo, batch_size(len(todo))):
        if facts := gone + _facts(Condemned.kind, batch[max(new - deleted.done, 0) :], run):
            transactor.append(facts)
        try:
            deleted.take(batch)
        except Exception:
            if facts := _facts(Gone.kind, deleted.untold(), run):
                transactor.append(facts)
            raise
        gone = _facts(Gone.kind, deleted.untold(), run)
    if todo:
        transactor.append(gone + FactColumns.of([run.ended(environment, "incomplete" if deleted.failed else "done", deleted.figures)]))
    return VacuumReport(plan=plan, deleted_files=deleted.files, deleted_bytes=deleted.size_bytes, failed=tuple(deleted.failed))


def _facts(kind: str, files: GarbageFiles, run: MaintenanceRun) -> FactColumns:
    return FactColumns.of_kind(kind, job_id=files.table["job_id"], file_id=files.table["file_id"], run_id=run.run_id)


class _Deleted:
    """What a run has deleted so far, of how many files."""

    def __init__(self, storage: Storage, progress: Progress | None, total: int) -> None:
        self._storage, self._progress, self._total = storage, progress, total
        self._untold = GarbageFiles.of([])
        self.done = self.files = self.size_bytes = 0
        self.failed: list[str] = []

    @property
    def figures(self) -> dict[str, int]:
        return {"deleted_files": self.files, "deleted_bytes": self.size_bytes, "failed_files": self.done - self.files}

    def take(self, batch: GarbageFiles) -> None:
        """Delete a batch, and report after every part of it."""
        for part in batches(batch):
            gone = delete(part, self._storage, self.failed)
            self._untold += gone
            self.done, self.files, self.size_bytes = self.done + len(part), self.files + len(gone), self.size_bytes + gone.size_bytes
            if self._progress is not None:
                self._progress(self.done, self._total)

    def untold(self) -> GarbageFiles:
        """What is durably gone and was not yet returned here."""
        untold, self._untold = self._untold, GarbageFiles.of([])
        return untold


def delete(files: GarbageFiles, storage: Storage, failed: list[str]) -> GarbageFiles:
    """Delete the files, then those of their directories that are empty and belong to an attempt (which has ended: its files have rows).

    Returns the files that are durably gone: these must be reported, whatever becomes of the directories. Adds to what has failed.
    """
    names = files.paths.to_pylist()
    errors = storage.delete_many(names)
    directories = {paths.parent(name) for name in names if name not in errors}
    emptied = sorted(directory for directory in directories if paths.attempt_directory(f"{directory}/") is not None)
    failed += [*reasons(errors), *reasons(storage.remove_empty_directories(emptied))]
    return files.without(errors)
