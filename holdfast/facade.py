"""The catalog as its users see it, over the ports."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.catalog import arguments
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import NotFoundError, UsageError
from holdfast.catalog.facts import CheckpointCommitted
from holdfast.catalog.ledger import History, Ledger
from holdfast.catalog.process_identity import this_process
from holdfast.catalog.rules import checkpoints, savepoints
from holdfast.catalog.state import CatalogState, Ref
from holdfast.catalog.storage import Storage
from holdfast.catalog.storage.local import open_storage
from holdfast.catalog.texts import require_line
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import (
    AttemptToken,
    ChainLimit,
    KeepLast,
    OnEnd,
    OwnedFile,
    Retention,
    Status,
)
from holdfast.compaction.evidence import require_unneeded
from holdfast.compaction.orphans import past_of
from holdfast.compaction.queries import Queries
from holdfast.compaction.runs import Progress
from holdfast.compaction.scrub import ScrubPlan, ScrubReport, run_scrub, survey
from holdfast.compaction.upkeep import BackgroundUpkeep, Upkeep, UpkeepReport
from holdfast.compaction.vacuum import VacuumPlan, VacuumReport, plan_vacuum, run_vacuum
from holdfast.compaction.verify import VerifyReport
from holdfast.past import PastCatalog
from holdfast.verification import verify_catalog
from holdfast.writers.checkpoint import Checkpoint, kept_by, numbered, open_committed, ref_of
from holdfast.writers.coordinator import Coordinator, coordinate
from holdfast.writers.failure_policy import FailurePolicy
from holdfast.writers.pins import Pins, ReaderPin
from holdfast.writers.registration import register_job, require_policies
from holdfast.writers.savepoints.content import spark_reader
from holdfast.writers.savepoints.outside import Disposal, dispose
from holdfast.writers.savepoints.writer import SavepointWriter, export_checkpoint
from holdfast.writers.spark.state_writer import state_writer
from holdfast.writers.start import Mode, Start, StateMapping, resolve_start
from holdfast.writers.stores.canonical import StoreAdapter
from holdfast.writers.task_owned import Owner, own, release
from holdfast.writers.upload import StateWriter, UploadBy

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import SparkSession

Address = str | os.PathLike[str]


class Catalog:
    """One root: one ledger and the files of many jobs. Made by `holdfast.open`; safe in threads but for the coordinators it gives."""

    def __init__(
        self,
        *,
        catalog_id: str,
        storage: Storage,
        transactor: Transactor,
        open_ledger: Callable[[], Ledger],
        open_history: Callable[[], History],
        queries: Queries,
        environment: Environment,
        state_writer: Callable[[UploadBy], StateWriter] = state_writer,
    ) -> None:
        """Over the ports. `open_ledger` gives each coordinator a handle of its own, `open_history` one to whoever needs it."""
        self._catalog_id, self._storage, self._environment = catalog_id, storage, environment
        self._transactor, self._open_ledger, self._queries, self._state_writer = transactor, open_ledger, queries, state_writer
        self._open_history = open_history
        self._pins = Pins(transactor, environment)
        self._reader_pins: list[ReaderPin] = []

    @property
    def catalog_id(self) -> str:
        return self._catalog_id

    @property
    def address(self) -> str:
        return self._storage.address

    def __repr__(self) -> str:
        return f"<catalog {self.catalog_id} at {self.address}>"

    def close(self) -> None:
        """Release what this object pinned for reading, and pin no more. Called at the end of a `with` block and of the process; no harm if
        repeated, or in a forked child, which leaves its parent's pins alone."""
        for pin in self._reader_pins:
            pin.expire()
        self._reader_pins.clear()
        self._pins.close()

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
        retention: Retention = KeepLast(3),  # noqa: B008 - frozen
        on_end: OnEnd = OnEnd(),  # noqa: B008 - frozen
        chain: ChainLimit = ChainLimit(),  # noqa: B008 - frozen
        start: Start = "head",
        mode: Mode | None = None,
        states: Collection[str] | None = None,
        allow_non_restored: Collection[str] = (),
        renamed: Mapping[str, str] | None = None,
        upload: UploadBy = "native",
        checkpoint_timeout_s: float | None = None,
        tolerated_failures: int = 0,
    ) -> Coordinator:
        """Become the coordinator of a job, registering it if it is new: a new epoch, which fences a predecessor.

        Args:
            job: the name of the job in this catalog.
            max_parallelism: its number of key groups, fixed when it is registered. None: that of what it starts from, else 128, or more by
                Flink's rule for a Spark session of more than 85 cores.
            retention: which checkpoints stay live when one is committed: by default the newest three, to roll back to.
            on_end: which outcomes of the job drop its checkpoints.
            chain: bounds the change sets above a base.
            start: where the job continues: from its head; from nothing; from a live checkpoint, by its number or the path of its `chk-<n>`
                directory (a rollback); from a savepoint or a checkpoint of elsewhere, by its path, which is copied whole into a first
                checkpoint; or from a checkpoint of another job of this catalog, in a `mode`.
            mode: for a checkpoint of another job: "fork" shares its files, "no-claim" copies them, "claim" fences the other job's
                coordinator and owns its checkpoints from here.
            states: the states that the program has: any other is refused, unless it is named in `allow_non_restored`. None: not asked.
            allow_non_restored: states that may be left behind.
            renamed: old name -> new name, where states are copied.
            upload: how DataFrames are written: "native" (Spark's writer) or "streamed" (one upload for each task); every host must share
                the file system.
            checkpoint_timeout_s: how long the block of a checkpoint may take before its attempt is ended. None: no limit.
            tolerated_failures: how many checkpoints in a row may fail before one raises: see `Coordinator.checkpoint`.

        Raises:
            UsageError: an argument is not what it must be; nothing was registered.
            RefusedError: the job has another max_parallelism, the checkpoint to start from was dropped, or a state would be lost.
            NotFoundError, AddressError: there is no such checkpoint.
        """
        start = start if (number := arguments.integer(start)) is None else number
        writer = self._state_writer(upload)
        require_policies(retention, on_end, chain)
        failure_policy = FailurePolicy(timeout_s=checkpoint_timeout_s, tolerated_failures=tolerated_failures)
        mapping = StateMapping(states=states, allow_non_restored=allow_non_restored, renamed={} if renamed is None else renamed)
        begin = resolve_start(start, mode, mapping, job, self._storage, self._transactor)
        job_id = register_job(
            self._transactor, self._environment, job, max_parallelism, of_source=begin.max_parallelism, must_exist=isinstance(start, int)
        )
        return coordinate(
            transactor=Transactor(self._open_ledger(), self._environment, history=self._open_history),
            storage=self._storage,
            environment=self._environment,
            state_writer=writer,
            job_id=job_id,
            retention=retention,
            on_end=on_end,
            chain=chain,
            start=begin,
            failure_policy=failure_policy,
            upkeep=BackgroundUpkeep(self._upkeep()),
        )

    def checkpoint(self, job: str, checkpoint_id: int | None = None) -> Checkpoint:
        """A live checkpoint (None: the head) for reading. Pinned, so that its files stay, until it or this catalog object is closed.

        A process that may not write to the ledger, or has no room to, reads unpinned: see `Checkpoint.is_pinned`.
        Raises:
            NotFoundError: no such job or checkpoint, or the job has none yet.
            RefusedError: the checkpoint was dropped, or this catalog object is closed.
            DamagedFileError: its manifest is not what was committed.
        """
        fact, is_pinned = self._pins.pin(lambda state: ref_of(state, job, checkpoint_id))
        ref = Ref(fact.job_id, fact.checkpoint_id)
        is_kept = kept_by(self._transactor, ref)
        if not is_pinned:
            return open_committed(self._storage, fact, None, is_kept)
        pin = ReaderPin(partial(self._pins.release, ref))
        try:
            checkpoint = open_committed(self._storage, fact, pin, is_kept)
        except BaseException:
            pin.end()
            raise
        self._reader_pins = [*(other for other in self._reader_pins if other.is_open), pin]
        return checkpoint

    def end_dead_readers(self) -> list[str]:
        """End what processes of this host pinned for reading, or for taking a savepoint, and did not end before they died; the attempts.

        `vacuum` does so first. The view `readers` lists readings. For another host (or container) this cannot be known:
        `kill` ends its attempt by its token.
        """
        return [str(token) for token in self._pins.end_dead()]

    def hold(self, job: str, checkpoint_id: int, name: str, note: str | None = None) -> None:
        """Keep a live checkpoint from retention and drop until `unhold`.

        Raises UsageError (the hold has no name, or name or note are not a line of printable text), RefusedError, NotFoundError,
        AlreadyExistsError.
        """
        given: object = name
        if not isinstance(given, str) or not given.strip():
            msg = f"a hold on checkpoint {checkpoint_id} of job {job!r} needs a name, by which it is ended"
            raise UsageError(msg)
        require_line(name, "the name of a hold")
        if note is not None:
            require_line(note, "the note of a hold")
        find = numbered(job, checkpoint_id)
        self._transactor.run(lambda state: checkpoints.hold(state, find(state), name, note))

    def unhold(self, job: str, checkpoint_id: int, name: str) -> None:
        """End a hold. Raises RefusedError if there is none of this name."""
        find = numbered(job, checkpoint_id)
        arguments.text(name, "the name of a hold")
        self._transactor.run(lambda state: checkpoints.unhold(state, find(state), name))

    def drop(self, job: str, checkpoint_id: int, reason: str = "dropped by an operator") -> None:
        """The checkpoint is no longer live; its files are deleted by the next vacuum unless others refer to them.

        Raises RefusedError for a held checkpoint, for the head and for a savepoint (`dispose`), NotFoundError for one that does not exist,
        UsageError for a reason that is not a line of printable text.
        """
        find = numbered(job, checkpoint_id)
        require_line(reason, "the reason for a drop")
        self._transactor.run(lambda state: checkpoints.drop(state, find(state), reason))

    def kill(self, job: str, attempt: str, reason: str = "killed by an operator") -> None:
        """End an open attempt whose process seems gone. A wrong guess is safe: that attempt's commit fails, and it may begin another.

        Raises AttemptEndedError, RefusedError for an owner of files, which is released and not killed, and UsageError for a reason that is
        not a line of printable text.
        """
        token = AttemptToken(arguments.text(attempt, "the token of an attempt"))
        require_line(reason, "the reason for a kill")
        self._transactor.run(lambda state: checkpoints.end_attempt(state, state.job_named(job).job_id, token, Status.KILLED, reason))

    # ---- files of tasks ----------------------------------------------------------------------------------------------

    def own(self, job: str, owner: str) -> Owner:
        """Open an owner of files, by a name of the job's tasks; or continue with it, if it is open: a task that was started again does.

        It stays open whatever becomes of the process that opened it, of coordinators and of checkpoints, until it is released.
        Raises:
            NotFoundError: there is no such job.
            AlreadyExistsError: the job had an owner of this name, which was released: names never come back.
        """
        return own(self._transactor, self._storage, self._environment, job, owner, this_process())

    def release(self, job: str, owner: str, files: Sequence[OwnedFile] | None = None) -> None:
        """Say that the owner needs these files no more; without `files`, that it needs none, and ends. Called by the task that owns them,
        wherever it runs; by an operator, for a task that is gone for good.

        A file is deleted when it is released and no live or pinned checkpoint has it. A checkpoint in the making that has just begun to
        refer to it is aborted. Releasing again does nothing.
        Raises:
            NotFoundError: the job never had such an owner.
            RefusedError: a file is not one that this owner wrote; nothing was released.
        """
        release(self._transactor, job, arguments.text(owner, "the name of an owner"), files)

    # ---- savepoints and copies ------------------------------------------------------------------------------------------

    def savepoint(
        self,
        job: str,
        name: str,
        *,
        checkpoint_id: int | None = None,
        target: Address | None = None,
        spark: "SparkSession | None" = None,
        stores: Mapping[str, StoreAdapter] | None = None,
        upload: UploadBy = "native",
    ) -> Checkpoint:
        """A savepoint of a live checkpoint: self-contained, in its own directory, never removed by retention.

        Args:
            job: the name of the job.
            name: the savepoint's own name, which the job never had.
            checkpoint_id: of which checkpoint. None: the head.
            target: a directory outside the catalog, in which the savepoint gets a directory of its own, which only `dispose` deletes. None:
                in the catalog.
            spark: reads the states that are DataFrames. None: the active session.
            stores: adapters of embedded stores by their states, which then have the canonical format, as rows that can be rescaled; a state
                without one is copied as the directories that it is.
            upload: how DataFrames are written: "native" (Spark's writer) or "streamed" (one upload for each task).

        Raises (none of these takes the name):
            AlreadyExistsError: the job has had a savepoint of this name, or one was tried and aborted.
            RefusedError: the checkpoint was dropped; or the target is in a catalog, this or another.
            AddressError: nothing can be written to the target.
            UsageError: a state is a DataFrame, and there is no Spark session; or `stores` names a state that has no directories.
        """
        writer = SavepointWriter(
            transactor=self._transactor,
            storage=self._storage,
            environment=self._environment,
            state_writer=self._state_writer(upload),
            read_state=spark_reader(spark, stores),
            stores={} if stores is None else stores,
        )
        ref = self._transactor.look(lambda state: ref_of(state, job, checkpoint_id))
        return open_committed(self._storage, writer.take(ref, name, None if target is None else open_storage(target)))

    def dispose(self, job: str, name: str) -> Disposal:
        """Drop a savepoint by its name: the only way to remove one. Its files in the catalog are deleted by the next vacuum, others now.

        Outside, what its manifest names is deleted; where that is damaged or lost, what lies under the savepoint's own names (`data/` and
        `_metadata`); where nothing is, it is dropped anyway. The result says what was found. A second call deletes what the first left.
        Raises:
            NotFoundError: the job has no savepoint of this name (or it was tried and aborted, or is being taken).
            RefusedError: it is held; or it lies outside and is there, and an open attempt reads it.
        """
        arguments.text(name, "the name of a savepoint")
        return dispose(self._storage, self._transactor, lambda state: _savepoint(state, job, name))

    def export(self, checkpoint: Checkpoint, target: Address) -> str:
        """Copy exactly the files of a checkpoint to an empty or new directory, verified on the way; the path of its `chk-<n>` there.

        The copy opens with `holdfast.open_manifest`, and a job starts from it by its path, with no catalog around it.
        Raises:
            AlreadyExistsError: the target has files.
            RefusedError: the target is in a catalog, this or another.
            AddressError: nothing can be written to the target.
            DamagedFileError: a file is missing or is not what was committed.
        """
        given: object = checkpoint
        if not isinstance(given, Checkpoint):
            msg = f"{given!r} is not a checkpoint: pass what catalog.checkpoint(job, number) gives"
            raise UsageError(msg)
        return export_checkpoint(checkpoint, open_storage(target))

    # ---- maintenance ------------------------------------------------------------------------------------------------

    def plan_vacuum(self) -> VacuumPlan:
        """What `vacuum` would do now, held against the manifests of all that is live.

        Raises:
            DamagedLedgerError: a file of the ledger is not what was written, or a manifest contradicts it.
            DamagedFileError: the manifest of a live checkpoint cannot be read.
        """
        self._storage.require_root()
        return require_unneeded(plan_vacuum(self._queries.garbage()), self._transactor, self._storage)

    def vacuum(self, *, dry_run: bool = False, progress: Progress | None = None) -> VacuumReport:
        """Delete what no live or pinned checkpoint refers to. Runs alongside writers; safe to interrupt and to repeat.

        Before, it ends what dead processes of this host have open (`end_dead_readers`). With `dry_run` nothing is changed, and the report's
        plan is the one that would run with those still open.
        """
        arguments.function(progress, "a progress function")
        if dry_run:
            return VacuumReport(plan=self.plan_vacuum(), deleted_files=0, deleted_bytes=0, failed=())
        self._pins.end_dead()
        plan = self.plan_vacuum()
        return run_vacuum(plan, self._transactor, self._storage, self._environment, progress)

    def plan_scrub(self) -> ScrubPlan:
        """What `scrub` would do now."""
        return survey(self._transactor, self._storage, self._queries, lambda: past_of(self._open_ledger(), self._open_history()))

    def scrub(self, *, dry_run: bool = False, progress: Progress | None = None) -> ScrubReport:
        """Find and delete what ended attempts left and no row names. Foreign files are reported and never touched.

        Raises ForeignTokensError, before any deletion, if storage holds attempts that the ledger never knew; `dry_run` only reports them.
        """
        arguments.function(progress, "a progress function")
        plan = self.plan_scrub()
        if dry_run:
            return ScrubReport(plan=plan, deleted_files=0, deleted_bytes=0, failed=())
        return run_scrub(plan, self._transactor, self._storage, self._environment, progress)

    def upkeep(self, *, progress: Progress | None = None) -> UpkeepReport:
        """Keep the catalog small and fast: a vacuum, a fold of the ledger, and what both leave to delete.

        Coordinators do it by themselves, about every hundred commits. Runs alongside everything; safe to interrupt and to repeat. Before,
        it ends what dead processes of this host have open (`end_dead_readers`).
        Raises:
            DamagedLedgerError: a file of ledger or history is not what was written, or one of them was restored from a backup; nothing was
                folded.
            DamagedFileError: the manifest of a live checkpoint cannot be read: nothing was deleted, and the ledger was folded all the same.
        """
        arguments.function(progress, "a progress function")
        self._storage.require_root()
        self._pins.end_dead()
        return self._upkeep().run(progress)

    def _upkeep(self) -> Upkeep:
        return Upkeep(
            storage=self._storage,
            environment=self._environment,
            queries=self._queries,
            open_ledger=self._open_ledger,
            open_history=self._open_history,
        )

    def verify(self, *, progress: Progress | None = None) -> VerifyReport:
        """Read every file of ledger and history, then every file of every live checkpoint and savepoint, those outside the catalog too, and
        compare it with the digest that was committed. Of files of DataFrames, every row's key group is compared with its key's, and the
        calendar of dates is looked at.

        Where the ledger is damaged so far that it cannot say which files those are, the report has its damage alone.
        """
        arguments.function(progress, "a progress function")
        return verify_catalog(self._storage, self._transactor, self._queries, progress)

    # ---- analysts ---------------------------------------------------------------------------------------------------

    def duckdb(self) -> "duckdb.DuckDBPyConnection":
        """A connection with the views of the catalog at its newest version, in which ledger and history are read-only. Below a tail that a
        loss of power has torn, and no commit has mended, it stays at the version below that.

        It can open the files of this catalog and no others, and no extension: what is to be joined with other data comes in by
        `connection.register(name, table)`, and results go out as DataFrames or Arrow.
        """
        self._storage.require_root()
        return self._queries.connect(self.address)

    def register(self, spark: "SparkSession") -> None:
        """Make the views temporary views of a Spark session, as of now; it needs the JARs and settings of delta-spark.

        Raises RefusedError if views of the user's own have such names; UsageError, DamagedLedgerError.
        """
        from holdfast.writers.spark.views import register_views

        arguments.spark_session(spark)
        register_views(spark, self._queries.ledger_address, history_address=self._queries.history_address)

    def at(self, *, version: int | None = None, time: datetime | None = None, ledger: str | None = None) -> PastCatalog:
        """The catalog as it was, for analysts: the same views, at a version of the ledger or a time. Inline bytes of states are not there.

        Versions are of the ledger of today, as Delta counts them from 0 on; those of one before an upgrade are asked with the name of its
        directory. A time is by the clocks of the writers: it is the newest version up to which none of them wrote a later time, so that a
        clock that is ahead hides what came after it, until then.
        Raises UsageError: there was no such version, nothing had been committed by then, or the time has no time zone.
        """
        self._storage.require_root()
        if (version is None) == (time is None) or (time is not None and ledger is not None):
            msg = "the catalog is shown as it was at a version (and of which ledger) or at a time: pass one of them"
            raise UsageError(msg)
        if time is not None:
            when: int | datetime = arguments.aware_time(time)
        else:
            when = arguments.whole_number(version, "a version of the ledger")
        return PastCatalog(
            self._queries.past(when, None if ledger is None else arguments.text(ledger, "the name of a ledger")), self.address
        )


def _savepoint(state: CatalogState, job: str, name: str) -> tuple[Ref, CheckpointCommitted]:
    found = state.job_named(job)
    for number, row in found.checkpoints.items():
        if row.fact.is_savepoint and row.fact.name == name:
            return Ref(found.job_id, number), row.fact
    if name in found.savepoints:
        msg = f"there is nothing to dispose of: {savepoints.taken(found, name)}"
        raise NotFoundError(msg)
    names = ", ".join(repr(row.fact.name) for row in found.live.values() if row.fact.is_savepoint) or "none"
    msg = f"job {job!r} has no savepoint named {name!r}; it has: {names}"
    raise NotFoundError(msg)
