"""Verifying a catalog whole: its ledger and history, then every file of every live checkpoint, also of savepoints outside of it."""

from dataclasses import replace

from holdfast.catalog import paths
from holdfast.catalog.errors import DamagedFileError, DamagedLedgerError
from holdfast.catalog.facts import CheckpointCommitted
from holdfast.catalog.file_checks import files_of_rows
from holdfast.catalog.storage import Storage
from holdfast.catalog.transactions import Transactor
from holdfast.compaction.queries import Queries
from holdfast.compaction.runs import Progress
from holdfast.compaction.verify import Damage, VerifyReport, run_verify
from holdfast.writers.checkpoint import open_committed
from holdfast.writers.parquet.key_group_checks import rows_of_live


def verify_catalog(storage: Storage, transactor: Transactor, queries: Queries, progress: Progress | None) -> VerifyReport:
    """Where the ledger is damaged so far that it cannot say which files are live, the report has its damage alone.

    Raises DamagedLedgerError where the ledger cannot say so, and no damage was found in its files.
    """
    storage.require_root()
    ledger = _verify_ledger(queries)
    try:
        return ledger.with_more(_verify_checkpoints(storage, transactor, queries, progress))
    except DamagedLedgerError:
        if ledger.damages:
            return ledger
        raise


def _verify_ledger(queries: Queries) -> VerifyReport:
    files = list(queries.check_ledger())
    damages = [Damage(path=file.path, what=file.what) for file in files if file.what is not None]
    return VerifyReport(
        checkpoints=0,
        files=0,
        size_bytes=0,
        damages=tuple(damages),
        ledger_files=len(files),
        ledger_bytes=sum(file.size_bytes for file in files),
    )


def _verify_checkpoints(storage: Storage, transactor: Transactor, queries: Queries, progress: Progress | None) -> VerifyReport:
    live = transactor.look(lambda state: [row.fact for job in state.whole().jobs.values() for row in job.live.values()])
    rows = rows_of_live(storage, live)
    report = run_verify(len(live), queries.live_files(), storage, progress, live_files=queries.live_files, rows=rows)
    for fact in live:
        if fact.is_savepoint and paths.is_address(fact.path):
            report = report.with_more(_verify_outside(storage, fact))
    return report


def _verify_outside(storage: Storage, fact: CheckpointCommitted) -> VerifyReport:
    """The report on one savepoint outside the catalog, with addresses for paths."""
    try:
        savepoint = open_committed(storage, fact)
    except DamagedFileError as error:
        return VerifyReport(checkpoints=0, files=1, size_bytes=0, damages=(Damage(path=fact.path, what=str(error)),))
    found = run_verify(0, [*savepoint.manifest.files.values()], savepoint.storage, rows=files_of_rows(savepoint.manifest))
    return replace(found, damages=tuple(replace(d, path=f"{savepoint.storage.address}/{d.path}") for d in found.damages))
