"""Savepoints: the user's own copies of a checkpoint's state, whole, in a directory of their own that can be moved anywhere.

Written in the canonical format: every state in full and sorted by key group, paths relative to the directory. What is small enough
to be kept in the manifest stays there (FLINK-5777: the writer of in-memory state has no other layout for savepoints).
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.catalog import paths, savepoint_rules
from holdfast.catalog.clock import Environment
from holdfast.catalog.commit_facts import CommitRequest
from holdfast.catalog.errors import AlreadyExistsError, AttemptEndedError, NotFoundError, RefusedError, UnknownOutcomeError, UsageError
from holdfast.catalog.facts import AttemptOpened, CheckpointCommitted
from holdfast.catalog.lifecycle import end_attempt
from holdfast.catalog.manifest import Manifest
from holdfast.catalog.state import Ref
from holdfast.catalog.storage import Storage
from holdfast.catalog.storage_local import open_storage
from holdfast.catalog.storage_prefix import PrefixStorage
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import Ack, AttemptToken, CheckpointId, CheckpointMetaData, Chunk, KeepAll, Scope, StateInfo, Status, StoredFile
from holdfast.writers.bytes_writer import write_bytes
from holdfast.writers.copying import copy_object
from holdfast.writers.manifest_file import store_manifest
from holdfast.writers.restore import Checkpoint, load_manifest, open_committed
from holdfast.writers.upload import UploadContext
from holdfast.writers.vehicles import StateWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATA = "data"  # the directory of a savepoint's files

ReadState = Callable[[Checkpoint, StateInfo], Any]  # gives what the state writer takes: a DataFrame


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
        acks, described = self.state_writer.write(self.read_state(source, info), context)
        self.acks.extend(acks)
        return described


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointWriter:
    """Takes savepoints of a catalog's checkpoints."""

    transactor: Transactor
    storage: Storage
    environment: Environment
    state_writer: StateWriter
    read_state: ReadState

    def take(self, ref: Ref, name: str, target: Storage | None) -> CheckpointCommitted:
        """Write a savepoint of a live checkpoint and commit it: in the catalog, or in a directory of its own within `target`.

        Raises:
            AlreadyExistsError: the job has had a savepoint of this name.
            RefusedError: the checkpoint was dropped; or the target is in the catalog.
            AttemptEndedError: somebody ended the attempt; nothing was committed.
        """
        _check_name(name)
        if target is not None:
            self._refuse_inside(target)
        token = AttemptToken(self.environment.new_id())
        opened: AttemptOpened = self.transactor.run(lambda state: savepoint_rules.open_savepoint(state, ref, token, name))
        directory = paths.savepoint_directory(ref.job_id, name, token)
        place = PrefixStorage(self.storage, directory) if target is None else PrefixStorage(target, paths.savepoint_name(name, token))
        acks: list[Ack] = []
        try:
            source = open_committed(self.storage, self.transactor.known().checkpoint(ref).fact)
            assert opened.checkpoint_id is not None
            files = SavepointFiles(
                place=place,
                environment=self.environment,
                state_writer=self.state_writer,
                read_state=self.read_state,
                attempt=token,
                checkpoint_id=opened.checkpoint_id,
                name=name,
                acks=acks,
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
            self._abort(ref, token, error, rows)
            raise
        return committed

    def _refuse_inside(self, target: Storage) -> None:
        root = os.path.realpath(self.storage.address)
        if f"{os.path.realpath(target.address)}/".startswith(f"{root}/"):
            msg = f"the target {target.address} is in the catalog: leave it out to have the savepoint there, or give a directory outside"
            raise RefusedError(msg)

    def _abort(self, ref: Ref, token: AttemptToken, error: BaseException, files: list[StoredFile]) -> None:
        try:
            self.transactor.run(
                lambda state: end_attempt(state, ref.job_id, token, Status.ABORTED, f"{type(error).__name__}: {error}"[:500], files)
            )
        except AttemptEndedError as ended:
            error.add_note(f"the attempt had been ended before: {ended}")
        except Exception as failure:  # noqa: BLE001 - the caller's own error matters more
            error.add_note(f"the attempt could not be aborted ({failure}); kill it, then scrub finds what it left")


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


def dispose_outside(place: Storage, manifest: Manifest) -> int:
    """Delete a savepoint's files outside the catalog, the manifest last, and its directories if nothing else is in them; how many."""
    names = [*sorted(file.path for file in manifest.files.values()), paths.MANIFEST_NAME]
    for name in names:
        place.delete(name)
    for directory in sorted({*place.empty_directories("")}, key=lambda d: -d.count("/")):
        place.remove_empty_directory(directory)
    return len(names)


def export_checkpoint(source: Checkpoint, target: Storage) -> str:
    """Copy every file of a checkpoint, the manifest last, to the same paths under another root. See `Catalog.export`."""
    begin = source.manifest.path
    try:
        for file in source.manifest.files.values():
            copy_object(source, file.path, (file.size_bytes, file.sha256), target, file.path)
        target.create(begin, source.storage.read(begin))
    except FileExistsError as error:
        msg = f"{target.address} has a file of {source!r} already ({error}): give an empty or new directory"
        raise AlreadyExistsError(msg) from error
    return f"{target.address}/{paths.parent(begin)}".rstrip("/")


def rekey_savepoint(
    source: Checkpoint, max_parallelism: int, target: Storage, environment: Environment, state_writer: StateWriter, read_state: ReadState
) -> Checkpoint:
    """Write a savepoint again with another number of key groups, to a directory of its own within `target`. See `holdfast.rekey`."""
    assert source.manifest.savepoint is not None
    token = AttemptToken(environment.new_id())
    place = PrefixStorage(target, paths.savepoint_name(source.manifest.savepoint, token))
    files = SavepointFiles(
        place=place,
        environment=environment,
        state_writer=state_writer,
        read_state=read_state,
        attempt=token,
        checkpoint_id=source.checkpoint_id,
        name=source.manifest.savepoint,
        acks=[],
    )
    files.write(source, max_parallelism)
    return savepoint_at(place.address)


def spark_reader(spark: "SparkSession | None") -> ReadState:
    """Reads a state as a DataFrame of this session, or of the active one. Raises UsageError where there is none."""

    def read(source: Checkpoint, info: StateInfo) -> Any:
        from pyspark.sql import SparkSession

        session = spark or SparkSession.getActiveSession()
        if session is None:
            msg = f"state {info.state!r} is a DataFrame, and there is no active Spark session to read it: give spark=..."
            raise UsageError(msg)
        return source.read(session, info.state)

    return read


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name or not name.isprintable() or name != name.strip():
        msg = f"{name!r} cannot be the name of a savepoint: give printable characters, and no space at either end"
        raise UsageError(msg)


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
