"""Printing: what an operation found or did, as text for people or as one JSON value for programs."""

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING, Any

from holdfast.catalog.errors import UsageError
from holdfast.catalog.texts import escaped

if TYPE_CHECKING:  # the command line prints its help by this module, and needs no engine for that
    import duckdb

    from holdfast.catalog.storage import StoredObject
    from holdfast.catalog.upgrade import UpgradeReport
    from holdfast.compaction.garbage import GarbageFile
    from holdfast.compaction.scrub import ScrubReport
    from holdfast.compaction.upkeep import UpkeepReport
    from holdfast.compaction.vacuum import VacuumReport
    from holdfast.compaction.verify import VerifyReport
    from holdfast.facade import Catalog
    from holdfast.past import PastCatalog
    from holdfast.writers.savepoints.outside import Disposal

_SPACE = r"(?:\s|--[^\n]*\n|/\*.*?\*/)"
EXPLAIN = re.compile(rf"{_SPACE}*EXPLAIN\b({_SPACE}+ANALYZE\b)?({_SPACE}*\(({_SPACE}*(ANALYZE|FORMAT\s+\w+)\s*,?)+\))?", re.I | re.S)
SHOWN_FILES = 20
MAX_CELL = 60


def print_json(value: Any) -> None:
    """One line of JSON on standard output, which every parser takes; in ASCII where the output's encoding lacks a character."""
    whole = plain(value)
    text = json.dumps(whole, ensure_ascii=False, allow_nan=False)
    if text != _encodable(text):
        text = json.dumps(whole, allow_nan=False)
    print(text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text))


def print_lines(lines: Iterable[str]) -> None:
    """Each as one line: names, notes and paths are other people's, and a terminal would act on what is in them. What the output's
    encoding lacks is shown as an escape."""
    for line in lines:
        print(_encodable(escaped(line)))


def plain(value: Any) -> Any:
    """A value as JSON holds it: dataclasses as objects, times as ISO 8601, bytes as hex.

    Whole decimals (what `sum` gives) are integers and others their digits as text, so that nothing is rounded; what is not finite is null.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes | bytearray):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, Decimal | float):
        return _number(value)
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def upgrade_lines(report: "UpgradeReport") -> Iterator[str]:
    """What an upgrade came to."""
    if report.was == report.is_now:
        yield f"catalog {report.catalog_id} has format {report.is_now} already, in {report.ledger}/"
        return
    yield f"catalog {report.catalog_id} has format {report.is_now} now: {report.ledger}/ is its ledger, {report.history}/ its history"
    if report.facts:
        yield f"{report.facts} facts are in the history, {report.kept_facts} of them in the ledger"
    else:
        yield "an earlier upgrade had done all but the last step"
    yield f"{report.old_ledger}/ is closed; delete it once no program of the older version runs"


def ask(catalog: "Catalog | PastCatalog", query: str, values: Sequence[Any] = ()) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Names of columns, each another, and rows of one query on the catalog's views.

    Raises:
        UsageError: the query is wrong, or does something else than read: nothing was run.
    """
    import duckdb

    with catalog.duckdb() as connection:
        try:
            _require_reading(connection, query)
            # By Arrow: DuckDB's own way to Python objects needs pytz for times, which not every host has.
            table = connection.execute(query, list(values)).to_arrow_table()
        except duckdb.InterruptException as error:
            raise KeyboardInterrupt from error
        except duckdb.Error as error:
            msg = f"the query failed: {error}"
            raise UsageError(msg) from error
    return distinct(table.column_names), list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def is_interrupt(error: Exception) -> bool:
    """Whether this is how DuckDB reports a Ctrl-C that came while it ran a query."""
    return isinstance(error, RuntimeError) and str(error) == "Query interrupted"


def distinct(names: Sequence[str]) -> list[str]:
    """The names, with _2, _3, ... behind those that came before: as keys of an object none hides another."""
    found: list[str] = []
    for name in names:
        suffixed = (f"{name}_{n}" for n in count(2))
        found.append(name if name not in found else next(new for new in suffixed if new not in found and new not in names))
    return found


def checkpoints_query(*, also_dropped: bool) -> str:
    """Of one job or (null) of all, its name given twice. Live ones are in the ledger, so that the history is not read for them."""
    from holdfast.catalog.views.definitions import CHECKPOINTS_OF_LEDGER

    checkpoints = "checkpoints" if also_dropped else f"({CHECKPOINTS_OF_LEDGER})"
    return f"""
        SELECT job, checkpoint_id, status, is_savepoint, name, committed_at, handles, total_bytes, new_bytes,
            total_bytes - new_bytes AS carried_bytes, progress
        FROM {checkpoints}
        WHERE ({also_dropped} OR status = 'live') AND (? IS NULL OR job = ?)
        ORDER BY job, checkpoint_id
    """


NO_JOBS = "no jobs yet: the first catalog.coordinate(...) of a program registers one"

READERS_QUERY = """
    SELECT j.job, r.checkpoint_id, r.attempt, r.opened_by, r.since, r.process, r.job_id
    FROM readers r JOIN jobs j ON j.job_id = r.job_id
    ORDER BY r.since
"""


OWNERS_QUERY = """
    SELECT job, owner, files, total_bytes, referenced_files, opened_at, opened_by, process, attempt, job_id
    FROM owners
    ORDER BY job, owner
"""


def disposal_lines(disposal: "Disposal", job: str) -> Iterator[str]:
    from holdfast.writers.savepoints.outside import Found

    yield f"disposed of savepoint {disposal.name!r} of job {job!r}"
    what = f"deleted {counted(disposal.deleted_files, 'file')} in {disposal.path}"
    yield {
        Found.IN_CATALOG: f"its files in {disposal.path} are deleted by the next vacuum",
        Found.WHOLE: what,
        Found.DAMAGED: f"its _metadata was lost or damaged: {what}, all that was under the savepoint's own names",
        Found.ABSENT: f"nothing was at {disposal.path}: it had been deleted or moved; what was moved is left to you",
    }[disposal.found]


def vacuum_lines(report: "VacuumReport", *, dry_run: bool) -> Iterator[str]:
    files = report.plan.files
    if dry_run:
        yield f"would delete {counted(len(files), 'file')}, {bytes_text(report.plan.size_bytes)}"
        yield from _file_lines(files)
        return
    yield f"deleted {counted(report.deleted_files, 'file')}, {bytes_text(report.deleted_bytes)}"
    yield from _failure_lines(report.failed)


def upkeep_lines(report: "UpkeepReport") -> Iterator[str]:
    """What upkeep did."""
    if report.vacuum is not None:
        yield from vacuum_lines(report.vacuum, dry_run=False)
    if report.fold.is_folded:
        yield f"folded {counted(report.fold.rows_before, 'fact')} of the ledger into {report.fold.rows_after}"
    else:
        yield "nothing to fold: no commit since the last one, or another process folds now"
    tidied = report.tidied
    yield f"deleted {counted(tidied.entries, 'commit')} of the log and {counted(tidied.data_files, 'data file')} of the ledger"


def scrub_lines(report: "ScrubReport", *, dry_run: bool) -> Iterator[str]:
    plan = report.plan
    if dry_run:
        yield f"would delete {counted(len(plan.orphans), 'file')}, {bytes_text(sum(stored.size_bytes for stored in plan.orphans))}"
        yield from _file_lines(plan.orphans)
    else:
        yield f"deleted {counted(report.deleted_files, 'file')}, {bytes_text(report.deleted_bytes)}"
    yield f"known {plan.known_objects}, in flight {plan.in_flight.count}, foreign {plan.foreign.count}, unknown {plan.unknown.count}"
    if plan.foreign.count:
        yield "foreign, never touched:"
        yield from _file_lines(plan.foreign.shown, plan.foreign.count)
    if plan.unknown.count:
        yield "of attempts that the ledger never knew (was it restored from a backup?):"
        yield from _file_lines(plan.unknown.shown, plan.unknown.count)
    yield from _failure_lines(report.failed)


def verify_lines(report: "VerifyReport") -> Iterator[str]:
    yield (
        f"read {counted(report.files, 'file')}, {bytes_text(report.size_bytes)}, of {counted(report.checkpoints, 'live checkpoint')}: "
        f"{len(report.damages) or 'no'} damaged"
    )
    yield f"and the ledger's own {counted(report.ledger_files, 'file')}, {bytes_text(report.ledger_bytes)}"
    for damage in report.damages:
        yield f"  {damage.path}: {damage.what}"


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Aligned columns, numbers to the right; long values are cut."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(columns)]
    right = [bool(rows) and all(isinstance(row[i], int | float | Decimal | None) for row in rows) for i in range(len(columns))]

    def line(values: Sequence[str]) -> str:
        return "  ".join(v.rjust(w) if r else v.ljust(w) for v, w, r in zip(values, widths, right, strict=True)).rstrip()

    return [line(columns), *(line(row) for row in cells)]


def bytes_text(count: int) -> str:
    """A size for people: 512 B, 1.5 kB, 12.0 MB."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@contextmanager
def progress_bar(what: str) -> Iterator[Any]:
    """Gives a function (done, total) -> None that shows progress on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)

        def show(done: int, total: int, text: str | None = None) -> None:
            progress.update(task, completed=done, total=total, description=escaped(f"{what}: {text}") if text else what)

        yield show


def _encodable(text: str) -> str:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _require_reading(connection: "duckdb.DuckDBPyConnection", query: str) -> None:
    """Raises UsageError for what is not one statement that reads: COPY would write a file, ATTACH open another database."""
    statements = connection.extract_statements(query)
    if len(statements) != 1:
        msg = f"give one statement; this is {len(statements) or 'none'}"
        raise UsageError(msg)
    if not _reads(connection, query):
        msg = f"only SELECT, DESCRIBE, SHOW and SUMMARIZE, and EXPLAIN of those, are run here: this {statements[0].type.name} is not"
        raise UsageError(msg)


def _reads(connection: "duckdb.DuckDBPyConnection", query: str) -> bool:
    """Whether the text is one statement that reads. DuckDB calls DESCRIBE, SHOW, SUMMARIZE, VALUES and FROM a SELECT too."""
    import duckdb

    statements = connection.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.EXPLAIN:
        return [statement.type for statement in statements] == [duckdb.StatementType.SELECT]
    explained = EXPLAIN.match(query)  # EXPLAIN ANALYZE runs what it explains
    return explained is not None and _reads(connection, query[explained.end() :])


def _number(value: Decimal | float) -> int | float | str | None:
    if not math.isfinite(value):
        return None  # JSON has no word for it
    if isinstance(value, float):
        return value
    return int(value) if int(value.as_tuple().exponent) >= 0 else str(value)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        text = value.isoformat(sep=" ", timespec="seconds")
    else:
        text = str(value if isinstance(value, float) else plain(value))  # people may read nan
    text = " ".join(text.split())
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 3] + "..."


def _file_lines(files: "Sequence[GarbageFile | StoredObject]", count: int | None = None) -> Iterator[str]:
    """The first of these files; `count` is how many there are where not all are given."""
    for file in files[:SHOWN_FILES]:
        yield f"  {file.path}  {bytes_text(file.size_bytes)}"
    if (total := len(files) if count is None else count) > SHOWN_FILES:
        yield f"  and {total - SHOWN_FILES} more (--json names {'all' if total == len(files) else f'{len(files):,}'})"


def _failure_lines(failed: Sequence[str]) -> Iterator[str]:
    for failure in failed:
        yield f"  not deleted: {failure}"
