"""The end of the demo: what is left after everything was killed, cleaned and read back, and whether all of it is as it must be."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from holdfast.demo.flights import FLIGHTS, WEEKS
from holdfast.demo.movers import GROUNDED, SAVEPOINT_WEEK
from holdfast.demo.states import KEEP, PARTITIONS
from holdfast.demo.stops import DELETION, KILLS
from holdfast.demo.views import COSTS, PLAIN_COLUMNS
from holdfast.facade import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A SIGKILL: where, in which week, how many processes it ended, and with which week the next driver went on."""

    place: str
    week: int
    processes: int
    resumed_week: int


@dataclass(slots=True, kw_only=True)
class Result:
    """Everything that the demo saw. `problems` says what it must not have seen; empty if all is well."""

    flights: int = 0
    weeks: int = 0
    checkpoints: int = 0
    kills: list[Kill] = field(default_factory=list)
    vacuums: int = 0
    vacuumed_files: int = 0
    vacuumed_bytes: int = 0
    taken_over_files: int = 0
    orphans: int = 0
    orphan_bytes: int = 0
    foreign_files: int = 0
    left_orphans: int = 0
    verified_files: int = 0
    verified_bytes: int = 0
    damages: list[str] = field(default_factory=list)
    chk_directories: list[str] = field(default_factory=list)
    compared: list[dict[str, Any]] = field(default_factory=list)
    counted_flights: int = 0  # by the job, in its own state
    plain_flights: int = 0  # by Spark, in the input
    last_week: int = 0  # that the job says it has done
    costs: list[list[int]] = field(default_factory=list)
    spark_costs: list[list[int]] = field(default_factory=list)
    restored: list[dict[str, Any]] = field(default_factory=list)
    forked: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "cost_columns": list(PLAIN_COLUMNS), "problems": find_problems(self)}


def clean_up(catalog: Catalog, result: Result) -> None:
    """The last vacuum, and a scrub for what no row names; then a second look, which must find nothing."""
    vacuumed = catalog.vacuum()
    result.vacuums += 1
    result.vacuumed_files += vacuumed.deleted_files
    result.vacuumed_bytes += vacuumed.deleted_bytes
    result.taken_over_files += len(vacuumed.plan.condemned)
    scrubbed = catalog.scrub()
    result.orphans, result.orphan_bytes = scrubbed.deleted_files, scrubbed.deleted_bytes
    result.foreign_files = scrubbed.plan.foreign.count
    again = catalog.plan_scrub()
    result.left_orphans = len(again.orphans) + again.in_flight.count + len(again.directories) + len(catalog.plan_vacuum().unreferenced)


def read_back(catalog: Catalog, result: Result) -> None:
    """Every file of every live checkpoint by its digest, the directories that are left, and what each checkpoint cost."""
    verified = catalog.verify()
    result.verified_files, result.verified_bytes = verified.files, verified.size_bytes
    result.damages = [f"{damage.path}: {damage.what}" for damage in verified.damages]
    result.chk_directories = sorted(path.name for path in Path(catalog.address).glob("jobs/*/chk-*"))
    with catalog.duckdb() as connection:
        result.costs = [[int(value) for value in row] for row in connection.execute(COSTS).fetchall()]
        row = connection.execute("SELECT count(*) FROM checkpoints WHERE NOT is_savepoint").fetchone()
        result.checkpoints = int(row[0]) if row else 0


def find_problems(result: Result) -> list[str]:
    """What differs from what was promised, in words; nothing here forgives."""
    problems = list(result.damages)
    problems += [
        f"{state['state']} differs from the plain aggregation: {state}"
        for state in (*result.compared, *result.restored)
        if state["differences"] or state["rows"] != state["plain_rows"] or not state["rows"]
    ]
    expected = {
        "states compared": (len(result.compared), 2),
        "states restored elsewhere": (len(result.restored), 2 if result.weeks >= SAVEPOINT_WEEK else 0),
        "partitions of the fork": (result.forked.get("partitions"), result.forked.get("wanted_partitions", 2 * PARTITIONS)),
        "aircraft grounded by the fork": (result.forked.get("removed_rows"), GROUNDED),
        "checkpoints committed": (result.checkpoints, result.weeks),
        "places of the kills": ([kill.place for kill in result.kills], [kill.place for kill in KILLS]),
        "last week of the job": (result.last_week, result.weeks),
        "flights counted by the job": (result.counted_flights, result.flights),
        "flights counted by Spark": (result.plain_flights, result.flights),
        "flights of the input": (result.flights, FLIGHTS if result.weeks == WEEKS else result.flights),
        "chk-* directories": (len(result.chk_directories), KEEP),
        "live checkpoints": (len(result.costs), KEEP),
        "foreign files": (result.foreign_files, 0),
        "files left after vacuum and scrub": (result.left_orphans, 0),
        "what Spark SQL says": (result.spark_costs, result.costs),
    }
    problems += [f"{what}: {found}, not {wanted}" for what, (found, wanted) in expected.items() if found != wanted]
    if not result.forked.get("shared_bytes"):
        problems.append("the fork shared nothing")
    if not result.orphans:
        problems.append("scrub found nothing, although drivers were killed in the middle of their work")
    if not result.taken_over_files:
        problems.append("no vacuum took over a file, although one was killed between condemning files and reporting them gone")
    if not result.verified_files:
        problems.append("there was no file to verify")
    return problems + [problem for kill in result.kills for problem in _kill_problems(kill)]


def _kill_problems(kill: Kill) -> list[str]:
    """Kills of an upload and of a commit come before the ledger's commit: that week is lost. Beside a deletion it may have landed."""
    planned = {planned.place: planned.week for planned in KILLS}[kill.place]
    is_beside = kill.place == DELETION
    problems = []
    # The place is armed before the week is reported: a vacuum that deletes at that moment is killed in the week before.
    if kill.week < planned - is_beside or (kill.week > planned and not is_beside):
        problems.append(f"killed at {kill.place} in week {kill.week}, not {planned}")
    if kill.resumed_week not in ((kill.week, kill.week + 1) if is_beside else (kill.week,)):
        problems.append(f"killed at {kill.place} in week {kill.week}, the job continued with week {kill.resumed_week}")
    return problems
