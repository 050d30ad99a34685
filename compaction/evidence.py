"""What the manifests of live checkpoints say that they need, held against what a vacuum would delete.

The ledger decides what is unreferenced. But a deletion cannot be taken back, and each live checkpoint's content is written down a second
time, in its manifest, with a digest: where the two contradict each other, nothing is deleted.
"""

import hashlib
from collections.abc import Iterable

from holdfast.catalog import manifest, paths
from holdfast.catalog.errors import DamagedFileError, DamagedLedgerError
from holdfast.catalog.facts import CheckpointCommitted
from holdfast.catalog.state import CatalogState
from holdfast.catalog.storage import Storage
from holdfast.catalog.transactions import Transactor
from holdfast.compaction.vacuum import VacuumPlan


def require_unneeded(plan: VacuumPlan, transactor: Transactor, storage: Storage) -> VacuumPlan:
    """The plan itself, if no live or pinned checkpoint's manifest names a file of it.

    Raises:
        DamagedLedgerError: one does; nothing was deleted.
        DamagedFileError: a live checkpoint's manifest is missing or damaged, so that it cannot say what it needs.
    """
    planned = {file.path for file in (*plan.unreferenced, *plan.condemned)}
    for fact in transactor.look(_kept) if planned else ():
        try:
            needed = _needed(fact, storage)
        except (OSError, DamagedFileError) as error:
            if fact.attempt not in {still.attempt for still in transactor.look(_kept)}:
                continue  # dropped meanwhile, and cleaned by another vacuum
            if fact.is_savepoint and not any(path.startswith(f"{paths.parent(fact.path)}/") for path in planned):
                continue  # it needs what is in its own directory, and nothing of that is to be deleted
            msg = (
                f"the manifest of live checkpoint {fact.checkpoint_id} of job {fact.job_id} cannot be read ({error}), so that what the "
                "vacuum would delete cannot be held against it. Nothing was deleted: restore the manifest from a copy, or drop that "
                "checkpoint (of a head: commit a new one first), then run the vacuum again"
            )
            raise DamagedFileError(msg) from error
        if wrong := planned & needed:
            msg = (
                f"the ledger calls {min(wrong)} unreferenced, and the manifest of live checkpoint {fact.checkpoint_id} of job "
                f"{fact.job_id} names it: the ledger is damaged. Nothing was deleted: run "
                "`holdfast verify`, and restore the ledger from a backup"
            )
            raise DamagedLedgerError(msg)
    return plan


def _kept(state: CatalogState) -> list[CheckpointCommitted]:
    """The live and pinned checkpoints whose files are in the catalog."""
    whole = state.whole()
    rows = [row for job in whole.jobs.values() for row in job.live.values()]
    rows += [whole.checkpoint(ref) for ref in whole.pinned()]
    unique: Iterable[CheckpointCommitted] = {row.fact.attempt: row.fact for row in rows if not row.is_outside}.values()
    return list(unique)


def _needed(fact: CheckpointCommitted, storage: Storage) -> set[str]:
    """The manifest's own path and those of the files that it names, relative to the catalog's root."""
    data = storage.read(fact.path)
    if hashlib.sha256(data).hexdigest() != fact.sha256:
        msg = f"{fact.path} does not have the digest that was committed"
        raise DamagedFileError(msg)
    within = f"{paths.parent(fact.path)}/" if fact.is_savepoint else ""
    return {fact.path, *(f"{within}{path}" for path in manifest.paths_in(data, fact.path))}
