"""What the state machine is made of: its world, the plain model beside it, what must hold after every rule, and the end."""

from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from holdfast.catalog.state import Ref
from holdfast.catalog.types import AttemptToken, KeepAll, KeepLast, OwnedFile, Purpose, Retention
from holdfast.compaction.scrub import ScrubPlan
from holdfast.compaction.vacuum import VacuumPlan
from holdfast.writers.checkpoint_writer import CheckpointWriter
from holdfast.writers.coordinator import Coordinator
from tests.support.faults import Crash
from tests.support.invariants import assert_catalog_sound, assert_clean
from tests.support.plain_line import Line, Lines, Place, States
from tests.support.stores import Stores
from tests.support.world import Logs, Process, World

JOBS = ("planes", "routes")
STATES = ("a", "b", "c")
LOG = "wal"  # the one owner of a job, and its state
STORE = "rocks"  # the state of each job that is directories of stores
PICK = st.integers(0, 11)  # one of however many there are
RETENTIONS = st.sampled_from([KeepLast(1), KeepLast(2), KeepAll()])


class Boom(Exception):
    """What the user's code raises in a checkpoint's block."""


@dataclass(slots=True)
class Seat:
    """A coordinator in a process of its own, and the checkpoint that it is writing."""

    job: str
    process: Process
    coordinator: Coordinator
    retention: Retention
    parent: Place | None
    block: AbstractContextManager[CheckpointWriter] | None = None
    writer: CheckpointWriter | None = None
    beside: list[CheckpointWriter] = field(default_factory=list)
    written: dict[AttemptToken, dict[str, bytes | None]] = field(default_factory=dict)  # by an attempt so far
    logs: dict[AttemptToken, set[OwnedFile]] = field(default_factory=dict)  # that an attempt refers to and its parent has not
    short: set[AttemptToken] = field(default_factory=set)  # attempts that miss a share of a state of stores
    late: set[AttemptToken] = field(default_factory=set)  # attempts whose alarm has rung


class Parts(RuleBasedStateMachine):
    """A machine without rules. `folds` is of the class: without it, more happens in as many steps."""

    folds = True

    @initialize()
    def create(self) -> None:
        self.world = World()
        self.operator = self.world.process()
        self.lines = Lines({job: Line(job) for job in JOBS})
        self.seats: list[Seat] = []
        self.plans: list[VacuumPlan] = []
        self.scrubs: list[ScrubPlan] = []
        self.values = 0
        self.logs: dict[str, list[Logs]] = {job: [] for job in JOBS}  # one file each, of the job's owner
        self.released: set[OwnedFile] = set()
        self.stores: dict[bytes, Stores] = {}  # that were written, by what they are read as
        self.ids = {job: self.operator.register(job) for job in JOBS}

    # ---- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def the_same_is_live(self) -> None:
        state = self.world.references().state
        for job, line in self.lines.items():
            found = state.job_named(job)
            assert (set(found.live), found.head, found.epoch) == (line.live, line.head, line.epoch), job
            assert found.claimed_by == (line.claimed_by and self.ids[line.claimed_by]), job
            tokens = {t for t, attempt in found.open_attempts.items() if attempt.opened.purpose is Purpose.CHECKPOINT}
            assert tokens == line.open.keys(), job

    def teardown(self) -> None:
        """The end: everybody leaves, cleanup runs, and the whole history is judged."""
        if not hasattr(self, "world"):
            return
        self._check_contents()
        assert_catalog_sound(self.world)
        for seat in [*self.seats]:
            self._die(seat)
        for job, line in self.lines.items():
            for token in line.open:
                self.operator.kill(token, job)
            for token in line.pins:
                self.operator.release(token, job)
            line.open, line.pins = {}, {}
            if self.logs[job]:
                self.operator.release_owner(LOG, job)
        self.operator.vacuum()
        self.operator.scrub()
        self._check_contents()
        assert_catalog_sound(self.world)
        assert_clean(self.world)

    def _check_contents(self) -> None:
        for job, line in self.lines.items():
            for number in self.lines.kept(job):
                try:
                    found = self.world.states_of(number, job)
                except FileNotFoundError as error:
                    msg = f"checkpoint {number} of {job} has lost a file: {error}"
                    raise AssertionError(msg) from error
                assert found == line.states[number], f"checkpoint {number} of {job}"

    # ---- parts ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _pick(things: Any, pick: int) -> Any:
        return things[pick % len(things)]

    def _pick_live(self, pick: int) -> Place:
        """A live checkpoint or savepoint of any job."""
        place: Place = self._pick([(job, n) for job, line in self.lines.items() for n in sorted(line.live)], pick)
        return place

    def _ref(self, place: Place) -> Ref:
        return self.operator.ref(place[1], place[0])

    def _parent_of(self, writer: CheckpointWriter) -> Place | None:
        """Of what it carries."""
        ref = writer._attempt.parent_ref
        return next((job, int(ref.checkpoint_id)) for job in JOBS if self.ids[job] == ref.job_id) if ref else None

    def _carried(self, parent: Place | None) -> States:
        return {} if parent is None else self.lines[parent[0]].states[parent[1]]

    def _expected(self, seat: Seat, writer: CheckpointWriter) -> States:
        states = {**self._carried(self._parent_of(writer)), **seat.written.pop(writer.attempt)}
        return {name: data for name, data in states.items() if data is not None}

    def _log(self, job: str) -> None:
        """The job's task writes one file more."""
        self.values += 1
        self.logs[job].append(self.operator.log(self.operator.own(LOG, job), f"{self.values};".encode()))

    def _next_stores(self, before: bytes | None, what: str) -> Stores:
        """What stores have a step later: a run more, or one of a known name and size with other bytes; now and then they change places,
        or there is one more or less. The last task of "short" is never heard of."""
        self.values += 1
        n, old = self.values, self.stores.get(before or b"")
        shares = [{name: data for name, data in files.items() if name.endswith(".sst")} for files in (old.shares if old else ({}, {}))]
        if n % 3 != 0:
            shares.reverse()
        if n % 5 == 0:
            shares = shares[:1] if len(shares) > 1 else [*shares, {}]
        for subtask, files in enumerate(shares):
            name = f"{n}.sst" if (n + subtask) % 2 or not files else min(files)
            files |= {name: f"{n:06}{subtask}".encode(), "CURRENT": f"{n}".encode()}
            if n % 7 == 0:
                files["LOG"] = b"x" * 20_001
        stores = Stores(tuple(shares), in_tasks=what != "stores", missing=frozenset({len(shares) - 1} if what == "short" else ()))
        self.stores[stores.told] = stores
        return stores

    def _is_refused(self, seat: Seat, writer: CheckpointWriter) -> bool:
        """It refers to a file that was released, or a share has not arrived."""
        return not self.released.isdisjoint(seat.logs.pop(writer.attempt, ())) or writer.attempt in seat.short

    def _die(self, seat: Seat) -> None:
        self.seats.remove(seat)
        seat.process.faults.dead = True
        if seat.block is not None:
            with suppress(Crash):
                seat.block.__exit__(Crash, Crash("killed"), None)
