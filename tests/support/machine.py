"""The catalog beside a model of plain dicts, driven by Hypothesis: real coordinators, transactions, vacuum and scrub in memory.

The model says what every call must do (succeed, or which error) and what must be live, at the head, and in every checkpoint. Several
jobs have several coordinators each; one that is dead or fenced does not know it. Jobs fork and claim each other's checkpoints.
"""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from holdfast.catalog.errors import AttemptEndedError, FencedError, RefusedError
from holdfast.catalog.types import AttemptToken, Retention
from holdfast.writers.checkpoint_writer import CheckpointWriter
from holdfast.writers.coordinator import Coordinator
from holdfast.writers.failure_policy import FailurePolicy
from holdfast.writers.start import StartPoint, StateMapping, live_source, resolve_start
from tests.support.machine_others import Others
from tests.support.machine_parts import JOBS, LOG, PICK, RETENTIONS, STATES, STORE, Boom, Seat
from tests.support.plain_line import Line, Place
from tests.support.world import Logs, write_states

MINUTES = FailurePolicy(timeout_s=600)
WHAT = st.sampled_from(
    [
        "file",
        "file",
        "files",
        "changes",
        "changes",
        "changes",
        "inline",
        "big",
        "removed",
        "logs",
        "logs",
        "stores",
        "tasks",
        "tasks",
        "short",
    ]
)


class CatalogMachine(Others):
    """Each rule is one call to the catalog by a coordinator, and the same to the plain model."""

    # ---- coordinators -----------------------------------------------------------------------------------------------

    @rule(job=st.sampled_from(JOBS), retention=RETENTIONS, where=st.sampled_from(["head", "head", "older", "older", "nothing"]), pick=PICK)
    def start(self, job: str, retention: Retention, where: str, pick: int) -> None:
        """A new epoch where the job was, from nothing, or from an older checkpoint: a rollback."""
        line = self.lines[job]
        begin, start = (None if where == "nothing" else line.begin), "nothing" if where == "nothing" else "head"
        if where == "older" and line.checkpoints:
            start = self._pick(line.checkpoints, pick)
            begin = (job, start)
        self._start(job, begin, resolve_start(start, None, StateMapping(), job, self.operator.storage, self.operator.transactor), retention)

    @precondition(lambda self: any(line.checkpoints for line in self.lines.values()))
    @rule(retention=RETENTIONS, pick=PICK, claim=st.booleans())
    def start_from_another_job(self, retention: Retention, pick: int, claim: bool) -> None:
        """A fork, or a claim."""
        begin = self._pick([(job, n) for job, line in self.lines.items() for n in line.checkpoints], pick)
        ref, job = self._ref(begin), next(job for job in JOBS if job != begin[0])
        self._start(job, begin, StartPoint(find=lambda _: ref, claim=claim), retention)

    def _start(self, job: str, begin: Place | None, how: StartPoint, retention: Retention) -> None:
        process, line = self.world.process(), self.lines[job]
        try:
            coordinator = process._coordinator(job, retention, how, MINUTES)
        except RefusedError as error:
            # What a fork goes on from before it has committed may go, and the head of a job that was claimed.
            assert not self.lines.is_live(begin) or (line.claimed_by and begin is None), str(error)
            return
        assert self.lines.is_live(begin)
        self.lines.start(job, begin, claim=how.claim)
        assert coordinator.epoch == line.epoch
        self._opens(line, coordinator, begin)
        self.seats.append(Seat(job, process, coordinator, retention, begin))

    @precondition(lambda self: any(line.live for line in self.lines.values()))
    @rule(job=st.sampled_from(JOBS), retention=RETENTIONS, pick=PICK)
    def start_with_a_copy(self, job: str, retention: Retention, pick: int) -> None:
        """No-claim, or from a savepoint: a first checkpoint that has everything of the source and refers to nothing of it."""
        line, process, place = self.lines[job], self.world.process(), self._pick_live(pick)
        if place[0] == job and place[1] not in line.savepoints:
            return  # a rollback
        ref, was = self._ref(place), line.begin if self.lines.is_live(line.begin) else None
        source = live_source(self.operator.storage, self.operator.transactor, ref, self.operator.transactor.fresh().checkpoint(ref).fact)
        coordinator = process._coordinator(job, retention, StartPoint(find=lambda _: ref, source=source), MINUTES)
        self.lines.start(job, was)
        number, row = max(self.world.job(job).checkpoints.items())
        line.opened(row.fact.attempt, number, place)
        self.lines.commit(job, row.fact.attempt, self.lines[place[0]].states[place[1]], retention)
        self._opens(line, coordinator, (job, number))
        handles = self.world.references().content(self.ids[job], row.fact.seq)
        assert all(handle.file_id.startswith(row.fact.attempt) for handle in handles)
        self.seats.append(Seat(job, process, coordinator, retention, (job, number)))

    @staticmethod
    def _opens(line: Line, coordinator: Coordinator, parent: Place | None) -> None:
        """The attempt that was opened for it beforehand, if any."""
        if (opened := coordinator._line.opened) is not None:
            line.opened(opened.attempt, int(opened.checkpoint_id or 0), parent)

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
        except RefusedError as error:  # its first attempt was killed, and then what it forked from was dropped
            assert not self.lines.is_live(seat.parent), str(error)
            return
        assert seat.coordinator.epoch == line.epoch
        assert seat.parent == line.begin
        if writer.attempt not in line.open:
            line.opened(writer.attempt, writer.checkpoint_id, seat.parent)
        assert line.open[writer.attempt] == (writer.checkpoint_id, seat.parent)
        seat.block, seat.writer, seat.written[writer.attempt] = block, writer, {}

    @precondition(lambda self: any(seat.parent is None or seat.parent[0] == seat.job for seat in self.seats))
    @rule(pick=PICK)
    def begin_beside(self, pick: int) -> None:
        """An attempt that overlaps with the coordinator's own, on the same parent."""
        seat = self._pick([seat for seat in self.seats if seat.parent is None or seat.parent[0] == seat.job], pick)
        line = self.lines[seat.job]
        try:
            writer = seat.process.open_beside(seat.coordinator, seat.parent and seat.parent[1])
        except FencedError:
            assert seat.coordinator.epoch < line.epoch
            return
        assert seat.coordinator.epoch == line.epoch
        line.opened(writer.attempt, writer.checkpoint_id, seat.parent)
        seat.beside.append(writer)
        seat.written[writer.attempt] = {}

    @precondition(lambda self: any(seat.writer or seat.beside for seat in self.seats))
    @rule(pick=PICK, state=st.sampled_from(STATES), what=WHAT)
    def write(self, pick: int, state: str, what: str) -> None:
        """Whether or not the attempt is still open: nobody tells its process."""
        seat, writer = self._pick([(s, w) for s in self.seats for w in [s.writer, *s.beside] if w is not None], pick)
        if writer.attempt not in seat.late:
            self._write(seat, writer, state, what)
            return
        try:
            write_states(writer, {"late": b"late"})
        except (FencedError, AttemptEndedError):
            return
        raise AssertionError("a block whose time is over was not told at its next step")

    def _write(self, seat: Seat, writer: CheckpointWriter, state: str, what: str) -> None:
        written = seat.written[writer.attempt]
        state = LOG if what == "logs" else STORE if what in ("stores", "tasks", "short") else state
        if state in written:
            return
        if what == "logs":
            self._refer(seat, writer)
            return
        self.values += 1
        value = f"{self.values};".encode()
        carried = self._carried(self._parent_of(writer))
        if state == STORE:
            stores = self._next_stores(carried.get(state), what)
            write_states(writer, {state: stores})
            written[state] = stores.told
            if stores.missing:
                seat.short.add(writer.attempt)
            return
        if what == "changes":
            info = writer._attempt.parent.state("main", state) if writer._attempt.parent else None
            if info is None or info.format == "parquet":
                writer.write_changes(state, upserts=[value], key=())  # type: ignore[arg-type]
                written[state] = carried.get(state, b"") + value
            return
        if what == "removed":
            if state not in carried:
                return
            write_states(writer, {state: None})
            written[state] = None
            return
        data = value + b"x" * 20_001 if what == "big" else value
        write_states(writer, {state: [data] if what == "file" else [data, data] if what == "files" else data})
        written[state] = data + data if what == "files" else data

    def _refer(self, seat: Seat, writer: CheckpointWriter) -> None:
        """To the newest files of the job's owner, of which some may be released, or are before it is committed."""
        if not self.logs[seat.job] or len(self.logs[seat.job]) % 3:
            self._log(seat.job)
        info = writer._attempt.parent.state("main", LOG) if writer._attempt.parent else None
        inherited = {chunk.file_id for chunk in writer._attempt.parent.chunks_of(info)} if writer._attempt.parent and info else set()
        files = {file: data for logs in self.logs[seat.job][-2:] for file, data in logs.files.items()}
        write_states(writer, {LOG: Logs(seat.process.own(LOG, seat.job), files)})
        seat.written[writer.attempt][LOG] = b"".join(files.values())
        seat.logs[writer.attempt] = {file for file in files if file.file_id not in inherited}

    @precondition(lambda self: any(seat.block for seat in self.seats))
    @rule(pick=PICK)
    def commit(self, pick: int) -> None:
        """Leave a block. The commit also opens the next attempt."""
        self._commit(self._pick([seat for seat in self.seats if seat.block], pick))

    @precondition(lambda self: any(seat.block is None for seat in self.seats))
    @rule(pick=PICK, state=st.sampled_from(STATES), what=WHAT)
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
        refused = self._is_refused(seat, writer)
        seat.block = seat.writer = None
        try:
            block.__exit__(None, None, None)
        except RefusedError as error:
            assert refused, str(error)
            self._aborted(seat, token)
            return
        except (FencedError, AttemptEndedError) as error:
            assert token not in line.open, f"the commit of an open attempt was refused: {error}"
            assert isinstance(error, AttemptEndedError) or seat.coordinator.epoch < line.epoch  # of a forgotten one it is not told why
            return
        assert token in line.open, f"the commit of attempt {token}, which had ended, was accepted"
        self.lines.commit(seat.job, token, states, seat.retention)
        seat.parent = (seat.job, writer.checkpoint_id)
        assert seat.coordinator._line.opened is not None
        self._opens(line, seat.coordinator, seat.parent)
        assert not refused, f"attempt {token} refers to a file that was released, or misses a share, and was committed"

    @precondition(lambda self: any(seat.beside for seat in self.seats))
    @rule(pick=PICK, retention=RETENTIONS)
    def commit_beside(self, pick: int, retention: Retention) -> None:
        seat, writer = self._pick([(s, w) for s in self.seats for w in s.beside], pick)
        line, states = self.lines[seat.job], self._expected(seat, writer)
        refused = self._is_refused(seat, writer)
        seat.beside.remove(writer)
        try:
            seat.process.commit_beside(seat.coordinator, writer, retention)
        except RefusedError as error:
            assert refused, str(error)
            return
        except (FencedError, AttemptEndedError) as error:
            assert writer.attempt not in line.open, f"the commit of an open attempt was refused: {error}"
            return
        assert writer.attempt in line.open, "the commit of an attempt that had ended was accepted"
        assert not refused, "an attempt that refers to a file that was released, or misses a share, was committed"
        self.lines.commit(seat.job, writer.attempt, states, retention)
        self._die(seat)  # its coordinator does not know of the new head, as no coordinator of the front door has attempts beside its own

    @precondition(lambda self: any(seat.block for seat in self.seats))
    @rule(pick=PICK)
    def expire(self, pick: int) -> None:
        """The time of a block is over, and it runs on. Somebody else may have ended its attempt before."""
        seat = self._pick([seat for seat in self.seats if seat.block], pick)
        assert seat.writer is not None
        token = seat.writer.attempt
        seat.process.environment.ring()
        seat.late.add(token)
        if self.lines[seat.job].open.pop(token, None) is not None:
            self._opens(self.lines[seat.job], seat.coordinator, seat.parent)  # which keeps what it forked from

    @precondition(lambda self: any(seat.block for seat in self.seats))
    @rule(pick=PICK)
    def abort(self, pick: int) -> None:
        """The user's code raises in the block."""
        seat = self._pick([seat for seat in self.seats if seat.block], pick)
        assert seat.writer is not None
        assert seat.block is not None
        token = seat.writer.attempt
        seat.written.pop(token)
        block, seat.block, seat.writer, error = seat.block, None, None, Boom()
        assert not block.__exit__(Boom, error, None)
        self._aborted(seat, token)

    def _aborted(self, seat: Seat, token: AttemptToken) -> None:
        if token in seat.late:  # it was ended before, and what it forked from is kept by what was opened then
            return
        self.lines[seat.job].open.pop(token, None)
        if seat.coordinator.epoch == self.lines[seat.job].epoch:
            self._opens(self.lines[seat.job], seat.coordinator, seat.parent)  # which keeps what it forked from

    @precondition(lambda self: self.seats)
    @rule(pick=PICK)
    def die(self, pick: int) -> None:
        """A coordinator's process is gone, in the middle of whatever it was doing."""
        self._die(self._pick(self.seats, pick))
