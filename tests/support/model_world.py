"""The world of the model: one log, one storage, processes that die, and a plain record of what was promised, checked after every step.

The record is kept apart from the code that it judges: plain sets and dicts, folded from the facts as they land. What the processes
decide, and the folding that they decide from, is the project's own code.
"""

import random
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from holdfast.catalog import facts as f
from holdfast.catalog.errors import HoldfastError
from holdfast.catalog.ledger.memory import NO_FOLD, MemoryLedger, MemoryLog
from holdfast.catalog.ledger.memory_history import MemoryHistory, MemoryTold
from holdfast.catalog.references import References
from holdfast.catalog.rules import jobs
from holdfast.catalog.state import CatalogState
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import AttemptToken, CheckpointId, Chunk, FileId, Identity, JobId, Scope, Status
from holdfast.compaction import orphans
from holdfast.compaction.fold import run_fold
from holdfast.compaction.runs import MaintenanceRun
from tests.support import bisimulation
from tests.support.faults import Crash
from tests.support.model_layers import GROUPS, Layered, Sheets
from tests.support.model_ports import ModelEnvironment, ModelLedger, ModelStorage

STANDS_STILL = 0.02  # of the commits of whom others do not share the handle with

JOBS = (JobId("j-00000001"), JobId("k-00000002"))

Checkpoint = tuple[JobId, int]
Handles = dict[Identity, f.HandleAdded]


class Violation(BaseException):
    """A promise of the design is broken. No `except Exception` of the code under test may swallow it."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What an attempt's commit will have said: what its states are, every handle, and the bytes of every file."""

    states: Mapping[str, Layered]
    handles: frozenset[Identity]
    files: Mapping[str, bytes]  # path -> bytes
    file_ids: frozenset[FileId]


@dataclass(slots=True)
class Record:
    """The plain truth at the newest version."""

    epoch: dict[JobId, int] = field(default_factory=dict)
    seqs: dict[JobId, list[int]] = field(default_factory=lambda: {job: [] for job in JOBS})
    open: dict[AttemptToken, f.AttemptOpened] = field(default_factory=dict)
    attempts: set[AttemptToken] = field(default_factory=set)
    committed: dict[Checkpoint, Promise] = field(default_factory=dict)
    at: dict[tuple[JobId, int], Checkpoint] = field(default_factory=dict)  # (job, seq) of a commit
    live: set[Checkpoint] = field(default_factory=set)
    claimed: set[JobId] = field(default_factory=set)  # whose newest start was another job's claim
    holds: set[tuple[JobId, int, str]] = field(default_factory=set)
    rows: set[FileId] = field(default_factory=set)
    owned: dict[FileId, AttemptToken] = field(default_factory=dict)  # task-owned files that were not released
    garbage: set[FileId] = field(default_factory=set)  # whatever was unreferenced at some version

    def kept(self) -> set[Checkpoint]:
        """Live, held, or the parent of an open attempt."""
        parents = {(o.parent_job_id, int(o.parent_checkpoint_id)) for o in self.open.values() if o.parent_job_id and o.parent_checkpoint_id}
        return self.live | parents | {(job, n) for job, n, _ in self.holds}


class World:
    """One history. `step` lets one process do one thing; every commit and every step is checked."""

    def __init__(self, seed: int, *, folds: bool | None = None) -> None:
        self.random = random.Random(seed)
        self.sleeper = random.Random(f"{seed}: who stands still")  # apart: without it a history is as before
        self.seed = seed
        self.stormy = seed % 5 == 0  # disks fail, cleanup goes on
        self.folds = seed % 2 == 1 if folds is None else folds
        self.environment = ModelEnvironment()
        self.log, self.storage = MemoryLog(), ModelStorage(self)
        self.told_facts = MemoryTold()  # the history
        self.references, self.record = References(), Record()  # of every fact that there ever was
        self.said = References(CatalogState(handles_of="*"))  # what the ledger says now
        self.seen = 0  # version that these are folded to
        self.promises: dict[AttemptToken, Promise] = {}
        self.sheets = Sheets(self.random)
        self.read: dict[Checkpoint, Handles] = {}  # that gave what was promised
        self.told: set[Checkpoint] = set()  # commits that somebody was told of
        self.told_open: set[AttemptToken] = set()
        self.killed: set[AttemptToken] = set()  # by an operator
        self.path_of: dict[FileId, str] = {}
        self.needed: dict[str, bytes] = {}
        self.in_flight: list[tuple[str, str, bytes]] = []
        self.owners: dict[str, JobId] = {}  # every name of one
        self.logs: dict[str, list[Chunk]] = {}  # by owner: every file that it was told is there
        self.owned: dict[FileId, str] = {}  # path of what an owner was told is there, and has not begun to release
        self.actors: list = []
        self.calm, self.depth = True, 0
        self.story: list[str] = []
        self.operator, self.maintainer = self.transactor(), self.transactor()
        for job in JOBS:
            self.operator.run(lambda state, job=job: jobs.register(state, job, job[0], GROUPS))
        self.log.durable_version = self.log.version
        self.calm = False

    # ---- processes --------------------------------------------------------------------------------------------------

    def transactor(self, works_for: JobId | None = None) -> Transactor:
        """A process's memory and its way to the log."""
        return Transactor(ModelLedger(self), self.environment, works_for=works_for, history=lambda: MemoryHistory(self.told_facts))

    def fate(self) -> str:
        """What happens to a process around its next commit."""
        roll = 1.0 if self.calm else self.random.random()
        if roll < 0.04:
            return ("dies before", "response lost", "outcome unknown", "refused")[int(roll * 100)]
        # Once a sync has failed the next is likely to: several commits on end that are visible and not durable.
        deadly = (0.7 if self.unsynced else 0.15) if self.stormy else (0.4 if self.unsynced else 0.06)
        return "dies after" if roll < deadly else ""

    def stalls(self, ledger: ModelLedger) -> bool:
        """Whether the process stands still before its commit: others commit, and one folds the ledger and cleans its log."""
        is_shared = ledger in (self.operator.ledger, self.maintainer.ledger)  # by others as well, which would find it locked
        if not self.folds or self.depth or self.calm or is_shared or self.sleeper.random() > STANDS_STILL:
            return False
        self.story.append("a process stands still")
        self.depth += 1
        while self.random.random() < 0.8 and (others := [a for a in self.actors[-6:] if not a.busy]):
            self.run(self.random.choice(others))
        self.depth -= 1
        for _ in range(2):  # commits, so that the next version is not the newest
            run = MaintenanceRun.begin("other", self.environment)
            Transactor(MemoryLedger(self.log), self.environment).append([run.ended(self.environment, "done", {})])
        with suppress(HoldfastError):
            run_fold(MemoryLedger(self.log), MemoryHistory(self.told_facts), self.environment)
        self.observe()
        self.log.clean(min(self.log.durable_version, max(self.told_facts.told_to, 0)))
        return True

    def run(self, actor) -> None:
        """One step of one process; it leaves when it is done or dies."""
        actor.busy = True
        try:
            goes_on = actor.step()
        except Crash as death:
            self.story.append(f"{actor.name} {death}")
            self.maintainer = self.transactor()
            goes_on = False
        actor.busy = False
        if not goes_on and actor in self.actors:
            self.actors.remove(actor)
        self.check_files()

    def interleave(self) -> None:
        """Others run between two calls of the one that runs."""
        if self.depth or self.calm:
            return
        if self.power_fails():
            self.lose_power()
            raise Crash("dies of the power loss")
        self.depth += 1
        while self.random.random() < 0.5 and (others := [a for a in self.actors[-6:] if not a.busy]):
            self.run(self.random.choice(others))
        self.depth -= 1

    def upload(self, file_id: FileId, path: str) -> None:
        """A write that is acknowledged now, and may arrive once more, later. Raises FileExistsError."""
        data = file_id.encode()
        self.storage.create(path, data)
        self.path_of[file_id] = path
        if self.random.random() < 0.25:
            self.in_flight.append(("put", path, data))

    def promise(self, states: Mapping[str, Layered], manifest_id: FileId) -> Promise:
        """What a commit of these states, whose files and manifest are there, will have said."""
        chunks = [chunk for state in states.values() for chunk in state.chunks]
        ids = {chunk.file_id for chunk in chunks if chunk.inline is None} | {manifest_id}
        handles = frozenset({chunk.identity for chunk in chunks} | {(manifest_id, 0)})
        return Promise(states, handles, {self.path_of[i]: i.encode() for i in ids}, frozenset(ids))

    def tell_started(self, job: JobId, epoch: int) -> None:
        """A process was told of its start."""
        if self.record.epoch[job] < epoch:
            raise Violation(f"I7: epoch {epoch} of {job} was acknowledged, and no commit made it")

    def tell_open(self, attempt: AttemptToken) -> None:
        """A process was told that its attempt is open."""
        if attempt not in self.record.attempts:
            raise Violation(f"I7: attempt {attempt} was acknowledged, and no commit opened it")
        self.told_open.add(attempt)

    def tell_committed(self, checkpoint: Checkpoint) -> None:
        """A process was told that its checkpoint is committed."""
        if checkpoint not in self.record.committed:
            raise Violation(f"I7: checkpoint {checkpoint} was acknowledged, and no commit made it")
        self.told.add(checkpoint)

    def deliver(self) -> None:
        """Something that was sent long ago lands."""
        if self.in_flight:
            what, path, data = self.in_flight.pop(self.random.randrange(len(self.in_flight)))
            self.story.append(f"late {what} of {path}")
            self.storage.land(what, path, data)

    def power_fails(self) -> bool:
        """More often while something would be lost by it."""
        return self.random.random() < (0.08 if self.unsynced else 0.003)

    @property
    def unsynced(self) -> bool:
        return self.log.durable_version < self.log.version

    def lose_power(self) -> None:
        """Every process dies, and every commit that nobody made durable is gone. What anybody was told stays true (I7)."""
        self.story.append(f"power loss: versions above {self.log.durable_version} of {self.log.version} are gone")
        self.actors.clear()
        self.log.lose_unsynced()
        self.references, self.record, self.seen, self.read = References(), Record(), 0, {}
        self.said = References(CatalogState(handles_of="*"))
        self.observe()
        self.check_history()
        self.operator, self.maintainer = self.transactor(), self.transactor()
        if lost := self.told - self.record.committed.keys():
            raise Violation(f"I7: checkpoints {sorted(lost)} were acknowledged and are gone")
        if forgotten := self.told_open - self.record.attempts:
            raise Violation(f"I4: attempts {sorted(forgotten)} were told that they are open, and the ledger does not know them")
        self.check_files()

    # ---- checks -----------------------------------------------------------------------------------------------------

    def observe(self) -> None:
        """Fold what has landed, and judge it."""
        while self.seen < self.log.version:
            self.seen += 1
            commit = self.log.commits[self.seen]
            self.references.apply(commit.facts)
            self._fold(commit.facts)
            if commit.folds == NO_FOLD:
                self.said.apply(commit.facts)
            else:
                self.said = References.of(self._at(self.seen).scan(), handles_of="*")
                self.check_same(self.seen, decides=self.seed % 8 == 1)

    def _fold(self, facts: Iterable[f.Fact]) -> None:
        record, moved, committed = self.record, False, None
        for fact in facts:
            if isinstance(fact, f.FileWritten):
                record.rows.add(fact.file_id)
                if fact.scope is Scope.TASKOWNED:
                    record.owned[fact.file_id] = fact.attempt
                moved = True
            elif isinstance(fact, f.Released):
                record.owned.pop(fact.file_id, None)
                moved = True
            elif isinstance(fact, f.AttemptOpened):
                record.open[fact.attempt] = fact
                if fact.attempt in record.attempts:
                    raise Violation(f"I5: attempt {fact.attempt} was opened twice")
                record.attempts.add(fact.attempt)
                moved = True
            elif isinstance(fact, f.AttemptEnded):
                if record.open.pop(fact.attempt, None) is None:
                    raise Violation(f"I5: attempt {fact.attempt} ended twice")
                if fact.status is Status.RELEASED:
                    record.owned = {file_id: owner for file_id, owner in record.owned.items() if owner != fact.attempt}
                moved = True
            elif isinstance(fact, f.CheckpointCommitted):
                committed, moved = fact, True
                self._commit(fact)
            elif isinstance(fact, f.Dropped):
                record.live.discard((fact.job_id, fact.checkpoint_id))
                moved = True
            elif isinstance(fact, f.Held):
                record.holds.add((fact.job_id, fact.checkpoint_id, fact.hold))
                moved = True
            elif isinstance(fact, f.Unheld):
                record.holds.discard((fact.job_id, fact.checkpoint_id, fact.hold))
                moved = True
            elif isinstance(fact, f.Gone) and fact.file_id not in self.said.files:
                self.story.append(f"late gone of {fact.file_id}, which was folded away")
            elif isinstance(fact, f.Started):
                record.epoch[fact.job_id] = fact.epoch
                (record.claimed.discard if fact.claimed_by is None else record.claimed.add)(fact.job_id)
        if committed is not None:
            self.check_contents(committed.job_id)
        if moved:
            self.check_garbage()

    def _at(self, version: int) -> MemoryLedger:
        ledger = MemoryLedger(self.log)
        ledger._version = version
        return ledger

    def check_same(self, version: int, *, decides: bool) -> None:
        """I9: the folded ledger, its history for the tokens that it forgot, and all facts give the same answers and decisions."""
        ledger = self._at(version)
        every = [fact for commit in self.log.commits[: version + 1] for fact in commit.facts]
        try:
            bisimulation.require_same(
                every,
                ledger.scan(),
                source=random.Random(self.seed + version) if decides else None,
                paths_found=self.path_of.values(),
                past=orphans.past_of(ledger, MemoryHistory(self.told_facts)),
            )
        except bisimulation.Difference as error:
            raise Violation(str(error)) from error

    def check_history(self) -> None:
        """It has every commit of the ledger up to where it was told, once, and no other; and the ledger is folded no further."""
        told_to, folded_to = self.told_facts.told_to, self._at(self.log.version).folded_to
        to_tell = max((version for version, commit in enumerate(self.log.commits[: folded_to + 1]) if commit.has_data_change), default=-1)
        if not to_tell <= told_to <= self.log.version:
            raise Violation(f"I5: the history is told up to {told_to}, the ledger folded up to {folded_to} of {self.log.version}")
        if self.log.cleaned_below > max(told_to, 0):
            raise Violation(f"I5: the log is cleaned below {self.log.cleaned_below}, the history told up to {told_to}")
        said = [(version, commit.rows) for version, commit in enumerate(self.log.commits[: told_to + 1]) if commit.rows]
        if said != [(commit.version, commit.rows) for commit in self.told_facts.commits if commit.rows]:
            raise Violation("I5: the history is not what the ledger said")

    def _commit(self, fact: f.CheckpointCommitted) -> None:
        record, key = self.record, (fact.job_id, int(fact.checkpoint_id))
        opened = record.open.get(fact.attempt)
        if opened is not None and not fact.is_savepoint and opened.epoch != record.epoch[fact.job_id]:
            raise Violation(f"a fenced coordinator committed {key}: epoch {opened.epoch}, newest {record.epoch[fact.job_id]}")
        if fact.job_id in record.claimed and not fact.is_savepoint:
            raise Violation(f"the coordinator of a job that another has claimed committed {key}")
        if key in record.committed or (fact.job_id, fact.seq) in record.at:
            raise Violation(f"I5: {key} at seq {fact.seq} has the id or the seq of another checkpoint")
        record.committed[key] = self.promises[fact.attempt]
        record.at[fact.job_id, fact.seq] = key
        record.live.add(key)
        if not fact.is_savepoint:  # whose handles are its own: checked at the end
            insort(record.seqs[fact.job_id], fact.seq)

    def check_contents(self, job: JobId) -> None:
        """I8: the handles give every checkpoint that the job ever committed, dropped ones too, what it promised."""
        seqs, to_seq = self.record.seqs[job], self.references.to_seq
        found: list[Handles] = [{} for _ in seqs]
        for handles in self.references.handles.values():
            for handle in handles:
                if handle.job_id != job or handle.savepoint is not None:
                    continue
                end, identity = to_seq(handle), (handle.file_id, handle.offset_bytes)
                for i in range(bisect_left(seqs, handle.from_seq), len(seqs) if end is None else bisect_left(seqs, end)):
                    found[i][identity] = handle
        for seq, handles_found in zip(seqs, found, strict=True):
            self._check_content(self.record.at[job, seq], handles_found)

    def _check_content(self, key: Checkpoint, handles: Handles) -> None:
        promise = self.record.committed[key]
        if handles.keys() != promise.handles:
            lost, extra = promise.handles - handles.keys(), handles.keys() - promise.handles
            raise Violation(f"I8: the handles of {key} changed: lost {sorted(lost)}, extra {sorted(extra)}")
        if self.read.get(key) == handles:  # the very handles that were read before
            return
        for name, value in self.sheets.read(handles.values()).items():
            if value != promise.states[name].value:
                raise Violation(f"I8: state {name} of {key} reads {value}, it was committed as {promise.states[name].value}")
        self.read[key] = handles

    def check_garbage(self) -> None:
        """I2: what was unreferenced once is never needed again."""
        record, needed, ids = self.record, {}, set()
        for key in record.kept():
            promise = record.committed[key]
            needed.update(promise.files)
            ids |= promise.file_ids
        if back := record.garbage & ids:
            raise Violation(f"I2: garbage is needed again: {sorted(back)}")
        record.garbage |= record.rows - ids - record.owned.keys()
        self.needed = needed

    def check_files(self) -> None:
        """I1: every file of every live or pinned checkpoint is there, with its bytes."""
        objects = self.storage.objects
        for path, data in self.needed.items():
            if objects.get(path) != data:
                what = "is gone" if path not in objects else "has other bytes"
                raise Violation(f"I1: {path} is needed and {what}")
        for file_id, path in self.owned.items():
            if objects.get(path) != file_id.encode():
                raise Violation(f"I1: {path} is gone, which its owner still needs")

    def check_end(self) -> None:
        """After cleanup: storage is exactly what is needed, and the folded state is the plain record."""
        self.check_files()
        self.check_history()
        if self._at(self.seen).folded_to != NO_FOLD:
            self.check_same(self.seen, decides=False)
        if left := self.storage.objects.keys() - self.needed.keys():
            raise Violation(f"leak: {sorted(left)}")
        state, record = self.references.state, self.record
        if (live := {(job, int(n)) for job, row in state.jobs.items() for n in row.live}) != record.live:
            raise Violation(f"the folded state has {sorted(live)} live, the facts say {sorted(record.live)}")
        for job, n in record.kept():
            seq = state.jobs[job].checkpoints[CheckpointId(n)].fact.seq
            line = state.jobs[job].checkpoints[CheckpointId(n)].line
            content = self.references.content(job, seq, line)
            self._check_content((job, n), {(handle.file_id, handle.offset_bytes): handle for handle in content})
