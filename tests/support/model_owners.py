"""Owners of files in the model: tasks that write on their own account, let go of what they need no more, die, and are started again."""

from holdfast.catalog import paths
from holdfast.catalog.errors import HoldfastError, RetryError
from holdfast.catalog.rules import owned_files, owners
from holdfast.catalog.types import AttemptToken, Chunk, FileId, JobId, OwnedFile, Role, Scope, StoredFile
from holdfast.writers import task_owned
from tests.support.model_layers import Layered
from tests.support.model_world import JOBS, World

SIZE_BYTES = 10


class Owner:
    """A task: opens an owner, or goes on with one that another opened, then writes and releases."""

    def __init__(self, world: World) -> None:
        self.w, self.busy, self.name = world, False, "task"
        self.transactor = world.transactor()
        self.job = world.random.choice((JOBS[0], JOBS[0], JOBS[1]))
        self.owner, self.token = "", AttemptToken("")

    def step(self) -> bool:
        try:
            if not self.token:
                return self.open()
            roll = self.w.random.random()
            if roll < 0.6:
                return self.write()
            if roll < 0.9:
                return self.release()
            return self.leave(releases=roll < 0.97)
        except RetryError:
            return True
        except HoldfastError:  # somebody released the owner
            return False

    def open(self) -> bool:
        w, fresh = self.w, self.w.environment.new_id()
        known = sorted(name for name, job in w.owners.items() if job == self.job)
        self.owner = w.random.choice(known) if known and w.random.random() < 0.5 else f"wal-{fresh}"
        w.owners[self.owner] = self.job
        self.token = task_owned.own(self.transactor, w.storage, w.environment, self.job[0], self.owner, None).attempt
        w.tell_open(self.token)
        w.story.append(f"task owns {self.owner} of {self.job[0]} ({self.token})")
        return True

    def write(self) -> bool:
        w, fresh = self.w, self.w.environment.new_id()
        file_id, path = paths.file_id(self.token, fresh, 0), paths.owned_file(self.job, self.owner, self.token, fresh)
        if self.token not in w.record.open:  # the task does not know, and what it writes nobody keeps
            w.upload(file_id, path)
            return False
        w.upload(file_id, path)
        w.logs.setdefault(self.owner, []).append(_chunk(self.owner, file_id, w))
        w.owned[file_id] = path
        return True

    def release(self) -> bool:
        """Of what the owner has, and of what it had: a request that is repeated."""
        w = self.w
        chunks = w.random.sample(mine := self.mine(), min(len(mine), w.random.choice((1, 1, 2))))
        for chunk in chunks:
            w.owned.pop(chunk.file_id, None)
        files = [as_file(chunk, w) for chunk in chunks]
        self.transactor.run(lambda state: owners.release_files(state, self.job, self.owner, files))
        w.story.append(f"{self.owner} releases {[file.file_id for file in files]}")
        return True

    def leave(self, *, releases: bool) -> bool:
        if releases:
            release_owner(self.w, self.transactor, self.job, self.owner, self.token)
        return False

    def mine(self) -> list[Chunk]:
        return [chunk for chunk in self.w.logs.get(self.owner, []) if paths.is_of(self.token, chunk.file_id)]


def release_owner(w: World, transactor, job: JobId, owner: str, token: AttemptToken) -> None:
    """By its task, or by an operator."""
    w.owned = {file_id: path for file_id, path in w.owned.items() if not paths.is_of(token, file_id)}
    w.story.append(f"{owner} is released")
    transactor.run(lambda state: owners.release_owner(state, job, owner))


def end(w: World, state) -> None:
    """Release every owner that is open."""
    for job in list(state.jobs.values()):
        for token, owner in list(job.owners.items()):
            release_owner(w, w.operator, job.job_id, owner.opened.name, token)


def refer(w: World, parent: Layered | None, owner: str) -> Layered:
    """The state of an owner: some of what the parent has of it, and some of what its task wrote; of which some may be released by now."""
    old = [chunk for chunk in parent.chunks if w.random.random() < 0.7] if parent else []
    known = {chunk.file_id for chunk in parent.chunks} if parent else set()
    new = [chunk for chunk in w.logs[owner] if chunk.file_id not in known]
    kept = [chunk for chunk in new if chunk.file_id in w.owned] or new
    chunks = (*old, *w.random.sample(kept, min(len(kept), 2)))
    return Layered(chunks, {key: row for chunk in chunks for key, row in w.sheets.rows[chunk.identity].items()})


def owners_of(w: World, job: JobId) -> list[str]:
    return sorted(owner for owner in w.logs if w.owners[owner] == job)


def referred(w: World, content: tuple[Chunk, ...], inherited: frozenset) -> tuple[StoredFile, ...]:
    """What the request says of files that the parent has not."""
    fresh = [chunk for chunk in content if chunk.scope is Scope.TASKOWNED and chunk.identity not in inherited]
    return tuple(stored for chunk in fresh for stored in owned_files.stored(chunk.state, [as_file(chunk, w)]))


def as_file(chunk: Chunk, w: World) -> OwnedFile:
    return OwnedFile(name=chunk.name or "", file_id=chunk.file_id, path=w.path_of[chunk.file_id], size_bytes=SIZE_BYTES, sha256="")


def _chunk(owner: str, file_id: FileId, w: World) -> Chunk:
    chunk = Chunk(
        operator="main", state=owner, file_id=file_id, scope=Scope.TASKOWNED, role=Role.FILE, layer=0, offset_bytes=0,
        length_bytes=SIZE_BYTES, sha256="", name=file_id,
    )  # fmt: skip
    w.sheets.whole(chunk)
    return chunk
