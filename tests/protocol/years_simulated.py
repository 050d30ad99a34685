"""The years of a catalog at the ports: real coordinators, transactions, upkeep and scrub over a log and a storage in memory.

One thing happens after the other. Processes die at any of their calls, and others take their places; a plain record has what callers were
told. At times everything that is committed is watched, and then judged by the invariants over what the fold before has left.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from statistics import median

from holdfast.catalog import facts as f
from holdfast.catalog.errors import FencedError, RefusedError
from holdfast.catalog.ledger.memory import MemoryLedger
from holdfast.catalog.manifest_store import load_committed
from holdfast.catalog.state import LIFECYCLE_KINDS, CatalogState, Ref, in_order
from holdfast.catalog.types import AttemptToken, CheckpointId, KeepAll, KeepLast, Retention
from holdfast.compaction.orphans import Past, past_of
from holdfast.compaction.upkeep import UpkeepReport
from holdfast.writers.coordinator import Coordinator
from holdfast.writers.start import StartPoint, StateMapping, live_source, resolve_start
from tests.support.faults import Crash
from tests.support.invariants import Acknowledgement, Evidence, assert_catalog_sound, assert_clean, read_states
from tests.support.long_world import LongProcess, LongWorld
from tests.support.stores import Stores
from tests.support.world import State, late_upload, write_states

JOBS = tuple(f"job-{n}" for n in range(10))
RETENTIONS: tuple[Retention, ...] = (KeepLast(1), KeepLast(1), KeepLast(2), KeepLast(3), KeepLast(6), KeepAll())
UPKEEP_EVERY = (40, 90)  # commits, at random between these
SCRUB_EVERY = 50  # upkeeps
WATCHED = 40  # checkpoints at a time
LAST_CALLS = 20, 120  # of a coordinator and of an upkeep that are to die: at one of so many calls of its next step
MOST_HOLDS = MOST_PINS = 10

# What a catalog may have for each checkpoint that is kept (live, or pinned), for each name that was ever taken, and at all.
ROWS, OBJECTS, IN_MEMORY = (60, 5, 500), (12, 0, 2_000), (60, 5, 2_000)


@dataclass(slots=True)
class Seat:
    """A job's coordinator, in a process of its own, and what the states of its head are."""

    job: str
    process: LongProcess
    coordinator: Coordinator
    retention: Retention
    states: dict[str, bytes]


@dataclass(slots=True)
class Tally:
    """What happened, and the most that there ever was at a time."""

    checkpoints: int = 0
    events: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    objects: int = 0
    in_memory: int = 0
    entries: int = 0
    first_s: float = 0.0
    last_s: float = 0.0

    def __str__(self) -> str:
        events = ", ".join(f"{count} {what}" for what, count in sorted(self.events.items()))
        return (
            f"{self.checkpoints} checkpoints at the ports; {events}. At most {self.rows} rows after a fold, {self.objects} objects, "
            f"{self.entries} entries of the log, {self.in_memory} things in a process. A checkpoint took {self.first_s * 1000:.2f} ms at first "
            f"and {self.last_s * 1000:.2f} ms at last"
        )


class Year:
    """A catalog of ten jobs, and all that befalls it."""

    def __init__(self, seed: int) -> None:
        self.random, self.world, self.tally = Random(seed), LongWorld(), Tally()
        self.record = self.world.record
        self.operator = self.world.process()
        self.values = 0
        self.taken_s: list[float] = []
        self.upkeeps = self.next_upkeep = 0
        self.holds: list[tuple[str, int, str]] = []
        self.pins: list[tuple[str, int, AttemptToken, dict[str, bytes] | None]] = []
        self.savepoints: list[tuple[str, int]] = []
        self.zombies: list[tuple[str, f.AttemptOpened]] = []
        self.base: list[f.Fact] = []
        self.first, self.past = 0, self._past()
        self.seats: dict[str, Seat] = {}
        for job in JOBS:
            self.start(job)

    # ---- a day ----------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """A checkpoint of some job, and what else happens meanwhile."""
        job = self.random.choice(JOBS)
        began = time.perf_counter()
        self.checkpoint(self.seats[job])
        self.taken_s.append(time.perf_counter() - began)
        for chance, event in EVENTS:
            if self.random.random() < chance:
                event(self, job)
        if isinstance(self.seats[job].retention, KeepAll) and self.random.random() < 0.03:
            self.restart(job)
        if self.world.log.version >= self.next_upkeep:
            self.upkeep(dies=self.random.random() < 0.05)
        if self.record.window is None:
            self.world.storage.calls.clear()
        for seat in (self.operator, *(seat.process for seat in self.seats.values())):
            seat.faults.log.clear()

    def checkpoint(self, seat: Seat) -> None:
        written = self.written(seat)
        expected = {**seat.states, **{name: told for name, (_, told) in written.items()}}
        try:
            with seat.coordinator.checkpoint() as writer:
                write_states(writer, {name: state for name, (state, _) in written.items() if not isinstance(state, Upserts)})
                for name, (state, _) in written.items():
                    if isinstance(state, Upserts):
                        writer.write_changes(name, upserts=[state.data], key=())
        except (Crash, FencedError, RefusedError) as error:  # it died; another job has claimed it; what it forked from was dropped
            self.count(f"checkpoints ended by {type(error).__name__}")
            self.start(seat.job, "nothing" if isinstance(error, RefusedError) else "head")
            return
        seat.states = {name: data for name, data in expected.items() if data is not None}
        assert writer.result is not None
        self.record.told(seat.coordinator.job_id, writer.result.checkpoint_id, seat.states)
        self.tally.checkpoints += 1

    def written(self, seat: Seat) -> dict[str, "tuple[State | Upserts, bytes | None]"]:
        """What a checkpoint writes: of each state what it is given, and what it then is; None: removed."""
        self.values += 1
        value, roll, states = f"{seat.job} {self.values};".encode(), self.random.random, seat.states
        found: dict[str, tuple[State | Upserts, bytes | None]] = {"offsets": (value, value)}
        if "frame" not in states or roll() < 0.25:
            parts = [value + b"%d;" % n for n in range(self.random.randint(1, 3))]
            found["frame"] = parts, b"".join(parts)
        elif roll() < 0.2:
            found["frame"] = Upserts(value), states["frame"] + value
        if roll() < 0.03:
            found["big"] = (value * 1_500,) * 2
        elif "big" in states and roll() < 0.03:
            found["big"] = None, None
        if roll() < 0.005:
            stores = Stores(tuple({"1.sst": value, "CURRENT": b"%d" % n} for n in range(self.random.randint(1, 4))))  # also a rescaling
            found["stores"] = stores, stores.told
        return found

    # ---- coordinators ---------------------------------------------------------------------------------------------------

    def start(self, job: str, start: str | int = "head", begin: StartPoint | None = None) -> None:
        """A new epoch of a job, in a new process."""
        process, retention = self.world.process(), self.random.choice(RETENTIONS)
        try:
            how = begin or resolve_start(start, None, StateMapping(), job, self.operator.storage, self.operator.transactor)
            coordinator = process._coordinator(job, retention, how)
        except RefusedError:  # the head was dropped by the job that had claimed it
            coordinator = process._coordinator(job, retention, StartPoint(find=lambda _: None))
        latest, states = coordinator.latest(), {}
        if latest is not None:
            number = (latest.manifest.job_id, int(latest.manifest.checkpoint_id))
            states = read_states(latest.manifest, self.world.objects)
            assert states == self.record.promised.get(number, states), f"{number} was read back, and is not what was acknowledged"
            if latest.manifest.job_id == coordinator.job_id:  # perhaps the one whose commit nobody was told of
                self.record.told(*number, states)
        self.seats[job] = Seat(job, process, coordinator, retention, states)

    def restart(self, job: str) -> None:
        seat = self.seats[job]
        if self.random.random() < 0.5:
            with suppress(Crash):  # it may be about to die
                seat.coordinator.close()
        self.start(job)

    def die(self, job: str) -> None:
        """At one of its next calls. A task of it may be at work for long."""
        seat = self.seats[job]
        seat.process.arm({self.random.randint(1, LAST_CALLS[0]): self.random.choice(["before", "after"])})
        if seat.coordinator._line.opened is not None and self.random.random() < 0.5:
            self.zombies.append((job, seat.coordinator._line.opened))

    def zombie(self, _: str) -> None:
        if self.zombies:
            _, opened = self.zombies.pop(0)
            late_upload(self.world, opened, part=1000 + self.values)

    def roll_back(self, job: str) -> None:
        if numbers := self.live(job):
            self.start(job, self.random.choice(numbers))

    def fork(self, job: str, *, claim: bool = False) -> None:
        """Of another job's checkpoint."""
        if (ref := self.of_another(job)) is not None:
            self.start(job, begin=StartPoint(find=lambda _: ref, claim=claim))

    def claim(self, job: str) -> None:
        self.fork(job, claim=True)

    def copy(self, job: str) -> None:
        if (ref := self.of_another(job)) is not None:
            operator = self.operator
            source = live_source(operator.storage, operator.transactor, ref, operator.transactor.fresh().checkpoint(ref).fact)
            self.start(job, begin=StartPoint(find=lambda _: ref, source=source))

    def kill(self, job: str) -> None:
        """An operator takes it for dead."""
        opened = self.seats[job].coordinator._line.opened
        if opened is not None and opened.attempt in self.state().job_named(job).open_attempts:
            self.operator.kill(opened.attempt, job)

    # ---- operators and readers ------------------------------------------------------------------------------------------

    def hold(self, job: str) -> None:
        if len(self.holds) < MOST_HOLDS and (numbers := self.live(job)):
            self.values += 1
            hold = job, self.random.choice(numbers), f"hold {self.values}"
            self.operator.hold(hold[1], hold[2], job)
            self.holds.append(hold)

    def unhold(self, _: str) -> None:
        if self.holds:
            job, number, name = self.holds.pop(self.random.randrange(len(self.holds)))
            self.operator.unhold(number, name, job)

    def pin(self, job: str) -> None:
        if len(self.pins) < MOST_PINS and (numbers := self.live(job)):
            number = self.random.choice(numbers)
            promised = self.record.promised.get((self.seats[job].coordinator.job_id, number))
            self.pins.append((job, number, self.operator.pin(number, job), promised))

    def unpin(self, _: str) -> None:
        """What a reader has pinned is as it was, dropped or not."""
        if self.pins:
            job, number, token, promised = self.pins.pop(self.random.randrange(len(self.pins)))
            fact = self.state().job_named(job).checkpoints[CheckpointId(number)].fact
            found = read_states(load_committed(self.world.objects, fact), self.world.objects)
            assert found == (found if promised is None else promised), f"checkpoint {number} of {job} is not what it was when it was pinned"
            self.operator.release(token, job)

    def savepoint(self, job: str) -> None:
        """One more; of those that are there one goes, if there are several."""
        if numbers := self.live(job):
            self.values += 1
            self.savepoints.append((job, self.operator.savepoint(self.random.choice(numbers), f"savepoint {self.values}", job)))
        if len(self.savepoints) > 5:
            job, number = self.savepoints.pop(0)
            self.operator.drop(number, job)

    # ---- maintenance ----------------------------------------------------------------------------------------------------

    def upkeep(self, *, dies: bool = False) -> None:
        self.next_upkeep = self.world.log.version + self.random.randint(*UPKEEP_EVERY)
        if dies:
            self.operator.arm({self.random.randint(1, LAST_CALLS[1]): self.random.choice(["before", "after"])})
        try:
            report = self.operator.catalog.upkeep()
        except Crash:
            self.count("upkeeps that died")
            self.operator = self.world.process()
            return
        self.operator.arm()
        self.upkeeps += 1
        self.count("upkeeps")
        if self.upkeeps % SCRUB_EVERY == 0:
            self.scrub()
        self.require_small(report)

    def scrub(self) -> None:
        report = self.operator.catalog.scrub()
        assert report.failed == ()
        self.count("orphans", report.deleted_files)

    def require_small(self, report: UpkeepReport) -> None:
        """What is live is what the record says; and everything is as small as that."""
        state = self.state()
        live = {(job_id, int(number)) for job_id, job in state.jobs.items() for number in job.live}
        assert live == self.record.live, f"live by the ledger alone {live - self.record.live}, by the record {self.record.live - live}"
        if not report.fold.is_folded:
            return
        kept = len(live) + len(state.pinned())
        memories = [self.operator.transactor, *(seat.coordinator._transactor for seat in self.seats.values())]
        sizes = {
            "rows": (report.fold.rows_after, ROWS),
            "objects": (len(self.world.objects._objects), OBJECTS),
            "in_memory": (max(map(remembered, memories)), IN_MEMORY),
        }
        for what, (size, (for_each_kept, for_each_name, at_all)) in sizes.items():
            setattr(self.tally, what, max(size, getattr(self.tally, what)))
            most = for_each_kept * kept + for_each_name * self.record.names + at_all
            assert size <= most, f"{what}: {size}, where {kept} checkpoints are kept and {self.record.names} names taken: at most {most}"
        entries = self.world.recent.entries
        self.tally.entries = max(entries, self.tally.entries)
        assert entries <= 20 * UPKEEP_EVERY[1], f"{entries} entries of the log"

    # ---- judged ---------------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """From here everything that is committed, made and deleted is written down."""
        self.upkeep()
        self.world.storage.calls.clear()
        self.base, self.first, self.past = [*MemoryLedger(self.world.log).scan()], self.world.log.version + 1, self._past()
        self.record.window = []

    def judge(self) -> None:
        """Every invariant, over what was watched and what a fold had left before; after one more fold."""
        self.upkeep()
        assert_catalog_sound(self.evidence())
        self.record.window = None
        self.count("windows judged")

    def evidence(self) -> Evidence:
        promised = self.record.promised.items()
        return Evidence(
            versions=self.record.window or [],
            base=self.base,
            first=self.first,
            past=self.past,
            now=MemoryLedger(self.world.log).scan(),
            storage=self.world.objects,
            calls=self.world.storage.calls,
            acknowledged=[Acknowledgement(job_id=j, checkpoint_id=CheckpointId(n), states=states) for (j, n), states in promised],
        )

    def end(self) -> None:
        """Everybody leaves; what is left is what live checkpoints need, and the catalog is as on its first day."""
        for seat in self.seats.values():
            seat.process.arm()
            seat.coordinator.close()
        while self.pins:
            self.unpin("")
        self.watch()
        self.upkeep()
        self.scrub()
        self.judge()
        self.watch()
        assert_clean(self.evidence())
        edge = max(len(self.taken_s) // 20, 1)
        self.tally.first_s, self.tally.last_s = median(self.taken_s[:edge]), median(self.taken_s[-edge:])

    # ---- parts ----------------------------------------------------------------------------------------------------------

    def state(self) -> CatalogState:
        state = CatalogState()
        state.apply(in_order(MemoryLedger(self.world.log).scan(LIFECYCLE_KINDS)))
        return state

    def live(self, job: str) -> list[int]:
        """The live checkpoints of a job, savepoints left out."""
        return [int(number) for number, row in self.operator.transactor.fresh().job_named(job).live.items() if not row.fact.is_savepoint]

    def of_another(self, job: str) -> Ref | None:
        other = self.random.choice([name for name in JOBS if name != job])
        numbers = self.live(other)
        return self.operator.ref(self.random.choice(numbers), other) if numbers else None

    def count(self, what: str, by: int = 1) -> None:
        self.tally.events[what] = self.tally.events.get(what, 0) + by

    def _past(self) -> Past:
        """What the history knows now, and never more."""
        process = self.world.process()
        past = past_of(process.handle(), process.history())
        past(AttemptToken("asked now"))
        return past


@dataclass(frozen=True, slots=True)
class Upserts:
    """What a state gets at its end."""

    data: bytes


EVENTS: tuple[tuple[float, Callable[[Year, str], None]], ...] = (
    (1 / 120, Year.die),
    (1 / 150, Year.zombie),
    (1 / 300, Year.restart),
    (1 / 600, Year.roll_back),
    (1 / 800, Year.fork),
    (1 / 2_000, Year.copy),
    (1 / 2_000, Year.claim),
    (1 / 400, Year.kill),
    (1 / 150, Year.hold),
    (1 / 150, Year.unhold),
    (1 / 100, Year.pin),
    (1 / 100, Year.unpin),
    (1 / 2_500, Year.savepoint),
)


def remembered(transactor: object) -> int:
    """How many attempts, checkpoints and handles a process remembers."""
    loaded = transactor._loaded  # type: ignore[attr-defined]
    return 0 if loaded is None else sum(len(job.attempts) + len(job.checkpoints) + len(job.open_handles) for job in loaded.jobs.values())


def simulate(checkpoints: int, seed: int, windows: int, tell: Callable[[str], None]) -> Tally:
    """A life of so many checkpoints, judged so many times. Raises AssertionError at the first broken promise."""
    year = Year(seed)
    for n in range(1, windows + 1):
        while year.tally.checkpoints < checkpoints * n // windows - WATCHED:
            year.step()
        tell(f"{year.tally.checkpoints} of {checkpoints} checkpoints at the ports, {year.world.log.version} commits")
        year.watch()
        while year.tally.checkpoints < checkpoints * n // windows:
            year.step()
        year.judge()
    year.end()
    return year.tally
