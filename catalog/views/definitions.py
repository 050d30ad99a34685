"""The views of a catalog: the contract with analysts (design, section 4), in SQL that DuckDB and Spark run unchanged.

Everything is a SELECT over two relations, or over other views: `facts`, the rows of the ledger, from which all follows that is live; and
`all_facts`, every fact ever. Columns may be added, never changed. `unreferenced_files` alone has a text per engine; it stands in
`unreferenced_files.py`.
"""

from collections.abc import Mapping
from enum import StrEnum

from holdfast.catalog.schema import SCHEMA
from holdfast.catalog.views import unreferenced_files
from holdfast.catalog.views.unreferenced_files import ENDED_HANDLES, IN_FORCE

_JOBS = """
SELECT j.job_id, j.job, j.max_parallelism, j.at AS registered_at, t.seq, t.epoch,
  CASE WHEN d.kind IS NULL THEN t.head_checkpoint_id END AS head_checkpoint_id,
  CASE WHEN t.ended_seq > coalesce(t.started_seq, 0) THEN t.outcome END AS outcome,
  CASE WHEN t.ended_seq > coalesce(t.started_seq, 0) THEN t.ended_at END AS ended_at
FROM facts j
JOIN (
  SELECT job_id,
    max(seq) AS seq,
    max(seq) FILTER (WHERE kind = 'start') AS started_seq,
    max(seq) FILTER (WHERE kind = 'job_ended') AS ended_seq,
    max_by(outcome, seq) FILTER (WHERE kind = 'job_ended') AS outcome,
    max_by(facts.at, seq) FILTER (WHERE kind = 'job_ended') AS ended_at,
    coalesce(max(epoch) FILTER (WHERE kind IN ('start', 'folded')), 0) AS epoch,
    -- -1 stands for "from nothing": DuckDB's max_by passes over nulls, and would tell the head before the start.
    nullif(max_by(CASE
        WHEN kind = 'checkpoint' THEN checkpoint_id
        WHEN coalesce(parent_job_id, job_id) = job_id THEN coalesce(parent_checkpoint_id, -1)
        ELSE -1
      END, seq) FILTER (WHERE kind IN ('start', 'folded') OR (kind = 'checkpoint' AND NOT is_savepoint)), -1) AS head_checkpoint_id
  FROM facts
  GROUP BY job_id
) t ON t.job_id = j.job_id
-- The job has ended, or another one owns its checkpoints.
LEFT JOIN facts d ON d.kind = 'drop' AND d.job_id = t.job_id AND d.checkpoint_id = t.head_checkpoint_id
WHERE j.kind = 'job'
"""

_ATTEMPTS = """
SELECT o.job_id, o.attempt, o.checkpoint_id, o.purpose, o.epoch, o.parent_job_id, o.parent_checkpoint_id,
  coalesce(e.status, 'open') AS status, o.at AS opened_at, o.by AS opened_by, e.at AS ended_at, e.reason
FROM all_facts o
LEFT JOIN all_facts e ON e.kind = 'attempt_ended' AND e.job_id = o.job_id AND e.attempt = o.attempt
WHERE o.kind = 'attempt_opened'
"""

_CHECKPOINTS_OF = """
SELECT c.job_id, j.job, c.checkpoint_id, c.attempt, c.is_savepoint, c.name,
  CASE WHEN d.kind IS NULL THEN 'live' ELSE 'dropped' END AS status,
  c.parent_job_id, c.parent_checkpoint_id, c.seq, c.at AS committed_at, d.at AS dropped_at, d.reason AS drop_reason,
  c.is_incremental, c.is_key_group_aware, c.parallelism, c.handles, c.new_handles, c.total_bytes, c.new_bytes, c.progress,
  c.is_self_contained, CASE WHEN c.is_savepoint AND n.job_id IS NULL THEN 'canonical' ELSE 'native' END AS format, c.path
FROM {source} c
LEFT JOIN {source} j ON j.kind = 'job' AND j.job_id = c.job_id
LEFT JOIN {source} d ON d.kind = 'drop' AND d.job_id = c.job_id AND d.checkpoint_id = c.checkpoint_id
-- Directories of embedded stores are as the store left them, of a savepoint too.
LEFT JOIN (SELECT DISTINCT job_id, checkpoint_id FROM {source} WHERE kind = 'state' AND format = 'directory') n
  ON n.job_id = c.job_id AND n.checkpoint_id = c.checkpoint_id
WHERE c.kind = 'checkpoint'
"""
CHECKPOINTS_OF_LEDGER = _CHECKPOINTS_OF.format(source="facts")  # every live one, and few of those that were dropped

_STATES = """
SELECT job_id, checkpoint_id, operator, state, key_columns, schema, format, layers, rows, total_bytes
FROM all_facts
WHERE kind = 'state'
"""

# The history has no inline bytes: they are of rows that the ledger still has. Where there never was a file, the state was inline.
_HANDLES = f"""
SELECT h.job_id, h.savepoint, h.operator, h.state, h.subtask, h.key_group_from, h.key_group_to, h.scope, h.layer, h.role, h.name,
  w.file_id, h.offset_bytes, h.length_bytes, h.sha256, h.from_seq, coalesce(h.to_seq, e.to_seq) AS to_seq, i.inline
FROM {ENDED_HANDLES.format(source="all_facts")}
LEFT JOIN (SELECT DISTINCT file_id FROM all_facts WHERE kind = 'file') w ON w.file_id = h.file_id
LEFT JOIN (SELECT job_id, file_id, offset_bytes, from_seq, inline FROM facts WHERE kind = 'handle' AND inline IS NOT NULL) i
  ON i.job_id = h.job_id AND i.file_id = h.file_id AND i.offset_bytes = h.offset_bytes AND i.from_seq = h.from_seq
WHERE h.kind = 'handle'
"""

# Two vacuums at once may both condemn a file, and both report that it is gone: hence the grouping.
_FILES = """
SELECT f.file_id, f.job_id, f.attempt, f.path, f.size_bytes, f.sha256, f.scope, f.owner,
  CASE WHEN x.is_gone IS NULL THEN 'present' WHEN x.is_gone = 1 THEN 'gone' ELSE 'condemned' END AS status
FROM all_facts f
LEFT JOIN (
  SELECT file_id, max(CASE WHEN kind = 'gone' THEN 1 ELSE 0 END) AS is_gone
  FROM all_facts
  WHERE kind IN ('condemned', 'gone')
  GROUP BY file_id
) x ON x.file_id = f.file_id
WHERE f.kind = 'file'
"""

# One row for each checkpoint and file, of live checkpoints only: what a dropped one used may be gone. The file may be of another
# job, so that files are joined by their id alone. Inline handles have no file and fall away there.
_CHECKPOINT_FILES = f"""
SELECT u.job_id, u.checkpoint_id, u.file_id, f.path, f.scope, u.uses > 1 AS shared
FROM (
  SELECT d.job_id, d.checkpoint_id, d.file_id, count(*) OVER (PARTITION BY d.file_id) AS uses
  FROM (
    SELECT DISTINCT c.job_id, c.checkpoint_id, h.file_id
    FROM facts c
    ANTI JOIN facts d ON d.kind = 'drop' AND d.job_id = c.job_id AND d.checkpoint_id = c.checkpoint_id
    JOIN (
      SELECT h.job_id, coalesce(h.savepoint, '') AS line, h.file_id, h.from_seq, coalesce(h.to_seq, e.to_seq) AS to_seq
      FROM {ENDED_HANDLES.format(source="facts")}
      WHERE h.kind = 'handle'
    ) h ON h.job_id = c.job_id AND h.line = CASE WHEN c.is_savepoint THEN c.attempt ELSE '' END
      AND h.from_seq <= c.seq AND (h.to_seq IS NULL OR c.seq < h.to_seq)
    WHERE c.kind = 'checkpoint'
  ) d
) u
JOIN facts f ON f.kind = 'file' AND f.file_id = u.file_id
"""

_HOLDS = f"""
SELECT h.job_id, h.checkpoint_id, h.hold, h.note, h.at AS created_at, h.by AS created_by
FROM {IN_FORCE.format(source="facts")}
WHERE h.kind = 'hold'
"""

_READERS = """
SELECT o.job_id, o.parent_checkpoint_id AS checkpoint_id, o.attempt, o.by AS opened_by, o.at AS since, o.note AS process
FROM facts o
ANTI JOIN facts e ON e.kind = 'attempt_ended' AND e.job_id = o.job_id AND e.attempt = o.attempt
WHERE o.kind = 'attempt_opened' AND o.purpose = 'read'
"""

# What an owner has written and no checkpoint ever referred to has no row before it is released: the ledger does not know of it.
_OWNERS = """
SELECT o.job_id, j.job, o.name AS owner, o.attempt, o.at AS opened_at, o.by AS opened_by, o.note AS process,
  coalesce(f.files, 0) AS files, coalesce(f.total_bytes, 0) AS total_bytes, coalesce(f.referenced_files, 0) AS referenced_files
FROM facts o
ANTI JOIN facts e ON e.kind = 'attempt_ended' AND e.job_id = o.job_id AND e.attempt = o.attempt
LEFT JOIN facts j ON j.kind = 'job' AND j.job_id = o.job_id
LEFT JOIN (
  SELECT w.job_id, w.attempt, count(*) AS files, CAST(sum(w.size_bytes) AS BIGINT) AS total_bytes, count(u.file_id) AS referenced_files
  FROM facts w
  ANTI JOIN facts r ON r.kind = 'release' AND r.file_id = w.file_id
  LEFT JOIN (SELECT DISTINCT file_id FROM checkpoint_files WHERE scope = 'TASKOWNED') u ON u.file_id = w.file_id
  WHERE w.kind = 'file' AND w.scope = 'TASKOWNED'
  GROUP BY w.job_id, w.attempt
) f ON f.job_id = o.job_id AND f.attempt = o.attempt
WHERE o.kind = 'attempt_opened' AND o.purpose = 'owner'
"""

_ACK_METRICS = """
SELECT job_id, checkpoint_id, operator, state, subtask, bytes_written, bytes_reused, upload_ms, digest_ms, sort_ms, sync_ms, rows
FROM all_facts
WHERE kind = 'ack'
"""

_MAINTENANCE_RUNS = """
SELECT run_id, what, started_at, ended_at, outcome, figures
FROM all_facts
WHERE kind = 'run'
"""


_COLUMNS = ", ".join("CAST(NULL AS BINARY) AS inline" if name == "inline" else f"l.{name}" for name in SCHEMA.names)


def every_fact(ledger: str, history: str) -> str:
    """The SELECT of `all_facts` over these relations: each fact once, also between a telling and its fold, and after a crash there.

    What a fold has kept carries the operation that wrote it first. The history is named after the ledger, and so read after it: what a fold
    took out of the ledger, the history had been told before.
    """
    untold = f"{as_facts(ledger)} ANTI JOIN {history} t ON t.operation_id = l.operation_id WHERE l.kind <> 'folded'"
    return f"{untold} UNION ALL {as_facts(history)}"


def as_facts(relation: str) -> str:
    """The SELECT of its rows, called `l`, as facts without inline bytes: the history has none."""
    return f"SELECT {_COLUMNS} FROM {relation} l"


class Engine(StrEnum):
    """Who runs the SQL."""

    DUCKDB = "duckdb"
    SPARK = "spark"


def views_for(engine: Engine) -> Mapping[str, str]:
    """Name -> SELECT of every view, in an order in which each finds the views that it reads from."""
    cleanup = unreferenced_files.UNREFERENCED_FILES_DUCKDB if engine is Engine.DUCKDB else unreferenced_files.UNREFERENCED_FILES_SPARK
    return {**VIEWS, "unreferenced_files": cleanup}


VIEWS: Mapping[str, str] = {
    "jobs": _JOBS,
    "attempts": _ATTEMPTS,
    "checkpoints": _CHECKPOINTS_OF.format(source="all_facts"),
    "states": _STATES,
    "handles": _HANDLES,
    "files": _FILES,
    "checkpoint_files": _CHECKPOINT_FILES,
    "holds": _HOLDS,
    "readers": _READERS,
    "ack_metrics": _ACK_METRICS,
    "maintenance_runs": _MAINTENANCE_RUNS,
    "owners": _OWNERS,
}
