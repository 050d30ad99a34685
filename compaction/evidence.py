"""What the manifests of live checkpoints say that they need, held against what a vacuum would delete.

The ledger decides what is unreferenced. But a deletion cannot be taken back, and each live checkpoint's content is written down a second
time, in its manifest, with a digest: where the two contradict each other, nothing is deleted.
"""

import hashlib
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.catalog import manifest, paths
from holdfast.catalog.errors import DamagedFileError, DamagedLedgerError
from holdfast.catalog.facts import CheckpointCommitted
from holdfast.catalog.state import CatalogState
from holdfast.catalog.storage import Storage
from holdfast.catalog.transactions import Transactor
from holdfast.compaction.vacuum import VacuumPlan

HELD = 1_000_000  # paths that manifests name, which are in memory at a time, and for which the plan is gone through once


def require_unneeded(plan: VacuumPlan, transactor: Transactor, storage: Storage) -> VacuumPlan:
    """The plan itself, if no live or pinned checkpoint's manifest names a file of it.

    Raises:
        DamagedLedgerError: one does; nothing was deleted.
        DamagedFileError: a live checkpoint's manifest is missing or damaged, so that it cannot say what it needs.
    """
    planned = plan.files.paths
    held: list[tuple[CheckpointCommitted, pa.Array]] = []
    for fact in transactor.look(_kept) if len(planned) else ():
        needed = _read(fact, planned, transactor, storage)
        if needed is not None:
            held.append((fact, needed))
        if sum(len(each) for _, each in held) >= HELD:
            _require_apart(planned, held)
            held.clear()
    _require_apart(planned, held)
    return plan


def _require_apart(planned: pa.ChunkedArray, held: Sequence[tuple[CheckpointCommitted, pa.Array]]) -> None:
    """Raises DamagedLedgerError if one of these checkpoints needs what is planned to be deleted."""
    everything = pa.chunked_array([needed for _, needed in held], pa.string())
    wrong = planned.filter(pc.is_in(planned, value_set=everything))
    if not len(wrong):
        return
    fact, path = next((fact, path) for fact, needed in held for path in needed.filter(pc.is_in(needed, value_set=wrong)).to_pylist())
    msg = (
        f"the ledger calls {path} unreferenced, and the manifest of live checkpoint {fact.checkpoint_id} of job "
        f"{fact.job_id} names it: the ledger is damaged. Nothing was deleted: run "
        "`holdfast verify`, and restore the ledger from a backup"
    )
    raise DamagedLedgerError(msg)


def _read(fact: CheckpointCommitted, planned: pa.ChunkedArray, transactor: Transactor, storage: Storage) -> pa.Array | None:
    """What a checkpoint needs; None of one that need not be asked after all. Raises DamagedFileError."""
    try:
        return _needed(fact, storage)
    except (OSError, DamagedFileError) as error:
        if fact.attempt not in {still.attempt for still in transactor.look(_kept)}:
            return None  # dropped meanwhile, and cleaned by another vacuum
        if fact.is_savepoint and not pc.any(pc.starts_with(planned, f"{paths.parent(fact.path)}/")).as_py():
            return None  # it needs what is in its own directory, and nothing of that is to be deleted
        msg = (
            f"the manifest of live checkpoint {fact.checkpoint_id} of job {fact.job_id} cannot be read ({error}), so that what the "
            "vacuum would delete cannot be held against it. Nothing was deleted: restore the manifest from a copy, or drop that "
            "checkpoint (of a head: commit a new one first), then run the vacuum again"
        )
        raise DamagedFileError(msg) from error


def _kept(state: CatalogState) -> list[CheckpointCommitted]:
    """The live and pinned checkpoints whose files are in the catalog."""
    whole = state.whole()
    rows = [row for job in whole.jobs.values() for row in job.live.values()]
    rows += [whole.checkpoint(ref) for ref in whole.pinned()]
    unique: Iterable[CheckpointCommitted] = {row.fact.attempt: row.fact for row in rows if not row.is_outside}.values()
    return list(unique)


def _needed(fact: CheckpointCommitted, storage: Storage) -> pa.Array:
    """The manifest's own path and those of the files that it names, relative to the catalog's root."""
    data = storage.read(fact.path)
    if hashlib.sha256(data).hexdigest() != fact.sha256:
        msg = f"{fact.path} does not have the digest that was committed"
        raise DamagedFileError(msg)
    within = f"{paths.parent(fact.path)}/" if fact.is_savepoint else ""
    named = pc.binary_join_element_wise(within, manifest.paths_in(data, fact.path), "")
    return pa.concat_arrays([named, pa.array([fact.path])])
