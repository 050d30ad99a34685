"""Bringing the directory of an embedded store back, whole and verified, on whichever machine its subtask runs now."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import AlreadyExistsError, DamagedFileError, NotFoundError, RefusedError, WorkingDirectoryError
from holdfast.catalog.manifest import Manifest
from holdfast.catalog.paths import require_relative
from holdfast.catalog.storage import Storage
from holdfast.catalog.types import CheckpointId, Chunk, JobId, StateInfo
from holdfast.writers.local.local_state import LocalShare
from holdfast.writers.local.working_directory import WorkingDirectory
from holdfast.writers.stores.by_subtask import BySubtask, Entry
from holdfast.writers.stores.sources import TRIES, Brought, NotThereError, Source, present


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredDirectory:
    """What a restore did: how many files there are, and where their bytes came from: the catalog's storage, a local copy, the cache.

    What is so small that the manifest has it comes with that, and is not counted.
    """

    files: int
    remote_bytes: int
    local_bytes: int = 0
    cached_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryReader:
    """What `checkpoint.directories(state)` gives. Picklable, so that tasks on executors can take it along.

    It keeps nothing from being cleaned up: the checkpoint must be live, or pinned by its caller, for as long as it is used.
    """

    storage: Storage
    environment: Environment
    job: str
    job_id: JobId
    checkpoint_id: CheckpointId
    operator: str
    state: str
    shares: BySubtask

    def __repr__(self) -> str:
        return f"<directories of {self._what}>"

    @property
    def subtasks(self) -> int:
        """How many subtasks wrote a directory."""
        return len(self.shares)

    def key_groups(self, subtask: int) -> range | None:
        """The key groups that a subtask's store was written with. Raises NotFoundError."""
        chunk, _ = self._of(subtask)[0]
        if chunk.key_group_from is None or chunk.key_group_to is None:
            return None
        return range(chunk.key_group_from, chunk.key_group_to + 1)

    def restore(
        self,
        to: str | os.PathLike[str],
        *,
        subtask: int,
        key_groups: range | None = None,
        working_directory: WorkingDirectory | None = None,
    ) -> RestoredDirectory:
        """Make the directory of a subtask's store at `to`, which must not exist, or be empty: all of it, every byte verified, or nothing.

        With the `working_directory` of this process, files whose digest holds in its local copies are linked from there; others that a
        store never changes come by its cache. The rest comes from the catalog, several files at once.
        Raises:
            NotFoundError: there is no such subtask.
            RefusedError: `key_groups` are not those that the store was written with: it is not key-group aware.
            AlreadyExistsError: there is something at `to`.
            DamagedFileError: a file is missing or has other bytes than were committed.
            WorkingDirectoryError: somebody deletes what is restored, again and again.
        """
        entries = self._of(subtask)
        self._require_range(subtask, key_groups)
        self._require_names([chunk for chunk, _ in entries])
        source = self._source(subtask, working_directory)
        for left in reversed(range(TRIES)):
            try:
                with new_directory(to, self.environment) as draft:
                    return self._bring(entries, draft, source)
            except WorkingDirectoryError:
                if not left:
                    raise
        raise AssertionError

    def _source(self, subtask: int, working: WorkingDirectory | None) -> Source:
        share = LocalShare(catalog_id=self.storage.address, job_id=self.job_id, operator=self.operator, state=self.state, subtask=subtask)
        return Source(storage=self.storage, working=working, share=share)

    def _bring(self, entries: Sequence[Entry], draft: Path, source: Source) -> RestoredDirectory:
        chunks = [chunk for chunk, _ in entries]
        with present(draft):
            for directory in sorted({(draft / str(chunk.name)).parent for chunk in chunks} - {draft}):
                directory.mkdir(parents=True, exist_ok=True)
        begun = [self.environment.start(partial(self._bring_file, entry, draft, source)) for entry in entries]
        try:
            brought = [one.result() for one in begun]
        finally:
            for one in begun:
                if not one.cancel():
                    one.exception()  # nothing is written any more when this returns
        with present(draft):  # it may have been deleted, in part or whole, behind the threads that filled it
            sizes = [(draft / str(chunk.name)).stat().st_size for chunk in chunks]
        assert sizes == [chunk.length_bytes for chunk in chunks]
        return RestoredDirectory(
            files=len(chunks),
            remote_bytes=sum(each.remote_bytes for each in brought),
            local_bytes=sum(each.local_bytes for each in brought),
            cached_bytes=sum(each.cached_bytes for each in brought),
        )

    def _bring_file(self, entry: Entry, draft: Path, source: Source) -> Brought:
        chunk, file = entry
        assert chunk.name is not None
        place = draft / chunk.name
        if chunk.inline is not None:
            with present(draft):
                place.write_bytes(chunk.inline)  # verified with the manifest
            return Brought()
        assert file is not None
        path = file.path
        try:
            return source.bring(chunk, path, place)
        except NotThereError as error:
            raise self._damaged(chunk, f"{path} is missing: the checkpoint was dropped meanwhile, or the file is lost") from error
        except DamagedFileError as error:
            raise self._damaged(chunk, f"{path} does not have the digest that was committed") from error

    def _of(self, subtask: int) -> Sequence[Entry]:
        found = self.shares[subtask]
        if not found:
            msg = (
                f"{self._what} has no subtask {subtask!r}: it was written by {self.subtasks}, counted from 0, and is not key-group aware "
                f"(is_key_group_aware is false), so that no other number can read it. {_RESCALE}"
            )
            raise NotFoundError(msg)
        return found

    def _require_range(self, subtask: int, key_groups: range | None) -> None:
        there = self.key_groups(subtask)
        if key_groups is not None and key_groups != there:
            has = "was written without key groups" if there is None else f"has key groups {there.start} to {there.stop - 1}"
            msg = (
                f"subtask {subtask} of {self._what} {has}, and {key_groups} are asked for: the directory of a store is not key-group aware "
                f"(is_key_group_aware is false), and is restored whole or not at all. {_RESCALE}"
            )
            raise RefusedError(msg)

    def _require_names(self, chunks: list[Chunk]) -> None:
        """A manifest may come from anywhere: no file of it is written outside the directory, and none over another."""
        taken: set[str] = set()
        for chunk in chunks:
            try:
                taken.add(require_relative(chunk.name or ""))
            except ValueError as error:
                raise self._damaged(chunk, "no snapshot has a file of such a name: nothing was written") from error
        if len(taken) < len(chunks):
            raise self._damaged(chunks[0], "two files have one name: nothing was written")

    def _damaged(self, chunk: Chunk, how: str) -> DamagedFileError:
        return DamagedFileError(f"file {chunk.name!r} of subtask {chunk.subtask} of {self._what}: {how}. Restore another checkpoint")

    @property
    def _what(self) -> str:
        return f"state {self.state!r} of checkpoint {self.checkpoint_id} of job {self.job!r}"


_RESCALE = "To rescale the job, take a savepoint with an adapter of the store (savepoint(..., stores={...})) and start from that"


def directory_reader(manifest: Manifest, info: StateInfo, storage: Storage, environment: Environment) -> DirectoryReader:
    """The reader of a state of directories."""
    return DirectoryReader(
        storage=storage,
        environment=environment,
        job=manifest.job,
        job_id=manifest.job_id,
        checkpoint_id=manifest.checkpoint_id,
        operator=info.operator,
        state=info.state,
        shares=BySubtask.of(manifest.in_given_order(info), manifest.files),
    )


@contextmanager
def new_directory(to: str | os.PathLike[str], environment: Environment) -> Iterator[Path]:
    """A directory to fill, which becomes `to` when the block ends well, and is removed when it raises. Raises AlreadyExistsError."""
    target = Path(os.path.realpath(to))  # a link to an empty directory leads to the directory
    _require_free(target)
    draft = target.with_name(f".{target.name}.{environment.new_id()[:8]}.tmp")
    draft.mkdir(parents=True)
    try:
        yield draft
        try:
            with present(draft):
                draft.rename(target)
        except OSError:
            _require_free(target)  # somebody else was faster
            raise
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _require_free(target: Path) -> None:
    try:
        if not os.listdir(target):
            return
    except FileNotFoundError:
        return
    except NotADirectoryError:
        pass
    msg = f"{target} exists and is not empty: give the path of a new or empty directory. Nothing was written"
    raise AlreadyExistsError(msg)
