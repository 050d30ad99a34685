"""What a savepoint consists of: every state of its source, written again or copied, and its manifest."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import RefusedError, UsageError
from holdfast.catalog.manifest_store import left_manifest, store_manifest
from holdfast.catalog.rules.commit_facts import CommitRequest
from holdfast.catalog.state import Ref
from holdfast.catalog.storage import Storage
from holdfast.catalog.types import (
    INLINE_LIMIT_BYTES,
    Ack,
    AttemptToken,
    CheckpointId,
    CheckpointMetaData,
    Chunk,
    Format,
    KeepAll,
    Scope,
    StateInfo,
    StoredFile,
)
from holdfast.writers.bytes_state import write_bytes
from holdfast.writers.checkpoint import Checkpoint
from holdfast.writers.copying import copy_state
from holdfast.writers.engine_errors import explaining
from holdfast.writers.presence import require_there
from holdfast.writers.savepoints.outside import DATA
from holdfast.writers.spark.session import active_session
from holdfast.writers.stores.canonical import KEY, StoreAdapter, entries_frame
from holdfast.writers.stores.reader import DirectoryReader
from holdfast.writers.upload import StateWriter, UploadContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ReadState = Callable[[StateInfo], Any]  # gives what the state writer takes: a DataFrame
OpenStates = Callable[[Checkpoint], ReadState]  # raises UsageError, before anything is opened, where they cannot be read


@dataclass(slots=True, kw_only=True)
class SavepointFiles:
    """Writes what a savepoint consists of: every state of a source, then the manifest. `written` says what, also if it fails."""

    place: Storage
    environment: Environment
    state_writer: StateWriter
    read_state: ReadState
    attempt: AttemptToken
    checkpoint_id: CheckpointId
    name: str
    stores: Collection[str] = ()  # states of directories that are read as rows
    acks: list[Ack] = field(default_factory=list)
    manifest: StoredFile | None = None

    @property
    def written(self) -> tuple[StoredFile, ...]:
        """Every file that is there by now, with paths from the savepoint's own directory."""
        files = tuple(file for ack in self.acks for file in ack.files)
        return files if self.manifest is None else (*files, self.manifest)

    def require_there(self) -> None:
        """Raises UnsafeSettingsError unless all that was written is where this process sees the directory: a host has another one there."""
        require_there(self.place, self.written)

    def write(self, source: Checkpoint, max_parallelism: int) -> CommitRequest:
        """The request to commit it, with paths from the savepoint's own directory."""
        metadata = CheckpointMetaData(checkpoint_id=self.checkpoint_id, timestamp=self.environment.now(), is_savepoint=True)
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
        try:
            self.manifest = store_manifest(self.place, manifest)
        except BaseException:
            self.manifest = left_manifest(self.place, manifest)
            raise
        return CommitRequest(
            attempt=self.attempt,
            content=content,
            states=tuple(states),
            inherited=frozenset(),
            files=files,
            acks=tuple(self.acks),
            manifest=self.manifest,
            progress=manifest.progress,
            retention=KeepAll(),
        )

    def _write_state(self, source: Checkpoint, info: StateInfo, context: UploadContext) -> StateInfo:
        if info.format == Format.BYTES:
            self.acks.append(write_bytes(source.read_bytes(info.state), context, self.environment, INLINE_LIMIT_BYTES))
            return info
        if info.format == Format.FILES or (info.format == Format.DIRECTORY and info.state not in self.stores):
            acks, described = copy_state(source, info, context)
            self.acks.extend(acks)
            return described
        if info.format == Format.DIRECTORY:
            context = replace(context, key_columns=(KEY,))
        with explaining(f"writing state {info.state!r} of savepoint {self.name!r}", self.place.address):
            acks, described = self.state_writer.write(self.read_state(info), context)
        self.acks.extend(acks)
        return described


def spark_reader(spark: "SparkSession | None", stores: Mapping[str, StoreAdapter] | None = None) -> OpenStates:
    """Reads states as DataFrames of this session, or of the active one; directories by the adapters of their stores.

    Raises UsageError where there is no session and a state needs it.
    """
    adapters = stores or {}

    def open_states(source: Checkpoint) -> ReadState:
        session: Any = spark or active_session()
        frame = next((info.state for info in source.manifest.states if info.format == Format.PARQUET or info.state in adapters), None)
        if session is None and frame is not None:
            msg = (
                f"state {frame!r} of {source!r} is a DataFrame, which Spark has to write again, and there is no active Spark session (the "
                "command line has none): call catalog.savepoint(..., spark=...), or holdfast.rekey(..., spark=...), in a program that has "
                "one. Nothing was begun"
            )
            raise UsageError(msg)
        return lambda info: _frame(session, source, info, adapters)

    return open_states


def _frame(session: "SparkSession", source: Checkpoint, info: StateInfo, adapters: Mapping[str, StoreAdapter]) -> "DataFrame":
    if info.format != Format.DIRECTORY:
        return source.read(session, info.state)
    directories = source.directories(info.state)
    assert isinstance(directories, DirectoryReader)
    return entries_frame(session, directories, adapters[info.state], source.manifest.max_parallelism)


def _require_own(content: Sequence[Chunk], name: str) -> None:
    shared = next((chunk.state for chunk in content if chunk.scope is not Scope.EXCLUSIVE), None)
    if shared is not None:
        msg = f"savepoint {name!r}: the writer of state {shared!r} gave files that others may share"
        raise RefusedError(msg)
