"""What the driver makes of the acknowledgements of a state of directories: all shares there, each once, and no two overlap."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from holdfast.catalog.arguments import is_whole
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import NotDurableError, RefusedError, UsageError
from holdfast.catalog.types import MAX_PARALLELISM_LIMIT, Ack, CheckpointId, Format, Scope, StateInfo
from holdfast.writers.local.working_directory import WorkingDirectory
from holdfast.writers.stores.ack_codec import FailedAck, decode_ack
from holdfast.writers.stores.by_subtask import BySubtask
from holdfast.writers.stores.snapshot import require_patterns
from holdfast.writers.stores.writer import DirectoryUpload, DirectoryWriter, Share, Snapshot
from holdfast.writers.upload import ParentState, UploadContext, WrittenState, bytes_of, chunks_of, without_chunks


@dataclass(slots=True)
class DirectoryShares:
    """Collects the shares of one state while its checkpoint is written."""

    writer: DirectoryWriter
    subtasks: int | None  # that there are; None: those that are written, and at least the parent's
    parent_subtasks: int
    _uploads: dict[int, DirectoryUpload] = field(default_factory=dict)  # in this process
    _begun: set[int] = field(default_factory=set)  # in this process, those too that failed to begin
    _acks: dict[int, Ack] = field(default_factory=dict)
    _late: list[Ack] = field(default_factory=list)  # those that count for no share: their files become rows without handles

    @property
    def acks(self) -> list[Ack]:
        """What has arrived so far."""
        return [*self._acks.values(), *self._late]

    def require_same(self, subtasks: int | None, immutable: Sequence[str]) -> None:
        """Raises UsageError unless a further call says of the state what the first one said."""
        said, now = (self.subtasks, self.writer.immutable), (subtasks, require_patterns(immutable))
        if said != now:
            msg = f"{self._what} is written with (subtasks, immutable) = {now}, and was begun with {said}: say the same for each subtask"
            raise UsageError(msg)

    def write(
        self, snapshot: Snapshot, subtask: int, key_groups: range | None, working_directory: WorkingDirectory | None = None
    ) -> DirectoryUpload:
        """Begin an upload in this process, and wait for it before the commit. Raises UsageError."""
        Share.of(subtask, key_groups, self.writer.context.max_parallelism)
        if subtask in self._uploads:
            msg = f"subtask {subtask} of {self._what} is written twice in one checkpoint: write each once"
            raise UsageError(msg)
        self._require_one(subtask)
        self._begun.add(subtask)
        upload = self._uploads[subtask] = self.writer.write(
            snapshot, subtask=subtask, key_groups=key_groups, working_directory=working_directory
        )
        return upload

    def take(self, acks: Iterable[object]) -> None:
        """Take what tasks acknowledged; of two for one share, one wins.

        Raises UsageError for what is no ack of this state here, NotDurableError where a task could not make its files durable.
        """
        given_acks: object = acks
        if not isinstance(given_acks, Iterable) or isinstance(given_acks, str | bytes):
            msg = f"{type(acks).__name__} is not a list of acknowledgements of {self._what}: pass those of all its tasks together"
            raise UsageError(msg)
        for given in acks:
            ack = decode_ack(given)
            context = self.writer.context
            if (ack.attempt, ack.operator, ack.state) != (context.attempt, context.operator, context.state):
                msg = (
                    f"an acknowledgement of state {ack.state!r} of checkpoint {ack.checkpoint_id} (attempt {ack.attempt}) was given for "
                    f"{self._what}: acknowledge each upload in the checkpoint that it was made for"
                )
                raise UsageError(msg)
            if isinstance(ack, FailedAck):
                raise NotDurableError(ack.not_durable)
            self._arrived(ack)

    def cancel(self) -> None:
        """Begin no further file: the checkpoint will not be committed, or has all of them."""
        for upload in self._uploads.values():
            upload.cancel()

    def finish(self) -> WrittenState:
        """The state of all shares, when each has arrived. Raises RefusedError if one has not, or two have the same key groups."""
        for subtask, upload in self._uploads.items():
            if self._acks.get(subtask) is not (ack := upload.wait()):
                self._arrived(ack)
        there = max([*self._acks, *self._begun, self.parent_subtasks - 1, 0]) + 1 if self.subtasks is None else self.subtasks
        missing = sorted({*range(there)} - self._acks.keys())
        if missing:
            msg = (
                f"{self._what} has {there} subtasks, and subtask {missing[0]} was not acknowledged: write all of them in one checkpoint"
                + ("" if self.subtasks is not None else ", or say with subtasks=... how many there are")
            )
            raise RefusedError(msg)
        acks = [self._acks[subtask] for subtask in sorted(self._acks)]
        _require_all_groups(acks, self.writer.context.max_parallelism, self._what)
        context, chunks = self.writer.context, chunks_of(acks)
        info = StateInfo(operator=context.operator, state=context.state, format=Format.DIRECTORY, total_bytes=bytes_of(chunks))
        return WrittenState(acks=(*acks, *map(_unused, self._late)), info=info, content=chunks)

    def _arrived(self, ack: Ack) -> None:
        assert ack.subtask is not None
        if self._acks.get(ack.subtask) == ack or ack in self._late:  # a channel may deliver twice
            return
        if ack.subtask in self._acks or not self._is_one(ack.subtask):
            self._late.append(ack)
        else:
            self._acks[ack.subtask] = ack
        self._require_one(ack.subtask)

    def _is_one(self, subtask: int) -> bool:
        return self.subtasks is None or subtask < self.subtasks

    def _require_one(self, subtask: int) -> None:
        if not self._is_one(subtask):
            msg = f"{self._what} has {self.subtasks} subtasks, counted from 0, and subtask {subtask} was written: say how many there are"
            raise UsageError(msg)

    @property
    def _what(self) -> str:
        return f"state {self.writer.context.state!r} of checkpoint {self.writer.context.metadata.checkpoint_id}"


def shares_of(
    context: UploadContext,
    environment: Environment,
    parent: ParentState | None,
    parent_id: CheckpointId | None,
    subtasks: int | None,
    immutable: Sequence[str],
) -> DirectoryShares:
    """To collect the shares of a state of which the parent may have some. Raises UsageError for what is no number of subtasks."""
    given: object = subtasks  # a program without types gives anything
    if given is not None and not is_whole(given, 1, MAX_PARALLELISM_LIMIT):
        msg = f"subtasks={subtasks!r} is not a number of subtasks of state {context.state!r}: pass 1 to {MAX_PARALLELISM_LIMIT}"
        raise UsageError(msg)
    patterns = require_patterns(immutable)
    if parent is not None and parent.info.format != Format.DIRECTORY:
        parent = None
    there = {chunk.subtask for chunk in parent.chunks if chunk.subtask is not None} if parent else set()
    writer = DirectoryWriter(context=context, environment=environment, parent=_shared(parent), parent_id=parent_id, immutable=patterns)
    return DirectoryShares(writer, subtasks, len(there))


def _shared(parent: ParentState | None) -> BySubtask:
    """What can be referred to of it, and nothing else: it travels to the tasks."""
    if parent is None:
        return BySubtask({})
    return BySubtask.of((chunk for chunk in parent.chunks if chunk.scope is Scope.SHARED and chunk.inline is None), parent.files)


def _unused(ack: Ack) -> Ack:
    """The ack of a try that another won: its files are known, and no file of the parent is used because of it."""
    return replace(without_chunks(ack), metrics=replace(ack.metrics, bytes_reused=0))


def _require_all_groups(acks: Sequence[Ack], max_parallelism: int, what: str) -> None:
    """Each key group is in one directory, if any says its own: of one in two nobody could say which holds, and one in none is lost."""
    ranges = sorted((*found, ack.subtask) for ack in acks if (found := _range_of(ack)) is not None)
    if not ranges:
        return
    advice = "give each subtask its own, holdfast.groups_of(subtask, parallelism, max_parallelism)"
    if len(ranges) < len(acks):
        without = next(ack.subtask for ack in acks if _range_of(ack) is None)
        msg = f"{what}: subtask {without} was written without key groups, and others with: {advice}"
        raise RefusedError(msg)
    for (_, last, one), (first, _, other) in pairwise([(-1, -1, None), *ranges, (max_parallelism, max_parallelism, None)]):
        if first <= last:
            msg = f"{what}: subtasks {one} and {other} both have key group {first}: {advice}"
            raise RefusedError(msg)
        if first > last + 1:
            msg = f"{what}: no subtask has key group {last + 1}, and the job has {max_parallelism} of them: {advice}"
            raise RefusedError(msg)


def _range_of(ack: Ack) -> tuple[int, int] | None:
    first, last = ack.chunks[0].key_group_from, ack.chunks[0].key_group_to
    return None if first is None or last is None else (first, last)
