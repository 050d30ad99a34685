"""The catalog beside a model of plain dicts, driven by Hypothesis: real coordinators, transactions, vacuum and scrub in memory.

The model says what every call must do (succeed, or which error) and what must be live, at the head, and in every checkpoint. Several
jobs have several coordinators each; one that is dead or fenced does not know it.
"""

from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.catalog.errors import AttemptEndedError, FencedError, RefusedError
from holdfast.catalog.types import AttemptToken, KeepAll, KeepLast, Purpose, Retention
from holdfast.compaction.scrub import ScrubPlan
from holdfast.compaction.vacuum import VacuumPlan
from holdfast.writers.checkpoint_writer import CheckpointWriter
from holdfast.writers.coordinator import Coordinator
from tests.support.faults import Crash
from tests.support.invariants import assert_catalog_sound, assert_clean
from tests.support.plain_line import Line, States
from tests.support.world import Process, World, late_upload, opened_attempts, write_states

JOBS = ("planes", "routes")
STATES = ("a", "b", "c")
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
    parent: int | None
    block: AbstractContextManager[CheckpointWriter] | None = None
    writer: CheckpointWriter | None = None
    beside: list[CheckpointWriter] = field(default_factory=list)
    written: dict[AttemptToken, dict[str, bytes | None]] = field(default_factory=dict)  # by an attempt so far


class CatalogMachine(RuleBasedStateMachine):
    """Each rule is one call to the catalog by somebody, and the same to the plain model."""

    @initialize()
    def create(self) -> None:
        self.world = World()
        self.operator = self.world.process()
        self.lines = {job: Line() for job in JOBS}
        self.seats: list[Seat] = []
        self.plans: list[VacuumPlan] = []
        self.scrubs: list[ScrubPlan] = []
        self.values = 0
        for job in JOBS:
            self.operator.register(job)

    # ---- coordinators -----------------------------------------------------------------------------------------------

    @rule(job=st.sampled_from(JOBS), retention=RETENTIONS, where=st.sampled_from(["head", "head", "older", "older", "nothing"]), pick=PICK)
    def start(self, job: str, retention: Retention, where: str, pick: int) -> None:
        """A new epoch at the head, from nothing, or from an older checkpoint: a rollback."""
        line, process = self.lines[job], self.world.process()
        begin: str | int = "head" if where == "older" and not line.live else where
        if begin == "older":
            begin = sorted(line.live)[pick % len(line.live)]
        coordinator = process.coordinate(job, retention=retention, start=begin)
        line.epoch += 1
        line.open.clear()
        line.head = line.head if begin == "head" else None if begin == "nothing" else int(begin)
        assert coordinator.epoch == line.epoch
        self.seats.append(Seat(job, process, coordinator, retention, line.head))

    @precondition(lambda self: any(seat.block is None for seat in self.seats))
    @rule(pick=PICK)
    def begin(self, pick: int) -> None:
        """Enter a checkpoint's block. A fenced coordinator learns of it here."""
        self._begin(self._pick([seat for seat in self.seats if seat.block is None], pick))

    def _begin(self, seat: Seat) -> None:
        line, block = self.lines[seat.job], seat.coordinator.checkpoint()
        try:
            writer = block.__enter__()
        except FencedError:
            assert seat.coordinator.epoch < line.epoch
            self.seats.remove(seat)
            return
        assert seat.coordinator.epoch == line.epoch
        assert seat.parent == line.head
        if writer.attempt not in line.open:
            line.opened(writer.attempt, writer.checkpoint_id, seat.parent)
        assert line.open[writer.attempt] == (writer.checkpoint_id, seat.parent)
        seat.block, seat.writer, seat.written[writer.attempt] = block, writer, {}

    @precondition(lambda self: self.seats)
    @rule(pick=PICK)
    def begin_beside(self, pick: int) -> None:
        """An attempt that overlaps with the coordinator's own, on the same parent."""
        seat = self._pick(self.seats, pick)
        line = self.lines[seat.job]
        try:
            writer = seat.process.open_beside(seat.coordinator, seat.parent)
        except FencedError:
            assert seat.coordinator.epoch < line.epoch
            return
        assert seat.coordinator.epoch == line.epoch
        line.opened(writer.attempt, writer.checkpoint_id, seat.parent)
        seat.beside.append(writer)
        seat.written[writer.attempt] = {}

    @precondition(lambda self: any(seat.writer or seat.beside for seat in self.seats))
    @rule(pick=PICK, state=st.sampled_from(STATES), what=st.sampled_from(["file", "file", "files", "inline", "big", "removed"]))
    def write(self, pick: int, state: str, what: str) -> None:
        """Whether or not the attempt is still open: nobody tells its process."""
        seat, writer = self._pick([(s, w) for s in self.seats for w in [s.writer, *s.beside] if w is not None], pick)
        self._write(seat, writer, state, what)

    def _write(self, seat: Seat, writer: CheckpointWriter, state: str, what: str) -> None:
        written = seat.written[writer.attempt]
        if state in written:
            return
        self.values += 1
        value = f"{self.values}".encode()
        if what == "removed":
            if state not in self._carried(seat.job, self._parent_of(seat, writer)):
                return
            write_states(writer, {state: None})
            written[state] = None
            return
        data = value + b"x" * 20_001 if what == "big" else value
        write_states(writer, {state: [data] if what == "file" else [data, data] if what == "files" else data})
        written[state] = data + data if what == "files" else data

    @precondition(lambda self: any(seat.block for seat in self.seats))
    @rule(pick=PICK)
    def commit(self, pick: int) -> None:
        """Leave a block. The commit also opens the next attempt."""
        self._commit(self._pick([seat for seat in self.seats if seat.block], pick))

    @precondition(lambda self: any(seat.block is None for seat in self.seats))
    @rule(pick=PICK, state=st.sampled_from(STATES), what=st.sampled_from(["file", "file", "files", "inline", "big", "removed"]))
    def checkpoint(self, pick: int, state: str, what: str) -> None:
        """A block from its beginning to its end."""
        seat = self._pick([seat for seat in self.seats if seat.block is None], pick)
        self._begin(seat)
        if seat.writer is not None:
            self._write(seat, seat.writer, state, what)
            self._commit(seat)

    def _commit(self, seat: Seat) -> None:
        line, writer, block = self.lines[seat.job], seat.writer, seat.block
        assert writer is not None
        assert block is not None
        states, token = self._expected(seat, writer), writer.attempt
        seat.block = seat.writer = None
        try:
            block.__exit__(None, None, None)
        except (FencedError, AttemptEndedError) as error:
            assert token not in line.open, f"the commit of an open attempt was refused: {error}"
            assert isinstance(error, FencedError) == (seat.coordinator.epoch < line.epoch)
            return
        assert token in line.open, f"the commit of attempt {token}, which had ended, was accepted"
        line.commit(token, states, seat.retention)
        seat.parent = writer.checkpoint_id
        opened = seat.coordinator._opened
        assert opened is not None
        line.opened(opened.attempt, int(opened.checkpoint_id or 0), seat.parent)

    @precondition(lambda self: any(seat.beside for seat in self.seats))
    @rule(pick=PICK, retention=RETENTIONS)
    def commit_beside(self, pick: int, retention: Retention) -> None:
        seat, writer = self._pick([(s, w) for s in self.seats for w in s.beside], pick)
        line, states = self.lines[seat.job], self._expected(seat, writer)
        seat.beside.remove(writer)
        try:
            seat.process.commit_beside(seat.coordinator, writer, retention)
        except (FencedError, AttemptEndedError) as error:
            assert writer.attempt not in line.open, f"the commit of an open attempt was refused: {error}"
            return
        assert writer.attempt in line.open, "the commit of an attempt that had ended was accepted"
        line.commit(writer.attempt, states, retention)
        self._die(seat)  # its coordinator does not know of the new head, as no coordinator of the front door has attempts beside its own

    @precondition(lambda self: any(seat.block for seat in self.seats))
    @rule(pick=PICK)
    def abort(self, pick: int) -> None:
        """The user's code raises in the block."""
        seat = self._pick([seat for seat in self.seats if seat.block], pick)
        assert seat.writer is not None
        assert seat.block is not None
        self.lines[seat.job].open.pop(seat.writer.attempt, None)
        seat.written.pop(seat.writer.attempt)
        block, seat.block, seat.writer, error = seat.block, None, None, Boom()
        assert not block.__exit__(Boom, error, None)

    @precondition(lambda self: self.seats)
    @rule(pick=PICK)
    def die(self, pick: int) -> None:
        """A coordinator's process is gone, in the middle of whatever it was doing."""
        self._die(self._pick(self.seats, pick))

    @precondition(lambda self: self.seats)
    @rule()
    def reopen(self) -> None:
        """Everything that the operator's process remembers is forgotten."""
        self.operator = self.world.process()

    # ---- operators and readers --------------------------------------------------------------------------------------

    @precondition(lambda self: any(line.open for line in self.lines.values()))
    @rule(pick=PICK)
    def kill(self, pick: int) -> None:
        job, token = self._pick([(job, token) for job, line in self.lines.items() for token in line.open], pick)
        self.operator.kill(token, job)
        del self.lines[job].open[token]

    @precondition(lambda self: any(line.order for line in self.lines.values()))
    @rule(pick=PICK)
    def drop(self, pick: int) -> None:
        job, number = self._pick([(job, n) for job, line in self.lines.items() for n in line.order], pick)
        line = self.lines[job]
        may = number in line.live and number not in line.held and number != line.head
        try:
            self.operator.drop(number, job)
        except RefusedError as error:
            assert not may, str(error)
            return
        assert may, f"checkpoint {number} of {job} was dropped: live {line.live}, held {line.held}, head {line.head}"
        line.live.remove(number)

    @precondition(lambda self: any(line.live for line in self.lines.values()))
    @rule(pick=PICK)
    def hold_or_unhold(self, pick: int) -> None:
        job, number = self._pick([(job, n) for job, line in self.lines.items() for n in sorted(line.live)], pick)
        line = self.lines[job]
        if number in line.held:
            self.operator.unhold(number, job=job)
            line.held.remove(number)
        else:
            self.operator.hold(number, job=job)
            line.held.add(number)

    @precondition(lambda self: any(line.live for line in self.lines.values()))
    @rule(pick=PICK)
    def pin(self, pick: int) -> None:
        job, number = self._pick([(job, n) for job, line in self.lines.items() for n in sorted(line.live)], pick)
        self.lines[job].pins[self.operator.pin(number, job)] = number

    @precondition(lambda self: any(line.pins for line in self.lines.values()))
    @rule(pick=PICK)
    def read_and_release(self, pick: int) -> None:
        job, token = self._pick([(job, token) for job, line in self.lines.items() for token in line.pins], pick)
        line = self.lines[job]
        assert self.world.states_of(line.pins[token], job) == line.states[line.pins[token]]
        self.operator.release(token, job)
        del line.pins[token]

    # ---- maintenance ------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.plans) < 3)
    @rule()
    def plan_vacuum(self) -> None:
        """For later: the plan grows old."""
        self.plans.append(self.operator.plan_vacuum())

    @precondition(lambda self: self.plans)
    @rule(pick=PICK)
    def run_old_vacuum(self, pick: int) -> None:
        plan = self._pick(self.plans, pick)
        self.plans.remove(plan)
        self.operator.vacuum(plan)
        self._check_contents()

    @rule()
    def vacuum(self) -> None:
        self.operator.vacuum()
        self._check_contents()

    @precondition(lambda self: len(self.scrubs) < 3)
    @rule()
    def plan_scrub(self) -> None:
        self.scrubs.append(self.operator.plan_scrub())

    @precondition(lambda self: self.scrubs)
    @rule(pick=PICK)
    def run_old_scrub(self, pick: int) -> None:
        plan = self._pick(self.scrubs, pick)
        self.scrubs.remove(plan)
        self.operator.scrub(plan)
        self._check_contents()

    @rule()
    def scrub(self) -> None:
        self.operator.scrub()
        self._check_contents()

    @precondition(lambda self: any(line.last_id for line in self.lines.values()))
    @rule(job=st.sampled_from(JOBS), pick=PICK)
    def late_upload(self, job: str, pick: int) -> None:
        """A task of an attempt that ended long ago is still at work."""
        dead = [o for o in opened_attempts(self.world, job) if o.attempt not in self.lines[job].open and o.checkpoint_id]
        if dead:
            self.values += 1
            late_upload(self.world, self._pick(dead, pick), part=1000 + self.values)

    # ---- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def the_same_is_live(self) -> None:
        state = self.world.references().state
        for job, line in self.lines.items():
            found = state.job_named(job)
            assert (set(found.live), found.head, found.epoch) == (line.live, line.head, line.epoch), job
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
        self.operator.vacuum()
        self.operator.scrub()
        self._check_contents()
        assert_catalog_sound(self.world)
        assert_clean(self.world)

    def _check_contents(self) -> None:
        for job, line in self.lines.items():
            for number in line.kept():
                assert self.world.states_of(number, job) == line.states[number], f"checkpoint {number} of {job}"

    # ---- parts ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _pick(things, pick: int):
        return things[pick % len(things)]

    def _parent_of(self, seat: Seat, writer: CheckpointWriter) -> int | None:
        return writer._parent_ref.checkpoint_id if writer._parent_ref else None

    def _carried(self, job: str, parent: int | None) -> States:
        return {} if parent is None else self.lines[job].states[parent]

    def _expected(self, seat: Seat, writer: CheckpointWriter) -> States:
        states = {**self._carried(seat.job, self._parent_of(seat, writer)), **seat.written.pop(writer.attempt)}
        return {name: data for name, data in states.items() if data is not None}

    def _die(self, seat: Seat) -> None:
        self.seats.remove(seat)
        seat.process.faults.dead = True
        if seat.block is not None:
            with suppress(Crash):
                seat.block.__exit__(Crash, Crash("killed"), None)
