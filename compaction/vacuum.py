"""Vacuum: plan -> condemned, committed -> delete -> gone, committed. Needs no lock, no age limit, no conflict with writers.

Garbage is stable (I2): a plan may come from any snapshot, however old, and run alongside any other. A file is deleted only after its
condemnation is committed and durable (I3, I7), and called gone only after its deletion is confirmed (I6). A second vacuum picks up
what a crashed one condemned.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.catalog import paths
from holdfast.catalog.environment import Environment
from holdfast.catalog.facts import Condemned, Fact, Gone
from holdfast.catalog.storage import Storage
from holdfast.catalog.transactions import Transactor
from holdfast.compaction.garbage import Garbage, GarbageFile
from holdfast.compaction.runs import MaintenanceRun, Progress, batches, reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumPlan:
    """What a vacuum will do: condemn and delete `unreferenced`, delete `condemned`, which an earlier run left."""

    unreferenced: tuple[GarbageFile, ...]
    condemned: tuple[GarbageFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in (*self.unreferenced, *self.condemned))


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumReport:
    """What a vacuum did. `failed` names files whose deletion was not confirmed, which the next vacuum takes up, and directories that could
    not be removed after their files, which scrub takes up."""

    plan: VacuumPlan
    deleted_files: int
    deleted_bytes: int
    failed: tuple[str, ...]


def plan_vacuum(garbage: Garbage) -> VacuumPlan:
    """Everything that the ledger calls unreferenced at some version, oldest debts first."""
    return VacuumPlan(unreferenced=tuple(sorted(garbage.unreferenced, key=_path)), condemned=tuple(sorted(garbage.condemned, key=_path)))


def run_vacuum(
    plan: VacuumPlan, transactor: Transactor, storage: Storage, environment: Environment, progress: Progress | None = None
) -> VacuumReport:
    """Carry a plan out. Safe to interrupt anywhere and to repeat; a plan with nothing in it writes nothing."""
    run = MaintenanceRun.begin("vacuum", environment)
    todo = [*plan.condemned, *plan.unreferenced]
    new = {file.file_id for file in plan.unreferenced}
    gone: list[GarbageFile] = []
    failed: list[str] = []
    if plan.condemned:  # by a run that may have died before its commit was durable
        transactor.settle()
    done = 0
    for batch in batches(todo):
        if condemned := [Condemned(job_id=file.job_id, file_id=file.file_id, run_id=run.run_id) for file in batch if file.file_id in new]:
            transactor.append(condemned)
        deleted = _delete(batch, storage, failed)
        gone += deleted
        done += len(batch)
        figures = {"deleted_files": len(gone), "deleted_bytes": sum(file.size_bytes for file in gone), "failed_files": done - len(gone)}
        facts: list[Fact] = [Gone(job_id=file.job_id, file_id=file.file_id, run_id=run.run_id) for file in deleted]
        if done == len(todo):
            facts.append(run.ended(environment, "incomplete" if failed else "done", figures))
        if facts:
            transactor.append(facts)
        if progress is not None:
            progress(done, len(todo))
    return VacuumReport(plan=plan, deleted_files=len(gone), deleted_bytes=sum(file.size_bytes for file in gone), failed=tuple(failed))


def _delete(batch: Sequence[GarbageFile], storage: Storage, failed: list[str]) -> list[GarbageFile]:
    """Delete the files, then those of their directories that are empty and belong to an attempt (which has ended: its files have rows).

    Returns the files that are durably gone: these must be reported, whatever becomes of the directories.
    """
    errors = storage.delete_many([file.path for file in batch])
    deleted = [file for file in batch if file.path not in errors]
    directories = {d for file in deleted if (d := paths.attempt_directory(file.path)) is not None}
    failed += [*reasons(errors), *reasons(storage.remove_empty_directories(sorted(directories)))]
    return deleted


def _path(file: GarbageFile) -> str:
    return file.path
