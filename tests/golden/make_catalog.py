"""Write the golden catalog of the current format, once: `python -m tests.golden.make_catalog`. What is there is never written again.

`catalog-<n>/catalog` is whole (ledger, files, marker), with five jobs, as a machine leaves it that lost its power: a checkpoint was being
written, another read. In `expected.json` is what each view says, and what each live checkpoint's states hold.
"""

import contextlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast.catalog import VERSION, process_identity
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.schema import FORMAT_VERSION
from holdfast.opening import open_catalog
from tests.golden.make import in_order, plain_bytes, rows_of
from tests.support.spark_support import build_session, session_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parent
NOBODY = SystemEnvironment(actor=f"golden@golden holdfast/{VERSION}")
LARGE = bytes(range(256)) * 100  # a file of its own; what is smaller is inline


def main() -> None:
    """Raises FileExistsError where the current format has its golden catalog."""
    target = GOLDEN / f"catalog-{FORMAT_VERSION}"
    if target.exists():
        msg = f"{target} is there, and golden files are never written again: they are what that version wrote"
        raise FileExistsError(msg)
    spark = build_session("local[2]")
    with tempfile.TemporaryDirectory() as directory, session_settings(spark, {"spark.sql.session.timeZone": "UTC"}):
        made = Path(directory) / "made"
        process_identity._this_host = lambda: "golden/1/golden"  # else what is open here would be open for ever elsewhere, and end here
        write(spark, Path(directory) / "catalog", made / "catalog")
        (made / "expected.json").write_text(_as_lines(expected_of(made / "catalog")))
        shutil.copytree(made, target, ignore=shutil.ignore_patterns("*.crc"))
    spark.stop()
    print(f"{target}: {sum(path.stat().st_size for path in target.rglob('*') if path.is_file())} bytes")


def write(spark: "SparkSession", root: Path, made: Path) -> None:
    """Make the catalog at `root`; a copy of it, taken in the middle of things, is `made`."""
    with open_catalog(root, create=True, environment=NOBODY) as catalog:
        _flights(spark, catalog)
        _owner(catalog)
        catalog.upkeep()  # a history, a ledger that was folded, and what came since
        _others(spark, catalog)
        with contextlib.ExitStack() as at_the_end:
            reading = at_the_end.enter_context(catalog.checkpoint("flights"))
            assert reading.is_pinned
            job = at_the_end.enter_context(catalog.coordinate("flights", retention=holdfast.KeepLast(2)))
            checkpoint = at_the_end.enter_context(job.checkpoint({"week": 99}))
            checkpoint.write_bytes("large", LARGE[::-1])  # uploaded, and in no row
            shutil.copytree(root, made)


def _flights(spark: "SparkSession", catalog: holdfast.Catalog) -> None:
    """DataFrames with change sets, small and large bytes; savepoints; a hold, a rollback, a vacuum and what was dropped since."""
    with catalog.coordinate("flights", max_parallelism=16, retention=holdfast.KeepLast(2)) as job:
        for week in range(1, 7):
            with job.checkpoint({"week": week}) as checkpoint:
                rows = spark.sql(f"SELECT 'N' || id AS tailnum, id * {week} AS flights FROM range(12)").coalesce(1)
                if week == 1:
                    checkpoint.write("per_aircraft", rows, key=["tailnum"])
                else:
                    checkpoint.write_changes("per_aircraft", rows.limit(2), key=["tailnum"])
                if week % 2:
                    checkpoint.write_bytes("large", LARGE + bytes([week]))
                if week < 6:
                    checkpoint.write_bytes("offsets", b"week %d" % week)
            if week == 2:
                catalog.hold("flights", 2, "audit", "for the auditors")
                job.savepoint("kept", spark=spark)
                job.savepoint("disposed", spark=spark)
            if week == 4:
                catalog.dispose("flights", "disposed")
                catalog.vacuum()
        latest = job.latest()
        assert latest is not None
        newest = latest.checkpoint_id
    catalog.hold("flights", newest, "for a day")
    catalog.unhold("flights", newest, "for a day")
    with catalog.coordinate("flights", start=_before(catalog, newest), retention=holdfast.KeepLast(2)) as job:
        with job.checkpoint({"week": "5 again"}) as checkpoint:
            checkpoint.write_bytes("offsets", b"rolled back")


def _before(catalog: holdfast.Catalog, newest: int) -> int:
    query = (
        "SELECT max(checkpoint_id) FROM checkpoints WHERE job = 'flights' AND NOT is_savepoint AND status = 'live' AND checkpoint_id < ?"
    )
    (found,) = catalog.duckdb().execute(query, [newest]).fetchall()
    return int(found[0])


def _owner(catalog: holdfast.Catalog) -> None:
    """An open owner, of whose files one was released and one is referred to; and one that was released whole."""
    with catalog.coordinate("logs", retention=holdfast.KeepLast(1)) as job:
        wal, gone = catalog.own("logs", "wal-0"), catalog.own("logs", "wal-1")
        first, second = wal.write("segment-0", b"zero" * 100), wal.write("segment-1", b"one" * 100)
        with job.checkpoint() as checkpoint:
            checkpoint.task_owned(wal, [first, second])
            checkpoint.task_owned(gone, [gone.write("segment-0", b"of the other")])
        catalog.release("logs", "wal-0", [first])
        with job.checkpoint() as checkpoint:
            checkpoint.task_owned(wal, [second])
        catalog.release("logs", "wal-1")


def _others(spark: "SparkSession", catalog: holdfast.Catalog) -> None:
    """A fork, which has its own checkpoints; a job that claimed another, which had ended."""
    fork = f"{catalog.address}/jobs/{_job_id(catalog, 'flights')}/chk-{_head(catalog, 'flights')}"
    with catalog.coordinate("what-if", start=fork, mode="fork", retention=holdfast.KeepLast(2)) as job:
        for n in range(3):
            with job.checkpoint({"n": n}) as checkpoint:
                checkpoint.write_changes("per_aircraft", spark.sql(f"SELECT 'N{n}' AS tailnum, -1L AS flights"), key=["tailnum"])
    with catalog.coordinate("old", retention=holdfast.KeepAll()) as job:
        for n in range(2):
            with job.checkpoint({"n": n}) as checkpoint:
                checkpoint.write_bytes("count", b"%d" % n)
        job.end("finished", "done")
    claim = f"{catalog.address}/jobs/{_job_id(catalog, 'old')}/chk-{_head(catalog, 'old')}"
    with catalog.coordinate("new", start=claim, mode="claim", retention=holdfast.KeepLast(1)) as job, job.checkpoint() as checkpoint:
        checkpoint.write_bytes("more", LARGE)


def _job_id(catalog: holdfast.Catalog, job: str) -> str:
    return str(catalog.duckdb().execute("SELECT job_id FROM jobs WHERE job = ?", [job]).fetchall()[0][0])


def _head(catalog: holdfast.Catalog, job: str) -> int:
    return int(catalog.checkpoint(job).checkpoint_id)


def _as_lines(expected: dict[str, dict[str, Any]]) -> str:
    """JSON with a row of a view, and a checkpoint, on each line."""
    lines = []
    for part, content in expected.items():
        said = [f'  "{name}": {_rows_as_lines(rows) if isinstance(rows, list) else json.dumps(rows)}' for name, rows in content.items()]
        lines.append(f' "{part}": {{\n' + ",\n".join(said) + "\n }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _rows_as_lines(rows: list[Any]) -> str:
    return "[\n" + ",\n".join(f"   {json.dumps(row)}" for row in rows) + "\n  ]" if rows else "[]"


# ---- what a catalog says, as plain values ------------------------------------------------------------------------------------


def expected_of(root: Path) -> dict[str, Any]:
    """What `expected.json` says, of the catalog at this path. Reads pin, so it is asked of a copy."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "catalog"
        shutil.copytree(root, copy)
        with holdfast.open(copy) as catalog:
            return {"views": views_of(catalog), "states": states_of(catalog)}


def views_of(catalog: holdfast.Catalog | holdfast.PastCatalog) -> dict[str, list[dict[str, Any]]]:
    """The rows of every view, in order, but of the facts themselves."""
    with catalog.duckdb() as connection:
        query = "SELECT view_name FROM duckdb_views() WHERE NOT internal AND view_name NOT IN ('facts', 'all_facts') ORDER BY 1"
        names = [name for (name,) in connection.execute(query).fetchall()]
        return {name: rows_of(connection.sql(f"SELECT * FROM {name}").to_arrow_table()) for name in names}


def states_of(catalog: holdfast.Catalog) -> dict[str, Any]:
    """The content of every live checkpoint and savepoint, by job and number."""
    live = "SELECT job, checkpoint_id FROM checkpoints WHERE status = 'live' ORDER BY job, checkpoint_id"
    states = {}
    for job, number in catalog.duckdb().execute(live).fetchall():
        with catalog.checkpoint(job, number) as checkpoint:
            states[f"{job} {number}"] = {info.state: _content(checkpoint, info.state, info.format) for info in checkpoint.manifest.states}
    return states


def _content(checkpoint: holdfast.Checkpoint, state: str, kind: str) -> Any:
    if kind == "bytes":
        return plain_bytes(checkpoint.read_bytes(state))
    if kind == "files":
        return {file.name: plain_bytes(checkpoint.read_file(state, file.name)) for file in checkpoint.owned_files(state)}
    return in_order(rows_of(checkpoint.duckdb(state).to_arrow_table()))


if __name__ == "__main__":
    try:
        main()
    except FileExistsError as error:
        sys.exit(str(error))
