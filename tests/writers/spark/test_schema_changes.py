"""A state whose columns change from one checkpoint to the next, by every reader and every way to write."""

import pytest

from holdfast.catalog.errors import UsageError
from holdfast.catalog.types import ChainLimit, KeepAll
from tests.front_door.test_documents import named, snippets
from tests.support.places import ROOT
from tests.support.spark_support import row_texts

pytestmark = pytest.mark.usefixtures("keeps_change_sets")

GROUPS = 8
NO_LIMIT = ChainLimit(change_sets=1000, share_of_base=1e9)
COLUMNS = {1: ["tailnum", "flights"], 2: ["tailnum", "flights", "seats"], 3: ["tailnum", "flights", "seats", "engine"]}


def coordinate(catalog, chain=NO_LIMIT):
    return catalog.coordinate("flights", max_parallelism=GROUPS, chain=chain, retention=KeepAll())


def base(spark):
    return spark.range(20).selectExpr("concat('N', id) AS tailnum", "id AS flights")


def change(job, upserts=None, deletes=None):
    with job.checkpoint() as checkpoint:
        checkpoint.write_changes("planes", upserts, deletes, key=["tailnum"])


def grown(spark, job):
    """Three checkpoints: the second's upserts have a column more, and the third's another; a row of each lives on."""
    with job.checkpoint() as checkpoint:
        checkpoint.write("planes", base(spark), key=["tailnum"])
    change(job, spark.sql("SELECT 150 AS seats, s AS tailnum, 7L AS flights FROM VALUES ('N1'), ('new') AS t(s)"))
    deletes = spark.sql("SELECT 'N3' AS tailnum")
    change(job, spark.sql("SELECT 'N2' AS tailnum, 8L AS flights, CAST(NULL AS int) AS seats, 'jet' AS engine"), deletes)


def rows_of(number):
    rows = {f"N{n}": (n, None, None) for n in range(20)}
    if number > 1:
        rows |= {"N1": (7, 150, None), "new": (7, 150, None)}
    if number > 2:
        rows |= {"N2": (8, None, "jet")}
        del rows["N3"]
    return sorted((name, *values)[: len(COLUMNS[number])] for name, values in rows.items())


def by_plain_sql(catalog, number):
    """As docs/choosing-a-mode.md says, without us."""
    names = {}
    for body in snippets(ROOT / "docs" / "choosing-a-mode.md", "python"):
        if body.startswith(("CHUNKS", "ANY")):
            exec(compile(body, named(ROOT / "docs"), "exec"), names)  # noqa: S102 - the page's own code
    with catalog.duckdb() as connection:
        which = {"root": catalog.address, "job": "flights", "checkpoint_id": number, "state": "planes"}
        connection.execute(names["CHUNKS"], which).execute(names["PATHS"])
        return connection.sql(names["ANY"]).select(*COLUMNS[number]).fetchall()


def test_a_column_that_is_added_is_null_in_older_rows_for_every_reader(spark, catalog):
    with coordinate(catalog) as job:
        grown(spark, job)
        for number in (1, 2, 3):
            checkpoint = catalog.checkpoint("flights", number)
            frame = checkpoint.read(spark, "planes")
            assert frame.columns == COLUMNS[number]
            assert sorted(map(tuple, frame.collect()), key=repr) == sorted(rows_of(number), key=repr)
            here = checkpoint.duckdb("planes")
            assert here.columns == COLUMNS[number]
            assert sorted(here.fetchall(), key=repr) == sorted(rows_of(number), key=repr)
        found = by_plain_sql(catalog, 3)
        assert sorted(found, key=repr) == sorted(rows_of(3), key=repr)


def test_parts_of_a_state_with_an_added_column_are_the_whole(spark, catalog):
    with coordinate(catalog) as job:
        grown(spark, job)
        latest = job.latest()
        whole = row_texts(latest.read(spark, "planes"))
        parts = [latest.read(spark, "planes", key_groups=groups) for groups in (range(3), range(3, GROUPS))]
        assert row_texts(parts[0]) + row_texts(parts[1]) == whole
        assert row_texts(latest.read(spark, "planes", parallelism=3)) == whole


def test_a_savepoint_a_copy_and_a_merged_base_have_the_added_column(spark, catalog):
    with coordinate(catalog) as job:
        grown(spark, job)
        savepoint = job.savepoint("mine", spark=spark)
        assert sorted(map(tuple, savepoint.read(spark, "planes").collect()), key=repr) == sorted(rows_of(3), key=repr)
    with catalog.coordinate("copy", start=savepoint) as job:
        assert job.latest().read(spark, "planes").columns == COLUMNS[3]
    with coordinate(catalog, ChainLimit(change_sets=1, share_of_base=1e9)) as job:
        change(job, spark.sql("SELECT 'N5' AS tailnum, 9L AS flights, 1 AS seats, 'jet' AS engine, 1.5D AS age"))
        latest = job.latest()
        assert latest.manifest.state("main", "planes").layers == 1
        rows = {row.tailnum: tuple(row)[1:] for row in latest.read(spark, "planes").collect()}
        assert (rows["N5"], rows["N2"], rows["N7"]) == ((9, 1, "jet", 1.5), (8, None, "jet", None), (7, None, None, None))
        assert latest.duckdb("planes").columns == [*COLUMNS[3], "age"]


def test_a_full_write_has_its_own_columns_and_changed_groups_writes_all(spark, catalog):
    with coordinate(catalog) as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write("planes", base(spark), key=["tailnum"], mode="changed-groups")
        with job.checkpoint() as checkpoint:
            wider = base(spark).selectExpr("*", "1 AS seats")
            checkpoint.write("planes", wider, key=["tailnum"], mode="changed-groups")
        assert checkpoint.result.reused_bytes == 0
        assert row_texts(job.latest().read(spark, "planes")) == row_texts(wider)
        with job.checkpoint() as checkpoint:
            checkpoint.write("planes", base(spark).selectExpr("tailnum", "CAST(flights AS string) AS flights"), key=["tailnum"])
        assert dict(job.latest().read(spark, "planes").dtypes) == {"tailnum": "string", "flights": "string"}


def test_a_type_that_changes_and_a_column_that_is_missing_are_refused(spark, catalog):
    """Also of added columns."""
    with coordinate(catalog) as job:
        grown(spark, job)
        for query, said in {
            "SELECT 'x' AS tailnum, 1L AS flights, 1L AS seats, 'jet' AS engine": "'seats' has the type bigint, and in the state int: cast it",
            "SELECT 'x' AS tailnum, 1L AS flights, 'jet' AS engine": r"there is no column 'seats' \(the state has it, with type int\)",
        }.items():
            with pytest.raises(UsageError, match=f"changes of state 'planes': upserts: .*{said}"):
                change(job, spark.sql(query))
        assert sorted(map(tuple, job.latest().read(spark, "planes").collect()), key=repr) == sorted(rows_of(3), key=repr)


def test_upserts_without_rows_add_no_column(spark, catalog):
    """No file would have it, and who reads the files without us would not see it."""
    with coordinate(catalog) as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write("planes", base(spark), key=["tailnum"])
        none = spark.sql("SELECT 'x' AS tailnum, 1L AS flights, 1 AS seats WHERE false")
        for deletes in (None, spark.sql("SELECT 'N3' AS tailnum")):
            change(job, none, deletes)
            latest = job.latest()
            assert latest.read(spark, "planes").columns == latest.duckdb("planes").columns == COLUMNS[1]
