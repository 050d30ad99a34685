"""The rules of the state machine for everybody but coordinators: operators, readers, those who take savepoints, maintenance."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from holdfast.catalog.errors import RefusedError
from holdfast.catalog.ledger import FILE_ROWS
from holdfast.catalog.lineage import forget
from tests.support.machine_parts import JOBS, PICK, Parts
from tests.support.world import late_upload, opened_attempts


class Others(Parts):
    """Each rule is one call to the catalog by somebody, and the same to the plain model."""

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
        """A checkpoint, or a savepoint: it is disposed of."""
        job, number = self._pick([(job, n) for job, line in self.lines.items() for n in line.order], pick)
        line = self.lines[job]
        may = number in line.live and number not in line.held and number != line.head
        try:
            self.operator.drop(number, job)
        except RefusedError as error:
            assert not may, str(error)
            return
        assert may, f"checkpoint {number} of {job} was dropped: live {line.live}, held {line.held}, head {line.head}"
        line.drop([number])

    @precondition(lambda self: any(line.live for line in self.lines.values()))
    @rule(pick=PICK)
    def hold_or_unhold(self, pick: int) -> None:
        job, number = self._pick_live(pick)
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
        job, number = self._pick_live(pick)
        self.lines[job].pins[self.operator.pin(number, job)] = number

    @precondition(lambda self: any(line.pins for line in self.lines.values()))
    @rule(pick=PICK)
    def read_and_release(self, pick: int) -> None:
        job, token = self._pick([(job, token) for job, line in self.lines.items() for token in line.pins], pick)
        line = self.lines[job]
        assert self.world.states_of(line.pins[token], job) == line.states[line.pins[token]]
        self.operator.release(token, job)
        del line.pins[token]

    @precondition(lambda self: any(line.live for line in self.lines.values()))
    @rule(pick=PICK)
    def savepoint(self, pick: int) -> None:
        """Of a checkpoint, whatever its job is doing; or of a savepoint."""
        job, number = self._pick_live(pick)
        self.values += 1
        self.lines[job].saved(self.operator.savepoint(number, f"savepoint {self.values}", job), number)

    # ---- tasks ------------------------------------------------------------------------------------------------------

    @rule(job=st.sampled_from(JOBS))
    def write_log(self, job: str) -> None:
        """Whatever becomes of coordinators: the owner that there was, or a first one."""
        self._log(job)

    @precondition(lambda self: any(self.logs.values()))
    @rule(pick=PICK)
    def release_log(self, pick: int) -> None:
        """Also one that is released already, or that an attempt is about to refer to."""
        job, logs = self._pick([(job, logs) for job, written in self.logs.items() for logs in written[-4:]], pick)
        self.operator.release_logs(logs, job)
        self.released |= {*logs.files}

    # ---- maintenance ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.folds)
    @rule(cleans=st.booleans(), file_rows=st.sampled_from([FILE_ROWS, 1, 5]))
    def fold(self, cleans: bool, file_rows: int) -> None:
        """The ledger, which forgets what is neither live nor open; with `cleans`, so do those who have missed it, for they read it anew."""
        self.operator.fold(cleans=cleans, file_rows=file_rows)
        assert self.operator.is_folded()

    @precondition(lambda self: self.folds)
    @rule(pick=PICK)
    def forget(self, pick: int) -> None:
        """A process forgets what a fold would leave out, whatever it is doing."""
        memories = [self.operator.transactor, *(seat.coordinator._transactor for seat in self.seats)]
        forget(self._pick(memories, pick).known())

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
