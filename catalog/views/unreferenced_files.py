"""The cleanup query (design, section 3) as SQL: which files no live or pinned checkpoint can reach.

One text but for two steps. One finds for every seq at which a handle of a line begins the first kept seq at or after it: an ASOF join in
DuckDB, a window in Spark. A handle is in use if that seq lies below its end. The last step leaves out the files of those. The work grows
with the references, not with references times live checkpoints, and `checkpoint_files` is never expanded. (Looking up from the begin gives
the answer of the design's "greatest kept seq below the end", and costs less: the begins of a line are as few as its commits.)

A line is a job's main line ('') or one savepoint (its attempt). File rows need no look at open attempts: they are only written by
the transaction that ends their attempt, except for task-owned files, which stay until they, or their owners, are released.
"""

# A handle and the fact that ends it, where there is one. There is at most one: a commit ends each open chunk once.
# A savepoint's handles are born with their end, which goes before an end fact wherever the two meet.
# Nothing but equalities stand in the condition: one on the left side alone made DuckDB's join over a hundred times slower.
ENDED_HANDLES = """{source} h
LEFT JOIN {source} e ON e.kind = 'handle_end' AND e.job_id = h.job_id AND e.file_id = h.file_id
  AND e.offset_bytes = h.offset_bytes AND e.from_seq = h.from_seq"""

# Selects the newest of the hold and unhold facts `h` of one name on one checkpoint.
IN_FORCE = """{source} h
ANTI JOIN {source} n ON n.kind IN ('hold', 'unhold') AND n.job_id = h.job_id AND n.checkpoint_id = h.checkpoint_id
  AND n.hold = h.hold AND n.seq > h.seq"""

_NEXT_KEPT_DUCKDB = """
  SELECT b.job_id, b.line, b.from_seq, k.seq AS next_seq
  FROM begins b ASOF JOIN kept k ON k.job_id = b.job_id AND k.line = b.line AND k.seq >= b.from_seq
"""

_NEXT_KEPT_SPARK = """
  SELECT job_id, line, from_seq, next_seq
  FROM (
    SELECT job_id, line, from_seq, is_begin,
      min(kept_seq) OVER (PARTITION BY job_id, line ORDER BY from_seq RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS next_seq
    FROM (
      SELECT job_id, line, from_seq, CAST(NULL AS BIGINT) AS kept_seq, true AS is_begin FROM begins
      UNION ALL
      SELECT job_id, line, seq, seq, false FROM kept
    ) merged
  ) looked_up
  WHERE is_begin AND next_seq IS NOT NULL
"""


# By IN, within an expression: of a join DuckDB may keep the larger side in memory, and that is the paths of all files. Spark has no such
# habit, and fails to plan it.
_NOT_IN_USE_DUCKDB = """
SELECT p.file_id, p.job_id, p.path, p.size_bytes
FROM present p
WHERE NOT coalesce(p.file_id IN (SELECT file_id FROM in_use), true) AND (
  p.scope <> 'TASKOWNED'
  OR p.file_id IN (SELECT file_id FROM small WHERE kind = 'release')
  -- The token of who wrote the file, without another column of each.
  OR split_part(p.file_id, '-', 1) IN (SELECT attempt FROM small WHERE kind = 'attempt_ended' AND status = 'released')
)
"""

_NOT_IN_USE_SPARK = """
SELECT p.file_id, p.job_id, p.path, p.size_bytes
FROM present p ANTI JOIN in_use u ON u.file_id = p.file_id
LEFT JOIN (SELECT DISTINCT file_id FROM small WHERE kind = 'release') r ON r.file_id = p.file_id
LEFT JOIN (
  SELECT DISTINCT attempt FROM small WHERE kind = 'attempt_ended' AND status = 'released'
) o ON o.attempt = split_part(p.file_id, '-', 1)
WHERE p.scope <> 'TASKOWNED' OR r.file_id IS NOT NULL OR o.attempt IS NOT NULL
"""


def _unreferenced_files(next_kept: str, not_in_use: str) -> str:
    # `small` is read once for all that decides which checkpoints, and which task-owned files, are kept: each scan opens every file of
    # the ledger.
    return f"""
WITH small AS (
  SELECT kind, job_id, seq, attempt, checkpoint_id, is_savepoint, parent_job_id, parent_checkpoint_id, hold, status, file_id
  FROM facts
  WHERE kind IN ('checkpoint', 'drop', 'attempt_opened', 'attempt_ended', 'hold', 'unhold', 'release')
),
reasons AS (  -- why a checkpoint is kept: live, parent of an open attempt, held
  SELECT c.job_id, c.checkpoint_id
  FROM small c ANTI JOIN small d ON d.kind = 'drop' AND d.job_id = c.job_id AND d.checkpoint_id = c.checkpoint_id
  WHERE c.kind = 'checkpoint'
  UNION ALL
  SELECT coalesce(o.parent_job_id, o.job_id), o.parent_checkpoint_id
  FROM small o ANTI JOIN small e ON e.kind = 'attempt_ended' AND e.job_id = o.job_id AND e.attempt = o.attempt
  WHERE o.kind = 'attempt_opened'
  UNION ALL
  SELECT h.job_id, h.checkpoint_id
  FROM {IN_FORCE.format(source="small")}
  WHERE h.kind = 'hold'
),
kept AS (
  SELECT c.job_id, CASE WHEN c.is_savepoint THEN c.attempt ELSE '' END AS line, c.seq
  FROM small c SEMI JOIN reasons r ON r.job_id = c.job_id AND r.checkpoint_id = c.checkpoint_id
  WHERE c.kind = 'checkpoint'
),
begins AS (
  SELECT DISTINCT job_id, coalesce(savepoint, '') AS line, from_seq
  FROM facts
  WHERE kind = 'handle'
),
next_kept AS ({next_kept}),
intervals AS (
  SELECT h.file_id, h.job_id, coalesce(h.savepoint, '') AS line, h.from_seq, coalesce(h.to_seq, e.to_seq, 9223372036854775807) AS to_seq
  FROM {ENDED_HANDLES.format(source="facts")}
  WHERE h.kind = 'handle'
),
in_use AS (
  SELECT i.file_id
  FROM intervals i JOIN next_kept n ON n.from_seq = i.from_seq AND n.job_id = i.job_id AND n.line = i.line
  WHERE n.next_seq < i.to_seq
),
present AS (
  SELECT f.file_id, f.job_id, f.path, f.size_bytes, f.scope
  FROM facts f ANTI JOIN facts x ON x.kind IN ('condemned', 'gone') AND x.file_id = f.file_id
  WHERE f.kind = 'file'
)
{not_in_use}"""


UNREFERENCED_FILES_DUCKDB = _unreferenced_files(_NEXT_KEPT_DUCKDB, _NOT_IN_USE_DUCKDB)
UNREFERENCED_FILES_SPARK = _unreferenced_files(_NEXT_KEPT_SPARK, _NOT_IN_USE_SPARK)
