"""What every uploader owes, whatever the DataFrame's plan does."""

import hashlib
import os
from functools import partial

import pyarrow.parquet as pq
import pytest

from holdfast.catalog.errors import UsageError
from holdfast.catalog.paths import AttemptPath, parse
from holdfast.catalog.types import Role, Scope
from holdfast.writers.parquet.report import state_info
from holdfast.writers.spark.read import read_state
from tests.support.spark_support import ATTEMPT, JOB, context_for, file_rows, new_storage, row_texts, session_settings

MANY_TYPES = """
    SELECT 1 AS id, 'text' AS string, X'00ff' AS binary, true AS boolean, 1Y AS byte, 2S AS short, 3L AS long, float('NaN') AS float,
        double('-0.0') AS double, 1.25BD AS decimal, cast(12345678901234567890.123 AS decimal(30, 3)) AS wide, DATE'0001-01-01' AS date,
        TIMESTAMP'1500-03-01 12:34:56.789012' AS timestamp, TIMESTAMP_NTZ'9999-12-31 23:59:59.999999' AS ntz,
        INTERVAL '1 02:03:04.000005' DAY TO SECOND AS duration, named_struct('a', 1, 'at', TIMESTAMP'2013-01-01 00:00:00') AS struct,
        array(1, null, 3) AS array, map('k', array(TIMESTAMP'1969-12-31 23:59:59.999999'), 'n', null) AS map
    UNION ALL SELECT 2, '', X'', false, -128Y, -32768S, -9223372036854775808L, float('-Infinity'), 4.9E-324D, -0.01BD, 0, DATE'9999-12-31',
        TIMESTAMP'2262-04-12 00:00:00', TIMESTAMP_NTZ'0001-01-01 00:00:00', INTERVAL '-1' DAY, named_struct('a', null, 'at', null),
        array(), map()
    UNION ALL SELECT 3, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
"""


def note_run(folder, batches):
    """Leave a file for each run of a partition."""
    (folder / os.urandom(8).hex()).touch()
    yield from batches


def fail_first(rows_before, batches):
    """Fail each task's first attempt after some batches have been handed on."""
    from pyspark import TaskContext

    for i, batch in enumerate(batches):
        if i == rows_before and TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("the first attempt of every task fails")
        yield batch


class UploaderContract:
    @pytest.fixture
    def storage(self, tmp_path):
        return new_storage(tmp_path / "catalog")

    @pytest.fixture
    def uploader(self):
        raise NotImplementedError

    def assert_kept(self, uploader, df, context):
        """Write, check every promise of the acks against the bytes, and read all rows back."""
        acks = uploader.write(df, context)
        files = {file.file_id: file for ack in acks for file in ack.files}
        chunks = [chunk for ack in acks for chunk in ack.chunks]
        assert len(chunks) == len({chunk.identity for chunk in chunks})
        assert len(files) == len({file.path for file in files.values()})
        for file in files.values():
            self.assert_chunks_tell_the_truth(file, [chunk for chunk in chunks if chunk.file_id == file.file_id], context)
        info = state_info(df, context, acks)
        assert info.rows == sum(ack.metrics.rows for ack in acks) == sum(chunk.rows or 0 for chunk in chunks)
        assert info.total_bytes == sum(ack.metrics.bytes_written for ack in acks)
        kept = read_state(df.sparkSession, context.storage, info, chunks, file_rows(acks), max_parallelism=context.max_parallelism)
        assert kept.columns == df.columns
        assert [field.dataType.simpleString() for field in kept.schema] == [field.dataType.simpleString() for field in df.schema]
        return acks, kept

    def assert_chunks_tell_the_truth(self, file, chunks, context):
        place = context.storage.root / file.path
        data = place.read_bytes()
        scope = Scope.EXCLUSIVE if context.metadata.is_savepoint else Scope.SHARED
        assert (file.size_bytes, file.sha256, file.scope) == (len(data), hashlib.sha256(data).hexdigest(), scope)
        if context.directory is None:
            assert parse(file.path) == AttemptPath(job_id=JOB, checkpoint_id=context.metadata.checkpoint_id, attempt=ATTEMPT)
        assert file.file_id.startswith(f"{ATTEMPT}-{context.call}-")
        parquet = pq.ParquetFile(place)
        row_groups = parquet.num_row_groups
        assert len(chunks) == (row_groups + 1 if row_groups > 1 else 1)
        end = 0
        for i, chunk in enumerate(chunks):
            assert (chunk.operator, chunk.state, chunk.layer, chunk.scope) == (context.operator, context.state, context.layer, scope)
            assert (chunk.offset_bytes, chunk.length_bytes > 0) == (end, True)
            end += chunk.length_bytes
            assert chunk.sha256 == hashlib.sha256(data[chunk.offset_bytes : end]).hexdigest()
            is_footer = len(chunks) > 1 and i == row_groups
            assert chunk.role is (Role.FOOTER if is_footer else context.role)
            groups = [] if is_footer else parquet.read_row_groups([i] if row_groups else [], ["_key_group"])["_key_group"].to_pylist()
            assert chunk.rows == (None if is_footer else len(groups))
            bounds = (min(groups), max(groups)) if groups else (None, None) if is_footer else (0, context.max_parallelism - 1)
            assert (chunk.key_group_from, chunk.key_group_to) == (bounds if context.key_columns else (None, None))
        assert end == len(data)

    @pytest.mark.parametrize(
        "shape",
        [
            lambda df: df,
            lambda df: df.repartition(7, "id"),
            lambda df: df.repartitionByRange(4, "id"),
            lambda df: df.repartition(5).coalesce(2),
            lambda df: df.groupBy("id").count(),
            lambda df: df.join(df.filter("id % 3 = 0").select("id"), "id"),
            lambda df: df.orderBy("id").limit(10),
            lambda df: df.filter("id < 0"),
            lambda df: df.filter("id = 5").repartition(8),
        ],
        ids=["plain", "by key", "by range", "coalesced", "aggregated", "joined", "limited", "all filtered", "nearly empty"],
    )
    def test_every_row_is_kept_once_whatever_the_plan(self, spark, uploader, storage, shape):
        df = shape(spark.range(0, 1000, 1, 4).selectExpr("id", "if(id % 5 = 0, null, concat('text ', id)) AS text"))
        _, kept = self.assert_kept(uploader, df, context_for(storage))
        assert row_texts(kept) == row_texts(df)

    @pytest.mark.parametrize("zone", ["UTC", "America/St_Johns"])
    def test_every_type_comes_back_as_it_was(self, spark, uploader, storage, zone):
        with session_settings(spark, {"spark.sql.session.timeZone": zone}):
            df = spark.sql(MANY_TYPES)
            key = ("id", "string", "double", "decimal", "timestamp", "struct", "array")
            _, kept = self.assert_kept(uploader, df, context_for(storage, key=key))
            assert row_texts(kept) == row_texts(df)

    def test_key_groups_are_sparks_own_hash(self, spark, uploader, storage):
        df = spark.range(0, 500, 1, 3).selectExpr("id", "if(id % 7 = 0, null, concat('k', id)) AS text")
        acks = uploader.write(df, context_for(storage, key=("text", "id"), max_parallelism=16))
        written = spark.read.parquet(*[str(storage.root / file.path) for ack in acks for file in ack.files])
        assert written.schema["_key_group"].dataType.simpleString() == "int"
        assert written.filter("_key_group != pmod(hash(text, id), 16)").count() == 0
        assert written.select("_key_group").distinct().count() == 16

    def test_without_keys_a_chunk_has_its_subtask_and_no_key_groups(self, spark, uploader, storage):
        acks, _ = self.assert_kept(uploader, spark.range(0, 10, 1, 2), context_for(storage, key=()))
        assert {(chunk.subtask, chunk.key_group_from, chunk.key_group_to) for ack in acks for chunk in ack.chunks} == {
            (0, None, None),
            (1, None, None),
        }

    def test_with_keys_a_chunk_has_no_subtask(self, spark, uploader, storage):
        acks, _ = self.assert_kept(uploader, spark.range(10), context_for(storage))
        assert {chunk.subtask for ack in acks for chunk in ack.chunks} == {None}

    def test_an_empty_state_keeps_its_schema(self, spark, uploader, storage):
        schema = "id bigint, at timestamp, tags array<string>"
        no_partitions = spark.createDataFrame(spark.sparkContext.emptyRDD(), schema)
        no_rows = spark.range(0, 1, 1, 3).filter("id < 0").selectExpr("id", "timestamp_micros(id) AS at", "array('') AS tags")
        for call, df in enumerate([no_partitions, no_rows, spark.createDataFrame([], schema)]):
            _, kept = self.assert_kept(uploader, df, context_for(storage, call=call))
            assert kept.count() == 0
            assert kept.schema.simpleString() == df.schema.simpleString()

    def test_field_ids_of_the_users_schema_do_not_hide_columns(self, spark, uploader, storage):
        """A session that finds columns by Parquet's field ids would find none in a file that has none, and return nulls."""
        from pyspark.sql.types import LongType, StructField, StructType

        inner = StructType([StructField("b", LongType(), metadata={"parquet.field.id": 3})])
        fields = [
            StructField("id", LongType(), metadata={"parquet.field.id": 7}),
            StructField("s", inner, metadata={"parquet.field.id": 8}),
        ]
        df = spark.createDataFrame([(1, (2,))], StructType(fields))
        ids = {"spark.sql.parquet.fieldId.read.enabled": "true", "spark.sql.parquet.fieldId.read.ignoreMissing": "true"}
        with session_settings(spark, {**ids, "spark.sql.parquet.fieldId.write.enabled": "false"}):
            _, kept = self.assert_kept(uploader, df, context_for(storage))
            assert [tuple(row) for row in kept.collect()] == [(1, (2,))]

    def test_odd_column_names_are_kept(self, spark, uploader, storage):
        df = (
            spark.range(5)
            .toDF("id")
            .selectExpr("id", "struct(id AS b) AS a", "id AS `a.b`", "id AS `with space`", "id AS `tick``s`", "id AS `Größe,;{}()=`")
        )
        _, kept = self.assert_kept(uploader, df, context_for(storage, key=("a.b", "tick`s")))
        assert row_texts(kept) == row_texts(df)

    def test_odd_roots_are_no_patterns_and_no_partitions(self, spark, uploader, tmp_path):
        storage = new_storage(tmp_path / "day=2013-01-01" / "we[ir]d {x,y} *?%20")
        df = spark.range(5)
        _, kept = self.assert_kept(uploader, df, context_for(storage))
        assert row_texts(kept) == row_texts(df)

    def test_a_tasks_failed_attempt_leaves_no_row_in_the_acks(self, spark, uploader, storage):
        """Each task hands on a part of its rows and fails; its second attempt hands on all of them."""
        with session_settings(spark, {"spark.sql.execution.arrow.maxRecordsPerBatch": "50"}):
            df = spark.range(0, 400, 1, 2).mapInArrow(partial(fail_first, 2), "id bigint")
            _, kept = self.assert_kept(uploader, df, context_for(storage))
        assert row_texts(kept) == row_texts(spark.range(400))

    def test_the_plan_runs_once_and_its_chance_is_kept(self, spark, uploader, storage, tmp_path):
        runs = tmp_path / "runs"
        runs.mkdir()
        df = spark.range(0, 100, 1, 3).mapInArrow(partial(note_run, runs), "id bigint").selectExpr("id", "uuid() AS chance")
        acks = uploader.write(df, context_for(storage, key=("chance",)))
        assert len([*runs.iterdir()]) == 3
        written = spark.read.parquet(*[str(storage.root / file.path) for ack in acks for file in ack.files])
        assert written.filter("_key_group = pmod(hash(chance), 128)").count() == 100

    def test_a_savepoint_has_a_chunk_for_each_row_group_in_its_directory(self, spark, uploader, storage):
        df = spark.range(0, 40_000, 1, 3).selectExpr("id", "concat(sha2(string(id), 512), sha2(string(-id), 512)) AS text")
        context = context_for(storage, is_savepoint=True, directory="jobs/j/savepoints/a", role=Role.BASE, layer=4)
        with session_settings(spark, {"spark.sql.shuffle.partitions": "1"}):
            acks, kept = self.assert_kept(uploader, df, context)
        assert row_texts(kept) == row_texts(df)
        (ack,) = acks
        assert len(ack.files) == 1
        assert len(ack.chunks) > 2
        assert all(file.path.startswith("jobs/j/savepoints/a/0") for file in ack.files)

    def test_two_calls_of_an_attempt_share_no_file(self, spark, uploader, storage):
        acks = [ack for call in (0, 1) for ack in uploader.write(spark.range(10), context_for(storage, call=call))]
        files = [file for ack in acks for file in ack.files]
        assert len({file.file_id for file in files}) == len({file.path for file in files}) == len(files)
        assert sorted(found.path for found in storage.list("")) == sorted(file.path for file in files)

    def test_the_users_settings_come_back(self, spark, uploader, storage):
        own = {"spark.sql.execution.arrow.maxRecordsPerBatch": "77", "spark.sql.parquet.outputTimestampType": "INT96"}
        with session_settings(spark, own):
            uploader.write(spark.range(5), context_for(storage))
            assert {name: spark.conf.get(name) for name in own} == own

    def test_each_task_acknowledges_what_it_wrote(self, spark, uploader, storage):
        acks = uploader.write(spark.range(0, 50_000, 1, 2), context_for(storage))
        assert [(ack.subtask, ack.metrics.rows, len(ack.files)) for ack in sorted(acks, key=lambda ack: ack.subtask)] == [
            (0, 25_000, 1),
            (1, 25_000, 1),
        ]
        for ack in acks:
            assert (ack.checkpoint_id, ack.attempt, ack.operator, ack.state) == (7, ATTEMPT, "main", "per_aircraft")
            assert ack.metrics.bytes_written == ack.files[0].size_bytes
            assert ack.metrics.upload_ms >= 1
            assert ack.metrics.bytes_reused == 0
            assert ack.metrics.sort_ms is None, "nothing was sorted"

    def test_a_savepoint_tells_how_long_its_rows_were_sorted(self, spark, uploader, storage):
        described = spark.sparkContext.getLocalProperty("spark.job.description")
        acks = uploader.write(spark.range(0, 200_000, 1, 2), context_for(storage, is_savepoint=True, directory="jobs/j/savepoints/a"))
        assert acks[0].metrics.sort_ms > 0
        assert spark.sparkContext.getLocalProperty("spark.job.description") == described

    @pytest.mark.parametrize(
        ("query", "key", "said"),
        [
            ("SELECT 1 AS id, 2 AS _key_group", ["id"], "'_key_group' is Holdfast's own"),
            ("SELECT 1 AS id, 2 AS ``", ["id"], "a column has no name"),
            ("SELECT 1 AS id, struct(2 AS ``) AS s", ["id"], "column 's.' has a field without a name"),
            ("SELECT 1 AS id, 2 AS _Key_Group", ["id"], "'_Key_Group' is Holdfast's own"),
            ("SELECT 1 AS id, 2 AS _tmp_metadata_row_index", ["id"], "'_tmp_metadata_row_index' is Spark's own"),
            ("SELECT 1 AS id", ["ID", "other"], "no key column 'ID' among 'id'.*no key column 'other'"),
            ("SELECT map('a', 1) AS id", ["id"], "key column 'id' has the type map<string,int>"),
            ("SELECT 1 AS id", ["id", "id"], "a key column is named twice"),
            ("SELECT 'a' COLLATE UTF8_LCASE AS id", ["id"], "equal texts of the collation UTF8_LCASE have different hashes"),
            ("SELECT struct('a' COLLATE UTF8_BINARY_RTRIM AS t) AS id", ["id"], "of the collation UTF8_BINARY_RTRIM"),
            ("SELECT array(struct(map('a', 1) AS m)) AS id", ["id"], "key column 'id' has the type array<struct<m:map<string,int>>>"),
            ("SELECT 1 AS id, parse_json('{}') AS v", ["id"], "column 'v' has the type variant"),
            ("SELECT 1 AS id, struct(array(null) AS x) AS s", ["id"], "column 's.x.element' has the type void"),
            ("SELECT 1 AS id, INTERVAL '1' YEAR AS y", ["id"], "column 'y' has the type interval year"),
            ("SELECT 1 AS id, 2 AS Id", ["id"], "column 'Id' appears twice"),
            ("SELECT 1 AS id, named_struct('a', 1, 'A', 2) AS s", ["id"], "column 's.A' appears twice"),
        ],
    )
    def test_what_cannot_be_a_state_is_refused_before_a_byte_is_written(self, spark, uploader, storage, query, key, said):
        with pytest.raises(UsageError, match=said):
            uploader.write(spark.sql(query), context_for(storage, key=key))
        assert not [*storage.list("")]

    def test_texts_of_a_length_are_refused_where_the_session_keeps_it(self, spark, uploader, storage):
        with (
            session_settings(spark, {"spark.sql.preserveCharVarcharTypeInfo": "true"}),
            pytest.raises(UsageError, match=r"column 'id' has the type char\(4\), which a state cannot hold: cast it"),
        ):
            uploader.write(spark.sql("SELECT cast('a' AS char(4)) AS id"), context_for(storage))

    def test_a_stream_and_nothing_at_all_are_refused(self, spark, uploader, storage):
        with pytest.raises(UsageError, match="foreachBatch"):
            uploader.write(spark.readStream.format("rate").load(), context_for(storage, key=()))
        with pytest.raises(UsageError, match="without columns"):
            uploader.write(spark.range(3).drop("id"), context_for(storage, key=()))
