"""Opening what is there: a catalog; a checkpoint or savepoint without one; a savepoint written again."""

from functools import partial
from typing import TYPE_CHECKING

from holdfast.catalog import arguments, paths
from holdfast.catalog.creation import create_catalog, open_history, open_ledger
from holdfast.catalog.environment import Environment, SystemEnvironment
from holdfast.catalog.errors import NotFoundError, UsageError
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.marker import Marker, require_ledger
from holdfast.catalog.storage import Storage
from holdfast.catalog.storage.guard import GuardedStorage
from holdfast.catalog.storage.local import open_storage
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import (
    MAX_PARALLELISM_LIMIT,
)
from holdfast.catalog.upgrade import Progress, Tables, UpgradeReport, open_marker
from holdfast.catalog.upgrade import upgrade as run_upgrade
from holdfast.compaction.queries import SqlQueries
from holdfast.facade import Address, Catalog
from holdfast.writers.checkpoint import Checkpoint
from holdfast.writers.savepoints.content import spark_reader
from holdfast.writers.savepoints.writer import rekey_savepoint, savepoint_at
from holdfast.writers.spark.state_writer import state_writer
from holdfast.writers.start import open_manifest_at
from holdfast.writers.upload import UploadBy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_catalog(address: Address, *, create: bool = False, environment: Environment | None = None) -> Catalog:
    """The catalog at a path or `file:` URL. With `create`, a new one is made where there is none.

    Raises:
        AddressError: the address is of a kind of storage that is not supported, or no directory can be made there.
        AlreadyExistsError: `create` in a place that holds something else, or inside another catalog.
        NotFoundError: there is no catalog.
        FormatError: a newer version wrote it, it has format 1 (`upgrade`), or marker and ledger are of different catalogs.
        DamagedLedgerError: the ledger is gone, or damaged beyond what opening mends.
    """
    environment = environment or SystemEnvironment()
    storage = open_storage(address)
    try:
        marker = open_marker(storage, Tables(storage, environment))
    except NotFoundError:
        if not create:
            raise
        marker = create_catalog(storage, environment)
    return catalog_at(storage, marker, environment)


def upgrade(path: Address, *, progress: Progress | None = None) -> UpgradeReport:
    """Carry the catalog at a path or `file:` URL over from format 1 to the current format; nothing to do for one that has it.

    Writers of the older version may run meanwhile: they are refused from a moment on, and what they were told is committed stays. The old
    ledger stays in its directory, closed. Safe to interrupt anywhere and to repeat, also two at once. Afterwards no older version opens
    the catalog. `progress` is called with the number of steps that are done, and of all.

    Raises:
        NotFoundError: there is no catalog.
        FormatError: a newer version wrote it.
        CorruptionError: its marker, ledger or history is not what was written; it stays as it was.
        RetryError: another program cleaned the old ledger's log meanwhile, or the disk is full (StorageFullError).
        ReadOnlyError: this process may not write there.
    """
    arguments.function(progress, "a progress function")
    storage, environment = open_storage(path), SystemEnvironment()
    return run_upgrade(storage, Tables(storage, environment), environment, progress)


def catalog_at(storage: Storage, marker: Marker, environment: Environment) -> Catalog:
    """The catalog whose marker this is, over its Delta table. Raises as `open_ledger` does."""
    guarded, reopen = GuardedStorage(storage, marker.catalog_id), partial(_open_named, storage, marker, environment)
    history = partial(open_history, storage, marker, environment)
    return Catalog(
        catalog_id=marker.catalog_id,
        storage=guarded,
        transactor=Transactor(reopen(), environment, history=history),
        open_ledger=reopen,
        open_history=history,
        queries=SqlQueries(f"{storage.address}/{marker.ledger}", reopen, f"{storage.address}/{marker.history}"),
        environment=environment,
    )


def _open_named(storage: Storage, marker: Marker, environment: Environment) -> DeltaLedger:
    """The ledger that the marker named when the catalog was opened. Raises as `open_ledger`, and FencedError if it names another by now."""
    require_ledger(storage, marker)
    return open_ledger(storage, marker, environment)


def open_manifest(path: Address) -> Checkpoint:
    """A checkpoint by the path of its `chk-<n>` directory or `_metadata`, read without the ledger.

    Whether it was ever committed, only the ledger knows; that its bytes are whole, this checks.
    Raises:
        AddressError: the path does not have that form.
        DamagedFileError: the manifest is missing or damaged.
    """
    return open_manifest_at(paths.parse_checkpoint_directory(path))


def open_savepoint(path: Address) -> Checkpoint:
    """A savepoint by the path of its directory (or of the `_metadata` in it), wherever it was copied to; needs no catalog.

    Raises:
        AddressError: the address is of a kind of storage that is not supported.
        NotFoundError: the directory has no savepoint.
        DamagedFileError: the manifest is damaged.
    """
    return savepoint_at(arguments.address(path))


def rekey(
    savepoint: Address | Checkpoint,
    *,
    max_parallelism: int,
    target: Address,
    spark: "SparkSession | None" = None,
    upload: UploadBy = "native",
) -> Checkpoint:
    """Write a savepoint again with another number of key groups, which is otherwise fixed; the old one stays as it is.

    The new one gets a directory of its own within `target`; a new job starts from it by its path.

    Args:
        savepoint: what to write again: the path of its directory, or the savepoint itself.
        max_parallelism: the number of key groups of the new one, 1 to 32768.
        target: a directory outside of every catalog, in which the new one gets a directory of its own.
        spark: reads and writes states that are DataFrames. None: the active session.
        upload: how DataFrames are written: "native" (Spark's writer) or "streamed" (one upload for each task).

    Raises:
        RefusedError: the target is in a catalog, which would delete it: no row names it.
        AddressError: nothing can be written to the target.
        UsageError: `max_parallelism` is not 1 to 32768, or no Spark session is there to rewrite DataFrames.
        NotFoundError, DamagedFileError: as `open_savepoint`.
    """
    if arguments.whole_number(max_parallelism, "a number of key groups") not in range(1, MAX_PARALLELISM_LIMIT + 1):
        msg = f"max_parallelism={max_parallelism} is not 1 to {MAX_PARALLELISM_LIMIT}: give a number of key groups in that range"
        raise UsageError(msg)
    source = open_savepoint(savepoint.path if isinstance(savepoint, Checkpoint) else savepoint)
    return rekey_savepoint(source, max_parallelism, open_storage(target), SystemEnvironment(), state_writer(upload), spark_reader(spark))
