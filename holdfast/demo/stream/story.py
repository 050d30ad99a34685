"""The parent of the streaming demo: kills the driver and executors at random while the stream runs, and looks at what is left."""

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from holdfast.demo.cleaner import ENOUGH
from holdfast.demo.flights import WEEKS, write_weeks
from holdfast.demo.places import LOOK_EVERY_S, Places
from holdfast.demo.processes import Child, ChildFailedError, Event, session_members
from holdfast.demo.states import JOB
from holdfast.demo.story import TIMEOUT_S, Progress, prepare_directory
from holdfast.facade import Catalog
from holdfast.opening import open_catalog

DRIVER, EXECUTOR = "driver", "executor"
VICTIMS = (DRIVER, EXECUTOR, DRIVER, EXECUTOR)
EXECUTOR_CLASS = b"CoarseGrainedExecutorBackend"
LAST = 5  # micro-batches before the end: later there might be nobody to kill
LATEST_S = 1.5  # after a micro-batch began: in its plan, its tasks, their uploads, our commit, Spark's


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDeath:
    """Who is killed, so long after which micro-batch began."""

    victim: str
    batch: int
    after_s: float


@dataclass(slots=True, kw_only=True)
class Death:
    """A SIGKILL, and what the first step after it restored its stores from."""

    victim: str
    batch: int
    processes: int
    next_batch: int | None = None
    local_bytes: int = 0
    cached_bytes: int = 0
    remote_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class StreamResult:
    """Everything that the streaming demo saw."""

    seed: int
    batches: int = 0
    flights: int = 0
    deaths: list[Death] = field(default_factory=list)
    committed_batches: list[int] = field(default_factory=list)  # one for each checkpoint, in their order
    local_bytes: int = 0  # in all steps together
    cached_bytes: int = 0
    remote_bytes: int = 0
    new_bytes: int = 0
    total_bytes: int = 0
    upload_ms: int = 0
    sync_ms: int = 0
    acks: int = 0
    vacuumed_files: int = 0
    orphans: int = 0
    left_files: int = 0
    damages: list[str] = field(default_factory=list)
    compared: list[dict[str, Any]] = field(default_factory=list)
    counted_flights: int = 0
    plain_flights: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "problems": find_problems(self)}


def find_problems(result: StreamResult) -> list[str]:
    """What differs from what was promised, in words."""
    problems = list(result.damages)
    problems += [
        f"{state['state']} differs from the batch run: {state}"
        for state in result.compared
        if state["differences"] or state["rows"] != state["plain_rows"] or not state["rows"]
    ]
    expected = {
        "states compared": (len(result.compared), 2),
        "micro-batches, each in one checkpoint": (result.committed_batches, [*range(result.batches)]),
        "flights counted in the stores": (result.counted_flights, result.flights),
        "flights of the batch run": (result.plain_flights, result.flights),
        "who was killed": ([death.victim for death in result.deaths], list(VICTIMS)),
        "files left after vacuum and scrub": (result.left_files, 0),
    }
    problems += [f"{what}: {found}, not {wanted}" for what, (found, wanted) in expected.items() if found != wanted]
    for death in result.deaths:
        if death.victim == DRIVER and death.remote_bytes:
            problems.append(f"after the driver was killed in batch {death.batch}, {death.remote_bytes} bytes were read of the catalog")
    if not result.local_bytes:
        problems.append("nothing was restored from local copies")
    return problems


def plan_deaths(seed: int, batches: int, victims: Sequence[str] = VICTIMS) -> list[PlannedDeath]:
    """At random, but the same for one seed; in different micro-batches, and none in the first, which has nothing to restore."""
    chance = random.Random(seed)
    chosen = sorted(chance.sample(range(1, batches - LAST), len(victims)))
    return [
        PlannedDeath(victim=victim, batch=batch, after_s=round(chance.uniform(0, LATEST_S), 3))
        for victim, batch in zip(victims, chosen, strict=True)
    ]


def run_stream_demo(directory: Path, *, weeks: int = WEEKS, seed: int | None = None, progress: Progress | None = None) -> StreamResult:
    """The whole demo in a directory, which keeps the catalog and the logs. Raises UsageError, ChildFailedError."""
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    story = StreamStory(Places(prepare_directory(directory)), weeks, seed, progress or (lambda _week, _what: None))
    with story.timed("input"):
        story.progress(0, "writing the input")
        story.result.flights = write_weeks(story.places.input, weeks)
    with story.timed("stream"):
        story.stream(plan_deaths(seed, weeks))
    with story.timed("comparison"):
        story.progress(weeks, "comparing with a batch run")
        story.run_to_end(story.child("stream.checker"))
    with story.timed("cleanup"):
        story.clean()
    for scratch in (story.places.scratch, story.places.input, directory / "volume"):
        shutil.rmtree(scratch, ignore_errors=True)
    return story.result


class StreamStory:
    """One run: its children, and what they reported."""

    def __init__(self, places: Places, weeks: int, seed: int, progress: Progress) -> None:
        self.places, self.progress = places, progress
        self.result = StreamResult(seed=seed, batches=weeks)
        self._batch = -1
        self._told = threading.Condition()

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.result.seconds[what] = round(time.monotonic() - started, 1)

    def stream(self, deaths: Sequence[PlannedDeath]) -> None:
        """The stream to its end, through all deaths, with a vacuum alongside."""
        cleaner, driver = self.child("cleaner"), self.child("stream.driver")
        try:
            for planned in deaths:
                self._wait_for(planned, driver)
                if planned.victim == DRIVER:
                    self._mourn(planned, driver.kill())
                    driver = self.child("stream.driver")
                else:
                    self._mourn(planned, kill_executor(driver))
            self.run_to_end(driver)
            (self.places.root / ENOUGH).touch()
            cleaner.wait(TIMEOUT_S)
        finally:
            driver.kill()
            cleaner.kill()

    def clean(self) -> None:
        """Vacuum, scrub and verify; then a second look, which must find nothing."""
        with open_catalog(self.places.catalog) as catalog:
            self.result.vacuumed_files += catalog.vacuum().deleted_files
            self.result.orphans = catalog.scrub().deleted_files
            again = catalog.plan_scrub()
            left = (again.orphans, again.directories, catalog.plan_vacuum().unreferenced)
            self.result.left_files = sum(map(len, left)) + again.in_flight.count + again.foreign.count
            self.result.damages = [f"{damage.path}: {damage.what}" for damage in catalog.verify().damages]
            self._ask(catalog)

    def child(self, name: str) -> Child:
        return Child(f"holdfast.demo.{name}", [str(self.places.root)], self.places.logs / f"{name}.log", self._hear)

    def run_to_end(self, child: Child) -> None:
        try:
            child.wait(TIMEOUT_S)
        finally:
            child.kill()

    def _ask(self, catalog: Catalog) -> None:
        with catalog.duckdb() as connection:
            checkpoints = "FROM checkpoints WHERE job = $1 AND NOT is_savepoint"
            found = connection.execute(f"SELECT progress->>'batch_id', new_bytes, total_bytes {checkpoints} ORDER BY seq", [JOB]).fetchall()
            row = connection.execute("SELECT sum(upload_ms), sum(sync_ms), count(*) FROM ack_metrics WHERE sync_ms IS NOT NULL").fetchone()
        self.result.committed_batches = [int(batch) for batch, _, _ in found]
        self.result.new_bytes, self.result.total_bytes = sum(new for _, new, _ in found), sum(total for _, _, total in found)
        assert row is not None
        self.result.upload_ms, self.result.sync_ms, self.result.acks = (int(value or 0) for value in row)

    def _wait_for(self, planned: PlannedDeath, driver: Child) -> None:
        """Until the micro-batch has begun, and a random time longer. A later one will do, if a death before took long."""
        deadline = time.monotonic() + TIMEOUT_S
        with self._told:
            while self._batch < planned.batch:
                driver.require_well()
                if not driver.is_running or time.monotonic() > deadline:
                    msg = f"the stream did not come to batch {planned.batch} (HOLDFAST_SEED={self.result.seed})"
                    raise ChildFailedError(msg)
                self._told.wait(LOOK_EVERY_S)
        time.sleep(planned.after_s)

    def _mourn(self, planned: PlannedDeath, processes: int) -> None:
        self.result.deaths.append(Death(victim=planned.victim, batch=self._batch, processes=processes))
        self.progress(self._batch, f"killed {planned.victim} in batch {self._batch}")

    def _hear(self, event: Event) -> None:
        """What children report, from their threads."""
        match event["event"]:
            case "began":
                with self._told:
                    self._batch = event["batch"]
                    self._told.notify_all()
                self.progress(self._batch, "")
            case "stepped":
                self._count(event)
            case "vacuumed":
                self.result.vacuumed_files += event["files"]
            case "compared":
                self.result.compared.append({key: value for key, value in event.items() if key != "event"})
            case "counted":
                self.result.counted_flights, self.result.plain_flights = event["flights"], event["plain_flights"]

    def _count(self, event: Event) -> None:
        sources = {name: int(event[name]) for name in ("local_bytes", "cached_bytes", "remote_bytes")}
        for name, size_bytes in sources.items():
            setattr(self.result, name, getattr(self.result, name) + size_bytes)
        last = self.result.deaths[-1] if self.result.deaths else None
        if last is not None and last.next_batch is None:
            last.next_batch = event["batch"]
            last.local_bytes, last.cached_bytes, last.remote_bytes = sources.values()


def kill_executor(driver: Child, timeout_s: float = 60) -> int:
    """SIGKILL one of the executors of a driver, whichever the system lists first, when there is one; how many processes that were."""
    deadline = time.monotonic() + timeout_s
    while driver.is_running and time.monotonic() < deadline:
        for pid in session_members(driver.pid):
            with suppress(OSError):
                if EXECUTOR_CLASS in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
                    return 1
        time.sleep(LOOK_EVERY_S)
    msg = "the driver had no executor to kill: it had ended, or has started none, or this is not Linux"
    raise ChildFailedError(msg)
