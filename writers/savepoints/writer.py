"""Savepoints: the user's own copies of a checkpoint's state, whole, in a directory of their own that can be moved anywhere.

Written in the canonical format: every state in full and sorted by key group, paths relative to the directory. What is small enough
to be kept in the manifest stays there (FLINK-5777: the writer of in-memory state has no other layout for savepoints).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.catalog import paths
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import (
    AlreadyExistsError,
    AttemptEndedError,
    DamagedFileError,
    NotFoundError,
    RefusedError,
    UnknownOutcomeError,
    UnsafeSettingsError,
)
from holdfast.catalog.facts import AttemptOpened, CheckpointCommitted
from holdfast.catalog.manifest_store import load_manifest
from holdfast.catalog.process_identity import this_process
from holdfast.catalog.rules import checkpoints, decision, savepoints
from holdfast.catalog.rules.commit_facts import CommitRequest
from holdfast.catalog.rules.decision import Decision
from holdfast.catalog.state import CatalogState, Ref
from holdfast.catalog.storage import Storage
from holdfast.catalog.storage.local import open_storage
from holdfast.catalog.storage.prefix import PrefixStorage
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import AttemptToken, Format, Status, StoredFile
from holdfast.writers.checkpoint import Checkpoint, open_committed
from holdfast.writers.copying import copy_object
from holdfast.writers.engine_errors import reason_of
from holdfast.writers.savepoints.content import OpenStates, SavepointFiles
from holdfast.writers.savepoints.outside import delete_own, own_files, require_outside_catalogs, require_writable
from holdfast.writers.stores.canonical import StoreAdapter, require_stores
from holdfast.writers.upload import StateWriter


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
        opened: AttemptOpened = self.transactor.run(lambda state: savepoints.open_savepoint(state, ref, token, name, process))
        directory = paths.savepoint_directory(ref.job_id, name, token)
        place = PrefixStorage(self.storage, directory) if target is None else PrefixStorage(target, paths.savepoint_name(name, token))
        assert opened.checkpoint_id is not None
        files = SavepointFiles(
            place=place,
            environment=self.environment,
            state_writer=self.state_writer,
            read_state=read_state,
            attempt=token,
            checkpoint_id=opened.checkpoint_id,
            name=name,
            stores=self.stores,
        )
        try:
            request = files.write(source, source.manifest.max_parallelism)
            request = _within(request, directory) if target is None else _outside(request, place)

            def commit(state: CatalogState) -> Decision:
                return savepoints.commit_savepoint(state, ref, request, is_outside=target is not None)

            try:
                files.require_there()
            except UnsafeSettingsError:
                self.transactor.look(commit)  # where the rules forbid it, cleanup may have taken a file: that is raised instead
                raise
            committed: CheckpointCommitted = self.transactor.run(commit)
        except UnknownOutcomeError:
            raise  # it may have landed
        except BaseException as error:
            rows = [replace(file, path=f"{directory}/{file.path}") for file in files.written] if target is None else []
            if self._abort(ref, token, error, rows) and target is not None:
                _discard(place, error)
            raise
        return committed

    def _source(self, ref: Ref, token: AttemptToken, name: str) -> Checkpoint:
        """The checkpoint, if the name is free. Nothing pins it yet: one that is gone was dropped meanwhile, unless it is damaged."""

        def ready(state: CatalogState) -> CheckpointCommitted:
            savepoints.open_savepoint(state, ref, token, name)
            return state.checkpoint(ref).fact

        try:
            return open_committed(self.storage, self.transactor.look(ready))
        except DamagedFileError:
            self.transactor.look(lambda state: decision.require_live(state, ref, "take a savepoint of"))
            raise

    def _abort(self, ref: Ref, token: AttemptToken, error: BaseException, files: list[StoredFile]) -> bool:
        """Whether the attempt was open until now, so that it can never have been committed."""
        try:
            self.storage.require_root()  # what lies at the catalog's path may be another's ledger by now
            self.transactor.run(lambda state: checkpoints.end_attempt(state, ref.job_id, token, Status.ABORTED, reason_of(error), files))
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
        msg = f"{path} is not a savepoint, it has no {paths.MANIFEST_NAME}: give the directory that a savepoint was written or copied to"
        raise NotFoundError(msg) from error
    manifest = load_manifest(storage, paths.MANIFEST_NAME)
    if manifest.savepoint is None:
        msg = f"{path} is the directory of checkpoint {manifest.checkpoint_id}, which is not a savepoint: use holdfast.open_manifest"
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
    )
    try:
        files.write(source, max_parallelism)
        files.require_there()
    except BaseException as error:
        _discard(place, error)
        raise
    return savepoint_at(place.address)


def _require_rows(source: Checkpoint) -> None:
    """Raises RefusedError, which names it, for a state that has no keys to move to other groups."""
    state = next((info.state for info in source.manifest.states if info.format == Format.DIRECTORY), None)
    if state is not None:
        msg = (
            f"state {state!r} of {source!r} is the directory of a store, which is not key-group aware (is_key_group_aware is false), and "
            "has no other number of key groups: take the savepoint with an adapter of the store (savepoint(..., stores={...})), and rekey "
            "that. Nothing was written"
        )
        raise RefusedError(msg)


def _discard(place: Storage, error: BaseException) -> None:
    """Delete what a failed writing left in a directory of its own outside the catalog, where no cleaner comes."""
    try:
        delete_own(place, own_files(place))
    except OSError as failure:
        error.add_note(f"what was written so far is left in {place.address} ({failure}): delete that directory")


def _within(request: CommitRequest, directory: str) -> CommitRequest:
    """With the paths of the catalog, as file rows have them."""
    moved = [replace(file, path=f"{directory}/{file.path}") for file in (*request.files, request.manifest)]
    return replace(request, files=tuple(moved[:-1]), manifest=moved[-1])


def _outside(request: CommitRequest, place: Storage) -> CommitRequest:
    """With the address of the manifest; the files are no business of the ledger."""
    return replace(request, files=(), manifest=replace(request.manifest, path=f"{place.address}/{request.manifest.path}"))
