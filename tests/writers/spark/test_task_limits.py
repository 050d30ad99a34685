"""What runs DuckDB within a task of Spark: as many threads as the task has cores, and a share of the memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from duckdb import DuckDBPyConnection

import holdfast
from holdfast import data_source
from holdfast.catalog.state import Ref
from holdfast.catalog.views import duckdb_engine
from holdfast.catalog.views.duckdb_engine import offline_connection
from holdfast.writers.parquet import duckdb_read, task_limits
from holdfast.writers.parquet.plan import file_rows
from holdfast.writers.parquet.task_limits import LEAST_MEMORY_BYTES, TaskLimits, limits_of_this_task
from holdfast.writers.spark.read import state_schema
from tests.support.places import GOLDEN


def test_a_task_has_the_threads_and_the_memory_of_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_limits, "host_cores", lambda: 8)
    monkeypatch.setattr(task_limits, "host_memory_bytes", lambda: 64 * 1024**3)
    assert limits_of_this_task(lambda: 1) == TaskLimits(threads=1, memory_bytes=4 * 1024**3)
    assert limits_of_this_task(lambda: 4) == TaskLimits(threads=4, memory_bytes=16 * 1024**3)
    assert limits_of_this_task(lambda: 99) == TaskLimits(threads=99, memory_bytes=32 * 1024**3)
    monkeypatch.setattr(task_limits, "host_memory_bytes", lambda: 1024**3)
    assert limits_of_this_task(lambda: 1) == TaskLimits(threads=1, memory_bytes=LEAST_MEMORY_BYTES)


def test_outside_of_a_task_nothing_is_limited() -> None:
    assert limits_of_this_task() == TaskLimits(threads=None, memory_bytes=None)
    free, bound = offline_connection(), offline_connection(threads=1, memory_bytes=256 * 1024**2)
    asked = "SELECT current_setting('threads'), current_setting('memory_limit')"
    assert bound.sql(asked).fetchall() == [(1, "256.0 MiB")]
    assert free.sql(asked).fetchall() != bound.sql(asked).fetchall()


@pytest.mark.parametrize(("text", "expected"), [("max\n", None), ("1048576\n", 1048576), ("", None), (None, None)])
def test_the_memory_of_a_container_is_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, expected: int | None
) -> None:
    monkeypatch.setattr(task_limits, "_CGROUP", tmp_path / "missing")
    host = task_limits.host_memory_bytes()
    if text is not None:
        (tmp_path / "memory.max").write_text(text)
    monkeypatch.setattr(task_limits, "_CGROUP", tmp_path / "memory.max")
    assert task_limits.host_memory_bytes() == (host if expected is None else expected)


def test_a_task_of_spark_is_known_by_the_cores_that_it_has(spark) -> None:
    def limits(numbers: Iterator[int]) -> Iterator[TaskLimits]:
        yield limits_of_this_task()

    [found] = spark.sparkContext.parallelize([0], 1).mapPartitions(limits).collect()
    assert found == limits_of_this_task(lambda: 1)


@pytest.mark.parametrize("reader", ["duckdb", "format"])
def test_whatever_reads_by_duckdb_keeps_within_the_limits_of_its_task(monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    given: list[TaskLimits] = []
    connect, limits = duckdb_engine.offline_connection, TaskLimits(threads=1, memory_bytes=LEAST_MEMORY_BYTES)

    def connected(*, threads: int | None = None, memory_bytes: int | None = None) -> DuckDBPyConnection:
        given.append(TaskLimits(threads=threads, memory_bytes=memory_bytes))
        return connect(threads=threads, memory_bytes=memory_bytes)

    monkeypatch.setattr(duckdb_engine, "offline_connection", connected)
    for module in (duckdb_read, data_source):
        monkeypatch.setattr(module, "limits_of_this_task", lambda: limits)
    savepoint = holdfast.open_savepoint(GOLDEN / "savepoint")
    info = next(info for info in savepoint.manifest.states if info.format == "parquet")
    if reader == "duckdb":
        assert savepoint.duckdb(info.state).fetchone() is not None
    else:
        found = data_source.FoundState(
            catalog=savepoint.storage, storage=savepoint.storage, what="a state", ref=Ref(savepoint.manifest.job_id, savepoint.checkpoint_id),
            info=info, schema=state_schema(info), chunks=tuple(savepoint.manifest.chunks_of(info)),
            files=file_rows(savepoint.manifest.files.values()), max_parallelism=savepoint.manifest.max_parallelism,
        )  # fmt: skip
        source = data_source.SourceReader(found, found.schema)
        assert sum(batch.num_rows for partition in source.partitions() for batch in source.read(partition))
    assert set(given) == {limits}
