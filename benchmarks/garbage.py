"""`garbage`: the cleanup query over a million references, against the same answer by DuckDB written by hand over the same Parquet files.

Ours is what a vacuum asks: `SqlQueries.garbage()`, with its connection and views, as columns. Before it asks, every file of the ledger is
held against its digest, which by hand nobody does: that is measured apart (`hashing`), and `with_hashing` is the ratio of both. By hand it is
one query for this one answer: the list of data files is known before, each relation projects its columns, only handles of files that are
still there are looked at, and kept checkpoints are found by an ASOF join; as columns too, in the same order, with a connection of its own.
Both answers must be equal, or the benchmark fails.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from benchmarks.harness import Result, interleave, ratio, seconds, spread, tell
from benchmarks.ledger_facts import Size, write_ledger
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.compaction import queries
from holdfast.compaction.garbage import Garbage, GarbageFiles
from holdfast.compaction.queries import SqlQueries

ROUNDS = 11
AT_MOST = 1.3

KEPT = """why AS (
  SELECT job_id, checkpoint_id FROM small c WHERE kind = 'checkpoint' AND NOT EXISTS (
    FROM small d WHERE d.kind = 'drop' AND d.job_id = c.job_id AND d.checkpoint_id = c.checkpoint_id)
  UNION
  SELECT parent_job_id, parent_checkpoint_id FROM small o WHERE kind = 'attempt_opened' AND NOT EXISTS (
    FROM small e WHERE e.kind = 'attempt_ended' AND e.attempt = o.attempt)
  UNION
  SELECT job_id, checkpoint_id FROM small h WHERE kind = 'hold' AND NOT EXISTS (
    FROM small u WHERE u.kind = 'unhold' AND u.job_id = h.job_id AND u.checkpoint_id = h.checkpoint_id AND u.hold = h.hold AND u.seq > h.seq)
),
kept AS (SELECT c.job_id, c.seq FROM small c JOIN why USING (job_id, checkpoint_id) WHERE c.kind = 'checkpoint'),
"""

BY_HAND = f"""
WITH facts AS (FROM read_parquet($files, union_by_name = true)),
small AS (
  SELECT kind, job_id, seq, attempt, checkpoint_id, parent_job_id, parent_checkpoint_id, hold FROM facts
  WHERE kind IN ('checkpoint', 'drop', 'attempt_opened', 'attempt_ended', 'hold', 'unhold')
),
{KEPT}taken AS (SELECT file_id, bool_or(kind = 'gone') AS gone FROM facts WHERE kind IN ('condemned', 'gone') GROUP BY file_id),
present AS (
  SELECT file_id, job_id, path, size_bytes FROM facts f
  WHERE kind = 'file' AND scope <> 'TASKOWNED' AND NOT EXISTS (FROM taken t WHERE t.file_id = f.file_id)
),
handles AS (
  SELECT job_id, file_id, offset_bytes, from_seq, to_seq FROM facts WHERE kind = 'handle' AND file_id IN (SELECT file_id FROM present)
),
ends AS (
  SELECT job_id, file_id, offset_bytes, from_seq, to_seq FROM facts WHERE kind = 'handle_end' AND file_id IN (SELECT file_id FROM present)
),
intervals AS (
  SELECT h.job_id, h.file_id, h.from_seq, coalesce(h.to_seq, e.to_seq, 9223372036854775807) AS to_seq
  FROM handles h LEFT JOIN ends e USING (job_id, file_id, offset_bytes, from_seq)
),
used AS (
  SELECT i.file_id FROM intervals i ASOF JOIN kept k ON k.job_id = i.job_id AND k.seq < i.to_seq
  WHERE k.seq >= i.from_seq
)
SELECT false AS condemned, file_id, job_id, path, size_bytes FROM present p WHERE NOT EXISTS (FROM used u WHERE u.file_id = p.file_id)
UNION ALL
SELECT true, file_id, job_id, path, size_bytes FROM facts
WHERE kind = 'file' AND file_id IN (SELECT file_id FROM taken WHERE NOT gone)
ORDER BY condemned, path
"""


def run(scratch: Path, size: Size | None = None, rounds: int = ROUNDS) -> list[Result]:
    """`query`: the time of the whole answer."""
    size = size or Size()
    tell(f"garbage: writing a ledger of {size.references:,} references")
    ledger = scratch / "ledger"
    write_ledger(ledger, size)
    files = DeltaTable(ledger).file_uris()
    found = SqlQueries.at(str(ledger)).garbage()
    require_equal(found, by_hand(files, BY_HAND))
    verified = SqlQueries.at(str(ledger)).verified()
    taken = interleave(
        {
            "hashing": lambda _: seconds(lambda: hash_all(files)),
            "holdfast": lambda _: seconds(lambda: query(verified)),
            "by_hand": lambda _: seconds(lambda: by_hand(files, BY_HAND)),
        },
        rounds,
        what="garbage",
    )
    figures = {
        "holdfast": spread(taken["holdfast"]),
        "by_hand": spread(taken["by_hand"]),
        "hashing": spread(taken["hashing"]),
        "with_hashing": ratio([ours + hashed for ours, hashed in zip(taken["holdfast"], taken["hashing"], strict=True)], taken["by_hand"]),
        "references": size.references,
        "files": size.jobs * size.checkpoints * size.files,
        "kept_checkpoints": size.jobs * (size.kept + size.held),
        "unreferenced": len(found.unreferenced),
        "condemned": len(found.condemned),
        "data_files": len(files),
    }
    return [
        Result(benchmark="garbage", measures="query", ratio=ratio(taken["holdfast"], taken["by_hand"]), at_most=AT_MOST, figures=figures)
    ]


def hash_all(files: Sequence[str]) -> list[str]:
    """What `SqlQueries.verified` reads of a ledger."""
    digests = []
    for path in files:
        with open(path, "rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    return digests


def query(ledger: DeltaLedger) -> Garbage:
    """Ours, of a ledger whose files were verified."""
    with queries.over_files(ledger) as connection:
        return queries.garbage(connection)


def by_hand(files: Sequence[str], statement: str) -> pa.Table:
    """The same by hand; with a column that says which files are condemned."""
    with duckdb.connect() as connection:
        return connection.execute(statement, {"files": list(files)}).to_arrow_table()


def require_equal(ours: Garbage, theirs: pa.Table) -> None:
    """Raises AssertionError unless both are the same files in the same order, some of each kind."""
    found = [GarbageFiles(theirs.filter(condition)) for condition in (pc.invert(theirs["condemned"]), theirs["condemned"])]
    if found != [ours.unreferenced, ours.condemned]:
        counts = f"{[len(ours.unreferenced), len(ours.condemned)]} and {[len(files) for files in found]} files unreferenced and condemned"
        msg = f"the two cleanup queries disagree ({counts}): a figure for a wrong answer is worth nothing"
        raise AssertionError(msg)
    if not all(found):
        msg = "the ledger of the benchmark has nothing to clean: its history is wrong"
        raise AssertionError(msg)
