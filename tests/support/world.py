"""A catalog in memory that many processes share: one log, one storage, and for each process handles, faults and ids of its own.

It puts the real parts together as `holdfast.facade` does, over the reference adapters, and keeps what no ledger tells: every object made
or deleted with the version at its time, and every checkpoint that a caller was told is committed.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, BinaryIO, Literal

from holdfast.catalog import facts as f
from holdfast.catalog import paths
from holdfast.catalog.ledger import FILE_ROWS, Ledger
from holdfast.catalog.ledger.memory import NO_FOLD, MemoryLedger, MemoryLog
from holdfast.catalog.ledger.memory_history import MemoryHistory, MemoryTold
from holdfast.catalog.manifest import Manifest
from holdfast.catalog.manifest_store import load_committed, place_of
from holdfast.catalog.marker import create_marker
from holdfast.catalog.references import References
from holdfast.catalog.rules import checkpoints, decision, savepoints
from holdfast.catalog.rules.commit_facts import CommitRequest
from holdfast.catalog.state import CatalogState, JobState, Ref
from holdfast.catalog.storage import PassingStorage
from holdfast.catalog.storage.memory import MemoryStorage
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import (
    Ack,
    AttemptToken,
    ChainLimit,
    CheckpointId,
    CheckpointMetrics,
    Chunk,
    JobId,
    KeepLast,
    OwnedFile,
    Purpose,
    Retention,
    Role,
    Scope,
    StateInfo,
    Status,
    StoredFile,
)
from holdfast.compaction.fold import run_fold
from holdfast.compaction.garbage import find_garbage
from holdfast.compaction.queries import FoldedQueries
from holdfast.compaction.scrub import ScrubPlan, ScrubReport, run_scrub
from holdfast.compaction.vacuum import VacuumPlan, VacuumReport, plan_vacuum, run_vacuum
from holdfast.facade import Catalog
from holdfast.writers.attempt import OpenAttempt
from holdfast.writers.checkpoint import Checkpoint
from holdfast.writers.checkpoint_writer import CheckpointWriter
from holdfast.writers.coordinator import Coordinator, coordinate
from holdfast.writers.failure_policy import FailurePolicy
from holdfast.writers.registration import register_job
from holdfast.writers.savepoints.writer import SavepointWriter
from holdfast.writers.start import Mode, StartPoint, live_source
from holdfast.writers.task_owned import Owner, release
from holdfast.writers.upload import ParentState, UploadContext, WrittenState, in_full, on_parent
from tests.support.faults import Faults
from tests.support.faulty_ledger import FaultyLedger
from tests.support.faulty_storage import FaultyStorage
from tests.support.invariants import Acknowledgement, Evidence, StorageCall, read_states
from tests.support.stores import Stores, read_stores, write_stores
from tests.support.threads import T, at_once

JOB = "flights"
CATALOG_ID = "0123456789abcdef"
KEEP_ONE = KeepLast(1)
ENDLESS = FailurePolicy()


@dataclass(frozen=True, slots=True)
class Logs:
    """A state that is files of an owner, with what is in each of them."""

    owner: Owner
    files: Mapping[OwnedFile, bytes]


State = bytes | list[bytes] | Logs | Stores | None  # small state, files of a DataFrame or of an owner, directories, or its removal
BEGAN = datetime(2013, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Numbers:
    """1, 2, 3 and so on; a copy goes on from where it was copied."""

    given: int = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.given += 1
        return self.given


@dataclass(slots=True)
class FakeEnvironment:
    """Ids that are never given twice and look random; a clock that moves when it is read; no waiting."""

    name: str
    _ids: Iterator[int]
    actor: str = "tester@host holdfast/test"
    alarms: list[Callable[[], None]] = field(default_factory=list)
    passed_s: float = 0.0
    starts: Callable[[Callable[[], Any]], "Future[Any]"] = at_once
    _reads: int = 0

    def now(self) -> datetime:
        self._reads += 1
        return BEGAN + timedelta(milliseconds=self._reads)

    def monotonic_s(self) -> float:
        self._reads += 1
        return self.passed_s + self._reads / 1000

    def new_id(self) -> str:
        return hashlib.sha256(f"id {next(self._ids)}".encode()).hexdigest()[:16]

    def pause(self, attempt: int) -> None:
        pass

    def start(self, work: Callable[[], T]) -> "Future[T]":
        return self.starts(work)

    def alarm(self, after_s: float, ring: Callable[[], None]) -> Callable[[], None]:
        self.alarms.append(ring)

        def call_off() -> None:
            if ring in self.alarms:
                self.alarms.remove(ring)

        return call_off

    def ring(self) -> None:
        """The time of every alarm that is set has come."""
        for ring in [*self.alarms]:
            self.alarms.remove(ring)
            ring()


class FakeStateWriter:
    """Uploads a "DataFrame", which is a list of bytes, a file for each, as the native uploader does: in a directory of the write call."""

    def write(self, df: Any, context: UploadContext) -> tuple[list[Ack], StateInfo]:
        ack = self._upload(df, context)
        info = StateInfo(
            operator=context.operator,
            state=context.state,
            format="parquet",
            key_columns=context.key_columns,
            rows=ack.metrics.rows,
            total_bytes=ack.metrics.bytes_written,
        )
        return [ack], info

    def write_changed_groups(self, df: Any, context: UploadContext, parent: ParentState | None, limit: ChainLimit) -> WrittenState:
        """Here all groups have always changed."""
        return in_full(*self.write(df, context))

    def write_changes(
        self, upserts: Any, deletes: Any, context: UploadContext, parent: ParentState | None, limit: ChainLimit
    ) -> WrittenState | None:
        """Upserts are bytes that the state's get at their end; there are no deletes."""
        if parent is None:
            return in_full(*self.write(upserts, context))
        ack = self._upload(upserts, replace(context, role=Role.UPSERTS))
        return on_parent(parent, [ack], replace(parent.info, rows=None))

    def _upload(self, df: Any, context: UploadContext) -> Ack:
        parts: list[bytes] = [df] if isinstance(df, bytes) else list(df)
        number, token = context.metadata.checkpoint_id, context.attempt
        scope = Scope.EXCLUSIVE if context.metadata.is_savepoint else Scope.SHARED
        directory = f"{context.directory}/{context.call}"
        if context.directory is None:
            directory = paths.native_directory(context.job_id, number, token, context.call)
        for i, part in enumerate(parts):
            context.storage.create(f"{directory}/part-{i:05d}.parquet", part)
        files, chunks = [], []
        for i in range(len(parts)):
            path = f"{directory}/part-{i:05d}.parquet"
            found, file_id = context.storage.digest(path), paths.file_id(token, context.call, i)
            files.append(StoredFile(file_id=file_id, path=path, size_bytes=found.size_bytes, sha256=found.sha256, scope=scope))
            chunks.append(
                Chunk(
                    operator=context.operator,
                    state=context.state,
                    file_id=file_id,
                    scope=scope,
                    role=context.role,
                    layer=context.layer,
                    offset_bytes=0,
                    length_bytes=found.size_bytes,
                    sha256=found.sha256,
                    rows=1,
                )
            )
        size_bytes = sum(file.size_bytes for file in files)
        return Ack(
            checkpoint_id=number,
            attempt=token,
            operator=context.operator,
            state=context.state,
            subtask=None,
            files=tuple(files),
            chunks=tuple(chunks),
            metrics=CheckpointMetrics(bytes_written=size_bytes, rows=len(parts)),
        )


@dataclass(frozen=True, slots=True)
class RecordingStorage(PassingStorage):
    """Writes down what was made and deleted, with the ledger's version at that time."""

    log: MemoryLog
    calls: list[StorageCall] = field(default_factory=list)

    def create(self, path: str, data: bytes) -> None:
        self.inner.create(path, data)
        self._record("create", path)

    @contextmanager
    def create_stream(self, path: str) -> Iterator[BinaryIO]:
        with self.inner.create_stream(path) as stream:
            yield stream
        self._record("create", path)

    def delete_many(self, paths: Collection[str]) -> Mapping[str, OSError]:
        errors = self.inner.delete_many(paths)
        for path in paths:
            if path not in errors:
                self._record("delete", path)
        return errors

    def _record(self, verb: Literal["create", "delete"], path: str) -> None:
        self.calls.append(StorageCall(verb=verb, path=path, version=self.log.version, durable_version=self.log.durable_version))


@dataclass(slots=True)
class World:
    """What outlives every process."""

    log: MemoryLog = field(default_factory=MemoryLog)
    told: MemoryTold = field(default_factory=MemoryTold)  # the history
    objects: MemoryStorage = field(default_factory=MemoryStorage)
    acknowledged: list[Acknowledgement] = field(default_factory=list)
    owned: dict[OwnedFile, bytes] = field(default_factory=dict)  # what an owner was told it has, and did not begin to release
    storage: RecordingStorage = field(init=False)
    processes: int = 0
    _ids: Iterator[int] = field(default_factory=Numbers)

    def __post_init__(self) -> None:
        create_marker(self.objects, CATALOG_ID)
        self.storage = RecordingStorage(self.objects, self.log)

    def process(self, faults: Faults | None = None) -> "Process":
        """A new process. Its faults count over its storage and all its handles on the ledger."""
        self.processes += 1
        return Process(self, FakeEnvironment(f"process {self.processes}", self._ids), faults or Faults())

    def evidence(self) -> Evidence:
        ledger = MemoryLedger(self.log)
        return Evidence(
            versions=[commit.facts for commit in self.log.commits],
            now=None if ledger.folded_to == NO_FOLD else ledger.scan(),
            storage=self.objects,
            calls=self.storage.calls,
            acknowledged=self.acknowledged,
            owned={file.path: data for file, data in self.owned.items()},
        )

    def references(self) -> References:
        """Everything that the ledger ever said."""
        return References.of([fact for commit in self.log.commits for fact in commit.facts])

    def job(self, name: str = JOB) -> JobState:
        return self.references().state.job_named(name)

    def paths(self, below: str = "") -> set[str]:
        return {stored.path for stored in self.objects.list(below)}

    def lose_power(self) -> None:
        """Whatever nobody made durable is gone. Processes from before are dead: make new ones."""
        self.log.lose_unsynced()
        self.objects.lose_power()

    def manifest(self, number: int, job: str = JOB) -> Manifest:
        """Of a committed checkpoint."""
        return load_committed(self.objects, self.job(job).checkpoints[CheckpointId(number)].fact)

    def states_of(self, number: int, job: str = JOB) -> dict[str, bytes]:
        """The states of a committed checkpoint, by its manifest."""
        fact = self.job(job).checkpoints[CheckpointId(number)].fact
        return read_states(load_committed(self.objects, fact), place_of(self.objects, fact)[0])


class Process:
    """One process of a world: what `holdfast.open` gives, over the reference adapters."""

    def __init__(self, world: World, environment: FakeEnvironment, faults: Faults) -> None:
        self.world, self.environment, self.faults = world, environment, faults
        self.storage = FaultyStorage(world.storage, faults)
        self.catalog = Catalog(
            catalog_id=CATALOG_ID,
            storage=self.storage,
            transactor=Transactor(self.handle(), environment),
            open_ledger=self.handle,
            open_history=self.history,
            queries=FoldedQueries(self.handle()),
            environment=environment,
            state_writer=lambda _: FakeStateWriter(),
        )
        self.transactor = self.catalog._transactor

    def handle(self) -> Ledger:
        """A handle on the ledger at its newest version."""
        return FaultyLedger(MemoryLedger(self.world.log), self.faults)

    def history(self) -> MemoryHistory:
        """A handle on the history at its newest version."""
        return MemoryHistory(self.world.told)

    def arm(self, script: Mapping[int, Any] | None = None, on_call: Callable[[int, str, str], None] | None = None) -> None:
        """Count calls from 1 again, and break them by this script from here."""
        self.faults.log.clear()
        self.faults.script, self.faults.on_call = dict(script or {}), on_call

    # ---- writing ----------------------------------------------------------------------------------------------------

    def coordinate(
        self, job: str = JOB, *, retention: Retention = KEEP_ONE, start: str | int = "head", patience: FailurePolicy = ENDLESS
    ) -> Coordinator:
        return self.catalog.coordinate(
            job,
            max_parallelism=8,
            retention=retention,
            start=start,
            checkpoint_timeout_s=patience.timeout_s,
            tolerated_failures=patience.tolerated_failures,
        )

    def coordinate_from(
        self, number: int, job: str, mode: Mode, *, retention: Retention = KEEP_ONE, patience: FailurePolicy = ENDLESS
    ) -> Coordinator:
        """Another job that starts from a checkpoint of the first one (what `resolve_start` makes of a path, which memory has not)."""
        ref = self.ref(number)
        if mode == "no-claim":
            source = live_source(self.storage, self.transactor, ref, self.transactor.known().checkpoint(ref).fact)
            return self._coordinator(job, retention, StartPoint(find=lambda _: ref, source=source), patience)
        return self._coordinator(job, retention, StartPoint(find=lambda _: ref, claim=mode == "claim"), patience)

    def _coordinator(self, job: str, retention: Retention, begin: StartPoint, patience: FailurePolicy = ENDLESS) -> Coordinator:
        job_id = self.register(job)
        return coordinate(
            transactor=Transactor(self.handle(), self.environment),
            storage=self.storage,
            environment=self.environment,
            state_writer=FakeStateWriter(),
            job_id=job_id,
            retention=retention,
            start=begin,
            failure_policy=patience,
        )

    def savepoint(self, number: int, name: str, job: str = JOB) -> CheckpointId:
        """A savepoint of a checkpoint; returns its id."""
        writer = SavepointWriter(
            transactor=self.transactor,
            storage=self.storage,
            environment=self.environment,
            state_writer=FakeStateWriter(),
            read_state=lambda source: partial(_parts, source),
        )
        return writer.take(self.ref(number, job), name, None).checkpoint_id

    def register(self, job: str = JOB) -> JobId:
        """The id of the job of this name, which is registered if it is new."""
        return register_job(self.transactor, self.environment, job, 8)

    def checkpoint(self, coordinator: Coordinator, states: Mapping[str, State], progress: Mapping[str, Any] | None = None) -> int:
        """Write one checkpoint, and remember that it was acknowledged, with the states that its caller believes it to have."""
        latest = coordinator.latest()
        expected = read_states(latest.manifest, self.world.objects) if latest else {}
        with coordinator.checkpoint(progress) as writer:
            write_states(writer, states)
            if writer._attempt.parent_ref != (Ref(latest.manifest.job_id, latest.checkpoint_id) if latest else None):
                raise AssertionError("the attempt is not on the checkpoint that latest() showed")
        expected |= {name: _told(state) for name, state in states.items() if state is not None}
        kept = {name: data for name, data in expected.items() if states.get(name, b"") is not None}
        assert writer.result is not None
        number = writer.result.checkpoint_id
        self.world.acknowledged.append(Acknowledgement(job_id=coordinator.job_id, checkpoint_id=number, states=kept))
        return number

    def own(self, name: str = "wal", job: str = JOB) -> Owner:
        """An owner, opened or gone on with."""
        return self.catalog.own(job, name)

    def log(self, owner: Owner, *data: bytes) -> Logs:
        """Files that an owner writes, each with these bytes and named by them. One that was released does not know, and nobody keeps them."""
        files = {owner.write(each.decode(), each): each for each in data}
        if owner.attempt in self.world.job(owner.job).owners:
            self.world.owned |= files
        return Logs(owner, files)

    def release_logs(self, logs: Logs, job: str = JOB) -> None:
        """Release files of an owner."""
        for file in logs.files:
            self.world.owned.pop(file, None)
        release(self.transactor, job, logs.owner.name, [*logs.files])

    def release_owner(self, name: str = "wal", job: str = JOB) -> None:
        """End an owner, and with it all of its files."""
        token = self.transactor.fresh().job_named(job).owner_names[name]
        self.world.owned = {file: data for file, data in self.world.owned.items() if not paths.is_of(token, file.file_id)}
        release(self.transactor, job, name, None)

    def open_beside(self, coordinator: Coordinator, parent: int | None) -> CheckpointWriter:
        """An attempt of the coordinator's epoch beside its own, as overlapping checkpoints are."""
        job_id, token = coordinator.job_id, AttemptToken(self.environment.new_id())
        ref = None if parent is None else Ref(job_id, CheckpointId(parent))
        opened = self.transactor.run(lambda state: checkpoints.open_checkpoint(state, job_id, coordinator.epoch, token, ref))
        job = self.transactor.known().job(job_id)
        attempt = OpenAttempt(
            storage=self.storage,
            environment=self.environment,
            job=job,
            opened=opened,
            parent=None if parent is None else load_committed(self.storage, job.checkpoints[CheckpointId(parent)].fact),
            progress=None,
        )
        return CheckpointWriter(attempt, FakeStateWriter())

    def commit_beside(self, coordinator: Coordinator, writer: CheckpointWriter, retention: Retention = KEEP_ONE) -> int:
        """Commit what `open_beside` gave; opens no next attempt."""
        request = sealed(writer, retention)
        self.commit_request(coordinator.job_id, request)
        self.world.acknowledged.append(Acknowledgement(job_id=coordinator.job_id, checkpoint_id=writer.checkpoint_id))
        return writer.checkpoint_id

    def commit_request(self, job_id: JobId, request: CommitRequest) -> f.CheckpointCommitted:
        transactor = Transactor(self.handle(), self.environment, works_for=job_id)
        fact: f.CheckpointCommitted = transactor.run(lambda state: checkpoints.commit_checkpoint(state, job_id, request))
        return fact

    # ---- what operators and readers do -------------------------------------------------------------------------------

    def ref(self, number: int, job: str = JOB) -> Ref:
        return Ref(self.transactor.fresh().job_named(job).job_id, CheckpointId(number))

    def drop(self, number: int, job: str = JOB) -> None:
        ref = self.ref(number, job)
        self.transactor.run(lambda state: drop_or_dispose(state, ref, "by a test"))

    def hold(self, number: int, name: str = "audit", job: str = JOB) -> None:
        self.catalog.hold(job, number, name)

    def unhold(self, number: int, name: str = "audit", job: str = JOB) -> None:
        self.catalog.unhold(job, number, name)

    def kill(self, token: AttemptToken, job: str = JOB) -> None:
        self.catalog.kill(job, token, "by a test")

    def kill_all(self, purpose: Purpose, job: str = JOB) -> list[AttemptToken]:
        """Kill every open attempt of this purpose; returns their tokens."""
        found = self.transactor.fresh().job_named(job).open_attempts.values()
        tokens = [attempt.opened.attempt for attempt in found if attempt.opened.purpose is purpose]
        for token in tokens:
            self.kill(token, job)
        return tokens

    def pin(self, number: int, job: str = JOB) -> AttemptToken:
        """Open a reading attempt; returns its token, for `release`."""
        ref, token = self.ref(number, job), AttemptToken(self.environment.new_id())
        self.transactor.run(lambda state: checkpoints.open_reading(state, ref, token))
        return token

    def release(self, token: AttemptToken, job: str = JOB) -> None:
        self._end(token, Status.RELEASED, job)

    def restore(self, number: int, job: str = JOB) -> dict[str, bytes]:
        """Pin a checkpoint, read all its states through this process's storage, release it."""
        token = self.pin(number, job)
        fact = self.transactor.known().checkpoint(self.ref(number, job)).fact
        manifest, place = load_committed(self.storage, fact), place_of(self.storage, fact)[0]
        stores = [info for info in manifest.states if info.format == "directory"]
        states = read_states(replace(manifest, states=tuple(info for info in manifest.states if info not in stores)), place)
        states |= {info.state: read_stores(manifest, info, place, self.environment) for info in stores}
        self.release(token, job)
        return states

    def _end(self, token: AttemptToken, status: Status, job: str) -> None:
        job_id = self.transactor.fresh().job_named(job).job_id
        self.transactor.run(lambda state: checkpoints.end_attempt(state, job_id, token, status, "by a test"))

    # ---- maintenance -------------------------------------------------------------------------------------------------

    def plan_vacuum(self) -> VacuumPlan:
        """Without the evidence of manifests, by which a real vacuum stops where a rule of the ledger is wrong: here it must be seen."""
        return plan_vacuum(find_garbage(References.of(self.handle().scan())))

    def vacuum(self, plan: VacuumPlan | None = None) -> VacuumReport:
        return run_vacuum(self.plan_vacuum() if plan is None else plan, self.transactor, self.storage, self.environment)

    def plan_scrub(self) -> ScrubPlan:
        return self.catalog.plan_scrub()

    def fold(self, *, cleans: bool = True, file_rows: int = FILE_ROWS) -> bool:
        """A fold as upkeep runs it; then the log is cleaned of what the history has. False: another came first, or nothing is new."""
        ledger, history = self.handle(), self.history()
        is_folded = run_fold(ledger, history, self.environment, file_rows=file_rows).is_folded
        if is_folded and cleans:
            ledger.tidy(history.told_to)
        return is_folded

    def is_folded(self) -> bool:
        """Whether a fold stands for all that the ledger says."""
        ledger = self.handle()
        return not ledger.commits(ledger.folded_to)

    def scrub(self, plan: ScrubPlan | None = None) -> ScrubReport:
        return run_scrub(self.plan_scrub() if plan is None else plan, self.transactor, self.storage, self.environment)


def drop_or_dispose(state: CatalogState, ref: Ref, reason: str) -> decision.Decision:
    """How an operator is rid of a checkpoint, or of a savepoint."""
    decision.require_live(state, ref, "drop")  # a second disposal is no error, and here it would be a drop that did nothing
    if state.checkpoint(ref).fact.is_savepoint:
        return savepoints.dispose(state, ref, deletes_now=False)
    return checkpoints.drop(state, ref, reason)


def _parts(source: Checkpoint, info: StateInfo) -> list[bytes]:
    """What `FakeStateWriter` takes, of a state that it wrote."""
    return [source.storage.read(source.manifest.files[chunk.file_id].path) for chunk in source.manifest.chunks_of(info)]


def _told(state: bytes | list[bytes] | Logs | Stores) -> bytes:
    """The bytes of a state as its writer gave them."""
    if isinstance(state, Stores):
        return state.told
    if isinstance(state, Logs):
        return b"".join(state.files.values())
    return b"".join(state) if isinstance(state, list) else state


def sealed(writer: CheckpointWriter, retention: Retention) -> CommitRequest:
    """What to commit of a writer that nothing more is written with; opens no next attempt."""
    attempt = writer._attempt
    content = attempt.acknowledged()
    attempt.write_manifest(content)
    return attempt.commit_request(content, retention, next_attempt=None)


def write_states(writer: CheckpointWriter, states: Mapping[str, State]) -> None:
    """Write, or remove, each state: bytes as small state, a list as a DataFrame of so many files, logs by their owner, stores by
    their subtasks."""
    for name, state in states.items():
        if state is None:
            writer.remove(name)
        elif isinstance(state, bytes):
            writer.write_bytes(name, state)
        elif isinstance(state, Logs):
            assert name == state.owner.name
            writer.task_owned(state.owner, [*state.files])
        elif isinstance(state, Stores):
            write_stores(writer, name, state)
        else:
            writer.write(name, state)


def late_upload(world: World, opened: f.AttemptOpened, data: bytes = b"late", part: int = 99) -> str:
    """A zombie task of this attempt writes a file into its directory, whenever it likes; returns its path."""
    assert opened.checkpoint_id is not None
    directory = paths.native_directory(opened.job_id, opened.checkpoint_id, opened.attempt, 0)
    path = f"{directory}/part-{part:05d}.parquet"
    world.storage.create(path, data)
    return path


def foreign_file(world: World, path: str = "jobs/notes.txt") -> str:
    """A stranger's file in the catalog, which nobody may touch."""
    world.objects.create(path, json.dumps("mine").encode())
    return path


def opened_attempts(world: World, job: str = JOB) -> Sequence[f.AttemptOpened]:
    """Every opening of the job, oldest first."""
    return [attempt.opened for attempt in world.job(job).attempts.values()]
