"""Savepoints: the user's own copies of a checkpoint's state, whole, in a directory of their own that can be moved anywhere.

Written in the canonical format: every state in full and sorted by key group, paths relative to the directory. What is small enough
to be kept in the manifest stays there (FLINK-5777: the writer of in-memory state has no other layout for savepoints).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from holdfast.catalog import paths, savepoint_rules
from holdfast.catalog.clock import Environment
from holdfast.catalog.commit_facts import CommitRequest
from holdfast.catalog.errors import (
    AlreadyExistsError,
    AttemptEndedError,
    DamagedFileError,
    NotFoundError,
    RefusedError,
    UnknownOutcomeError,
    UsageError,
)
from holdfast.catalog.facts import AttemptOpened, CheckpointCommitted
from holdfast.catalog.lifecycle import end_attempt, require_live
from holdfast.catalog.processes import this_process
from holdfast.catalog.state import CatalogState, Ref
from holdfast.catalog.storage import Storage
from holdfast.catalog.storage_local import open_storage
from holdfast.catalog.storage_prefix import PrefixStorage
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import Ack, AttemptToken, CheckpointId, CheckpointMetaData, Chunk, KeepAll, Scope, StateInfo, Status, StoredFile
from holdfast.writers.bytes_writer import write_bytes
from holdfast.writers.copying import copy_object, copy_state
from holdfast.writers.directories import DIRECTORY
from holdfast.writers.directory_reader import DirectoryReader
from holdfast.writers.failures import explaining
from holdfast.writers.manifest_file import load_manifest, store_manifest
from holdfast.writers.restore import Checkpoint, open_committed
from holdfast.writers.savepoint_places import DATA, delete_own, own_files, require_outside_catalogs, require_writable
from holdfast.writers.stores import KEY, StoreAdapter, entries_frame, require_stores
from holdfast.writers.upload import UploadContext
from holdfast.writers.vehicles import StateWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ReadState = Callable[[StateInfo], Any]  # gives what the state writer takes: a DataFrame
OpenStates = Callable[[Checkpoint], ReadState]  # raises UsageError, before anything is opened, where they cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointFiles:
    """Writes what a savepoint consists of: every state of a source, then the manifest. `acks` has what was written, also if it fails."""

    place: Storage
    environment: Environment
    state_writer: StateWriter
    read_state: ReadState
    attempt: AttemptToken
    checkpoint_id: CheckpointId
    name: str
    acks: list[Ack]
    stores: Collection[str] = ()  # states of directories that are read as rows

    def write(self, source: Checkpoint, max_parallelism: int) -> CommitRequest:
        """The request to commit it, with paths from the savepoint's own directory."""
        metadata = CheckpointMetaData(
            checkpoint_id=self.checkpoint_id, timestamp=self.environment.now(), is_savepoint=True, target_directory=self.place.address
        )
        states = []
        for call, info in enumerate(source.manifest.states):
            context = UploadContext(
                storage=self.place,
                job_id=source.manifest.job_id,
                attempt=self.attempt,
                metadata=metadata,
                call=call,
                operator=info.operator,
                state=info.state,
                layer=0,
                key_columns=info.key_columns,
                max_parallelism=max_parallelism,
                directory=DATA,
            )
            states.append(self._write_state(source, info, context))
        content = tuple(chunk for ack in self.acks for chunk in ack.chunks)
        _require_own(content, self.name)
        files = tuple(file for ack in self.acks for file in ack.files)
        manifest = replace(
            source.manifest,
            max_parallelism=max_parallelism,
            checkpoint_id=self.checkpoint_id,
            attempt=self.attempt,
            savepoint=self.name,
            parent=Ref(source.manifest.job_id, source.manifest.checkpoint_id),
            created_at=metadata.timestamp,
            states=tuple(states),
            chunks=content,
            files={file.file_id: file for file in files},
        )
        return CommitRequest(
            attempt=self.attempt,
            content=content,
            states=tuple(states),
            inherited=frozenset(),
            files=files,
            acks=tuple(self.acks),
            manifest=store_manifest(self.place, manifest),
            progress=manifest.progress,
            retention=KeepAll(),
        )

    def _write_state(self, source: Checkpoint, info: StateInfo, context: UploadContext) -> StateInfo:
        if info.format == "bytes":
            self.acks.append(write_bytes(source.read_bytes(info.state), context, self.environment))
            return info
        if info.format == "files" or (info.format == DIRECTORY and info.state not in self.stores):
            acks, described = copy_state(source, info, context)
            self.acks.extend(acks)
            return described
        if info.format == DIRECTORY:
            context = replace(context, key_columns=(KEY,))
        with explaining(f"writing state {info.state!r} of savepoint {self.name!r}", self.place.address):
            acks, described = self.state_writer.write(self.read_state(info), context)
        self.acks.extend(acks)
        return described


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointWriter:
    """Takes savepoints of a catalog's checkpoints."""

    transactor: Transactor
    storage: Storage
    environment: Environment
    state_writer: StateWriter
    read_state: OpenStates
    stores: Mapping[str, StoreAdapter] = field(default_factory=dict)

    def take(self, ref: Ref, name: str, target: Storage | None) -> CheckpointCommitted:
        """Write a savepoint of a live checkpoint and commit it: in the catalog, or in a directory of its own within `target`.

        What can be known to fail is refused before the opening, which takes the name for ever.
        Raises:
            AlreadyExistsError: the name is taken: the job has, or has tried, a savepoint of this name.
            RefusedError: the checkpoint was dropped; or the target is in a catalog.
            AddressError: nothing can be written to the target.
            UsageError: a state is a DataFrame, and there is no Spark session.
            AttemptEndedError: somebody ended the attempt; nothing was committed.
        """
        paths.require_name(name, "a savepoint")
        token = AttemptToken(self.environment.new_id())
        source = self._source(ref, token, name)
        require_stores(self.stores, source.manifest)
        read_state = self.read_state(source)
        if target is not None:
            require_outside_catalogs(target)
            require_writable(target, token)
        process = this_process()
        opened: AttemptOpened = self.transactor.run(lambda state: savepoint_rules.open_savepoint(state, ref, token, name, process))
        directory = paths.savepoint_directory(ref.job_id, name, token)
        place = PrefixStorage(self.storage, directory) if target is None else PrefixStorage(target, paths.savepoint_name(name, token))
        acks: list[Ack] = []
        try:
            assert opened.checkpoint_id is not None
            files = SavepointFiles(
                place=place,
                environment=self.environment,
                state_writer=self.state_writer,
                read_state=read_state,
                attempt=token,
                checkpoint_id=opened.checkpoint_id,
                name=name,
                acks=acks,
                stores=self.stores,
            )
            request = files.write(source, source.manifest.max_parallelism)
            request = _within(request, directory) if target is None else _outside(request, place)
            committed: CheckpointCommitted = self.transactor.run(
                lambda state: savepoint_rules.commit_savepoint(state, ref, request, is_outside=target is not None)
            )
        except UnknownOutcomeError:
            raise  # it may have landed
        except BaseException as error:
            rows = [replace(file, path=f"{directory}/{file.path}") for ack in acks for file in ack.files] if target is None else []
            if self._abort(ref, token, error, rows) and target is not None:
                _discard(place, error)
            raise
        return committed

    def _source(self, ref: Ref, token: AttemptToken, name: str) -> Checkpoint:
        """The checkpoint, if the name is free. Nothing pins it yet: one that is gone was dropped meanwhile, unless it is damaged."""

        def ready(state: CatalogState) -> CheckpointCommitted:
            savepoint_rules.open_savepoint(state, ref, token, name)
            return state.checkpoint(ref).fact

        try:
            return open_committed(self.storage, self.transactor.look(ready))
        except DamagedFileError:
            self.transactor.look(lambda state: require_live(state, ref, "take a savepoint of"))
            raise

    def _abort(self, ref: Ref, token: AttemptToken, error: BaseException, files: list[StoredFile]) -> bool:
        """Whether the attempt was open until now, so that it can never have been committed."""
        try:
            self.transactor.run(
                lambda state: end_attempt(state, ref.job_id, token, Status.ABORTED, f"{type(error).__name__}: {error}"[:500], files)
            )
        except AttemptEndedError as ended:
            error.add_note(f"the attempt had been ended before: {ended}")
            return False
        except Exception as failure:  # noqa: BLE001 - the caller's own error matters more
            error.add_note(f"the attempt could not be aborted ({failure}); kill it, then scrub finds what it left")
            return False
        return True


def savepoint_at(path: str) -> Checkpoint:
    """The savepoint whose directory (or manifest) this is. Raises AddressError, NotFoundError, DamagedFileError."""
    directory = path.rstrip("/").removesuffix(f"/{paths.MANIFEST_NAME}") or "/"
    storage = open_storage(directory)
    try:
        storage.size(paths.MANIFEST_NAME)
    except (FileNotFoundError, NotADirectoryError) as error:
        msg = f"{path} is no savepoint, it has no {paths.MANIFEST_NAME}: give the directory that a savepoint was written or copied to"
        raise NotFoundError(msg) from error
    manifest = load_manifest(storage, paths.MANIFEST_NAME)
    if manifest.savepoint is None:
        msg = f"{path} is the directory of checkpoint {manifest.checkpoint_id}, which is no savepoint: use holdfast.open_manifest"
        raise NotFoundError(msg)
    return Checkpoint(manifest, storage)


def export_checkpoint(source: Checkpoint, target: Storage) -> str:
    """Copy every file of a checkpoint, the manifest last, to the same paths under another root. See `Catalog.export`."""
    begin = source.manifest.path
    require_outside_catalogs(target)
    there = next(iter(target.list("")), None)
    if there is not None:
        msg = f"{target.address} is not empty, it has {there.path}: give an empty or new directory. Nothing was written"
        raise AlreadyExistsError(msg)
    require_writable(target, source.manifest.attempt)
    try:
        for file in source.manifest.files.values():
            copy_object(source, file.path, (file.size_bytes, file.sha256), target, file.path)
        target.create(begin, source.storage.read(begin))
    except FileExistsError as error:
        msg = f"{target.address} has a file of {source!r} already ({error}): give an empty or new directory"
        raise AlreadyExistsError(msg) from error
    return f"{target.address}/{paths.parent(begin)}".rstrip("/")


def rekey_savepoint(
    source: Checkpoint, max_parallelism: int, target: Storage, environment: Environment, state_writer: StateWriter, read_state: OpenStates
) -> Checkpoint:
    """Write a savepoint again with another number of key groups, to a directory of its own within `target`. See `holdfast.rekey`."""
    assert source.manifest.savepoint is not None
    token = AttemptToken(environment.new_id())
    read = read_state(source)
    require_outside_catalogs(target)
    require_writable(target, token)
    place = PrefixStorage(target, paths.savepoint_name(source.manifest.savepoint, token))
    _require_rows(source)
    files = SavepointFiles(
        place=place,
        environment=environment,
        state_writer=state_writer,
        read_state=read,
        attempt=token,
        checkpoint_id=source.checkpoint_id,
        name=source.manifest.savepoint,
        acks=[],
    )
    try:
        files.write(source, max_parallelism)
    except BaseException as error:
        _discard(place, error)
        raise
    return savepoint_at(place.address)


def spark_reader(spark: "SparkSession | None", stores: Mapping[str, StoreAdapter] | None = None) -> OpenStates:
    """Reads states as DataFrames of this session, or of the active one; directories by the adapters of their stores.

    Raises UsageError where there is no session and a state needs it.
    """
    adapters = stores or {}

    def open_states(source: Checkpoint) -> ReadState:
        session: Any = spark or _active_session()
        frame = next((info.state for info in source.manifest.states if info.format == "parquet" or info.state in adapters), None)
        if session is None and frame is not None:
            msg = (
                f"state {frame!r} of {source!r} is a DataFrame, which Spark has to write anew, and there is no active Spark session (the "
                "command line has none): call catalog.savepoint(..., spark=...), or holdfast.rekey(..., spark=...), in a program that has "
                "one. Nothing was begun"
            )
            raise UsageError(msg)
        return lambda info: _frame(session, source, info, adapters)

    return open_states


def _frame(session: "SparkSession", source: Checkpoint, info: StateInfo, adapters: Mapping[str, StoreAdapter]) -> "DataFrame":
    if info.format != DIRECTORY:
        return source.read(session, info.state)
    directories = source.directories(info.state)
    assert isinstance(directories, DirectoryReader)
    return entries_frame(session, directories, adapters[info.state], source.manifest.max_parallelism)


def _require_rows(source: Checkpoint) -> None:
    """Raises RefusedError, which names it, for a state that has no keys to move to other groups."""
    state = next((info.state for info in source.manifest.states if info.format == DIRECTORY), None)
    if state is not None:
        msg = (
            f"state {state!r} of {source!r} is the directory of a store, which is not key-group aware (is_key_group_aware is false), and "
            "has no other number of key groups: take the savepoint with an adapter of the store (savepoint(..., stores={...})), and rekey "
            "that. Nothing was written"
        )
        raise RefusedError(msg)


def _active_session() -> "SparkSession | None":
    try:
        from pyspark.sql import SparkSession
    except ImportError:  # the extra holdfast[spark] is not installed
        return None
    return SparkSession.getActiveSession()


def _discard(place: Storage, error: BaseException) -> None:
    """Delete what a failed writing left in a directory of its own outside the catalog, where no cleaner comes."""
    try:
        delete_own(place, own_files(place))
    except OSError as failure:
        error.add_note(f"what was written so far is left in {place.address} ({failure}): delete that directory")


def _require_own(content: Sequence[Chunk], name: str) -> None:
    shared = next((chunk.state for chunk in content if chunk.scope is not Scope.EXCLUSIVE), None)
    if shared is not None:
        msg = f"savepoint {name!r}: the writer of state {shared!r} gave files that others may share"
        raise RefusedError(msg)


def _within(request: CommitRequest, directory: str) -> CommitRequest:
    """With the paths of the catalog, as file rows have them."""
    moved = [replace(file, path=f"{directory}/{file.path}") for file in (*request.files, request.manifest)]
    return replace(request, files=tuple(moved[:-1]), manifest=moved[-1])


def _outside(request: CommitRequest, place: Storage) -> CommitRequest:
    """With the address of the manifest; the files are no business of the ledger."""
    return replace(request, files=(), manifest=replace(request.manifest, path=f"{place.address}/{request.manifest.path}"))
