"""Reading a part of a state by key group: the right rows, in the right partitions, and little else of the files."""

from dataclasses import replace
from itertools import pairwise

import pytest

from holdfast.catalog.errors import DamagedFileError, RefusedError, UsageError
from holdfast.catalog.key_groups import groups_of
from holdfast.catalog.storage.local import LocalStorage
from holdfast.catalog.types import Role
from holdfast.writers.parquet.report import state_info
from holdfast.writers.spark.native import NativeUploader
from holdfast.writers.spark.read import read_state
from holdfast.writers.spark.streamed import StreamedUploader
from tests.support.spark_support import context_for, file_rows, new_storage, row_texts, session_settings
from tests.writers.spark.uploader_contract import note_run

ROWS = 120_000
DIRECTORY = "jobs/flights-1a2b3c4d/savepoints/before-0123456789abcdef"


class WrittenState:
    """A state that a uploader wrote, and how to read it back."""

    def __init__(self, storage, df, context, uploader):
        self.storage, self.df, self.context = storage, df, context
        self.acks = uploader.write(df, context)
        self.info = state_info(df, context, self.acks)
        self.files = file_rows(self.acks)
        self.chunks = [chunk for ack in self.acks for chunk in ack.chunks]

    def read(self, **how):
        how = {"max_parallelism": self.context.max_parallelism, **how}
        return read_state(self.df.sparkSession, self.storage, self.info, self.chunks, self.files, **how)

    def rows_of(self, groups):
        """What a reading of these key groups must give, by Spark's own hash."""
        group = f"pmod(hash({', '.join(self.context.key_columns)}), {self.context.max_parallelism})"
        return row_texts(self.df.where(f"{group} BETWEEN {groups.start} AND {groups.stop - 1}"))

    def place(self, chunk):
        return self.storage.root / self.files[chunk.file_id][0]

    def damage(self, chunk):
        """Flip a bit in the middle of a chunk; returns what undoes it."""
        place = self.place(chunk)
        data = place.read_bytes()
        at = chunk.offset_bytes + chunk.length_bytes // 2
        place.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        return lambda: place.write_bytes(data)


def rows(spark, count=ROWS):
    """Rows that do not compress to nothing: several row groups of a savepoint."""
    return spark.range(0, count, 1, 4).selectExpr(
        "id", "concat(sha1(string(id)), sha1(string(-id))) AS text", "sha2(string(id), 512) AS more"
    )


@pytest.fixture(
    scope="module", params=[NativeUploader(), pytest.param(StreamedUploader(), marks=pytest.mark.slow)], ids=["native", "streamed"]
)
def savepoint(request, spark, tmp_path_factory):
    storage = LocalStorage(tmp_path_factory.mktemp("savepoint"))
    with session_settings(spark, {"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.coalescePartitions.enabled": "false"}):
        return WrittenState(storage, rows(spark), context_for(storage, is_savepoint=True, directory=DIRECTORY), request.param)


@pytest.fixture(scope="module")
def scattered(spark, tmp_path_factory):
    """A checkpoint's state: each of its three files has every key group."""
    storage = LocalStorage(tmp_path_factory.mktemp("checkpoint"))
    return WrittenState(storage, rows(spark, 3000).repartition(3), context_for(storage), NativeUploader())


def input_bytes(spark, df):
    """What the tasks of a scan say that they read. Reads that Parquet puts together (vectored) are not counted on a local disk."""
    group = f"scan-{id(df)}"
    spark.sparkContext.setJobGroup(group, group)
    with session_settings(spark, {"parquet.hadoop.vectored.io.enabled": "false"}):
        df.write.format("noop").mode("overwrite").save()
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    tracker = spark.sparkContext.statusTracker()
    stages = {stage for job in tracker.getJobIdsForGroup(group) for stage in tracker.getJobInfo(job).stageIds}
    return sum(spark.sparkContext._jsc.sc().statusStore().lastStageAttempt(stage).inputBytes() for stage in stages)


class TestSavepoint:
    def test_its_files_lie_in_its_directory_and_belong_to_it_alone(self, savepoint):
        assert all(path.startswith(f"{DIRECTORY}/0") for path, _, _ in savepoint.files.values())
        assert {chunk.scope for chunk in savepoint.chunks} == {"EXCLUSIVE"}
        assert {file.scope for ack in savepoint.acks for file in ack.files} == {"EXCLUSIVE"}
        assert sorted(found.path for found in savepoint.storage.list("")) == sorted(path for path, _, _ in savepoint.files.values())

    def test_each_row_group_has_few_key_groups_and_each_file_a_range(self, savepoint):
        row_groups = [chunk for chunk in savepoint.chunks if chunk.role is Role.BASE]
        assert len(savepoint.files) == 2
        assert len(row_groups) >= 4
        assert all(chunk.length_bytes < 6_000_000 for chunk in row_groups)
        bounds = sorted((chunk.key_group_from, chunk.key_group_to) for chunk in row_groups)
        assert all(before[1] <= after[0] for before, after in pairwise(bounds))
        assert {chunk.key_group_to < 64 for chunk in row_groups if chunk.key_group_from < 64} == {True}

    def test_half_of_the_groups_read_about_half_of_the_bytes(self, spark, savepoint):
        whole = input_bytes(spark, savepoint.read(verify=False))
        size_bytes = sum(size_bytes for _, size_bytes, _ in savepoint.files.values())
        assert 0.8 * size_bytes <= whole <= 1.3 * size_bytes
        half = input_bytes(spark, savepoint.read(key_groups=range(64), verify=False))
        assert half <= 0.6 * whole
        few = range(40, 60)
        wanted = [c for c in savepoint.chunks if c.role is Role.BASE and c.key_group_from < few.stop and few.start <= c.key_group_to]
        read = input_bytes(spark, savepoint.read(key_groups=few, verify=False))
        assert read <= 1.05 * sum(chunk.length_bytes for chunk in wanted) < half

    def test_the_rows_are_those_of_the_groups(self, savepoint):
        assert row_texts(savepoint.read()) == row_texts(savepoint.df)
        for groups in (range(5), range(31, 97), range(127, 128)):
            assert row_texts(savepoint.read(key_groups=groups)) == savepoint.rows_of(groups)

    def test_subtasks_are_partitions_read_without_a_shuffle(self, savepoint):
        kept = savepoint.read(parallelism=2)
        assert "Exchange" not in kept._jdf.queryExecution().executedPlan().toString()
        assert [len(part) for part in kept.rdd.glom().collect()] == [savepoint.rows_of(groups_of(i, 2, 128)).total() for i in range(2)]

    def test_damage_is_found_in_what_is_read_and_nowhere_else(self, savepoint):
        row_groups = [chunk for chunk in savepoint.chunks if chunk.role is Role.BASE]
        low = min(row_groups, key=lambda chunk: chunk.key_group_from)
        high = next(c for c in row_groups if c.file_id == low.file_id and c.key_group_from > low.key_group_to)
        groups = range(low.key_group_from, low.key_group_from + 1)
        undo = savepoint.damage(high)
        assert row_texts(savepoint.read(key_groups=groups)) == savepoint.rows_of(groups)
        with pytest.raises(DamagedFileError, match=f"is damaged: expected {savepoint.files[low.file_id][1]} bytes with SHA-256"):
            savepoint.read()
        undo()
        undo = savepoint.damage(low)
        with pytest.raises(DamagedFileError, match=f"expected bytes 0 to {low.length_bytes} with SHA-256 {low.sha256}"):
            savepoint.read(key_groups=groups)
        undo()
        footer = next(chunk for chunk in savepoint.chunks if chunk.role is Role.FOOTER and chunk.file_id == low.file_id)
        undo = savepoint.damage(footer)
        with pytest.raises(DamagedFileError, match=f"expected bytes {footer.offset_bytes} to"):
            savepoint.read(key_groups=groups)
        undo()

    def test_without_digests_row_groups_are_compared_with_the_footer(self, savepoint):
        first = next(chunk for chunk in savepoint.chunks if chunk.role is Role.BASE)
        wrong = [replace(chunk, rows=chunk.rows + 1) if chunk is first else chunk for chunk in savepoint.chunks]
        other = replace(savepoint.info, rows=None)
        how = {"max_parallelism": 128, "verify": False, "key_groups": range(first.key_group_from, first.key_group_from + 1)}
        with pytest.raises(DamagedFileError, match=f"expected {first.rows + 1} rows, found {first.rows}"):
            read_state(savepoint.df.sparkSession, savepoint.storage, other, wrong, savepoint.files, **how)


@pytest.mark.parametrize("parallelism", [1, 3, 16, 128])
def test_subtasks_of_a_scattered_state_get_exactly_their_groups(scattered, parallelism):
    parts = scattered.read(parallelism=parallelism).rdd.glom().collect()
    owners = {row.id: row.n for row in scattered.df.selectExpr("id", f"pmod(hash(id), 128) * {parallelism} div 128 AS n").collect()}
    assert len(parts) == parallelism
    assert {row.id: i for i, part in enumerate(parts) for row in part} == owners
    assert sum(len(part) for part in parts) == len(owners)


def test_both_ways_of_asking_meet(scattered):
    parts = scattered.read(parallelism=4, key_groups=range(20, 70)).rdd.glom().collect()
    wanted = [range(20, 32), range(32, 64), range(64, 70), range(0)]
    assert [len(part) for part in parts] == [scattered.rows_of(groups).total() if groups else 0 for groups in wanted]


def test_subtasks_without_rows_are_empty_partitions(spark, tmp_path):
    storage = LocalStorage(tmp_path)
    one = WrittenState(storage, spark.range(1), context_for(storage), NativeUploader())
    parts = one.read(parallelism=8).rdd.glom().collect()
    assert [len(part) for part in parts] == [one.rows_of(groups_of(i, 8, 128)).total() for i in range(8)]
    none = WrittenState(storage, spark.range(0), context_for(storage, call=1), StreamedUploader())
    assert none.read(parallelism=8).rdd.getNumPartitions() == 8


def test_a_state_without_keys_is_read_whole_or_not_at_all(spark, tmp_path):
    storage = LocalStorage(tmp_path)
    state = WrittenState(storage, spark.range(10), context_for(storage, key=()), NativeUploader())
    assert state.read().count() == 10
    for how in ({"key_groups": range(64)}, {"parallelism": 2}):
        with pytest.raises(RefusedError, match="is_key_group_aware"):
            state.read(**how)


@pytest.mark.parametrize(
    "how",
    [
        {"key_groups": range(120, 129)},
        {"key_groups": range(5, 5)},
        {"parallelism": 129},
        {"parallelism": 0},
    ],
)
def test_groups_that_are_not_there_are_refused(scattered, how):
    with pytest.raises(UsageError, match=r"key_groups=|parallelism="):
        scattered.read(**how)


@pytest.mark.parametrize("key_groups", [[0, 1], 5, range(0, 64, 2), range(5, 0, -1), "0-5", True], ids=repr)
def test_key_groups_that_are_no_range_are_refused_by_name(scattered, key_groups):
    with pytest.raises(UsageError, match=r"key_groups=.* is not a range of key groups without gaps: pass range\(first, last \+ 1\)"):
        scattered.read(key_groups=key_groups)


@pytest.mark.parametrize("parallelism", ["4", 2.0, True, [4]], ids=repr)
def test_a_parallelism_that_is_no_whole_number_is_refused_by_name(scattered, parallelism):
    with pytest.raises(UsageError, match=r"parallelism=.* is not a number of subtasks: pass a whole number"):
        scattered.read(parallelism=parallelism)


def test_a_savepoint_without_keys_is_written_as_it_comes(spark, tmp_path):
    storage = LocalStorage(tmp_path)
    df = spark.range(0, 100, 1, 4)
    state = WrittenState(storage, df, context_for(storage, key=(), is_savepoint=True, directory="here"), NativeUploader())
    assert len(state.files) == 4
    assert row_texts(state.read()) == row_texts(df)


@pytest.mark.parametrize("partitions", [5, 300])
def test_files_of_a_savepoint_have_ranges_and_a_small_one_is_one_file(spark, tmp_path, partitions):
    storage, df = LocalStorage(tmp_path), rows(spark, 2000)
    for i, adaptive in enumerate(["true", "false"]):
        with session_settings(spark, {"spark.sql.shuffle.partitions": str(partitions), "spark.sql.adaptive.enabled": adaptive}):
            state = WrittenState(
                storage, df, context_for(storage, call=i, is_savepoint=True, directory="here", max_parallelism=8), NativeUploader()
            )
        bounds = sorted((chunk.key_group_from, chunk.key_group_to) for chunk in state.chunks)
        assert len(bounds) == (1 if adaptive == "true" else min(partitions, 8))
        assert all(before[1] < after[0] for before, after in pairwise(bounds))


def test_a_savepoints_plan_runs_once(spark, tmp_path):
    storage, runs = new_storage(tmp_path / "catalog"), tmp_path / "runs"
    runs.mkdir()

    def noted(batches):
        return note_run(runs, batches)

    df = spark.range(0, 100, 1, 3).mapInArrow(noted, "id bigint")
    WrittenState(storage, df, context_for(storage, is_savepoint=True, directory="here"), NativeUploader())
    assert len([*runs.iterdir()]) == 3
