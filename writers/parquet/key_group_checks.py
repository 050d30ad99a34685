"""Files of rows are looked at before they are read in a way that a writer got wrong: by key groups, or not by Spark.

See `catalog.file_checks`. Only states that a known fault can have touched are asked: of all others this costs nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.catalog import paths
from holdfast.catalog.errors import CorruptionError, DamagedFileError, FormatError, RefusedError
from holdfast.catalog.facts import CheckpointCommitted
from holdfast.catalog.file_checks import RowsOf, calendar_problem, edge_problem, files_of_rows, rows_of
from holdfast.catalog.manifest_store import load_committed
from holdfast.catalog.storage import Storage, StoredObject
from holdfast.catalog.types import StateInfo
from holdfast.writers.parquet.few_files import are_few, in_threads
from holdfast.writers.parquet.layout import Part, footer_of, parts_of
from holdfast.writers.parquet.plan import ReadPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows_of_live(storage: Storage, live: Iterable[CheckpointCommitted]) -> dict[str, RowsOf]:
    """The files of rows in the catalog that these checkpoints have, by path. None of a manifest that cannot be read."""
    found: dict[str, RowsOf] = {}
    for fact in live:
        if not paths.is_address(fact.path):
            try:
                manifest = load_committed(storage, fact)
            except (DamagedFileError, FormatError, OSError):
                continue
            below = f"{paths.parent(fact.path)}/" if fact.is_savepoint else ""
            found.update({f"{below}{path}": rows for path, rows in files_of_rows(manifest).items()})
    return found


def is_by_groups(plan: ReadPlan) -> bool:
    """Whether rows are left out by their key groups."""
    return any(scan.groups is not None for scan in (*plan.base, *plan.upserts, *plan.deletes))


def require_right_groups(
    spark: "SparkSession", storage: Storage, info: StateInfo, plan: ReadPlan, sizes: Mapping[str, int], max_parallelism: int
) -> None:
    """Look at the first and the last row of each row group of the plan: executors do, or this process where the files are few.

    Raises CorruptionError for one in a wrong group.
    """
    if are_few([StoredObject(path=path, size_bytes=sizes[path]) for path in plan.parts]):
        require_right_groups_here(storage, info, plan, sizes, max_parallelism)
        return
    look = partial(_edges, storage, rows_of(info, max_parallelism, f"state {info.state!r}"), plan.parts, sizes)
    if files := [*plan.parts]:
        numbers = spark.range(0, len(files), 1, len(files))
        found = numbers.mapInArrow(partial(_in_task, look, files), "problem string").collect()
        _refuse(storage, [row.problem for row in found])


def require_right_groups_here(storage: Storage, info: StateInfo, plan: ReadPlan, sizes: Mapping[str, int], max_parallelism: int) -> None:
    """As `require_right_groups`, in threads of this process."""
    look = partial(_edges, storage, rows_of(info, max_parallelism, f"state {info.state!r}"), plan.parts, sizes)
    _refuse(storage, _in_threads(look, plan.parts))


def require_calendar(storage: Storage, info: StateInfo, plan: ReadPlan, max_parallelism: int) -> None:
    """For readers other than Spark's own. Raises RefusedError if a file has dates in the old calendar, which these do not know."""
    rows = rows_of(info, max_parallelism, f"state {info.state!r}")
    if rows.has_times:
        problems = _in_threads(lambda path: calendar_problem(footer_of(storage, path), rows), plan.parts)
        if problems:
            raise RefusedError(problems[0])


def _edges(storage: Storage, rows: RowsOf, parts: Mapping[str, Sequence[Part]], sizes: Mapping[str, int], path: str) -> str | None:
    wanted = {(part.offset_bytes, part.length_bytes) for part in parts[path]}
    row_groups = None
    if wanted != {(0, sizes[path])}:
        laid_out = parts_of(footer_of(storage, path), sizes[path])
        row_groups = [i for i, part in enumerate(laid_out) if part.rows is not None and (part.offset_bytes, part.length_bytes) in wanted]
    problem = edge_problem(storage, path, rows, row_groups)
    return None if problem is None else f"{path}: {problem}"


def _in_task(look: Callable[[str], str | None], files: Sequence[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        problems = [problem for number in batch.column(0).to_pylist() if (problem := look(files[number]))]
        yield pa.RecordBatch.from_pydict({"problem": pa.array(problems, pa.string())})


def _in_threads(look: Callable[[str], str | None], files: Iterable[str]) -> list[str]:
    return [problem for problem in in_threads(look, files) if problem]


def _refuse(storage: Storage, problems: Sequence[str]) -> None:
    if problems:
        more = f" ({len(problems) - 1} more files of this state are like it)" if problems[1:] else ""
        msg = f"{problems[0]}{more}, in {storage.address}: nothing was read"
        raise CorruptionError(msg)
