"""What lives through a year in minutes: a job's process and a cleaner's, each killed at random, over the real ledger and local files.

A calendar in a file makes a year of it: the day is how many checkpoints of all were acknowledged, and every process writes its facts by it.
"""

import json
import mmap
import os
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.errors import NotFoundError, RefusedError
from holdfast.catalog.ledger import Tidied, delta_clean
from holdfast.catalog.types import KeepLast
from holdfast.facade import Catalog
from holdfast.opening import open_catalog
from holdfast.writers.checkpoint import Checkpoint
from holdfast.writers.checkpoint_writer import CheckpointWriter
from holdfast.writers.coordinator import Coordinator
from tests.support.mutants import replaced
from tests.support.stores import taking

JOBS = tuple(f"job-{n}" for n in range(10))
BEGAN, YEAR = datetime(2026, 1, 1, tzinfo=UTC), timedelta(days=365)
KEEP_REPLACED = timedelta(seconds=20)  # by the machine's clock: two hours of such a year pass in a blink

BIG, SMALL, STORE, ORIGIN = "big", "small", "store", "origin"
EPOCH = (30, 300)  # checkpoints of one coordinator
SCRUB_EVERY = 3
LONGEST_REST_S = 2.0


@dataclass(frozen=True, slots=True)
class Calendar:
    """How many checkpoints of each job were acknowledged, of how many in a year. Shared; each count has one writer."""

    counts: mmap.mmap
    of_a_year: int

    @classmethod
    def at(cls, path: Path, of_a_year: int) -> "Calendar":
        with path.open("a+b") as file:
            os.ftruncate(file.fileno(), 8 * len(JOBS))
            return cls(mmap.mmap(file.fileno(), 8 * len(JOBS)), of_a_year)

    def total(self) -> int:
        return sum(struct.unpack(f"{len(JOBS)}q", self.counts[:]))

    def add(self, n: int) -> None:
        (before,) = struct.unpack_from("q", self.counts, 8 * n)
        struct.pack_into("q", self.counts, 8 * n, before + 1)

    def now(self) -> datetime:
        return BEGAN + YEAR * self.total() / self.of_a_year


@dataclass(frozen=True, slots=True, kw_only=True)
class YearEnvironment(SystemEnvironment):
    """The machine, but for its clock."""

    calendar: Calendar

    def now(self) -> datetime:
        return self.calendar.now()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a year is lived."""

    directory: Path
    of_a_year: int

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def calendar(self) -> Calendar:
        return Calendar.at(self.directory / "calendar", self.of_a_year)

    def log(self, job: str) -> Path:
        return self.directory / f"{job}.told"

    @contextmanager
    def open(self, root: Path | None = None) -> Iterator[Catalog]:
        """The catalog, by the year's clock. What folds have replaced is deleted by the machine's."""

        def clean(table: Path, told_to: int, _: datetime) -> Tidied:
            return by_any_clock(table, told_to, datetime.now(UTC))

        by_any_clock = delta_clean.clean
        environment = YearEnvironment(calendar=self.calendar)
        with replaced(delta_clean, "clean", clean), replaced(delta_clean, "KEEP_REPLACED", KEEP_REPLACED):
            with open_catalog(root or self.root, create=True, environment=environment) as catalog:
                yield catalog


# ---- what states are ----------------------------------------------------------------------------------------------------


def content(name: str, writer: str) -> bytes:
    """A state as the checkpoint of this name ("job/number") wrote it: anybody can say later what it must hold."""
    size = {BIG: 25_000, SMALL: 60, STORE: 300}[name]
    return (f"{name} {writer} ".encode() * size)[:size]


def shares(writer: str) -> list[dict[str, bytes]]:
    """The directories of the store that it wrote: of one subtask to three, for each writing is a rescaling."""
    subtasks = 1 + sum(writer.encode()) % 3
    return [{"1.sst": content(STORE, f"{writer} {n}"), "CURRENT": b"1"} for n in range(subtasks)]


def encoded(origin: Mapping[str, str]) -> bytes:
    return json.dumps(origin, sort_keys=True).encode()


def require_content(checkpoint: Checkpoint, origin: Mapping[str, str], scratch: Path) -> None:
    """Raises AssertionError unless the checkpoint holds what its states' writers wrote."""
    assert checkpoint.read_bytes(ORIGIN) == encoded(origin), f"{checkpoint}: another origin"
    for name, writer in origin.items():
        if name != STORE:
            assert checkpoint.read_bytes(name) == content(name, writer), f"{checkpoint}: {name}, which {writer} wrote"
            continue
        for subtask, files in enumerate(shares(writer)):
            with TemporaryDirectory(dir=scratch) as to:
                checkpoint.restore_directory(STORE, Path(to) / "store", subtask=subtask)
                found = {path.name: path.read_bytes() for path in (Path(to) / "store").iterdir()}
            assert found == files, f"{checkpoint}: the store that {writer} wrote"


# ---- a job's process ----------------------------------------------------------------------------------------------------


def live_until_killed(place: Place, n: int, seed: int) -> None:
    """Checkpoints without end, one epoch after the other. Of each a line is written before it, and one after it was acknowledged."""
    random, job = Random(seed), JOBS[n]
    calendar = place.calendar
    log = os.open(place.log(job), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with place.open() as catalog:
        while True:
            with begin(catalog, job, random) as coordinator:
                latest = coordinator.latest()
                origin: dict[str, str] = json.loads(latest.read_bytes(ORIGIN)) if latest else {}
                unhold_all(catalog, job)
                for _ in range(random.randint(*EPOCH)):
                    began = time.perf_counter()
                    with coordinator.checkpoint() as checkpoint:
                        tell(log, "begins", coordinator, checkpoint)
                        write(checkpoint, job, origin, random)
                    tell(log, "told", coordinator, checkpoint, origin=origin, took_s=time.perf_counter() - began)
                    calendar.add(n)
                    meanwhile(catalog, coordinator, job, random, place)


def begin(catalog: Catalog, job: str, random: Random) -> Coordinator:
    """A new epoch: where the job was, mostly; from a checkpoint before (a rollback); or from another job's (a fork)."""
    retention, roll = KeepLast(random.choice([1, 1, 2, 3, 5])), random.random()
    with suppress(NotFoundError, RefusedError):  # it was dropped meanwhile
        if roll < 0.08:
            return catalog.coordinate(job, retention=retention, start=int(heads(catalog)[job][1]) - 1)
        if roll < 0.16:
            job_id, number = heads(catalog)[random.choice([name for name in JOBS if name != job])]
            return catalog.coordinate(job, retention=retention, start=f"{catalog.address}/jobs/{job_id}/chk-{number}", mode="fork")
    return catalog.coordinate(job, retention=retention)


def heads(catalog: Catalog) -> dict[str, tuple[str, int]]:
    """The id and the head of each job. Raises NotFoundError where one has none."""
    with catalog.duckdb() as connection:
        rows = connection.execute("SELECT job, job_id, head_checkpoint_id FROM jobs WHERE head_checkpoint_id IS NOT NULL").fetchall()
    if len(rows) < len(JOBS):
        raise NotFoundError("not all jobs have a head yet")
    return {job: (job_id, number) for job, job_id, number in rows}


def write(checkpoint: CheckpointWriter, job: str, origin: dict[str, str], random: Random) -> None:
    """One state at each checkpoint, one now and then, and the directories of a store rarely; the others are carried."""
    writer = f"{job}/{checkpoint.checkpoint_id}"
    names = [SMALL, *([BIG] if BIG not in origin or random.random() < 0.3 else []), *([STORE] if random.random() < 0.02 else [])]
    for name in names:
        if name == STORE:
            parts = shares(writer)
            for subtask, files in enumerate(parts):
                checkpoint.write_directory(STORE, taking(files), subtask=subtask, subtasks=len(parts))
        else:
            checkpoint.write_bytes(name, content(name, writer))
        origin[name] = writer
    checkpoint.write_bytes(ORIGIN, encoded(origin))


def meanwhile(catalog: Catalog, coordinator: Coordinator, job: str, random: Random, place: Place) -> None:
    """What a job's program and its operators do besides."""
    if random.random() < 1 / 200:
        latest = coordinator.latest()
        assert latest is not None
        unhold_all(catalog, job)
        catalog.hold(job, latest.checkpoint_id, f"hold {latest.checkpoint_id}")
    if random.random() < 1 / 1_000:
        name = f"savepoint {os.getpid()} {time.monotonic_ns()}"
        savepoint = coordinator.savepoint(name)
        require_content(savepoint, json.loads(savepoint.read_bytes(ORIGIN)), place.directory)
        catalog.dispose(job, name)
    if random.random() < 1 / 50:
        with suppress(NotFoundError):  # it has none yet
            with catalog.checkpoint(random.choice(JOBS)) as other:
                require_content(other, json.loads(other.read_bytes(ORIGIN)), place.directory)


def unhold_all(catalog: Catalog, job: str) -> None:
    """Those of this job, also what a process before this one left."""
    with catalog.duckdb() as connection:
        query = "SELECT checkpoint_id, hold FROM holds JOIN jobs USING (job_id) WHERE job = ?"
        for number, hold in connection.execute(query, [job]).fetchall():
            catalog.unhold(job, number, hold)


def tell(log: int, what: str, coordinator: Coordinator, checkpoint: CheckpointWriter, **more: Any) -> None:
    line = {"what": what, "job_id": coordinator.job_id, "checkpoint_id": checkpoint.checkpoint_id, **more}
    os.write(log, (json.dumps(line) + "\n").encode())


def told_by(log: Path) -> list[dict[str, Any]]:
    """The checkpoints that were acknowledged to a job's processes. A line that a kill cut short was not told."""
    lines = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
    return [told for told in map(json.loads, lines) if told["what"] == "told"]


# ---- a cleaner's process ------------------------------------------------------------------------------------------------


def clean_until_killed(place: Place, seed: int) -> None:
    """Vacuums without end, with a scrub now and then."""
    random = Random(seed)
    with place.open() as catalog:
        for n in count(1):
            catalog.vacuum()
            if n % SCRUB_EVERY == 0:
                catalog.scrub()
            time.sleep(random.uniform(0, LONGEST_REST_S))
