"""`format("holdfast")`: reads what `Checkpoint.read` does, and writes one checkpoint of one state; the dangers of the two-phase writer."""

from pathlib import Path

import pytest
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

import holdfast
from holdfast.catalog.errors import AttemptEndedError
from holdfast.data_source import HoldfastDataSource
from holdfast.data_source_writer import Uploaded, open_write
from tests.support.invariants import assert_catalog_sound, assert_clean
from tests.support.spark_support import row_texts
from tests.writers.spark.uploader_contract import MANY_TYPES

JOB, STATE = "flights", "planes"


@pytest.fixture(scope="module")
def session(spark):
    spark.dataSource.register(holdfast.HoldfastDataSource)
    return spark


def read(session, catalog, state=STATE, **options):
    return session.read.format("holdfast").options(job=JOB, state=state, **options).load(catalog.address)


def save(df, catalog, mode="overwrite", state=STATE, **options) -> None:
    df.write.format("holdfast").mode(mode).options(job=JOB, state=state, **options).save(catalog.address)


def clean(catalog) -> None:
    """The attempts of the dead end with a new start; then everything that nobody needs goes."""
    catalog.coordinate(JOB, retention=holdfast.KeepAll()).close()
    catalog.vacuum()
    catalog.scrub()
    assert_catalog_sound(catalog)
    assert_clean(catalog)


# ---- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_read_gives_what_checkpoint_read_gives(session, catalog) -> None:
    """Of a base, of change sets over it, and of a state without rows."""
    planes = session.range(0, 300, 1, 3).selectExpr("id", "if(id % 7 = 0, null, concat('N', id)) AS name")
    with catalog.coordinate(JOB, max_parallelism=16, retention=holdfast.KeepAll()) as job:
        with job.checkpoint() as cp:
            cp.write(STATE, planes, key=["id"])
            cp.write("types", session.sql(MANY_TYPES))
            cp.write("none", planes.where("id < 0"), key=["id"])
        with job.checkpoint() as cp:
            changed = session.range(290, 310).selectExpr("id", "'new' AS name")
            cp.write_changes(STATE, upserts=changed, deletes=session.range(5), key=["id"])
        latest = job.latest()
        for state in (STATE, "types", "none"):
            found, expected = read(session, catalog, state), latest.read(session, state)
            assert found.schema == expected.schema
            assert row_texts(found) == row_texts(expected)
        assert read(session, catalog, checkpoint="1").count() == 300
        savepoint = job.savepoint("mine", spark=session)
        assert row_texts(read(session, catalog, checkpoint=savepoint.checkpoint_id)) == row_texts(latest.read(session, STATE))
        session.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW planes USING holdfast OPTIONS (path '{catalog.address}', job '{JOB}', state '{STATE}')"
        )
        assert session.sql("SELECT count(*) FROM planes WHERE name = 'new'").collect()[0][0] == 20


@pytest.mark.slow
def test_a_frame_stays_at_the_head_that_it_was_made_of_and_its_end_is_told(session, catalog) -> None:
    with catalog.coordinate(JOB, retention=holdfast.KeepLast(1)) as job:
        with job.checkpoint() as cp:
            cp.write(STATE, session.range(10), key=["id"])
        frame = read(session, catalog)
        assert frame.count() == 10
        with job.checkpoint() as cp:
            cp.write(STATE, session.range(20), key=["id"])
        assert frame.count() == 10  # dropped by retention, and not yet cleaned
        catalog.vacuum()
        with pytest.raises(Exception, match=r"state 'planes' of checkpoint 1 of job 'flights' was dropped meanwhile"):
            frame.count()
        assert read(session, catalog).count() == 20


@pytest.mark.slow
def test_damage_is_found_before_a_row_is_returned(session, catalog) -> None:
    with catalog.coordinate(JOB) as job, job.checkpoint() as cp:
        cp.write(STATE, session.range(10), key=["id"])
    frame = read(session, catalog)
    for file in Path(catalog.address).glob("jobs/*/shared/*/*.parquet"):
        data = bytearray(file.read_bytes())
        data[10] ^= 1
        file.write_bytes(data)
    with pytest.raises(Exception, match=r"DamagedFileError.*is damaged: expected"):
        frame.count()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"state": "s"}, "there is no 'job'"),
        ({"job": JOB, "state": "s", "version": "3"}, "'version' is not one"),
        ({"job": JOB, "state": "s", "checkpoint": "newest"}, "checkpoint='newest' is not the number"),
    ],
)
def test_wrong_options_are_told(catalog, options, told) -> None:
    with pytest.raises(holdfast.UsageError, match=told):
        HoldfastDataSource({"path": catalog.address, **options}).schema()


@pytest.mark.slow
def test_a_schema_of_the_users_own_is_refused(session, catalog) -> None:
    with catalog.coordinate(JOB) as job, job.checkpoint() as cp:
        cp.write(STATE, session.range(10))
    with pytest.raises(Exception, match="has the schema struct<id:bigint>, not struct<id:int>"):
        session.read.format("holdfast").schema("id int").options(job=JOB, state=STATE).load(catalog.address).count()


# ---- writing ----------------------------------------------------------------------------------------------------------


def test_a_write_is_a_checkpoint_of_a_whole_state_and_carries_the_others(session, catalog) -> None:
    with catalog.coordinate(JOB, max_parallelism=16, retention=holdfast.KeepAll()) as job, job.checkpoint({"day": 1}) as cp:
        cp.write(STATE, session.range(5).selectExpr("id", "'old' AS name"), key=["id"])
        cp.write("other", session.range(7))
    rows = session.range(0, 200, 1, 3).selectExpr("id", "concat('N', id) AS name")
    save(rows, catalog, key="id")
    save(session.sql(MANY_TYPES), catalog, state="types", key="string, timestamp")
    save(rows.where("id < 0"), catalog, state="none")
    with catalog.checkpoint(JOB) as latest:
        assert latest.checkpoint_id == 5  # the job had opened 2 for itself
        assert latest.progress == {"day": 1}
        assert row_texts(latest.read(session, STATE)) == row_texts(rows)
        assert latest.read(session, STATE, key_groups=range(8)).count() == rows.where("pmod(hash(id), 16) < 8").count()
        assert row_texts(latest.read(session, "types")) == row_texts(session.sql(MANY_TYPES))
        assert (latest.read(session, "other").count(), latest.read(session, "none").count()) == (7, 0)
    assert catalog.checkpoint(JOB, 1).read(session, STATE).count() == 5, "a write drops nothing"
    catalog.close()
    clean(catalog)


def test_a_new_job_is_registered_by_its_first_write(session, catalog) -> None:
    save(session.range(3), catalog, key="id")
    assert read(session, catalog).count() == 3


def test_append_and_rows_that_are_no_state_are_refused(session, catalog) -> None:
    """Before anything begins."""
    with catalog.coordinate(JOB) as job:
        for mode, state, key, told in (
            ("append", STATE, "id", "cannot be appended to by format"),
            ("overwrite", STATE, "other", "there is no key column 'other'"),
            ("overwrite", "a\nb", "id", "cannot be the name of a state"),
        ):
            with pytest.raises(Exception, match=told):
                save(session.range(3), catalog, mode, state, key=key)
        with job.checkpoint() as cp:  # nobody was fenced
            cp.write_bytes("offsets", b"1")


def test_a_write_that_fails_before_its_first_task_leaves_no_open_attempt(catalog) -> None:
    """Spark has no writer then, whose abort it could call: the attempt stayed open and pinned its parent."""
    with catalog.coordinate(JOB) as job, job.checkpoint() as cp:
        cp.write_bytes("offsets", b"1")
    for manifest in Path(catalog.address).glob("jobs/*/chk-*/_metadata"):
        manifest.unlink()
    with pytest.raises(holdfast.DamagedFileError):
        open_write(catalog.address, JOB, STATE, ["id"], StructType([StructField("id", LongType())]))
    ends = catalog.duckdb().execute("SELECT status, reason FROM attempts ORDER BY checkpoint_id").fetchall()
    assert ends[-1][0] == "aborted"
    assert "DamagedFileError" in ends[-1][1]
    assert "open" not in [status for status, _ in ends]


@pytest.mark.slow
def test_a_task_that_fails_for_good_aborts_the_attempt_and_leaves_nothing(session, catalog) -> None:
    save(session.range(3), catalog, key="id")
    broken = session.range(0, 100, 1, 2).selectExpr("if(id = 99, raise_error('bad row'), id) AS id")
    with pytest.raises(Exception, match="bad row"):
        save(broken, catalog, key="id")
    with catalog.duckdb() as connection:
        assert connection.execute("SELECT status, count(*) FROM attempts GROUP BY ALL ORDER BY ALL").fetchall() == [
            ("aborted", 1),
            ("committed", 1),
        ]
    clean(catalog)
    assert read(session, catalog).count() == 3


def opened(session, catalog, rows: int = 4):
    """A write whose two tasks have uploaded, by hand; its messages."""
    writer = open_write(catalog.address, JOB, STATE, ("id",), session.range(1).schema)
    frame = session.range(0, rows, 1, 2)

    def upload(batches):
        import pickle

        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"message": [pickle.dumps(writer.write(batches))]})

    import pickle

    return writer, [pickle.loads(row.message) for row in frame.mapInArrow(upload, "message binary").collect()]


def test_an_abort_after_a_commit_that_landed_changes_nothing(session, catalog) -> None:
    """Spark calls abort with every message when commit raises, though the commit may have landed."""
    writer, messages = opened(session, catalog)
    writer.commit(messages)
    files = sorted(Path(catalog.address).glob("jobs/**/*.parquet"))
    writer.abort(messages)
    assert sorted(Path(catalog.address).glob("jobs/**/*.parquet")) == files
    assert read(session, catalog).count() == 4
    clean(catalog)


def test_an_abort_deletes_nothing_and_leaves_its_files_to_the_vacuum(session, catalog) -> None:
    writer, messages = opened(session, catalog)
    files = sorted(Path(catalog.address).glob("jobs/**/*.parquet"))
    assert len(files) == 2
    writer.abort([*messages, None])
    assert sorted(Path(catalog.address).glob("jobs/**/*.parquet")) == files
    assert len(catalog.plan_vacuum().unreferenced) == 2
    with pytest.raises(AttemptEndedError):
        writer.commit(messages)
    clean(catalog)
    assert not [*Path(catalog.address).glob("jobs/**/*.parquet")]


def test_a_commit_without_all_partitions_or_rows_is_refused(session, catalog) -> None:
    writer, messages = opened(session, catalog)
    for given in ([messages[0], None], [messages[0], Uploaded(messages[1].report, 3)], [messages[0], Uploaded(None, 2)]):
        with pytest.raises(holdfast.CorruptionError, match="the write is incomplete, and nothing was committed"):
            writer.commit(given)
    writer.commit(messages)
    assert read(session, catalog).count() == 4


# ---- before it begins ---------------------------------------------------------------------------------------------------


def test_a_key_that_only_spark_hashes_is_refused_before_the_job_is_started(catalog) -> None:
    """Seen: the coordinator was fenced, and then the tasks failed."""
    array = StructField("k", ArrayType(LongType()))
    with catalog.coordinate(JOB) as job:
        for kind in (array.dataType, StructType([StructField("a", LongType()), array])):
            with pytest.raises(holdfast.UsageError, match="key column 'k' has the type .*array.*, whose key groups only Spark computes"):
                open_write(catalog.address, JOB, STATE, ["k"], StructType([StructField("k", kind)]))
        with job.checkpoint() as cp:  # nobody was fenced
            cp.write_bytes("offsets", b"1")
    open_write(catalog.address, JOB, STATE, [], StructType([array]))


def test_a_job_whose_head_its_claimer_has_dropped_is_not_begun_anew(catalog) -> None:
    """Seen: all other states, and the progress, were gone from the new head without a word."""
    with catalog.coordinate(JOB) as job, job.checkpoint({"day": 1}) as cp:
        cp.write_bytes("other", b"1")
    with catalog.coordinate("claimer", start=catalog.checkpoint(JOB).path, mode="claim", retention=holdfast.KeepLast(1)) as job:
        catalog.close()
        for _ in range(2):
            with job.checkpoint() as cp:
                cp.write_bytes("other", b"2")
    with pytest.raises(
        holdfast.RefusedError, match="'flights' was claimed by job 'claimer', whose .*coordinate 'flights' with start='nothing'"
    ):
        open_write(catalog.address, JOB, STATE, ["id"], StructType([StructField("id", LongType())]))
    assert "open" not in [
        status for (status,) in catalog.duckdb().execute("SELECT status FROM attempts WHERE purpose = 'checkpoint'").fetchall()
    ]
