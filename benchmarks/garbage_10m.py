"""`garbage_10m`: a vacuum of four million files in a ledger of ten million references, against DuckDB and Parquet written by hand.

`decide` is the question of `garbage`, at ten times its size: ours with its connection and views, by hand one query with a connection of its
own, both as columns in the order of paths. By hand it is not the query of `garbage`: that looks first which files are there, in a ledger of
which most are gone, and here took three times as long and 10 GB. The digests of the ledger's files, and the look for words that this version
does not know, which by hand nobody asks for, are apart: `hashing` is the first alone, `whole` all that a vacuum waits for. By hand DuckDB
takes what memory it likes.
`cycle` goes on from there: condemn, forget. Ours is the vacuum itself, over a storage that deletes nothing (`delete` measures that). By hand
the same rows go into as many Parquet files, in the same order, each synced, then its directory, then an entry of some bytes that names it,
and its directory: what a commit has to do. Neither is measured with the digests.
`memory` is the peak of a process that does our cycle, digests included.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks.garbage import KEPT, by_hand, hash_all, query, require_equal
from benchmarks.harness import Result, interleave, own_peak_kb, ratio, seconds, spread, tell
from benchmarks.ledger_facts import Size, write_ledger
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.storage.memory import MemoryStorage
from holdfast.catalog.transactions import Transactor
from holdfast.compaction.garbage import Garbage
from holdfast.compaction.queries import SqlQueries
from holdfast.compaction.vacuum import batch_size, plan_vacuum, run_vacuum

BY_HAND = f"""
WITH facts AS NOT MATERIALIZED (FROM read_parquet($files, union_by_name = true)),
small AS MATERIALIZED (
  SELECT kind, job_id, seq, attempt, checkpoint_id, parent_job_id, parent_checkpoint_id, hold FROM facts
  WHERE kind IN ('checkpoint', 'drop', 'attempt_opened', 'attempt_ended', 'hold', 'unhold')
),
{KEPT}next_kept AS (
  SELECT b.job_id, b.from_seq, k.seq
  FROM (SELECT DISTINCT job_id, from_seq FROM facts WHERE kind = 'handle') b
  ASOF JOIN kept k ON k.job_id = b.job_id AND k.seq >= b.from_seq
),
used AS (
  SELECT h.file_id FROM facts h
  LEFT JOIN facts e ON e.kind = 'handle_end' AND e.job_id = h.job_id AND e.file_id = h.file_id
    AND e.offset_bytes = h.offset_bytes AND e.from_seq = h.from_seq
  JOIN next_kept n ON n.job_id = h.job_id AND n.from_seq = h.from_seq
  WHERE h.kind = 'handle' AND n.seq < coalesce(h.to_seq, e.to_seq, 9223372036854775807)
),
taken AS (SELECT file_id, bool_or(kind = 'gone') AS gone FROM facts WHERE kind IN ('condemned', 'gone') GROUP BY file_id)
SELECT t.file_id IS NOT NULL AS condemned, f.file_id, f.job_id, f.path, f.size_bytes
FROM facts f LEFT JOIN taken t ON t.file_id = f.file_id
WHERE f.kind = 'file' AND f.scope <> 'TASKOWNED'
  AND CASE WHEN t.file_id IS NULL THEN NOT EXISTS (FROM used u WHERE u.file_id = f.file_id) ELSE NOT t.gone END
ORDER BY condemned, path
"""

LARGE = Size(jobs=20, checkpoints=2_500, handles=200, files=100, vacuumed=400)
ROUNDS = 5
AT_MOST = 1.3
MEMORY_BYTES = 4_000_000_000


def run(scratch: Path, size: Size = LARGE, rounds: int = ROUNDS) -> list[Result]:
    """`decide`, `cycle` and `memory`."""
    tell(f"garbage_10m: writing a ledger of {size.references:,} references")
    ledger = scratch / "ledger"
    written_s = seconds(lambda: write_ledger(ledger, size))
    files = DeltaTable(ledger).file_uris()
    sizes = {"references": size.references, "data_files": len(files), "bytes": sum(os.path.getsize(each) for each in files)}
    peak = _peak_bytes(_copy(ledger, scratch / "memory"))
    return [
        _decide(ledger, files, rounds, {**sizes, "written_s": round(written_s, 1)}),
        _cycle(ledger, files, rounds, scratch, sizes),
        Result(
            benchmark="garbage_10m", measures="memory", ratio=round(peak / MEMORY_BYTES, 3), at_most=1.0, figures={"bytes": peak, **sizes}
        ),
    ]


def _decide(ledger: Path, files: Sequence[str], rounds: int, sizes: Mapping[str, float]) -> Result:
    found = SqlQueries.at(str(ledger)).garbage()
    require_equal(found, by_hand(files, BY_HAND))
    counts = {"unreferenced": len(found.unreferenced), "condemned": len(found.condemned)}
    del found
    opened = DeltaLedger.open(ledger)
    taken = interleave(
        {
            "hashing": lambda _: seconds(lambda: hash_all(files)),
            "whole": lambda _: seconds(SqlQueries.at(str(ledger)).garbage),
            "holdfast": lambda _: seconds(lambda: plan_vacuum(query(opened))),
            "by_hand": lambda _: seconds(lambda: by_hand(files, BY_HAND)),
        },
        rounds,
        what="garbage_10m decide",
    )
    return Result(
        benchmark="garbage_10m",
        measures="decide",
        ratio=ratio(taken["holdfast"], taken["by_hand"]),
        at_most=AT_MOST,
        figures={
            **{name: spread(each) for name, each in taken.items()},
            "whole_ratio": ratio(taken["whole"], taken["by_hand"]),
            **counts,
            **sizes,
        },
    )


def _cycle(ledger: Path, files: Sequence[str], rounds: int, scratch: Path, sizes: Mapping[str, float]) -> Result:
    commits: dict[str, int] = {}

    def ours(n: int) -> float:
        copy = _copy(ledger, scratch / f"ours-{n}")
        before = DeltaLedger.open(copy).version
        taken = seconds(lambda: vacuum(copy))
        commits["holdfast"] = DeltaLedger.open(copy).version - before
        if n == 0:
            _require_clean(SqlQueries.at(str(copy)).garbage())
        shutil.rmtree(copy)
        return taken

    def theirs(n: int) -> float:
        place = scratch / f"by-hand-{n}"
        (place / "log").mkdir(parents=True)
        taken = seconds(lambda: _vacuum_by_hand(files, place))
        commits["by_hand"] = len(os.listdir(place / "log"))
        shutil.rmtree(place)
        return taken

    taken = interleave({"holdfast": ours, "by_hand": theirs}, rounds, what="garbage_10m cycle")
    figures = {**{name: spread(each) for name, each in taken.items()}, "commits": commits, **sizes}
    return Result(
        benchmark="garbage_10m", measures="cycle", ratio=ratio(taken["holdfast"], taken["by_hand"]), at_most=AT_MOST, figures=figures
    )


class DeletesNothing(MemoryStorage):
    """A storage on which every deletion succeeds at once."""

    def delete_many(self, paths: Collection[str]) -> Mapping[str, OSError]:
        return {}

    def remove_empty_directories(self, paths: Collection[str]) -> Mapping[str, OSError]:
        return {}


def vacuum(ledger: Path) -> None:
    """Ours, without the digests: its files were verified, or are verified by the caller."""
    opened, environment = DeltaLedger.open(ledger), SystemEnvironment()
    plan = plan_vacuum(query(opened))
    run_vacuum(plan, Transactor(opened, environment), DeletesNothing(), environment)


def vacuum_and_tell_peak(ledger: str) -> None:
    """As a vacuum does it, for a process of its own: with the digests. Prints the peak of its memory, in bytes."""
    SqlQueries.at(ledger).garbage()
    vacuum(Path(ledger))
    print(own_peak_kb() * 1024)


def _peak_bytes(ledger: Path) -> int:
    program = "import sys; from benchmarks.garbage_10m import vacuum_and_tell_peak; vacuum_and_tell_peak(sys.argv[1])"
    told = subprocess.run([sys.executable, "-c", program, str(ledger)], capture_output=True, check=True, text=True).stdout
    return int(told.split()[-1])  # DuckDB draws its progress before it, in a program that is no file


def _copy(ledger: Path, place: Path) -> Path:
    """A ledger of its own, in no time: no file of a ledger is written twice."""
    shutil.copytree(ledger, place, copy_function=os.link)
    return place


def _vacuum_by_hand(files: Sequence[str], place: Path) -> None:
    """As many commits as ours, of the same rows: each condemns a batch and forgets the one before."""
    found = by_hand(files, BY_HAND)
    found = pa.concat_tables([found.filter(found["condemned"]), found.filter(pc.invert(found["condemned"]))])
    size, gone = batch_size(found.num_rows), found.slice(0, 0)
    for n, first in enumerate(range(0, found.num_rows + size, size)):
        batch = found.slice(first, size)
        new = batch.filter(pc.invert(batch["condemned"]))
        if rows := [*_facts("gone", gone), *_facts("condemned", new)]:
            _commit(place, n, pa.concat_tables(rows))
        gone = batch


def _facts(kind: str, files: pa.Table) -> Sequence[pa.Table]:
    if not files.num_rows:
        return []
    said = {"kind": kind, "operation_id": "0123456789abcdef", "at": datetime.now(UTC), "by": "by hand", "run_id": "fedcba9876543210"}
    constants = {name: pa.repeat(pa.scalar(value), files.num_rows) for name, value in said.items()}
    return [pa.table({**constants, "job_id": files["job_id"], "file_id": files["file_id"]})]


def _commit(place: Path, n: int, rows: pa.Table) -> None:
    data, entry = place / f"{n:020}.parquet", place / "log" / f"{n:020}.json"
    pq.write_table(rows, data)
    _sync(data)
    _sync(place)
    entry.write_text(json.dumps({"add": {"path": data.name, "size": data.stat().st_size, "numRecords": rows.num_rows}}))
    _sync(entry)
    _sync(entry.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _require_clean(left: Garbage) -> None:
    if left.unreferenced or left.condemned:
        msg = f"the vacuum has left {len(left.unreferenced)} files unreferenced and {len(left.condemned)} condemned"
        raise AssertionError(msg)
