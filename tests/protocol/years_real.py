"""The year of a catalog for real: ten processes with a job each and one that cleans, on a directory, killed at random and started again.

Their upkeep is what coordinators have. Now and then all of them are stopped, and what every view says is written down; at the end, whatever
was folded and deleted since, `catalog.at` says the same of that day, by its version and by its time.
"""

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import duckdb
import pyarrow.compute as pc

from holdfast.catalog.errors import RefusedError
from holdfast.catalog.ledger import delta_log
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.delta_history import HISTORY_SCHEMA, DeltaHistory
from holdfast.catalog.types import CheckpointId, JobId
from holdfast.compaction.orphans import past_of
from holdfast.facade import Catalog
from tests.catalog.test_views import CONTRACT
from tests.protocol.years_workers import (
    JOBS,
    ORIGIN,
    Place,
    clean_until_killed,
    live_until_killed,
    require_content,
    told_by,
)
from tests.support.invariants import Acknowledgement, Evidence, assert_catalog_sound, assert_clean

CLEANER = "cleaner"
KILL_EVERY = 80  # checkpoints, on an average
PATIENCE_S = 120.0

MOST_ENTRIES, MOST_DATA_FILES, MOST_ROWS = 1_500, 300, 10_000
MOST_ON_DISK = 2_500  # data files of each table: those that folds replaced stay for a while

Digests = Mapping[str, tuple[int, int]]  # by view: how many rows, and the sum of their hashes


@dataclass(frozen=True, slots=True)
class Day:
    """What the catalog said while everything stood still."""

    version: int
    at: datetime  # no fact up to this version was written later
    said: Digests


@dataclass(slots=True)
class Tally:
    checkpoints: int = 0
    kills: int = 0
    days: list[Day] = field(default_factory=list)
    took_s: float = 0.0
    sizes: dict[str, int] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        runs = ", ".join(f"{count} {what}" for what, count in sorted(self.runs.items()))
        sizes = ", ".join(f"{count} {what}" for what, count in self.sizes.items())
        ratios = ", ".join(f"{what} {ratio:.2f}" for what, ratio in self.ratios.items())
        return (
            f"{self.checkpoints} checkpoints acknowledged in {self.took_s:.0f} s, none lost, {self.kills} kills; {len(self.days)} days shown as "
            f"they were. Runs: {runs}. At the end: {sizes}. The last day against the first: {ratios}"
        )


def live(checkpoints: int, seed: int, directory: Path, days: int, rounds: int, tell: Callable[[str], None]) -> Tally:
    """A year of so many checkpoints. Raises AssertionError at the first broken promise."""
    place, tally, random = Place(directory, checkpoints), Tally(), Random(seed)
    crew, calendar = Crew(place, random), place.calendar
    with place.open():
        pass  # it is made before anybody comes
    began = progress = time.monotonic()
    next_kill, seen = random.expovariate(1 / KILL_EVERY), 0
    try:
        while (total := calendar.total()) < checkpoints:
            crew.require_alive()
            if total > seen:
                seen, progress = total, time.monotonic()
            assert time.monotonic() - progress < PATIENCE_S, f"no checkpoint in {PATIENCE_S} s"
            if total >= next_kill:
                crew.kill_one()
                tally.kills += 1
                next_kill = total + random.expovariate(1 / KILL_EVERY)
            if total >= checkpoints * (len(tally.days) + 0.5) / days:
                with crew.stopped():
                    tally.days.append(look(place))
                    if len(tally.days) == 1:
                        shutil.copytree(place.root, directory / "first-day")
                tell(f"{total} of {checkpoints} checkpoints, {tally.kills} kills, version {tally.days[-1].version}")
            time.sleep(0.02)
    finally:
        crew.end()
    tally.checkpoints, tally.took_s = calendar.total(), time.monotonic() - began
    tell("the year is over: checking")
    judge(place, tally, rounds)
    return tally


class Crew:
    """The processes of a year."""

    def __init__(self, place: Place, random: Random) -> None:
        # Forked from a server that has everything imported: a process costs milliseconds and not a second.
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.protocol.years_workers"])
        self._place, self._random = place, random
        self._processes: dict[str, BaseProcess] = {}
        for name in (*JOBS, CLEANER):
            self._start(name)

    def _start(self, name: str) -> None:
        seed = self._random.getrandbits(32)
        if name == CLEANER:
            process = self._context.Process(target=clean_until_killed, args=(self._place, seed), name=name, daemon=True)
        else:
            process = self._context.Process(target=live_until_killed, args=(self._place, JOBS.index(name), seed), name=name, daemon=True)
        process.start()
        self._processes[name] = process

    def require_alive(self) -> None:
        for process in self._processes.values():
            assert process.is_alive(), f"{process.name} ended by itself with code {process.exitcode}"

    def kill_one(self) -> None:
        """SIGKILL, and another in its place."""
        name = self._random.choice([*self._processes])
        self._processes[name].kill()
        self._processes[name].join()
        self._start(name)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """All stand still, wherever they are, for the block."""
        for process in self._processes.values():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGSTOP)
        try:
            for process in self._processes.values():
                while _state_of(process.pid) not in "TZ":
                    time.sleep(0.001)
            yield
        finally:
            for process in self._processes.values():
                with suppress(ProcessLookupError):
                    os.kill(process.pid or 0, signal.SIGCONT)

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.join()


def _state_of(pid: int | None) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# ---- what the catalog says ----------------------------------------------------------------------------------------------


def look(place: Place) -> Day:
    with place.open() as catalog, catalog.duckdb() as connection:
        version = ledger_of(catalog).version
        (at,) = connection.execute('SELECT max("at") FROM all_facts').fetchone() or (None,)
        assert at is not None
        return Day(version, at, digests(connection))


def digests(connection: duckdb.DuckDBPyConnection) -> Digests:
    """Of every view, inline bytes left out: those of the past are gone."""
    said: dict[str, tuple[int, int]] = {}
    for name, columns in CONTRACT.items():
        wanted = ", ".join(column for column in columns.split(", ") if (name, column) != ("handles", "inline"))
        query = f"SELECT count(*), coalesce(sum(hash(seen)), 0) FROM (SELECT {wanted} FROM {name}) seen"
        ((rows, hashes),) = connection.execute(query).fetchall()
        said[name] = rows, hashes
    return said


def ledger_of(catalog: Catalog) -> DeltaLedger:
    ledger = catalog._open_ledger()
    assert isinstance(ledger, DeltaLedger)
    return ledger


# ---- judged -------------------------------------------------------------------------------------------------------------


def judge(place: Place, tally: Tally, rounds: int) -> None:
    """What was acknowledged is there and whole, the past is as it was, and the catalog is as small and as quick as on its first day."""
    told = {(line["job_id"], line["checkpoint_id"]): line["origin"] for job in JOBS for line in told_by(place.log(job))}
    with place.open() as catalog:
        for job in JOBS:
            catalog.coordinate(job).close()  # a start ends the attempts of the killed
        tally.sizes |= cleaned(catalog)
        promised = require_told(catalog, told, place)
        require_past(catalog, tally.days)
        tally.runs = runs(catalog)
        require_sound(catalog, promised)
        report = catalog.verify()
        assert report.damages == (), report.damages
    tally.ratios = compared(place, rounds)


def cleaned(catalog: Catalog) -> dict[str, int]:
    """Vacuum, scrub and a fold leave nothing that nobody needs; how much is left of what."""
    catalog.vacuum()
    catalog.scrub()
    for _ in range(3):  # of a log the entries go that two Delta checkpoints stand above
        catalog.upkeep()
    again = catalog.scrub()
    assert (again.deleted_files, again.failed, again.plan.unknown.count, again.plan.foreign.count) == (0, (), 0, 0)
    plan = catalog.plan_vacuum()
    assert len(plan.files) == 0
    found = {"rows of the ledger": len(ledger_of(catalog).rows())}
    assert found["rows of the ledger"] <= MOST_ROWS, found
    for table in (ledger_of(catalog), catalog._open_history()):
        assert isinstance(table, DeltaLedger | DeltaHistory)
        name = table.directory.name
        found |= {
            f"entries of {name}": len(delta_log.commit_versions(table.log)),
            f"data files of {name}": len(table.files()),
            f"of them on disk, {name}": sum(1 for path in table.directory.iterdir() if path.suffix == ".parquet"),
        }
        assert found[f"entries of {name}"] <= MOST_ENTRIES, found
        assert found[f"data files of {name}"] <= MOST_DATA_FILES, found
        assert found[f"of them on disk, {name}"] <= MOST_ON_DISK, found
    return found | {"files of states": sum(1 for _ in catalog._storage.list("jobs"))}


def require_told(
    catalog: Catalog, told: Mapping[tuple[str, int], Mapping[str, str]], place: Place
) -> dict[tuple[str, int], Mapping[str, bytes] | None]:
    """I7: what was acknowledged is committed; and what of it is live holds what it held."""
    with catalog.duckdb() as connection:
        rows = connection.execute("SELECT job_id, job, checkpoint_id, status FROM checkpoints WHERE NOT is_savepoint").fetchall()
    committed = {(job_id, number) for job_id, _, number, _ in rows}
    assert told.keys() <= committed, f"I7: acknowledged and lost: {sorted(told.keys() - committed)[:20]}"
    alive = {(job_id, number): job for job_id, job, number, status in rows if status == "live"}
    for (job_id, number), job in alive.items():
        with catalog.checkpoint(job, number) as checkpoint:
            origin = told.get((job_id, number)) or json.loads(checkpoint.read_bytes(ORIGIN))
            require_content(checkpoint, origin, place.directory)
    return dict.fromkeys(alive.keys() & told.keys())


def require_past(catalog: Catalog, days: list[Day]) -> None:
    """Of each day every view says what it said then."""
    written = written_at(catalog)
    for day in days:
        with catalog.at(version=day.version).duckdb() as connection:
            assert digests(connection) == day.said, f"version {day.version} is not what it was on its day"
        later = [version for version, at in written.items() if at > day.at]
        found = catalog.at(time=day.at).version
        assert found == (min(later) - 1 if later else found), f"the version at {day.at} is {found}, and {min(later)} is the first later one"
        assert found >= day.version


def written_at(catalog: Catalog) -> dict[int, datetime]:
    """Of each version of the ledger with a fact, the time of its facts."""
    ledger, history = ledger_of(catalog), catalog._open_history()
    assert isinstance(history, DeltaHistory)
    told = history.read([file.path for file in history.files()], HISTORY_SCHEMA, pc.scalar(True), ["version", "at"])
    found = dict(zip(told["version"].to_pylist(), told["at"].to_pylist(), strict=True))
    return found | {commit.version: commit.rows[0].operation.at for commit in ledger.commits(history.told_to)}


def runs(catalog: Catalog) -> dict[str, int]:
    """How many runs of maintenance there were, by what and outcome."""
    with catalog.duckdb() as connection:
        query = "SELECT what || ' ' || outcome, count(*) FROM maintenance_runs GROUP BY ALL"
        found: dict[str, int] = dict(connection.execute(query).fetchall())
    assert not [what for what in found if "failed" in what], found
    return found


def require_sound(catalog: Catalog, promised: Mapping[tuple[str, int], Mapping[str, bytes] | None]) -> None:
    """The invariants, over a few days more; and nothing is in storage but what is needed."""
    base = ledger_of(catalog)
    past = past_of(base, catalog._open_history())
    facts, first = base.scan(), base.version + 1
    for job in JOBS:
        with catalog.coordinate(job) as coordinator:
            for n in range(3):
                with coordinator.checkpoint() as checkpoint:
                    checkpoint.write_bytes("after", b"%d" % n * 30_000)
    catalog.upkeep()
    catalog.upkeep()
    ledger = ledger_of(catalog)
    said = {commit.version: [row.fact for row in commit.rows] for commit in ledger.commits(first - 1)}
    evidence = Evidence(
        versions=[said.get(version, []) for version in range(first, ledger.version + 1)],
        base=facts,
        first=first,
        past=past,
        now=ledger.scan(),
        storage=catalog._storage,
        acknowledged=[
            Acknowledgement(job_id=JobId(j), checkpoint_id=CheckpointId(n), states=states) for (j, n), states in promised.items()
        ],
    )
    assert_catalog_sound(evidence)
    assert_clean(evidence)


# ---- the last day and the first -----------------------------------------------------------------------------------------


def compared(place: Place, rounds: int) -> dict[str, float]:
    """How long it takes to open, to commit, to ask and to clean, against the catalog of the first day; in turns."""
    roots = {"last": place.root, "first": place.directory / "first-day"}
    taken: dict[str, dict[str, list[float]]] = {day: {} for day in roots}
    for _ in range(rounds):
        for day, root in roots.items():
            for what, seconds in one_round(place, root).items():
                taken[day].setdefault(what, []).append(seconds)
    return {what: median(taken["last"][what]) / median(taken["first"][what]) for what in taken["last"]}


def one_round(place: Place, root: Path) -> dict[str, float]:
    taken: dict[str, float] = {}

    @contextmanager
    def timed(what: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        taken[what] = time.perf_counter() - began

    with timed("open"):
        opening = place.open(root)
        catalog = opening.__enter__()
    try:
        coordinator = started(catalog)
        with timed("commit"), coordinator.checkpoint() as checkpoint:
            checkpoint.write_bytes("timed", b"x")
        coordinator.close()
        with timed("query of what is live"), catalog.duckdb() as connection:
            connection.execute("SELECT count(*) FROM checkpoint_files").fetchall()
        with timed("query of all time"), catalog.duckdb() as connection:
            connection.execute("SELECT count(*) FROM checkpoints").fetchall()
        with timed("vacuum"):
            catalog.vacuum()
    finally:
        opening.__exit__(None, None, None)
    return taken


def started(catalog: Catalog) -> Any:
    try:
        return catalog.coordinate(JOBS[0])
    except RefusedError:
        return catalog.coordinate(JOBS[0], start="nothing")
