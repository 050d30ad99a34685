"""The question that the demo asks the catalog, in words that DuckDB and Spark SQL both understand."""

PLAIN_COLUMNS = ("checkpoint_id", "total_bytes", "new_bytes", "carried_bytes", "files", "shared_files")

# What each live checkpoint cost, and what it shares with others.
COSTS = """
    SELECT c.checkpoint_id, c.total_bytes, c.new_bytes, c.total_bytes - c.new_bytes AS carried_bytes,
           count(f.file_id) AS files, sum(CASE WHEN f.shared THEN 1 ELSE 0 END) AS shared_files
    FROM checkpoints c JOIN checkpoint_files f ON f.job_id = c.job_id AND f.checkpoint_id = c.checkpoint_id
    WHERE c.status = 'live' AND NOT c.is_savepoint
    GROUP BY c.checkpoint_id, c.total_bytes, c.new_bytes
    ORDER BY c.checkpoint_id
"""
