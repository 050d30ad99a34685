"""One checkpoint being written: the ways in which a program gives it states. The top of the upload and acknowledgement path."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from holdfast.catalog import facts as f
from holdfast.catalog.errors import NotFoundError, RefusedError, UsageError
from holdfast.catalog.manifest import Manifest
from holdfast.catalog.types import (
    DEFAULT_OPERATOR,
    INLINE_OF_CHECKPOINT_BYTES,
    AttemptToken,
    ChainLimit,
    CheckpointId,
    Format,
    OwnedFile,
    StateInfo,
)
from holdfast.writers.attempt import OpenAttempt
from holdfast.writers.bytes_state import write_bytes
from holdfast.writers.checkpoint import Checkpoint
from holdfast.writers.copying import copy_state
from holdfast.writers.local.working_directory import WorkingDirectory
from holdfast.writers.stores.snapshot import IMMUTABLE
from holdfast.writers.stores.writer import DirectoryUpload, DirectoryWriter, Snapshot
from holdfast.writers.task_owned import Owner, owner_name, refer_to
from holdfast.writers.upload import StateWriter, in_full

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Mode = Literal["full", "changed-groups"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointResult:
    """What a committed checkpoint cost. Bytes of state; the manifest is not counted."""

    checkpoint_id: CheckpointId
    new_bytes: int
    reused_bytes: int
    total_bytes: int
    handles: int
    new_handles: int

    @classmethod
    def of(cls, fact: f.CheckpointCommitted) -> "CheckpointResult":
        return cls(
            checkpoint_id=fact.checkpoint_id,
            new_bytes=fact.new_bytes,
            reused_bytes=fact.total_bytes - fact.new_bytes,
            total_bytes=fact.total_bytes,
            handles=fact.handles,
            new_handles=fact.new_handles,
        )


class CheckpointWriter:
    """What `job.checkpoint()` gives: collects the states of one attempt. A state that is not written is carried from the parent."""

    def __init__(self, attempt: OpenAttempt, state_writer: StateWriter, chain: ChainLimit = ChainLimit()) -> None:  # noqa: B008 - frozen
        self._attempt, self._state_writer, self._chain = attempt, state_writer, chain
        self.result: CheckpointResult | None = None
        self.failure: Exception | None = None  # why there is no result, where the job tolerates it

    @property
    def checkpoint_id(self) -> CheckpointId:
        return self._attempt.checkpoint_id

    @property
    def attempt(self) -> AttemptToken:
        return self._attempt.token

    def write(self, state: str, df: "DataFrame", key: Sequence[str] = (), *, mode: Mode = "full") -> None:
        """Write the full state: every row of the DataFrame, digested and durable when this returns. Runs its plan once.

        Without `key` all rows are of key group 0, and the state cannot be split by key. `mode="changed-groups"` writes only the key
        groups whose rows differ from the parent's, and refers to the parent's files for the others; all of them where the parent's state
        has no digests to compare with (or other columns, key, or change sets), or where the job's `ChainLimit` would be passed.
        It runs the plan twice, which must give the same rows, and needs a `key` that is unique: no two rows have the same. That is checked
        only of the rows of changed groups, while they are few enough for the driver, and of keys without floats, decimals and structs.
        Raises:
            UsageError: the state is already written or removed in this checkpoint, or a key column is unknown or of an unsupported type;
                with "changed-groups" also for columns of nested types, a key that was found twice (names it), and a plan that gave other
                rows when it ran again.
            RefusedError: "changed-groups" without a key: the state would not be key-group aware.
            UnsafeSettingsError: the session's commit protocol could lose or double rows.
            EngineSetupError: the executors' Python, or a JAR, is not the one that is needed.
            StorageFullError, ReadOnlyError: a disk is full, or may not be written to, here or on an executor.
        """
        if mode not in get_args(Mode):
            msg = f"mode={mode!r} is not a way to write a state: pass 'full' or 'changed-groups'"
            raise UsageError(msg)
        with self._attempt.writing(state, key) as context:
            if mode == "full":
                self._attempt.take(in_full(*self._state_writer.write(df, context)), context)
            else:
                self._attempt.take(
                    self._state_writer.write_changed_groups(df, context, self._attempt.parent_state(context), self._chain), context
                )

    def write_changes(
        self, state: str, upserts: "DataFrame | None" = None, deletes: "DataFrame | None" = None, *, key: Sequence[str] = ()
    ) -> None:
        """Write what changed: rows that are new or replace those of their keys, and keys whose rows are gone. Runs each plan once
        (again, with nothing of the first run used, where Spark estimated a few rows and found a gigabyte of them).

        `upserts` have the state's columns, in any order, and may have more: with the first row of such, the state has these too, null in
        its older rows. Of `deletes` only the key columns count, and deleting what is not there is nothing. The changes lie above the state
        as the parent has it; where the job's `ChainLimit` would be passed, or the state is so small that a base costs no more than a
        change set and its later reading, the whole state is read and written again. Without such a state in the parent, the upserts are the
        state, and `key` says which columns tell its rows apart; later it may be left out.
        Raises:
            UsageError: a column of the state is missing or of another type, the key is given and not the state's (says which), a key
                appears twice in this call (names it), or the state is already written or removed in this checkpoint.
            DamagedFileError: the state was to be written again, and a file of it is damaged.
        """
        with self._attempt.writing(state, key) as context:
            self._attempt.take(
                self._state_writer.write_changes(upserts, deletes, context, self._attempt.parent_state(context), self._chain), context
            )

    def write_bytes(self, state: str, data: bytes | bytearray | memoryview) -> None:
        """Write a small state as bytes: kept in the manifest and the row when at most 20 kB, and the small states of the checkpoint at most
        a megabyte together; else as a file of this checkpoint."""
        with self._attempt.writing(state, ()) as context:
            ack = write_bytes(data, context, self._attempt.environment, INLINE_OF_CHECKPOINT_BYTES - self._attempt.inline_bytes)
            info = StateInfo(operator=context.operator, state=state, format=Format.BYTES, total_bytes=ack.metrics.bytes_written)
            self._attempt.take(in_full([ack], info), context)

    def task_owned(self, owner: Owner, files: Sequence[OwnedFile]) -> None:
        """Refer to these files of an owner, in this order, as the state of the owner's name. Nothing is uploaded: they are durable.

        They stay while a live or pinned checkpoint has them, and until their owner releases them. Files that the parent has in this state
        may be among them, whichever task wrote them. The commit requires that the others are still unreleased.
        Raises:
            UsageError: this is not an owner, these are not files of owners, or two have one name.
            RefusedError: a file is another owner's, the owner is another job's, or the state is already written in this checkpoint.
        """
        with self._attempt.writing(owner_name(owner), ()) as context:
            written, owned = refer_to(owner, files, context, self._attempt.parent_state(context))
            self._attempt.refer_to(owned)
            self._attempt.take(written, context)

    def write_directory(
        self,
        state: str,
        snapshot: Snapshot,
        *,
        subtask: int = 0,
        subtasks: int | None = None,
        key_groups: range | None = None,
        immutable: Sequence[str] = IMMUTABLE,
        working_directory: WorkingDirectory | None = None,
    ) -> DirectoryUpload:
        """Begin to upload the directory of one subtask's store, from this process, and continue; the commit waits for it.

        Call it for each subtask: there are as many as are written, and no fewer than the parent has, unless `subtasks` says how many. What
        the parent has of this state and subtask by the same name, size and digest is referred to, if the store never changes it.

        Args:
            state: the name of the state.
            snapshot: a directory that stays as it is until the checkpoint is committed; or a function that takes a snapshot into the path
                that it is called with.
            subtask: whose store it is, from 0.
            subtasks: how many there are. None: as many as are written, and no fewer than the parent has.
            key_groups: those that the store has. None: its directory belongs to the subtask alone.
            immutable: patterns of names of files that the store never changes. All other files are this checkpoint's own.
            working_directory: keeps local copies, by hard links: nobody may write to the files of the snapshot afterwards. None: no copies.

        Raises:
            UsageError: this is not a snapshot (it is missing or empty, or has links), no subtask or range; or the subtask is written twice.
            RefusedError: the state is already written in this checkpoint.
        """
        shares = self._attempt.shares(state, subtasks, immutable)
        with self._attempt.step(f"writing state {state!r}"):
            return shares.write(snapshot, subtask, key_groups, working_directory)

    def directories(self, state: str, *, subtasks: int, immutable: Sequence[str] = IMMUTABLE) -> DirectoryWriter:
        """As `write_directory`, from tasks: a picklable writer to take along. Give what their uploads acknowledge to `acknowledge`.

        The checkpoint is committed only if each of so many subtasks has been acknowledged.
        """
        return self._attempt.shares(state, subtasks, immutable).writer

    def acknowledge(self, state: str, acks: Iterable[bytes]) -> None:
        """Take what `upload.ack()` gave in the tasks. A subtask may be acknowledged by several tries of its task: one of them counts.

        Raises UsageError: there are no directories of this state in this checkpoint, or an ack is not of them.
        """
        shares = self._attempt.shares_of(state)
        if shares is None:
            msg = (
                f"{self._attempt.label} is not waiting for directories of state {state!r}: call "
                "checkpoint.directories(...) first, and acknowledge within the same block"
            )
            raise UsageError(msg)
        with self._attempt.step(f"acknowledging state {state!r}"):
            shares.take(acks)

    def remove(self, state: str) -> None:
        """End a state of the parent: this checkpoint does not carry it. Raises NotFoundError if the parent has none of this name."""
        self._of_parent(state, "remove")
        self._attempt.remove(state)

    def rename(self, state: str, to: str) -> None:
        """Carry a state of the parent under another name, as it is, with its change sets. Older checkpoints keep it under the old one.

        Its bytes are copied once, verified on the way. Sharing them would not do: a chunk that two checkpoints have is one chunk, of one
        state, and after a rollback it would be there under the wrong name.
        Raises:
            NotFoundError: the parent has no such state.
            RefusedError: the parent has a state of the new name, or one of the two was written, renamed or removed in this checkpoint.
            DamagedFileError: a file of the state is missing or is not what was committed.
        """
        parent, info = self._of_parent(state, "rename")
        if parent.state(DEFAULT_OPERATOR, to) is not None:
            msg = (
                f"{self._attempt.label} cannot rename state {state!r} to {to!r}: its parent has a "
                "state of that name; remove it in a checkpoint of its own first"
            )
            raise RefusedError(msg)
        with self._attempt.writing(to, info.key_columns) as context:
            self._attempt.take(in_full(*copy_state(Checkpoint(parent, self._attempt.storage), info, context)), context)
        self._attempt.remove(state)

    def _of_parent(self, state: str, what: str) -> tuple[Manifest, StateInfo]:
        """A state that the parent has and this checkpoint has not come to yet. Raises NotFoundError, RefusedError."""
        key, parent = self._attempt.free_key(state), self._attempt.parent
        info = parent.state(*key) if parent else None
        if parent is None or info is None:
            known = ", ".join(info.state for info in parent.states) if parent else "none, for there is no parent"
            msg = f"{self._attempt.label} cannot {what} state {state!r}: its parent has {known or 'none'}"
            raise NotFoundError(msg)
        return parent, info
