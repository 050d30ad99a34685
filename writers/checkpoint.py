"""Reading a checkpoint: its manifest, verified, then its states, verified before a row or byte of them is returned."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from holdfast.catalog import arguments, paths
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.errors import DamagedFileError, HoldfastError, NotFoundError, RefusedError
from holdfast.catalog.facts import CheckpointCommitted
from holdfast.catalog.manifest import Manifest
from holdfast.catalog.manifest_store import load_committed, place_of
from holdfast.catalog.state import CatalogState, Ref
from holdfast.catalog.storage import Storage, read_committed
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import DEFAULT_OPERATOR, CheckpointId, CheckpointProperties, Chunk, Format, OwnedFile, StateInfo
from holdfast.writers.local.working_directory import WorkingDirectory
from holdfast.writers.parquet.plan import file_rows
from holdfast.writers.pins import Loans, ReaderPin
from holdfast.writers.stores.canonical import StoreAdapter, StoreReader, store_reader
from holdfast.writers.stores.reader import DirectoryReader, RestoredDirectory, directory_reader
from holdfast.writers.task_owned import described

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import DataFrame, SparkSession

IsKept = Callable[[], bool]  # whether the ledger says that the files must be there


READERS = {
    Format.PARQUET: "read",
    Format.BYTES: "read_bytes",
    Format.FILES: "owned_files or read_file",
    Format.DIRECTORY: "restore_directory",
}


class Checkpoint:
    """The content of one checkpoint, as its manifest says it."""

    def __init__(
        self,
        manifest: Manifest,
        storage: Storage,
        pin: ReaderPin | None = None,
        is_kept: IsKept | None = None,
        loans: Loans | None = None,
    ) -> None:
        self.manifest = manifest
        self._storage, self._pin, self._is_kept, self._loans = storage, pin, is_kept, loans if pin is None else pin

    def __repr__(self) -> str:
        return f"<checkpoint {self.checkpoint_id} of job {self.job!r}: {', '.join(self.states) or 'no state'}>"

    @property
    def checkpoint_id(self) -> CheckpointId:
        return self.manifest.checkpoint_id

    @property
    def job(self) -> str:
        return self.manifest.job

    @property
    def progress(self) -> dict[str, Any] | None:
        """What the job gave as its progress when it wrote the checkpoint."""
        return None if self.manifest.progress is None else dict(self.manifest.progress)

    @property
    def storage(self) -> Storage:
        """Where the paths of the manifest begin."""
        return self._storage

    @property
    def is_savepoint(self) -> bool:
        return self.manifest.savepoint is not None

    @property
    def properties(self) -> CheckpointProperties:
        """What the checkpoint is, as the view `checkpoints` has it."""
        return self.manifest.properties

    @property
    def is_pinned(self) -> bool:
        """Whether this object's catalog keeps the files until it is closed. Without, retention may drop the checkpoint meanwhile."""
        return self._pin is not None and self._pin.is_open

    def close(self) -> None:
        """Let go of the checkpoint before its catalog is closed; nothing of it is to be read after this."""
        if self._pin is not None:
            self._pin.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(info.state for info in self.manifest.states)

    @property
    def path(self) -> str:
        """The checkpoint's directory, by which a job can be started from it."""
        if self.is_savepoint:
            return self._storage.address
        return f"{self._storage.address}/{paths.checkpoint_directory(self.manifest.job_id, self.checkpoint_id)}"

    def read(
        self,
        spark: "SparkSession",
        state: str,
        *,
        key_groups: range | None = None,
        parallelism: int | None = None,
        verify: bool = True,
    ) -> "DataFrame":
        """The rows of a state written from a DataFrame; every byte that is read is checked by a digest before this returns.

        The DataFrame is lazy: use it while the checkpoint is live or pinned. One that outlives its pin, or of `latest()` its checkpoint,
        raises RefusedError; what was derived from it before fails as soon as a file is gone.

        Args:
            spark: the session to read with.
            state: the name of the state.
            key_groups: `range(0, 64)` gives the rows of these key groups, and reads little else of the files. None: all rows.
            parallelism: 16 gives 16 partitions, each with the key groups of one subtask of 16 (`holdfast.groups_of`), whatever the state
                was written with. None: as Spark reads the files.
            verify: with False only sizes and footers are checked.

        Raises:
            NotFoundError: the checkpoint has no state of this name.
            RefusedError: a part is asked for, and the state was written without key columns.
            RefusedError: the checkpoint was dropped meanwhile, and this reader had not pinned it.
            UsageError: there are no such key groups, or more subtasks than key groups.
            DamagedFileError: a file is missing or has other bytes than were committed; the message names it.
        """
        from holdfast.writers.spark.read import read_state

        info = self.require_state(state, Format.PARQUET)
        with self._drops_are_told():
            frame = read_state(
                spark,
                self._storage,
                info,
                self.manifest.chunks_of(info),
                file_rows(self.manifest.files.values()),
                max_parallelism=self.manifest.max_parallelism,
                key_groups=key_groups,
                parallelism=parallelism,
                verify=verify,
            )
        if self._loans is not None:
            self._loans.lend(frame, f"state {state!r} of checkpoint {self.checkpoint_id} of job {self.job!r}")
        return frame

    def duckdb(self, state: str, *, verify: bool = True) -> "duckdb.DuckDBPyRelation":
        """The rows of a state written from a DataFrame, as a relation of DuckDB: no Spark is needed. Times are in UTC.

        Every file is checked by its digest before this returns, unless `verify=False`. The relation is lazy: read it while the
        checkpoint is live or pinned. Raises as `read`.
        """
        from holdfast.writers.parquet.duckdb_read import read_duckdb

        info = self.require_state(state, Format.PARQUET)
        chunks, files = self.manifest.chunks_of(info), file_rows(self.manifest.files.values())
        with self._drops_are_told():
            return read_duckdb(self._storage, info, chunks, files, max_parallelism=self.manifest.max_parallelism, verify=verify)

    def read_bytes(self, state: str) -> bytes:
        """The bytes of a state written by `write_bytes`, verified.

        Raises NotFoundError, DamagedFileError, RefusedError (the checkpoint was dropped meanwhile).
        """
        info = self.require_state(state, Format.BYTES)
        with self._drops_are_told():
            return b"".join(self._chunk_bytes(chunk) for chunk in self.manifest.chunks_of(info))

    @contextmanager
    def _drops_are_told(self) -> Iterator[None]:
        if self._pin is None:
            why = (
                "this reader had not pinned it: it may not write to the ledger, or had no room to, or it was latest() of a coordinator "
                "that has committed since"
            )
        elif self._pin.is_open:
            why = "this reader's pin was ended by somebody else (kill, or readers --end-dead)"
        else:
            why = "this reader's pin had ended: the checkpoint or its catalog object was closed"
        with drops_are_told(f"checkpoint {self.checkpoint_id} of job {self.job!r}", self._is_kept, why):
            yield

    def owned_files(self, state: str) -> tuple[OwnedFile, ...]:
        """The files of a state written by `task_owned`, in the order in which it was given them.

        Raises NotFoundError, RefusedError (the state is no state of files).
        """
        info, files = self.require_state(state, Format.FILES), self.manifest.files
        return tuple(described(chunk, files[chunk.file_id]) for chunk in self.manifest.in_given_order(info))

    def read_file(self, state: str, name: str) -> bytes:
        """The bytes of one file of a state written by `task_owned`, by its name, verified.

        Raises as `read_bytes`; NotFoundError also where the state has no such file.
        """
        info = self.require_state(state, Format.FILES)
        chunks = {chunk.name: chunk for chunk in self.manifest.in_given_order(info)}
        if name not in chunks:
            names = ", ".join(map(repr, chunks)) or "none"
            msg = f"state {state!r} of checkpoint {self.checkpoint_id} of job {self.job!r} has no file {name!r}; it has: {names}"
            raise NotFoundError(msg)
        with self._drops_are_told():
            return self._chunk_bytes(chunks[name])

    def restore_directory(
        self,
        state: str,
        to: str | os.PathLike[str],
        *,
        subtask: int = 0,
        key_groups: range | None = None,
        adapter: StoreAdapter | None = None,
        working_directory: WorkingDirectory | None = None,
    ) -> RestoredDirectory:
        """Make the directory of one subtask's store at `to`, as `write_directory` was given it: all of it, every byte verified, or nothing.

        Args:
            state: the name of the state.
            to: where to make it: a path that does not exist, or an empty directory.
            subtask: whose store, from 0.
            key_groups: those that the store is to have: of a directory only those that it was written with. None: the same.
            adapter: reads a savepoint in the canonical format as well, for any `key_groups`.
            working_directory: that of this process: its local copies are linked where their digests hold. None: all is read from the
                catalog.

        Raises as `DirectoryReader.restore`; NotFoundError also where there is no such state; RefusedError: it was dropped meanwhile.
        """
        with self._drops_are_told():
            reader = self.directories(state, adapter=adapter)
            return reader.restore(to, subtask=subtask, key_groups=key_groups, working_directory=working_directory)

    def directories(self, state: str, *, adapter: StoreAdapter | None = None) -> DirectoryReader | StoreReader:
        """To restore the directories of a state in tasks: picklable. Keep this object, and so its pin, until they are done.

        With an `adapter` of its store, also a state that a savepoint has in the canonical format: then for any key groups.
        Raises NotFoundError, RefusedError (the state has no directories, or only an adapter could make them).
        """
        info = self.manifest.state(DEFAULT_OPERATOR, state)
        if adapter is not None and info is not None and info.format == Format.PARQUET:
            return store_reader(self.manifest, info, self._storage, SystemEnvironment(), adapter)
        return directory_reader(self.manifest, self.require_state(state, Format.DIRECTORY), self._storage, SystemEnvironment())

    def _chunk_bytes(self, chunk: Chunk) -> bytes:
        if chunk.inline is not None:
            return chunk.inline  # verified with the manifest
        file = self.manifest.files[chunk.file_id]
        path = file.path
        try:
            data = read_committed(self._storage, path, file.size_bytes)
        except FileNotFoundError as error:
            msg = (
                f"{path} of checkpoint {self.checkpoint_id} of job {self.job!r} is missing: "
                "the checkpoint was dropped meanwhile (see the view checkpoints), or the file is lost: then restore it from a copy"
            )
            raise DamagedFileError(msg) from error
        if hashlib.sha256(data).hexdigest() != chunk.sha256:
            msg = f"{path} of checkpoint {self.checkpoint_id} of job {self.job!r} does not have the digest that was committed"
            raise DamagedFileError(msg)
        return data

    def require_state(self, state: str, format_: str) -> StateInfo:
        """What the checkpoint says of a state of this format. Raises NotFoundError, RefusedError (it has another format)."""
        info = self.manifest.state(DEFAULT_OPERATOR, state)
        if info is None:
            msg = f"checkpoint {self.checkpoint_id} of job {self.job!r} has no state {state!r}; it has: {', '.join(self.states) or 'none'}"
            raise NotFoundError(msg)
        if info.format != format_:
            call = READERS[info.format]
            msg = f"state {state!r} of checkpoint {self.checkpoint_id} of job {self.job!r} has format '{info.format}': use {call}"
            raise RefusedError(msg)
        return info


def open_committed(storage: Storage, fact: CheckpointCommitted, pin: ReaderPin | None = None, is_kept: IsKept | None = None) -> Checkpoint:
    """A committed checkpoint or savepoint for reading. With `is_kept`, one that was dropped meanwhile is reported as such, now and later.

    Raises DamagedFileError, RefusedError.
    """
    with drops_are_told(f"checkpoint {fact.checkpoint_id} of job {fact.job_id}", is_kept, "nobody had pinned it"):
        manifest = load_committed(storage, fact)
    return Checkpoint(manifest, place_of(storage, fact)[0], pin, is_kept)


def ref_of(state: CatalogState, job: str, checkpoint_id: int | None) -> Ref:
    """A job's checkpoint by its number, or its head (None). Raises NotFoundError, UsageError."""
    found = state.job_named(job)
    if checkpoint_id is None:
        if found.head is None:
            msg = f"job {job!r} has no checkpoint to continue from yet: write one first, or give a number"
            raise NotFoundError(msg)
        checkpoint_id = found.head
    return Ref(found.job_id, CheckpointId(arguments.checkpoint_number(checkpoint_id, job)))


def numbered(job: str, checkpoint_id: int) -> Callable[[CatalogState], Ref]:
    """As `ref_of`, where the head is not meant: None is not a number. Raises UsageError."""
    number = arguments.checkpoint_number(checkpoint_id, job)
    return lambda state: ref_of(state, job, number)


def kept_by(transactor: Transactor, ref: Ref) -> IsKept:
    """Asks the ledger, each time, whether the checkpoint is live or pinned by anybody: then its files are there, or it is damaged (I1)."""
    return lambda: transactor.look(lambda state: state.is_live(ref) or ref in state.pinned())


@contextmanager
def drops_are_told(what: str, is_kept: IsKept | None, why: str) -> Iterator[None]:
    """RefusedError in place of DamagedFileError, where what is missing is missing by right; `why` says that nothing kept it."""
    try:
        yield
    except DamagedFileError as error:
        if is_kept is None or _asked(is_kept):
            raise
        msg = (
            f"{what} was dropped meanwhile, and its files were cleaned up; {why}. "
            "Nothing is damaged: read a live one (see the view checkpoints)"
        )
        raise RefusedError(msg) from error


def _asked(is_kept: IsKept) -> bool:
    try:
        return is_kept()
    except HoldfastError:  # a ledger that cannot be read says nothing: what was found stands
        return True
