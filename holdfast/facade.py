"""The catalog as its users see it: the one place where storage, ledger, writers and cleanup are put together."""

import os
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.catalog import duckdb_engine, lifecycle, paths
from holdfast.catalog.clock import Environment, SystemEnvironment
from holdfast.catalog.creation import create_catalog, open_ledger
from holdfast.catalog.errors import DamagedFileError, NotFoundError
from holdfast.catalog.ledger_delta import DeltaLedger
from holdfast.catalog.marker import Marker, read_marker
from holdfast.catalog.queries import SqlQueries
from holdfast.catalog.state import CatalogState, Ref
from holdfast.catalog.storage import Storage
from holdfast.catalog.storage_local import open_storage
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import AttemptToken, CheckpointId, KeepLast, Retention, Status
from holdfast.compaction.scrub import ScrubPlan, ScrubReport, run_scrub, survey
from holdfast.compaction.vacuum import Progress, VacuumPlan, VacuumReport, plan_vacuum, run_vacuum
from holdfast.compaction.verify import VerifyReport, run_verify
from holdfast.writers.coordinator import Coordinator
from holdfast.writers.pins import Pins
from holdfast.writers.registration import Start, begin_with, register_job, require_retention
from holdfast.writers.restore import Checkpoint, load_committed, load_manifest
from holdfast.writers.vehicles import UploadBy, state_writer

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import SparkSession

Address = str | os.PathLike[str]


class Catalog:
    """One root: one ledger and the files of many jobs. Made by `holdfast.open`; safe in threads but for the coordinators it gives."""

    def __init__(self, storage: Storage, marker: Marker, ledger: DeltaLedger, environment: Environment) -> None:
        self._storage, self._marker, self._environment = storage, marker, environment
        self._transactor = Transactor(ledger, environment)
        self._queries = SqlQueries(ledger.address)
        self._pins = Pins(self._transactor, environment)

    @property
    def catalog_id(self) -> str:
        return self._marker.catalog_id

    @property
    def address(self) -> str:
        return self._storage.address

    def __repr__(self) -> str:
        return f"<catalog {self.catalog_id} at {self.address}>"

    def close(self) -> None:
        """Release what this object pinned for reading. Called at the end of a `with` block and of the process; no harm if repeated."""
        self._pins.release_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ---- jobs -------------------------------------------------------------------------------------------------------

    def coordinate(
        self,
        job: str,
        *,
        max_parallelism: int | None = None,
        retention: Retention = KeepLast(1),  # noqa: B008 - frozen
        start: Start = "head",
        upload: UploadBy = "native",
    ) -> Coordinator:
        """Become the coordinator of a job, registering it if it is new: a new epoch, which fences a predecessor.

        `start` says where the job goes on: from its head, from nothing, or (a rollback) from a live checkpoint given by its number or
        as the path of its `chk-<n>` directory. `max_parallelism` is fixed when the job is registered (128 if not given).
        `upload` is "native" (Spark's writer; every host must share the file system) or "streamed" (one upload for each task).
        Raises:
            UsageError: an argument cannot be what it is; nothing was registered.
            RefusedError: the job has another max_parallelism, or the checkpoint to start from was dropped.
            NotFoundError, AddressError: there is no such checkpoint.
        """
        writer = state_writer(upload)
        require_retention(retention)
        job_id = register_job(self._transactor, self._environment, job, max_parallelism, start)
        ledger = open_ledger(self._storage, self._marker)
        return Coordinator(
            transactor=Transactor(ledger, self._environment),
            storage=self._storage,
            environment=self._environment,
            state_writer=writer,
            job_id=job_id,
            retention=retention,
            begin=begin_with(start, job_id, self._storage),
        )

    def checkpoint(self, job: str, checkpoint_id: int | None = None) -> Checkpoint:
        """A live checkpoint (None: the head) for reading. Pinned, so that its files stay, until it or this catalog object is closed.

        A process that may not write to the ledger reads unpinned: see `Checkpoint.is_pinned`.
        Raises:
            NotFoundError: no such job or checkpoint, or the job has none yet.
            RefusedError: the checkpoint was dropped.
            DamagedFileError: its manifest is not what was committed.
        """
        fact, is_pinned = self._pins.pin(lambda state: _ref(state, job, checkpoint_id))
        ref = Ref(fact.job_id, fact.checkpoint_id)
        release = partial(self._pins.release, ref) if is_pinned else None
        return Checkpoint(load_committed(self._storage, fact), self._storage, release=release, is_pinned=is_pinned)

    def hold(self, job: str, checkpoint_id: int, name: str, note: str | None = None) -> None:
        """Keep a live checkpoint from retention and drop until `unhold`. Raises RefusedError, NotFoundError, AlreadyExistsError."""
        self._transactor.run(lambda state: lifecycle.hold(state, _ref(state, job, checkpoint_id), name, note))

    def unhold(self, job: str, checkpoint_id: int, name: str) -> None:
        """End a hold. Raises RefusedError if there is none of this name."""
        self._transactor.run(lambda state: lifecycle.unhold(state, _ref(state, job, checkpoint_id), name))

    def drop(self, job: str, checkpoint_id: int, reason: str = "dropped by an operator") -> None:
        """The checkpoint is no longer live; its files go with the next vacuum unless others refer to them.

        Raises RefusedError for a held checkpoint and for the head, NotFoundError for one that does not exist.
        """
        self._transactor.run(lambda state: lifecycle.drop(state, _ref(state, job, checkpoint_id), reason))

    def kill(self, job: str, attempt: str, reason: str = "killed by an operator") -> None:
        """End an open attempt whose process seems gone. A wrong guess is safe: that attempt's commit fails, and it may begin another."""
        self._transactor.run(
            lambda state: lifecycle.end_attempt(state, state.job_named(job).job_id, AttemptToken(attempt), Status.KILLED, reason)
        )

    # ---- maintenance ------------------------------------------------------------------------------------------------

    def plan_vacuum(self) -> VacuumPlan:
        """What `vacuum` would do now."""
        return plan_vacuum(self._queries.garbage())

    def vacuum(self, *, dry_run: bool = False, progress: Progress | None = None) -> VacuumReport:
        """Delete what no live or pinned checkpoint refers to. Runs beside writers; safe to interrupt and to repeat.

        With `dry_run` nothing is changed, and the report's plan is the one that would run.
        """
        plan = self.plan_vacuum()
        if dry_run:
            return VacuumReport(plan=plan, deleted_files=0, deleted_bytes=0, failed=())
        return run_vacuum(plan, self._transactor, self._storage, self._environment, progress)

    def plan_scrub(self) -> ScrubPlan:
        """What `scrub` would do now."""
        return survey(self._transactor, self._storage, self._queries)

    def scrub(self, *, dry_run: bool = False, progress: Progress | None = None) -> ScrubReport:
        """Find and delete what ended attempts left and no row names. Foreign files are reported and never touched.

        Raises ForeignTokensError, before any deletion, if storage holds attempts that the ledger never knew; `dry_run` only reports them.
        """
        plan = self.plan_scrub()
        if dry_run:
            return ScrubReport(plan=plan, deleted_files=0, deleted_bytes=0, failed=())
        return run_scrub(plan, self._transactor, self._storage, self._environment, progress)

    def verify(self, *, progress: Progress | None = None) -> VerifyReport:
        """Read every file of every live checkpoint and compare it with the digest that was committed."""
        live = self._transactor.look(lambda state: sum(len(job.live) for job in state.jobs.values()))
        return run_verify(live, self._queries.live_files(), self._storage, progress, live_files=self._queries.live_files)

    # ---- analysts ---------------------------------------------------------------------------------------------------

    def duckdb(self) -> "duckdb.DuckDBPyConnection":
        """A connection with the views of the catalog, read-only and at its newest version."""
        return duckdb_engine.connect(self._queries.ledger_address)

    def register(self, spark: "SparkSession") -> None:
        """Make the views temporary views of a Spark session; it needs the JARs and settings of delta-spark."""
        from holdfast.writers.spark_views import register_views

        register_views(spark, self._queries.ledger_address)


def open_catalog(address: Address, *, create: bool = False, environment: Environment | None = None) -> Catalog:
    """The catalog at a path or `file:` URL. With `create`, a new one is made where there is none.

    Raises:
        AddressError: the address is of a kind of storage that is not supported, or no directory can be made there.
        AlreadyExistsError: `create` in a place that holds something else, or inside another catalog.
        NotFoundError: there is no catalog.
        FormatError: a newer version wrote it, or marker and ledger are of different catalogs.
        DamagedLedgerError: the ledger is gone, or damaged beyond what opening mends.
    """
    environment = environment or SystemEnvironment()
    storage = open_storage(address)
    marker = create_catalog(storage, environment) if create else read_marker(storage)
    return Catalog(storage, marker, open_ledger(storage, marker), environment)


def open_manifest(path: Address) -> Checkpoint:
    """A checkpoint by the path of its `chk-<n>` directory or `_metadata`, read without the ledger.

    Whether it was ever committed, only the ledger knows; that its bytes are whole, this checks.
    Raises:
        AddressError: the path does not have that form.
        DamagedFileError: the manifest is missing or damaged.
    """
    address = paths.parse_checkpoint_directory(path)
    storage = open_storage(address.root)
    manifest = load_manifest(storage, paths.manifest_path(address.job_id, address.checkpoint_id))
    if (manifest.job_id, manifest.checkpoint_id) != (address.job_id, address.checkpoint_id):
        msg = (
            f"{os.fspath(path)} holds the manifest of checkpoint {manifest.checkpoint_id} of job {manifest.job_id}: it was copied or moved "
            "there; read it where it belongs"
        )
        raise DamagedFileError(msg)
    return Checkpoint(manifest, storage)


def _ref(state: CatalogState, job: str, checkpoint_id: int | None) -> Ref:
    found = state.job_named(job)
    if checkpoint_id is None:
        if found.head is None:
            msg = f"job {job!r} has no checkpoint to continue from yet: write one first, or give a number"
            raise NotFoundError(msg)
        checkpoint_id = found.head
    return Ref(found.job_id, CheckpointId(checkpoint_id))
