"""The parent: starts the job and the vacuum, kills them where it hurts, starts them again, and looks at what is left."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from holdfast.catalog.errors import UsageError
from holdfast.demo.audit import Kill, Result, clean_up, read_back
from holdfast.demo.checker import CLEANED
from holdfast.demo.cleaner import ENOUGH
from holdfast.demo.flights import WEEKS, write_weeks
from holdfast.demo.places import LOOK_EVERY_S, Places
from holdfast.demo.processes import Child, ChildFailedError, Event
from holdfast.demo.stops import DELETION, KILLS, PlannedKill, Stops
from holdfast.opening import open_catalog

MARK = ".holdfast-demo"  # in the demo's directory: what has it may be replaced by the next run
TIMEOUT_S = 600

Progress = Callable[[int, str], None]


def run_demo(directory: Path, *, weeks: int = WEEKS, kills: tuple[PlannedKill, ...] = KILLS, progress: Progress | None = None) -> Result:
    """The whole demo in a directory, which keeps the catalog, the logs and nothing that another run would trip over.

    `progress` hears of the week reached and of what is going on.
    Raises:
        UsageError: the directory holds something that is not a demo's, or the flights are not installed.
        ChildFailedError: the job, the vacuum or the comparison failed by itself.
    """
    story = Story(Places(prepare_directory(directory)), weeks, kills, progress or (lambda _week, _what: None))
    try:
        with story.timed("input"):
            story.stand_by()
            story.progress(0, "writing the input")
            story.result.flights = write_weeks(story.places.input, weeks)
        with story.timed("replay"):
            checker = story.replay()
    finally:
        story.end()
    try:
        with story.timed("cleanup"):
            story.clean()
        with story.timed("comparison"):
            story.compare(checker)
    finally:
        checker.kill()
    for scratch in (story.places.scratch, story.places.input):
        shutil.rmtree(scratch, ignore_errors=True)
    return story.result


def prepare_directory(directory: Path) -> Path:
    """An empty directory for the demo; that of an earlier run is emptied. Raises UsageError for one that holds anything else."""
    root = directory.absolute()
    if root.exists() and (not root.is_dir() or (any(root.iterdir()) and not (root / MARK).exists())):
        msg = f"{root} holds something that is not a demo's: give an empty or new directory"
        raise UsageError(msg)
    if root.exists():
        shutil.rmtree(root)
    root.mkdir(parents=True)
    (root / MARK).touch()
    return root


def wait_until_reached(stops: Stops, place: str, driver: Child, cleaner: Child, timeout_s: float = TIMEOUT_S) -> None:
    """Until somebody stops at the place. Raises ChildFailedError where nobody will: a child ended, or the time is over."""
    deadline = time.monotonic() + timeout_s
    while not stops.is_reached(place):
        for child in (driver, cleaner):
            child.require_well()
        if not driver.is_running:
            msg = f"the driver ended before anything stopped at {place}"
            raise ChildFailedError(msg)
        if time.monotonic() > deadline:
            msg = f"nothing stopped at {place} within {timeout_s:g} s: the job hangs, or this machine is too slow for the demo"
            raise ChildFailedError(msg)
        time.sleep(LOOK_EVERY_S)


class Story:
    """One run: its children, and what they reported.

    Of the drivers, one for each kill and one to the end, the next one always stands by: its session, which takes longer to start than
    some weeks take to be replayed, is there when its turn comes.
    """

    def __init__(self, places: Places, weeks: int, kills: Sequence[PlannedKill], progress: Progress) -> None:
        self.places, self.weeks, self.kills, self.progress = places, weeks, kills, progress
        self.result = Result(weeks=weeks)
        self._week = 0
        self._turn = 0  # of the driver that stands by
        self._standby: Child | None = None

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.result.seconds[what] = round(time.monotonic() - started, 1)

    def stand_by(self) -> None:
        """Start the driver whose turn is next, if there is one."""
        kills = [["--stop", kill.place, "--in-week", str(kill.week)] for kill in self.kills]
        if self._turn <= len(kills):
            stop = [*kills, []][self._turn]
            self._standby = self._child("driver", ["--weeks", str(self.weeks), "--turn", str(self._turn), *stop])

    def end(self) -> None:
        """Nobody stands by any more."""
        if self._standby is not None:
            self._standby.kill()

    def replay(self) -> Child:
        """Every week once, through all kills. Returns the checker, whose session starts alongside the last weeks."""
        cleaner = self._child("cleaner", [])
        try:
            for kill in self.kills:
                cleaner = self._drive_and_kill(kill, cleaner)
            checker = self._child("checker", ["--weeks", str(self.weeks)])
            try:
                self._drive()
                (self.places.root / ENOUGH).touch()
                cleaner.wait(TIMEOUT_S)
            except BaseException:
                checker.kill()
                raise
            return checker
        finally:
            cleaner.kill()

    def clean(self) -> None:
        self.progress(self._week, "vacuum, scrub, verify")
        with open_catalog(self.places.catalog) as catalog:
            clean_up(catalog, self.result)
            read_back(catalog, self.result)

    def compare(self, checker: Child) -> None:
        self.progress(self._week, "comparing with a plain aggregation")
        (self.places.root / CLEANED).touch()
        self._run_to_end(checker)

    def _drive_and_kill(self, kill: PlannedKill, cleaner: Child) -> Child:
        """Run the driver to the place and kill it there, with the vacuum if that one stopped; returns the cleaner that runs now."""
        driver = self._take_turn()
        try:
            wait_until_reached(self.places.stops, kill.place, driver, cleaner)
        finally:
            processes = driver.kill()
        self.places.stops.disarm(kill.place)
        if kill.place == DELETION:
            processes += cleaner.kill()
            cleaner = self._child("cleaner", [])
        self.result.kills.append(Kill(place=kill.place, week=self._week, processes=processes, resumed_week=0))
        self.progress(self._week, f"killed during {kill.place} in week {self._week}; starting again")
        return cleaner

    def _take_turn(self) -> Child:
        """The driver that stood by, which goes on; another one stands by from here."""
        assert self._standby is not None
        driver, self._standby = self._standby, None
        self.places.turn(self._turn).touch()
        self._turn += 1
        self.stand_by()
        return driver

    def _drive(self) -> None:
        self._run_to_end(self._take_turn())

    def _run_to_end(self, child: Child) -> None:
        try:
            child.wait(TIMEOUT_S)
        finally:
            child.kill()

    def _child(self, name: str, arguments: list[str]) -> Child:
        return Child(f"holdfast.demo.{name}", [str(self.places.root), *arguments], self.places.logs / f"{name}.log", self._hear)

    def _hear(self, event: Event) -> None:
        """What children report, from their threads: each kind comes from one child at a time."""
        match event["event"]:
            case "resumed" if self.result.kills:
                self.result.kills[-1] = replace(self.result.kills[-1], resumed_week=event["week"] + 1)
            case "writing":
                self._week = event["week"]
                self.progress(self._week, "")
            case "vacuumed":
                self.result.vacuums += 1
                self.result.vacuumed_files += event["files"]
                self.result.vacuumed_bytes += event["size_bytes"]
                self.result.taken_over_files += event["taken_over"]
            case "compared":
                self.result.compared.append({key: value for key, value in event.items() if key != "event"})
            case "restored":
                self.result.restored.append({key: value for key, value in event.items() if key != "event"})
            case "forked":
                self.result.forked = {key: value for key, value in event.items() if key != "event"}
            case "counted":
                self.result.counted_flights, self.result.plain_flights = event["flights"], event["plain_flights"]
                self.result.last_week = event["week"]
            case "spark_sql":
                self.result.spark_costs = event["rows"]
