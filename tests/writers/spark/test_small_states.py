"""What is small is done by the driver: the same reports, acks, rows and errors as by executors, on both sides of the limits."""

import errno
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.errors import CorruptionError, DamagedFileError, HoldfastError, NotDurableError, UnsafeSettingsError, UsageError
from holdfast.catalog.storage import StoredObject
from holdfast.catalog.types import ChainLimit, KeepAll, Role
from holdfast.writers.parquet import few_files, small_merge
from holdfast.writers.parquet.few_files import HERE_BYTES, HERE_FILES, are_few, in_threads
from holdfast.writers.parquet.layout import Part
from holdfast.writers.spark import chain_limit, gathered, native
from holdfast.writers.spark.chain_limit import BASE_BYTES, BASE_ROWS, is_base_cheaper
from holdfast.writers.spark.file_jobs import digests, seal
from holdfast.writers.spark.native import NativeUploader
from tests.support.sick_hosts import RefusingStorage
from tests.support.spark_support import context_for, new_storage, row_texts, session_settings

pytestmark = pytest.mark.xdist_group("spark")

FILES = {"no rows": 0, "one group": 50, "many groups": 5_000}
FLAT = """
    SELECT cast(id AS int) AS id, if(id % 7 = 0, null, concat('k', id % 40)) AS text, encode(concat('b', id), 'UTF-8') AS binary, id % 2 = 0 AS boolean,
        cast(id AS byte) AS byte, cast(id AS short) AS short, id AS long, if(id = 3, float('NaN'), cast(id AS float)) AS float,
        if(id = 4, double('-0.0'), id / 3) AS double, cast(id AS decimal(9, 2)) AS decimal, cast(id AS decimal(30, 3)) AS wide,
        date_add(DATE'0001-01-01', cast(id AS int)) AS date, TIMESTAMP'1500-03-01 12:34:56.789012' AS timestamp,
        TIMESTAMP_NTZ'9999-12-31 23:59:59.999999' AS ntz, INTERVAL '1 02:03:04.000005' DAY TO SECOND AS duration, cast(null AS string) AS none
    FROM range({0}, {1})
"""


def write_file(storage, path, rows):
    place = storage.root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"id": pa.array(range(rows), pa.int64()), "_key_group": pa.array([n % 8 for n in range(rows)], pa.int32())})
    pq.write_table(table, place, row_group_size=1_000)
    return StoredObject(path=path, size_bytes=place.stat().st_size)


def outcome(work):
    """What it gave, without the times; or how it failed."""
    try:
        return [replace(report, digest_ms=0) for report in work()]
    except HoldfastError as error:
        return type(error), str(error), getattr(error, "errno", None)


def both(monkeypatch, work):
    """The outcomes by this process and by executors."""
    here = outcome(work)
    with monkeypatch.context() as patch:
        patch.setattr(few_files, "HERE_FILES", -1)
        return here, outcome(work)


# ---- few files ------------------------------------------------------------------------------------------------------------------


def test_few_files_are_so_by_number_and_by_bytes():
    def files(*sizes):
        return [StoredObject(path=str(i), size_bytes=size_bytes) for i, size_bytes in enumerate(sizes)]

    assert are_few([])
    assert are_few(files(*[1] * HERE_FILES))
    assert not are_few(files(*[1] * (HERE_FILES + 1)))
    assert are_few(files(HERE_BYTES - 1, 1))
    assert not are_few(files(HERE_BYTES, 1))


@pytest.mark.parametrize("count", [0, 1, 20])
def test_threads_answer_in_order_and_the_first_failure_is_told(count):
    assert in_threads(lambda n: n * n, range(count)) == [n * n for n in range(count)]
    if count:
        with pytest.raises(ZeroDivisionError):
            in_threads(lambda n: 1 // n, range(count))


def test_the_driver_seals_files_as_executors_do(spark, tmp_path, monkeypatch):
    storage = new_storage(tmp_path / "catalog")
    files = [write_file(storage, f"d/part-0000{i}-{rows}.parquet", rows) for i, rows in enumerate(FILES.values())]
    here, there = both(monkeypatch, lambda: seal(spark, storage, files, SystemEnvironment()))
    assert here == there
    assert [len(report.parts) for report in here] == [1, 1, 6]
    assert [report.subtask for report in here] == [0, 1, 2]


def garbage(place):
    place.write_bytes(b"x" * place.stat().st_size)


def cut(place):
    place.write_bytes(place.read_bytes()[: place.stat().st_size // 2])


def grown(place):
    place.write_bytes(b"PAR1" + b"\0" * 20 + place.read_bytes()[4:])


@pytest.mark.parametrize(
    ("harm", "kind"), [(Path.unlink, UnsafeSettingsError), (garbage, CorruptionError), (cut, CorruptionError), (grown, UnsafeSettingsError)]
)
def test_a_file_that_is_not_as_listed_is_told_alike(spark, tmp_path, monkeypatch, harm, kind):
    storage = new_storage(tmp_path / "catalog")
    files = [write_file(storage, f"d/part-0000{i}.parquet", 10) for i in range(3)]
    harm(storage.root / files[1].path)
    here, there = both(monkeypatch, lambda: seal(spark, storage, files, SystemEnvironment()))
    assert here == there
    assert here[0] is kind
    assert files[1].path in here[1]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_a_sync_that_fails_is_told_alike_and_not_tried_again(spark, tmp_path, monkeypatch, number):
    """The storage's own failure is armed once: who tried again would find that all is well."""
    armed = tmp_path / "armed"
    healthy = new_storage(tmp_path / "catalog")
    files = [write_file(healthy, f"d/part-0000{i}.parquet", 10) for i in range(3)]
    storage = RefusingStorage(healthy.root, number, armed)
    armed.touch()
    here = outcome(lambda: seal(spark, storage, files, SystemEnvironment()))
    armed.touch()
    monkeypatch.setattr(few_files, "HERE_FILES", -1)
    there = outcome(lambda: seal(spark, storage, files, SystemEnvironment()))
    assert here[0] is there[0] is NotDurableError
    assert here[2] == there[2] == number
    assert "could not be made durable on host" in here[1]


def test_digests_of_parts_are_the_same(spark, tmp_path, monkeypatch):
    storage = new_storage(tmp_path / "catalog")
    paths = [write_file(storage, f"d/{rows}", rows).path for rows in FILES.values()]
    parts = {path: [Part(offset_bytes=0, length_bytes=100), Part(offset_bytes=100, length_bytes=50)] for path in [*paths, "d/missing"]}
    here, there = both(monkeypatch, lambda: digests(spark, storage, parts))
    assert here == there
    assert [report.size_bytes is None for report in here] == [False, False, False, True]


@pytest.mark.parametrize("key", [("id",), ()])
@pytest.mark.parametrize("query", ["id < 0", "true"])
def test_the_native_upload_acknowledges_alike(spark, tmp_path, monkeypatch, key, query):
    """Of the same rows Spark writes the same bytes."""

    def chunks(call):
        acks = NativeUploader().write(spark.range(0, 100, 1, 2).filter(query), context_for(storage, key=key, call=call))
        plain = [replace(ack.metrics, upload_ms=0, digest_ms=0) for ack in acks]
        return plain, [ack.subtask for ack in acks], [replace(chunk, file_id="") for ack in acks for chunk in ack.chunks]

    storage = new_storage(tmp_path / "catalog")
    here = chunks(0)
    monkeypatch.setattr(few_files, "HERE_FILES", -1)
    assert chunks(1) == here


@pytest.mark.parametrize("harm", [Path.unlink, garbage, cut, grown])
@pytest.mark.parametrize("mode", ["full", "changed-groups"])
def test_a_damaged_state_is_refused_alike(spark, catalog, monkeypatch, harm, mode):
    with catalog.coordinate("j", max_parallelism=8) as job, job.checkpoint() as cp:
        cp.write("x", spark.range(100).selectExpr("id", "id AS v"), key=["id"], mode=mode)
    checkpoint = catalog.checkpoint("j")
    harm(Path(catalog.address, next(iter(checkpoint.manifest.files.values())).path))
    here, there = both(monkeypatch, lambda: checkpoint.read(spark, "x"))
    assert here == there
    assert here[0] is DamagedFileError


def test_a_small_state_is_verified_without_a_job_of_spark(spark, catalog):
    with catalog.coordinate("j") as job, job.checkpoint() as cp:
        cp.write("x", spark.range(100), key=["id"])
    group = f"verify-{os.urandom(4).hex()}"
    spark.sparkContext.setJobGroup(group, "")
    rows = catalog.checkpoint("j").read(spark, "x")
    assert [*spark.sparkContext.statusTracker().getJobIdsForGroup(group)] == []
    assert rows.count() == 100


# ---- bases in place of change sets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state_bytes", "rows", "cheaper"),
    [
        (0, 0, True),
        (BASE_BYTES, BASE_ROWS, True),
        (BASE_BYTES + 1, 1, False),
        (1, BASE_ROWS + 1, False),
    ],
)
def test_a_base_is_cheaper_while_state_and_changes_are_small(state_bytes, rows, cheaper):
    assert is_base_cheaper(state_bytes, rows) is cheaper


def changes_of(spark, name):
    """Upserts and deletes of the rows of FLAT from 0 to 100, whose key is text and id."""
    return {
        "upserts": (spark.sql(FLAT.format(90, 120)), None),
        "deletes": (None, spark.sql("SELECT cast(id AS int) AS id, if(id % 7 = 0, null, concat('k', id % 40)) AS text FROM range(10, 30)")),
        "both": (spark.sql(FLAT.format(90, 120)), spark.sql("SELECT 5 AS id, 'k5' AS text UNION ALL SELECT 7, null")),
        "none": (spark.sql(FLAT.format(0, 0)), None),
        "everything": (None, spark.sql("SELECT cast(id AS int) AS id, if(id % 7 = 0, null, concat('k', id % 40)) AS text FROM range(200)")),
    }[name]


def checkpointed(catalog, name, *writes):
    """The job's state after a checkpoint for each write."""
    with catalog.coordinate(name, max_parallelism=8, retention=KeepAll(), chain=ChainLimit(change_sets=100, share_of_base=1e9)) as job:
        for write in writes:
            with job.checkpoint() as cp:
                write(cp)
        return job.latest()


@pytest.mark.parametrize(
    ("name", "brought"),
    [
        pytest.param(name, brought, marks=[] if (name, brought) == ("both", True) else pytest.mark.slow)
        for name in ("upserts", "deletes", "both", "none", "everything")
        for brought in (True, False)
    ],
)
def test_a_small_base_has_the_rows_of_the_change_sets(spark, catalog, monkeypatch, name, brought):
    """The parent has one change set already, and a key twice in its base."""
    if not brought:
        monkeypatch.setattr(gathered, "ROWS_AT_ONCE", -1)
    base = spark.sql(FLAT.format(0, 100)).unionAll(spark.sql(FLAT.format(0, 12)))
    upserts, deletes = changes_of(spark, name)
    writes = [
        lambda cp: cp.write("x", base, key=["text", "id"]),
        lambda cp: cp.write_changes("x", spark.sql(FLAT.format(50, 60)), key=["text", "id"]),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(chain_limit, "BASE_BYTES", -1)
        by_layers = checkpointed(catalog, "layers", *writes, lambda cp: cp.write_changes("x", upserts, deletes))
        checkpointed(catalog, "bases", *writes)
    by_bases = checkpointed(catalog, "bases", lambda cp: cp.write_changes("x", upserts, deletes))
    info = by_bases.manifest.states[0]
    assert row_texts(by_bases.read(spark, "x")) == row_texts(by_layers.read(spark, "x"))
    assert by_bases.read(spark, "x").schema.simpleString() == by_layers.read(spark, "x").schema.simpleString()
    groups = [by_bases.read(spark, "x", key_groups=range(first, first + 2)).count() for first in range(0, 8, 2)]
    assert sum(groups) == by_bases.read(spark, "x").count()
    assert sorted(map(str, by_bases.duckdb("x").fetchall())) == sorted(map(str, by_layers.duckdb("x").fetchall()))
    if name != "none":
        assert {chunk.role for chunk in by_bases.manifest.chunks} <= {Role.BASE}
        assert (info.rows, info.layers) == (by_layers.read(spark, "x").count(), 1)
    assert catalog.verify().damages == ()


@pytest.mark.parametrize(
    ("base", "upserts"),
    [
        ("SELECT 1 AS id, array(1) AS v", "SELECT 2 AS id, array(2) AS v"),  # nested: Arrow and Spark name its parts otherwise
        ("SELECT 1.5D AS id, 1 AS v", "SELECT 2.5D AS id, 1 AS v"),  # of floats, Arrow's equality is not Spark's
        ("SELECT 1 AS id, 1 AS v", "SELECT 2 AS id, 1 AS v, 'more' AS w"),
        ("SELECT 1e0 AS v, 1.5BD * id AS id FROM range(3)", "SELECT 1e0 AS v, cast(9 AS decimal(23, 1)) AS id"),
    ],
    ids=["nested", "float key", "widened", "decimal key"],
)
def test_what_only_spark_can_tell_is_a_change_set(spark, catalog, base, upserts):
    written = checkpointed(
        catalog,
        "j",
        lambda cp: cp.write("x", spark.sql(base), key=["id"]),
        lambda cp: cp.write_changes("x", spark.sql(upserts)),
    )
    assert {chunk.role for chunk in written.manifest.chunks} == {Role.BASE, Role.UPSERTS}
    assert written.read(spark, "x").count() == spark.sql(base).count() + 1


def test_on_a_damaged_parent_no_base_is_written(spark, catalog):
    first = checkpointed(catalog, "j", lambda cp: cp.write("x", spark.range(20).selectExpr("id", "id AS v"), key=["id"]))
    garbage(Path(catalog.address, next(iter(first.manifest.files.values())).path))
    with catalog.coordinate("j", max_parallelism=8) as job:
        with pytest.raises(DamagedFileError, match="is damaged: expected"), job.checkpoint() as cp:
            cp.write_changes("x", spark.range(1).selectExpr("id", "id + 1 AS v"))
        assert job.latest().checkpoint_id == first.checkpoint_id


def test_a_key_twice_is_named_and_no_base_is_written(spark, catalog):
    with pytest.raises(UsageError, match=r"id=3 \(2 times"):
        checkpointed(
            catalog,
            "j",
            lambda cp: cp.write("x", spark.range(20), key=["id"]),
            lambda cp: cp.write_changes("x", spark.sql("SELECT 3L AS id UNION ALL SELECT 3L")),
        )


@pytest.mark.parametrize("many", ["mapInArrow", "explode", "mapInPandas", "range"])
def test_a_plan_whose_rows_are_not_bounded_runs_once_by_tasks(spark, tmp_path, many):
    """What it reads may be gone after the first run: Spark's estimate of such a plan is a few bytes, and it was run twice."""
    queue = tmp_path / "queue"
    queue.mkdir()
    for i in range(4):
        (queue / str(i)).touch()
    taken = spark.range(0, 4, 1, 4).mapInArrow(partial(consumed, str(queue), 50), "id long")
    frame = {
        "mapInArrow": taken,
        "explode": taken.selectExpr("explode(sequence(id, id + 1)) AS id"),
        "mapInPandas": taken.mapInPandas(unchanged, "id long"),
        "range": taken.filter("id >= 0"),
    }[many]
    found = gathered.gather(frame, context_for(new_storage(tmp_path / "catalog")), SystemEnvironment())
    assert found.rows.num_rows == (400 if many == "explode" else 200)
    assert not gathered._has_few_rows(frame)


def consumed(queue, rows, batches):
    for batch in batches:
        for i in batch.column(0).to_pylist():
            Path(queue, str(i)).unlink()
            yield pa.RecordBatch.from_pydict({"id": pa.array(range(i * rows, (i + 1) * rows), pa.int64())})


def unchanged(frames):
    yield from frames


def test_what_cannot_be_brought_at_once_is_an_error_and_not_run_again(spark, tmp_path, monkeypatch):
    from pyspark.sql.classic.dataframe import DataFrame

    def refuse(_):
        raise RuntimeError("Total size of serialized results of 3 tasks is bigger than spark.driver.maxResultSize (1024.0 MiB)")

    monkeypatch.setattr(DataFrame, "toArrow", refuse)
    with pytest.raises(RuntimeError, match="maxResultSize"):
        gathered.gather(spark.range(0, 100, 1, 2), context_for(new_storage(tmp_path / "catalog")), SystemEnvironment())


def test_a_state_that_is_small_by_its_dictionaries_alone_is_left_to_spark(spark, catalog, monkeypatch):
    """145 kB of files were 2 GB of rows, and the driver took 6 GB for them."""
    monkeypatch.setattr(small_merge, "DECODED_BYTES", 1_000_000)
    blank = spark.range(2000).selectExpr("id", "repeat('x', 5000) AS v")
    written = checkpointed(
        catalog,
        "j",
        lambda cp: cp.write("x", blank.coalesce(1), key=["id"]),
        lambda cp: cp.write_changes("x", spark.range(1).selectExpr("id", "'y' AS v")),
    )
    assert sum(file.size_bytes for file in written.manifest.files.values()) < BASE_BYTES
    assert {chunk.role for chunk in written.manifest.chunks} == {Role.BASE, Role.UPSERTS}


def test_dates_of_the_old_calendar_are_left_to_spark(spark, catalog, monkeypatch):
    """As Holdfast 0.1.0 left them in a session with LEGACY: pyarrow reads other days, and a base would make them the state's."""
    base, changes = spark.sql("SELECT 1 AS id, DATE'1000-01-01' AS day"), spark.sql("SELECT 2 AS id, DATE'2000-01-01' AS day")

    def write_as_before(cp):
        with monkeypatch.context() as patch:
            for name in ("spark.sql.parquet.datetimeRebaseModeInWrite", "spark.sql.parquet.int96RebaseModeInWrite"):
                patch.delitem(native.WRITE_SETTINGS, name)
            with session_settings(spark, {"spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY"}):
                cp.write("x", base, key=["id"])

    written = checkpointed(catalog, "j", write_as_before, lambda cp: cp.write_changes("x", changes))
    assert {chunk.role for chunk in written.manifest.chunks} == {Role.BASE, Role.UPSERTS}
    assert sorted(str(row.day) for row in written.read(spark, "x").collect()) == ["1000-01-01", "2000-01-01"]


def test_the_time_of_a_small_base_has_that_of_gathering_its_rows(tmp_path):
    context = context_for(new_storage(tmp_path / "catalog"))
    rows = pa.table({"id": pa.array([1], pa.int64()), "_key_group": pa.array([0], pa.int32())})
    for given in (rows, rows.slice(0, 0)):
        (ack,) = gathered.upload_rows(given, context, SystemEnvironment(), 123_000)
        assert ack.metrics.upload_ms > 123_000


def test_tasks_with_many_rows_upload_them_and_others_bring_theirs(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(gathered, "ROWS_AT_ONCE", -1)
    rows = spark.range(0, 4, 1, 4).selectExpr("explode(sequence(0L, if(id < 2, 200000L, 10L))) AS n", "id").selectExpr("n * 4 + id AS id")
    found = gathered.gather(rows, context_for(new_storage(tmp_path / "catalog")), SystemEnvironment())
    acks = found.keep()
    assert len(found.reports) == 2
    assert found.rows.num_rows == 22
    assert sum(ack.metrics.rows for ack in acks) == 2 * 200_001 + 22
    assert len({file.path for ack in acks for file in ack.files}) == 3
