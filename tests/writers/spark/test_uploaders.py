"""The two uploaders: the contract, and what only one of them can meet."""

from contextlib import contextmanager

import pyarrow.parquet as pq
import pytest

from holdfast.catalog.errors import AlreadyExistsError, CorruptionError, UnsafeSettingsError
from holdfast.catalog.paths import native_directory
from holdfast.catalog.storage import Digest, StoredObject
from holdfast.catalog.storage.local import LocalStorage
from holdfast.writers.spark.native import NativeUploader
from holdfast.writers.spark.session import settings
from holdfast.writers.spark.streamed import StreamedUploader
from tests.support.spark_support import context_for, row_texts, session_settings
from tests.writers.spark.uploader_contract import MANY_TYPES, UploaderContract


def first_attempt() -> bool:
    from pyspark import TaskContext

    return TaskContext.get().attemptNumber() == 0


class LosesResponses(LocalStorage):
    """What a task's first attempt made durable is there, and the task never hears of it."""

    __slots__ = ()

    @contextmanager
    def create_stream(self, path):
        with LocalStorage.create_stream(self, path) as stream:
            yield stream
        if first_attempt():
            raise OSError("response lost")

    def make_durable(self, path):
        LocalStorage.make_durable(self, path)
        if first_attempt():
            raise RuntimeError("response lost")  # an OSError would be a sync that failed


class MissesOne(LocalStorage):
    """The driver does not see one of the files."""

    __slots__ = ()

    def list(self, prefix):
        return iter([*LocalStorage.list(self, prefix)][1:])


class SeesMore(LocalStorage):
    """The driver sees one object more."""

    __slots__ = ()
    EXTRA = "part-0.parquet.tmp"

    def list(self, prefix):
        yield from LocalStorage.list(self, prefix)
        yield StoredObject(path=f"{prefix}/{self.EXTRA}", size_bytes=3)


class SeesLoser(SeesMore):
    __slots__ = ()
    EXTRA = "_temporary/0/_temporary/attempt_0/part-00000.snappy.parquet"


class UnsharedDisk(LocalStorage):
    """Executors look at a disk of their own."""

    __slots__ = ()

    def digest(self, path):
        raise FileNotFoundError(path)


class OlderDisk(LocalStorage):
    __slots__ = ()

    def digest(self, path):
        return Digest(size_bytes=1, sha256="0" * 64)


class Conf(dict):
    """The settings of a session."""

    set = dict.__setitem__
    unset = dict.__delitem__


class Stubborn(Conf):
    """One of its settings stays as it is."""

    def set(self, name, value):
        if name != "locked":
            self[name] = value


class Session:
    def __init__(self, **values):
        self.conf = Conf(values)


class TestNative(UploaderContract):
    @pytest.fixture
    def uploader(self):
        return NativeUploader()

    def directory(self, context):
        return native_directory(context.job_id, context.metadata.checkpoint_id, context.attempt, context.call)

    def test_times_are_int64_whatever_the_session_says(self, spark, uploader, storage):
        with session_settings(spark, {"spark.sql.parquet.outputTimestampType": "INT96"}):
            (ack,) = uploader.write(spark.sql("SELECT 1 AS id, now() AS at"), context_for(storage))
        assert pq.ParquetFile(storage.root / ack.files[0].path).schema.column(1).physical_type == "INT64"

    def test_spark_commits_in_its_stock_way_whatever_the_session_says(self, spark, uploader, storage):
        """With spark-hadoop-cloud on the classpath Spark 4.1 sets these by itself, to what users never chose."""
        others = {  # of those the class path has
            "spark.sql.sources.commitProtocolClass": "org.apache.spark.internal.io.HadoopMapReduceCommitProtocol",
            "spark.sql.parquet.output.committer.class": "org.apache.hadoop.mapreduce.lib.output.FileOutputCommitter",
        }
        with session_settings(spark, others):
            acks = uploader.write(spark.range(5), context_for(storage))
            assert {name: spark.conf.get(name) for name in others} == others
        assert sum(ack.metrics.rows for ack in acks) == 5

    def test_a_committer_that_a_user_chose_is_refused_by_name(self, spark, uploader, storage):
        name, value = "spark.sql.sources.outputCommitterClass", "org.apache.hadoop.mapreduce.lib.output.FileOutputCommitter"
        with session_settings(spark, {name: value}), pytest.raises(UnsafeSettingsError, match=f"{name} is {value}"):
            uploader.write(spark.range(5), context_for(storage))
        assert not [*storage.list("")]

    def test_a_failed_write_leaves_no_part_file_with_any_committer_version(self, spark, uploader, storage):
        df = spark.range(0, 100, 1, 2).selectExpr("if(id = 99, raise_error('bad row'), id) AS id")
        context = context_for(storage)
        with session_settings(spark, {"mapreduce.fileoutputcommitter.algorithm.version": "2"}), pytest.raises(Exception, match="bad row"):
            uploader.write(df, context)
        assert not [found.path for found in storage.list(self.directory(context)) if "_temporary" not in found.path]

    def test_a_left_over_directory_is_refused_and_kept(self, spark, uploader, storage):
        context = context_for(storage)
        uploader.write(spark.range(5), context)
        before = [*storage.list("")]
        with pytest.raises(AlreadyExistsError, match=f"{self.directory(context)} in .* write in a new one"):
            uploader.write(spark.range(6), context)
        assert [*storage.list("")] == before

    def test_a_seal_that_is_tried_again_says_the_same(self, spark, uploader, tmp_path, by_executors):
        _, kept = self.assert_kept(uploader, spark.range(0, 100, 1, 3), context_for(LosesResponses(tmp_path)))
        assert kept.count() == 100

    def test_a_part_file_that_is_not_seen_makes_the_write_incomplete(self, spark, uploader, tmp_path):
        with pytest.raises(CorruptionError, match=r"counted 100 rows, and the 1 files hold 50"):
            uploader.write(spark.range(0, 100, 1, 2), context_for(MissesOne(tmp_path)))

    def test_a_stranger_in_the_directory_is_an_error(self, spark, uploader, tmp_path):
        with pytest.raises(CorruptionError, match=r"part-0\.parquet\.tmp in .* is not a file that Spark's writer makes"):
            uploader.write(spark.range(5), context_for(SeesMore(tmp_path)))

    def test_a_losing_task_that_still_writes_is_no_stranger(self, spark, uploader, tmp_path):
        """A speculative task was seen writing seconds after the job's commit had removed `_temporary`: its file brings that back."""
        acks = uploader.write(spark.range(5), context_for(SeesLoser(tmp_path)))
        assert sum(ack.metrics.rows for ack in acks) == 5
        assert not [file for ack in acks for file in ack.files if "_temporary" in file.path]

    @pytest.mark.parametrize(("disk", "found"), [(UnsharedDisk, "was not there"), (OlderDisk, "had 1 bytes")])
    def test_executors_that_see_other_files_than_the_driver_are_told(self, spark, uploader, tmp_path, by_executors, disk, found):
        with pytest.raises(UnsafeSettingsError, match=f"{found} where it was read: .*do not share .*: mount it on every host"):
            uploader.write(spark.range(5), context_for(disk(tmp_path)))


class TestStreamed(UploaderContract):
    @pytest.fixture
    def uploader(self):
        return StreamedUploader()

    def test_partitions_without_rows_make_no_file(self, spark, uploader, storage):
        (ack,) = uploader.write(spark.range(0, 8, 1, 8).filter("id = 3"), context_for(storage))
        assert len(ack.files) == 1
        (ack,) = uploader.write(spark.range(0), context_for(storage, call=1))
        assert ack.files == ack.chunks == ()

    def test_an_upload_whose_response_was_lost_is_no_part_of_the_acks(self, spark, uploader, tmp_path):
        storage = LosesResponses(tmp_path)
        acks, kept = self.assert_kept(uploader, spark.range(0, 100, 1, 2), context_for(storage))
        assert row_texts(kept) == row_texts(spark.range(100))
        assert len([*storage.list("")]) == 2 * len(acks) == 4

    def test_a_call_made_twice_keeps_both_apart(self, spark, uploader, storage):
        context = context_for(storage)
        first, second = uploader.write(spark.range(5), context), uploader.write(spark.range(6), context)
        assert not {file.path for ack in first for file in ack.files} & {file.path for ack in second for file in ack.files}

    def test_batches_become_row_groups_of_one_file(self, spark, uploader, storage):
        (ack,) = uploader.write(spark.range(0, 250_000, 1, 1), context_for(storage))
        assert pq.read_metadata(storage.root / ack.files[0].path).num_row_groups == 1


def test_both_uploaders_leave_the_same_types(spark, tmp_path):
    """Whoever reads the files without Holdfast need not know which uploader wrote them."""
    schemas = []
    for call, uploader in enumerate([NativeUploader(), StreamedUploader()]):
        storage = LocalStorage(tmp_path)
        (ack,) = uploader.write(spark.sql(MANY_TYPES).coalesce(1), context_for(storage, call=call))
        parquet = pq.ParquetFile(storage.root / ack.files[0].path).schema
        columns = [parquet.column(i) for i in range(len(parquet.names))]
        schemas.append([(column.name, column.logical_type.to_json()) for column in columns])
    assert schemas[0] == schemas[1]


def test_overlapping_blocks_give_the_users_settings_back_at_the_end():
    session = Session(kept="own")
    with settings(session, {"kept": "1", "new": "2"}):
        with settings(session, {"kept": "1"}):
            pass
        assert session.conf == {"kept": "1", "new": "2"}
    assert session.conf == {"kept": "own"}


def test_a_setting_that_cannot_be_borrowed_is_named_and_others_come_back():
    session = Session()
    session.conf = Stubborn(free="own", locked="magic")
    with pytest.raises(UnsafeSettingsError, match="locked is magic, the action needs stock, and the session does not let it be set"):
        with settings(session, {"free": "1", "locked": "stock"}):
            raise AssertionError("the block ran")
    assert session.conf == {"free": "own", "locked": "magic"}
    with settings(session, {"locked": "magic"}):
        pass
