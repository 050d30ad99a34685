"""The processes of the model. Each step is one thing that a process does; its decisions are the project's own functions.

A coordinator has a memory (its Transactor's), which is stale as soon as another process commits; the compare-and-swap tells it.
Modules are called by their names (`jobs.start`, not `start`), so that a mutant can take a rule's place (`mutants.py`).
"""

from dataclasses import dataclass, field, replace

from holdfast.catalog import paths
from holdfast.catalog.errors import AttemptEndedError, FencedError, HoldfastError, RefusedError, RetryError
from holdfast.catalog.facts import AttemptOpened
from holdfast.catalog.rules import checkpoints, decision, jobs, savepoints
from holdfast.catalog.rules.commit_facts import CommitRequest
from holdfast.catalog.state import CatalogState, Ref
from holdfast.catalog.types import AttemptToken, JobId, KeepAll, KeepLast, Scope, Status, StoredFile
from tests.support import model_stores
from tests.support.faults import Crash
from tests.support.model_layers import Layered
from tests.support.model_owners import owners_of, refer, referred
from tests.support.model_world import JOBS, Promise, Violation, World

STATES = ("a", "b", "c")
RETENTIONS = (KeepLast(1), KeepLast(1), KeepLast(2), KeepLast(3), KeepAll())
NOTHING = Promise({}, frozenset(), {}, frozenset())
SIZE_BYTES = 150
CLAIM = 0.15  # of a roll below 0.3, by which one job starts from the other's
COPIES = 0.12  # starts with a copy of a savepoint, or of another job's checkpoint


@dataclass(slots=True)
class Attempt:
    """One attempt as its coordinator sees it; nobody tells it that it was killed."""

    opened: AttemptOpened
    parent: Promise
    states: dict[str, Layered] = field(default_factory=dict)  # written by this attempt
    files: list[StoredFile] = field(default_factory=list)
    request: CommitRequest | None = None
    calls: int = 0


class Coordinator:
    """One epoch of one job, sometimes with two attempts at once."""

    def __init__(self, world: World, job: JobId) -> None:
        self.w, self.job, self.busy = world, job, False
        self.transactor = world.transactor(job)
        self.retention = world.random.choice(RETENTIONS)
        self.epoch = 0
        self.parent: Ref | None = None
        self.attempts: list[Attempt] = []
        self.name = f"coordinator of {job[0]}"

    def step(self) -> bool:
        w = self.w
        try:
            if not self.epoch:
                return self.start()
            if not self.attempts or (len(self.attempts) < 2 and w.random.random() < 0.08):
                return self.open()
            attempt = w.random.choice(self.attempts)
            if attempt.request is not None:
                return self.commit(attempt)
            roll = w.random.random()
            if roll < 0.06:
                return self.abort(attempt, expires=roll < 0.02)
            return self.upload(attempt) if not attempt.states or w.random.random() < 0.3 else self.seal(attempt)
        except RetryError as error:
            w.story.append(f"{self.name}: {'refused' if 'refused' in str(error) else 'outcome unknown'}")
            return True
        except FencedError:
            w.story.append(f"{self.name} is fenced")
            return False

    def start(self) -> bool:
        w, roll, copies = self.w, self.w.random.random(), self.w.random.random()
        first = AttemptToken(w.environment.new_id())
        following: list[AttemptOpened] = []

        def decide(state: CatalogState) -> decision.Decision:
            job, live = state.job(self.job), _line(state, self.job)
            following.clear()
            if copies < COPIES and (sources := _sources(state, self.job)):
                before = job.begin if job.begin is not None and state.checkpoint(job.begin).live else None
                started = jobs.start(state, self.job, before, first=first, source=sources[int(roll * 1000) % len(sources)])
                following[:] = [fact for fact in started.facts if isinstance(fact, AttemptOpened)]
                return decision.Decision(started.facts, started.keys, (started.result, before))
            begin = job.begin if roll < 0.6 else None if roll < 0.65 or not live else live[int(roll * 1000) % len(live)]
            others = _line(state, JOBS[0])
            if self.job == JOBS[1] and others and roll < 0.3:
                begin = others[int(roll * 1000) % len(others)]  # a fork, or a claim
            if begin is not None and begin.job_id != self.job and not state.checkpoint(begin).live:
                begin = None  # a fork that died before its first commit pinned nothing any more
            started = jobs.start(state, self.job, begin, claim=roll < CLAIM)
            return decision.Decision(started.facts, started.keys, (started.result, begin))

        self.epoch, self.parent = self.transactor.run(decide)
        w.tell_started(self.job, self.epoch)
        self.name = f"epoch {self.epoch} of {self.job[0]}"
        for opened in following:
            self.opened(opened)
            self.attempts[-1].parent = NOTHING  # nothing of the source is carried
            w.story.append(f"{self.name} copies {opened.parent_checkpoint_id} of {opened.parent_job_id[0]}")
        if self.parent is None or self.parent.job_id == self.job:
            w.story.append(f"{self.name} starts at {self.parent and self.parent.checkpoint_id}")
        else:
            what = "claims" if roll < CLAIM else "forks"
            w.story.append(f"{self.name} {what} {self.parent.checkpoint_id} of {self.parent.job_id[0]}")
        return True

    def open(self) -> bool:
        token = AttemptToken(self.w.environment.new_id())
        parent = self.parent
        try:
            opened = self.transactor.run(lambda state: checkpoints.open_checkpoint(state, self.job, self.epoch, token, parent))
        except RefusedError:
            return False
        self.opened(opened)
        return True

    def opened(self, opened: AttemptOpened) -> None:
        w = self.w
        w.tell_open(opened.attempt)
        w.story.append(f"{self.name} opens {opened.checkpoint_id} ({opened.attempt}) on {opened.parent_checkpoint_id}")
        number = opened.parent_checkpoint_id
        job = opened.parent_job_id
        parent = NOTHING if number is None or job is None else w.record.committed[job, int(number)]
        self.attempts.append(Attempt(opened, parent))

    def upload(self, attempt: Attempt) -> bool:
        """Write one state, or two that share a segment, on the parent's; as a shared file, an exclusive one, or inline."""
        w, opened = self.w, attempt.opened
        assert opened.checkpoint_id is not None
        roll, call = w.random.random(), attempt.calls
        attempt.calls += 1
        if w.random.random() < 0.3 and (owners := owners_of(w, self.job)):
            owner = w.random.choice(owners)
            attempt.states[owner] = refer(w, attempt.parent.states.get(owner), owner)
            return True
        if w.random.random() < 0.15:
            return self.upload_stores(attempt, call)
        file_id = paths.file_id(opened.attempt, call, 0)
        states = w.random.sample(STATES, 2 if roll < 0.25 else 1)
        if roll > 0.85:
            attempt.states |= {state: w.sheets.small(state, attempt.parent.states.get(state), file_id) for state in states}
            return True
        scope = Scope.EXCLUSIVE if roll > 0.7 else Scope.SHARED
        place = paths.exclusive_file(self.job, opened.checkpoint_id, opened.attempt, call, "bytes")
        shared = paths.streamed_file(self.job, opened.checkpoint_id, opened.attempt, call, 0)
        path = place if scope is Scope.EXCLUSIVE else shared
        if w.random.random() < 0.02:
            w.in_flight.append(("put", path, file_id.encode()))
            raise Crash("dies while it uploads; the bytes arrive later")
        w.upload(file_id, path)
        attempt.files.append(StoredFile(file_id=file_id, path=path, size_bytes=SIZE_BYTES, sha256="", scope=scope))
        if w.random.random() < 0.1:  # of two acks for one share this one lost
            return True
        for i, state in enumerate(states):
            attempt.states[state] = w.sheets.write(state, attempt.parent.states.get(state), file_id, i, scope)
        return True

    def upload_stores(self, attempt: Attempt, call: int) -> bool:
        try:
            state, files = model_stores.write(self.w, attempt.opened, attempt.parent.states.get(model_stores.STATE), call)
        except RefusedError:
            self.w.story.append(f"{self.name}: a share is missing")
            return self.abort(attempt)
        attempt.files += files
        attempt.states[model_stores.STATE] = state
        self.w.story.append(f"{self.name} has stores of {sorted({chunk.file_id for chunk in state.chunks})}")
        return True

    def seal(self, attempt: Attempt) -> bool:
        """Fix the content, as `OpenAttempt.acknowledged` does: carried from the pinned parent, and written now."""
        w, opened, parent = self.w, attempt.opened, attempt.parent
        assert opened.checkpoint_id is not None
        carried = {name: state for name, state in parent.states.items() if w.random.random() < 0.9}
        if w.random.random() < 0.05:  # a coordinator that would reuse whatever it remembers, as a deduplication by digest might
            known = [promise.states for (job, _), promise in w.record.committed.items() if job == self.job]
            carried |= w.random.choice(known) if known else {}
        states = {**carried, **attempt.states}
        content = tuple(chunk for state in states.values() for chunk in state.chunks)
        manifest_id, path = paths.manifest_file_id(opened.attempt), paths.manifest_path(self.job, opened.checkpoint_id)
        try:
            w.upload(manifest_id, path)
        except FileExistsError:
            return self.abort(attempt)
        w.promises[opened.attempt] = w.promise(states, manifest_id)
        inherited = frozenset(chunk.identity for state in parent.states.values() for chunk in state.chunks)
        attempt.request = CommitRequest(
            attempt=opened.attempt,
            content=content,
            states=(),
            inherited=inherited,
            owned=referred(w, content, inherited),
            files=tuple(attempt.files),
            acks=(),
            manifest=StoredFile(file_id=manifest_id, path=path, size_bytes=SIZE_BYTES, sha256="", scope=Scope.EXCLUSIVE),
            progress=None,
            retention=self.retention,
        )
        return True

    def commit(self, attempt: Attempt) -> bool:
        w, request = self.w, attempt.request
        assert request is not None
        if w.random.random() < 0.5:
            request = replace(request, next_attempt=AttemptToken(w.environment.new_id()))
        following: list[AttemptOpened] = []

        def decide(state: CatalogState) -> decision.Decision:
            transaction = checkpoints.commit_checkpoint(state, self.job, request)
            following[:] = [fact for fact in transaction.facts if isinstance(fact, AttemptOpened)]
            return transaction

        try:
            fact = self.transactor.run(decide)
        except AttemptEndedError:
            self.attempts.remove(attempt)
            w.story.append(f"{self.name} learns that {attempt.opened.checkpoint_id} has ended")
            return True
        except RefusedError:
            w.story.append(f"{self.name}: reuse is refused")
            return self.abort(attempt)
        self.attempts.remove(attempt)
        w.tell_committed((self.job, int(fact.checkpoint_id)))
        w.story.append(f"{self.name} commits {fact.checkpoint_id}: {sorted({c.file_id for c in request.content})}")
        self.parent = Ref(self.job, fact.checkpoint_id)
        for opened in following:
            self.opened(opened)
        return w.random.random() < 0.9

    def abort(self, attempt: Attempt, *, expires: bool = False) -> bool:
        """End an attempt, with what it has uploaded so far. If it expires, its block goes on, uploads more and would commit."""
        if not expires:
            self.attempts.remove(attempt)
        token, files = attempt.opened.attempt, attempt.files
        is_forked = attempt.opened.parent_job_id not in (None, self.job)
        again = AttemptToken(self.w.environment.new_id()) if is_forked else None
        try:
            opened = self.transactor.run(lambda state: checkpoints.end_attempt(state, self.job, token, Status.ABORTED, None, files, again))
            if opened is not None:
                self.opened(opened)
                self.attempts[-1].parent = attempt.parent
        except AttemptEndedError:
            pass  # somebody was faster
        except RefusedError as error:
            raise Violation(f"I5: {self.name} was told that {token} is open: {error}") from error
        self.w.story.append(f"{self.name} {'expires' if expires else 'aborts'} {token}")
        return True


class Savepoint:
    """Takes a savepoint of a checkpoint, while its job goes on: opens, uploads, commits."""

    def __init__(self, world: World) -> None:
        self.w, self.busy, self.name = world, False, "savepoint"
        self.transactor = world.transactor()
        self.opened: AttemptOpened | None = None
        self.request: CommitRequest | None = None

    def step(self) -> bool:
        try:
            if self.opened is None:
                return self.open()
            return self.commit(self.opened) if self.request is not None else self.upload(self.opened)
        except RetryError:
            return True
        except HoldfastError:
            return False

    def open(self) -> bool:
        w, state = self.w, self.transactor.known()
        live = _line(state, w.random.choice(JOBS))
        if not live:
            return False
        ref, token = w.random.choice(live), AttemptToken(w.environment.new_id())
        self.opened = self.transactor.run(lambda state: savepoints.open_savepoint(state, ref, token, f"name {token}"))
        w.tell_open(token)
        w.story.append(f"savepoint {token} of {ref.checkpoint_id} of {ref.job_id[0]}")
        return True

    def upload(self, opened: AttemptOpened) -> bool:
        w, directory = self.w, paths.savepoint_directory(opened.job_id, str(opened.name), opened.attempt)
        data, manifest = paths.file_id(opened.attempt, 0, 0), paths.manifest_file_id(opened.attempt)
        w.upload(data, f"{directory}/data/0.bytes")
        w.upload(manifest, f"{directory}/_metadata")
        source = w.record.committed[opened.parent_job_id, int(opened.parent_checkpoint_id)]  # type: ignore[index, arg-type]
        states = w.sheets.copies(source.states, data)
        content = tuple(chunk for state in states.values() for chunk in state.chunks)
        stored = [
            StoredFile(file_id=i, path=w.path_of[i], size_bytes=SIZE_BYTES, sha256="", scope=Scope.EXCLUSIVE) for i in (data, manifest)
        ]
        w.promises[opened.attempt] = w.promise(states, manifest)
        self.request = CommitRequest(
            attempt=opened.attempt, content=content, states=(), inherited=frozenset(), files=(stored[0],), acks=(), manifest=stored[1],
            progress=None, retention=KeepAll(),
        )  # fmt: skip
        return True

    def commit(self, opened: AttemptOpened) -> bool:
        w, request = self.w, self.request
        assert request is not None
        ref = Ref(opened.job_id, opened.parent_checkpoint_id)  # type: ignore[arg-type]
        fact = self.transactor.run(lambda state: savepoints.commit_savepoint(state, ref, request, is_outside=False))
        w.tell_committed((opened.job_id, int(fact.checkpoint_id)))
        w.story.append(f"savepoint {fact.checkpoint_id} of {opened.job_id[0]} is committed")
        return False


def _line(state: CatalogState, job_id: JobId) -> list[Ref]:
    """The live checkpoints of a job's main line."""
    return [Ref(job_id, n) for n, row in state.job(job_id).live.items() if not row.fact.is_savepoint]


def _sources(state: CatalogState, job_id: JobId) -> list[Ref]:
    """What a job can start with a copy of."""
    live = [(Ref(job, n), row) for job in JOBS for n, row in state.job(job).live.items()]
    return [ref for ref, row in live if row.fact.is_savepoint or ref.job_id != job_id]


class Reader:
    """Pins a checkpoint, reads its files one by one, and lets go."""

    def __init__(self, world: World) -> None:
        self.w, self.busy, self.name = world, False, "reader"
        self.transactor = world.transactor()
        self.opened: AttemptOpened | None = None
        self.todo: list[str] = []
        self.closing = False  # its release may have landed without an answer

    def step(self) -> bool:
        w = self.w
        try:
            if self.opened is None:
                return self.open()
            token = self.opened.attempt
            if token not in w.record.open:
                if token not in w.killed and not self.closing:
                    raise Violation(f"the pin of reader {token} was taken away")
                return False
            if self.todo:
                if (path := self.todo.pop()) not in w.storage.objects:
                    raise Violation(f"a reader lost {path} under its pin")
                return True
            job, self.closing = self.opened.job_id, True
            self.transactor.run(lambda state: checkpoints.end_attempt(state, job, token, Status.RELEASED, None))
        except RetryError:
            return True
        except HoldfastError:
            pass
        return False

    def open(self) -> bool:
        live = [Ref(job_id, n) for job_id, job in self.transactor.known().whole().jobs.items() for n in job.live]
        if not live:
            return False
        ref, token = self.w.random.choice(live), AttemptToken(self.w.environment.new_id())
        self.opened = self.transactor.run(lambda state: checkpoints.open_reading(state, ref, token))
        self.todo = list(self.w.record.committed[ref.job_id, int(ref.checkpoint_id)].files)
        self.w.story.append(f"reader {token} pins {ref.checkpoint_id} of {ref.job_id[0]}")
        return True
