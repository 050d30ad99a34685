"""`write_changes`: change sets above a base, what they must be, and when a base is written in their place."""

import os
from functools import partial

import pytest

from holdfast.catalog.errors import DamagedFileError, UsageError
from holdfast.catalog.types import ChainLimit, KeepAll, Role
from holdfast.writers.spark import change_sets
from tests.support.spark_support import row_texts, session_settings
from tests.support.tables import table

pytestmark = pytest.mark.usefixtures("keeps_change_sets")

STATE = "planes"
GROUPS = 8
NO_LIMIT = ChainLimit(change_sets=1000, share_of_base=1e9)
SCHEMA = "id int, text string, number double"


def coordinate(catalog, upload="streamed", chain=NO_LIMIT):
    return catalog.coordinate("flights", max_parallelism=GROUPS, upload=upload, chain=chain, retention=KeepAll())


@pytest.fixture(params=["native", pytest.param("streamed", marks=pytest.mark.slow)])
def each_job(request, catalog):
    with coordinate(catalog, request.param) as coordinator:
        yield coordinator


@pytest.fixture
def job(catalog):
    with coordinate(catalog) as coordinator:
        yield coordinator


def frame(spark, rows, schema=SCHEMA):
    return spark.createDataFrame(rows, schema)


def base(spark):
    return frame(spark, [(n, f"row {n}", n / 2) for n in range(20)])


def full(job, df, key=("id",)):
    with job.checkpoint() as checkpoint:
        checkpoint.write(STATE, df, key=key)


def change(job, upserts=None, deletes=None, key="id"):
    with job.checkpoint() as checkpoint:
        checkpoint.write_changes(STATE, upserts, deletes, key=key)
    return checkpoint.result


def read(spark, job):
    return {row[0]: tuple(row[1:]) for row in job.latest().read(spark, STATE).collect()}


def info_of(job):
    return job.latest().manifest.state("main", STATE)


# ---- change sets ------------------------------------------------------------------------------------------------------------


def test_upserts_replace_and_add_and_deletes_take_away(spark, each_job):
    full(each_job, base(spark))
    before = each_job.latest().manifest
    result = change(each_job, frame(spark, [(3, "new", None), (77, None, 7.0)]), frame(spark, [(4,), (88,)], "id int"))
    expected = {n: (f"row {n}", n / 2) for n in range(20)} | {3: ("new", None), 77: (None, 7.0)}
    del expected[4]
    assert read(spark, each_job) == expected
    manifest = each_job.latest().manifest
    new = [chunk for chunk in manifest.chunks if chunk not in before.chunks]
    assert {(chunk.role, chunk.layer) for chunk in new} == {(Role.UPSERTS, 1), (Role.DELETES, 1)}
    assert manifest.chunks[: len(before.chunks)] == before.chunks
    assert result.new_bytes == sum(chunk.length_bytes for chunk in new)
    info = info_of(each_job)
    assert (info.layers, info.rows, info.group_digests) == (2, None, None)
    assert info.total_bytes == sum(chunk.length_bytes for chunk in manifest.chunks)


def test_later_change_sets_win(spark, job):
    """By the state's key, which need not be given again."""
    full(job, base(spark))
    change(job, frame(spark, [(1, "first", 1.0), (2, "first", 1.0)]), key=())
    with job.checkpoint() as checkpoint:
        checkpoint.write_changes(STATE, deletes=frame(spark, [(1,)], "id int"))
    change(job, frame(spark, [(1, "second", 2.0)]), frame(spark, [(2,)], "id int"))
    found = read(spark, job)
    assert found[1] == ("second", 2.0)
    assert 2 not in found
    assert len(found) == 19
    assert info_of(job).layers == 4


def test_columns_of_changes_come_in_any_order(spark, job):
    """Those of deletes beyond the key do not count."""
    full(job, frame(spark, [(1, "a", 1.0), (2, "b", 2.0)]), key=("text", "id"))
    upserts = frame(spark, [(9.0, 1, "a")], "number double, id int, text string")
    deletes = frame(spark, [(None, "b", [1], 2)], "number string, text string, more array<int>, id int")
    change(job, upserts, deletes, key=("id", "text"))
    assert read(spark, job) == {1: ("a", 9.0)}
    written = [chunk for chunk in job.latest().manifest.chunks if chunk.role is Role.UPSERTS]
    group = frame(spark, [("a", 1)], "text string, id int").selectExpr(f"pmod(hash(text, id), {GROUPS})").head()[0]
    assert [chunk.key_group_from for chunk in written] == [group], "by the key in the state's own order"


def test_keys_that_may_be_null_here_and_not_there_are_compared(spark, job):
    full(job, base(spark))
    change(job, frame(spark, [(1, "new", 1.0)]), spark.sql("SELECT 2 AS id"))
    found = read(spark, job)
    assert (found[1], 2 in found) == (("new", 1.0), False)
    with pytest.raises(UsageError, match="id=1"):
        change(job, frame(spark, [(1, "new", 1.0)]), spark.sql("SELECT 1 AS id"))


def test_nothing_is_carried_as_nothing(spark, job, catalog):
    full(job, base(spark))
    before = job.latest().manifest
    result = change(job, frame(spark, []), frame(spark, [], "id int"))
    assert (result.new_bytes, result.new_handles) == (0, 0)
    after = job.latest().manifest
    assert (after.chunks, after.states) == (before.chunks, before.states)
    change(job, frame(spark, [(1, "x", None)]), frame(spark, [], "id int"))
    assert {chunk.role for chunk in job.latest().manifest.chunks} == {Role.BASE, Role.UPSERTS}
    with catalog.duckdb() as connection:
        reused = connection.execute("select sum(bytes_reused) from ack_metrics where checkpoint_id = 3").fetchone()
    assert reused == (before.states[0].total_bytes,)


def test_odd_names_and_types_of_keys(spark, job):
    schema = "`a.b` double, `tick``s` struct<x: string>, `with space` int"
    nan = float("nan")
    full(job, frame(spark, [(nan, None, 1), (0.0, ("x",), 2), (None, ("y",), 3)], schema), key=("a.b", "tick`s"))
    upserts, deletes = frame(spark, [(nan, None, 9), (None, ("z",), 4)], schema), frame(spark, [(-0.0, ("x",), 0)], schema)
    change(job, upserts, deletes, key=("a.b", "tick`s"))
    expected = frame(spark, [(nan, None, 9), (None, ("y",), 3), (None, ("z",), 4)], schema)
    assert row_texts(job.latest().read(spark, STATE)) == row_texts(expected)


def note_run(folder, batches):
    (folder / os.urandom(8).hex()).touch()
    yield from batches


@pytest.mark.parametrize("chain", [NO_LIMIT, ChainLimit(change_sets=0)], ids=["change set", "merged"])
def test_each_plan_runs_once(spark, catalog, tmp_path, chain):
    with coordinate(catalog, chain=chain) as job:
        full(job, base(spark))
        runs = []
        for name, ids in (("upserts", range(3)), ("deletes", range(5, 8))):
            folder = tmp_path / name
            folder.mkdir()
            df = frame(spark, [(n, "x", None) for n in ids]).coalesce(1).mapInArrow(partial(note_run, folder), SCHEMA)
            runs.append((folder, df))
        change(job, runs[0][1], runs[1][1])
        assert [len([*folder.iterdir()]) for folder, _ in runs] == [1, 1]
        assert len(read(spark, job)) == 17


# ---- without a base -----------------------------------------------------------------------------------------------------------


def test_without_a_base_the_upserts_are_the_base(spark, each_job):
    change(each_job, base(spark), frame(spark, [(88,)], "id int"))
    assert len(read(spark, each_job)) == 20
    info = info_of(each_job)
    assert (info.layers, info.rows, info.key_columns) == (1, 20, ("id",))
    assert {chunk.role for chunk in each_job.latest().manifest.chunks} == {Role.BASE}


def test_deletes_of_a_state_that_is_not_there_are_nothing(spark, job):
    with job.checkpoint() as checkpoint:
        checkpoint.write_changes(STATE, deletes=frame(spark, [(1,)], "id int"), key="id")
        with pytest.raises(UsageError, match="already written"):
            checkpoint.write(STATE, base(spark))
    assert job.latest().states == ()


def test_changes_above_a_state_without_rows(spark, job):
    change(job, frame(spark, []))
    change(job, frame(spark, [(1, "x", None)]))
    assert read(spark, job) == {1: ("x", None)}


# ---- chains are bounded ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("upload", ["native", pytest.param("streamed", marks=pytest.mark.slow)])
def test_beyond_the_limit_a_merged_base_is_written(spark, catalog, upload):
    with coordinate(catalog, upload, ChainLimit(change_sets=2, share_of_base=1e9)) as job:
        full(job, base(spark))
        layers = []
        for n in range(4):
            change(job, frame(spark, [(n, "new", None)]), frame(spark, [(n + 10,)], "id int"))
            layers.append(info_of(job).layers)
        assert layers == [2, 3, 1, 2]
        expected = {n: (f"row {n}", n / 2) for n in range(20) if n not in range(10, 14)} | dict.fromkeys(range(4), ("new", None))
        assert read(spark, job) == expected
        merged = catalog.checkpoint("flights", 4)
        assert {chunk.role for chunk in merged.manifest.chunks} <= {Role.BASE, Role.FOOTER}
        assert merged.manifest.states[0].rows == 17
        assert merged.manifest.states[0].schema == catalog.checkpoint("flights", 1).manifest.states[0].schema
        with catalog.duckdb() as connection:
            unused = connection.execute("select count(*) from unreferenced_files").fetchone()
        assert unused is not None
        assert unused[0] == 2, "the change set that was merged at once: cleanup finds its files by query"
        assert catalog.vacuum().deleted_files == 2
        assert catalog.verify().damages == ()


def test_a_base_that_is_small_beside_its_changes_is_written_anew_at_once(spark, catalog):
    with coordinate(catalog, chain=ChainLimit()) as job:
        full(job, base(spark).limit(1).coalesce(1))
        result = change(job, frame(spark, [(1, "x", None)]))
        assert result.reused_bytes == 0
        assert info_of(job).layers == 1


def test_a_damaged_file_is_not_merged_into_a_new_base(spark, catalog):
    with coordinate(catalog, chain=ChainLimit(change_sets=0)) as job:
        full(job, base(spark))
        manifest = job.latest().manifest
        place = f"{catalog.address}/{manifest.files[manifest.chunks[0].file_id].path}"
        with open(place, "r+b") as file:
            file.seek(10)
            byte = file.read(1)
            file.seek(10)
            file.write(bytes([byte[0] ^ 1]))
        with pytest.raises(DamagedFileError, match="is damaged"):
            change(job, frame(spark, [(1, "x", None)]))
        assert job.latest().checkpoint_id == 1


def test_changes_above_changed_groups_and_back(spark, job):
    df = base(spark)

    def groups(frame):
        with job.checkpoint() as checkpoint:
            checkpoint.write(STATE, frame, key="id", mode="changed-groups")

    groups(df)
    groups(df.selectExpr("id", "if(id = 3, 'b', text) AS text", "number"))
    change(job, frame(spark, [(5, "c", None)]), frame(spark, [(3,)], "id int"))
    found = read(spark, job)
    assert (len(found), found[5], 3 in found) == (19, ("c", None), False)
    groups(df)
    assert row_texts(job.latest().read(spark, STATE)) == row_texts(df)
    assert (info_of(job).layers, info_of(job).group_digests is None) == (1, False)


# ---- what is refused ------------------------------------------------------------------------------------------------------------


TWICE = {
    "upserts": ([(1, "a", None), (2, "b", None), (1, "c", None)], None, r"id=1 \(2 times, in upserts\)$"),
    "deletes": (None, [(7,), (8,), (7,), (7,)], r"id=7 \(3 times, in deletes\)$"),
    "both": ([(1, "a", None), (5, "b", None)], [(5,), (6,)], r"id=5 \(2 times, in upserts and deletes\)$"),
    "nulls": ([(None, "a", None), (None, "b", None)], None, r"id=None \(2 times"),
    "many": (
        [(n // 2, "a", None) for n in range(10)],
        None,
        r"(id=\d \(2 times, in upserts\); ){2}id=\d \(2 times, in upserts\), and more$",
    ),
}


def test_a_key_that_is_there_twice_is_named(spark, job, monkeypatch):
    full(job, base(spark))
    with table() as case:
        for rows_here, names in ((1_000_000, list(TWICE)), (0, ["many"])):
            monkeypatch.setattr(change_sets, "ROWS_HERE", rows_here)
            for name in names:
                upserts, deletes, said = TWICE[name]
                given = frame(spark, upserts) if upserts else None, frame(spark, deletes, "id int") if deletes else None
                with case(f"{name}, {rows_here} rows here"):
                    with pytest.raises(UsageError, match="a key may appear once, and these appear more than once: ") as raised:
                        change(job, *given)
                    assert raised.match(said)
                    assert job.latest().checkpoint_id == 1
                    if upserts:
                        with pytest.raises(UsageError, match="more than once"), job.checkpoint() as checkpoint:
                            checkpoint.write_changes("new state", *given, key="id")


@pytest.mark.parametrize("key", ["number", ("id", "number")], ids=str)
def test_keys_that_spark_takes_for_equal_are_the_same_key(spark, job, key):
    full(job, base(spark), key=(key,) if isinstance(key, str) else key)
    for one, other in ((0.0, -0.0), (float("nan"), float("nan")), (None, None)):
        with pytest.raises(UsageError, match=r"\(2 times, in upserts\)"):
            change(job, frame(spark, [(1, "a", one), (1, "b", other)]), key=key)


UNFIT = [
    (None, None, "id", "there are none: give upserts, deletes or both"),
    ("select 1 AS id, 'x' AS text", None, "id", r"upserts: there is no column 'number' \(the state has it, with type double\)"),
    ("select 1 AS id, 'x' AS text, 1D AS number, 1 AS more, 2 AS More", None, "id", "upserts: column 'more' appears twice"),
    ("select 1 AS id, 'x' AS text, 1D AS number, 2 AS Number", None, "id", "upserts: column 'Number' appears twice"),
    ("select 1L AS id, 'x' AS text, 1D AS number", None, "id", "upserts: column 'id' has the type bigint, and in the state int: cast"),
    ("select 1 AS id, 'x' AS text, 1 AS number", None, "id", "column 'number' has the type int, and in the state double"),
    ("select 1 AS id, 'x' AS text, 1D AS Number", None, "id", "no column 'number' .the state has it, with type double"),
    ("select 1 AS id, 'x' AS text, 1D AS number, 2 AS id", None, "id", "upserts: column 'id' appears twice"),
    (None, "select 1 AS other", "id", "deletes: there is no column 'id'"),
    (None, "select 1L AS id", "id", "deletes: column 'id' has the type bigint, and in the state int"),
    (None, "select 1 AS id", "text", "the key is given as 'text', and that of the state is 'id'"),
    (None, "select 1 AS other", (), "deletes: there is no column 'id'"),
    ("select 1 AS id, 'x' AS text, 1 AS number", None, [], "upserts: column 'number' has the type int"),
]


def test_changes_that_do_not_fit_are_refused_before_a_byte_is_written(spark, job, catalog):
    full(job, base(spark))
    before = {*files(catalog)}
    with table() as case:
        for upserts, deletes, key, said in UNFIT:
            with case((upserts, deletes, key)):
                with pytest.raises(UsageError, match=f"changes of state 'planes': .*{said}"):
                    change(job, *(query and spark.sql(query) for query in (upserts, deletes)), key=key)
                assert {*files(catalog)} == before


def test_changes_of_a_new_state_need_a_key(spark, job):
    with pytest.raises(UsageError, match="'planes': they are the first of the state, which needs a key: give the columns that"):
        change(job, base(spark), key=[])


@pytest.mark.parametrize("argument", ["upserts", "deletes"])
def test_changes_that_are_no_dataframes_are_refused_by_their_argument(spark, job, catalog, argument):
    full(job, base(spark))
    before = {*files(catalog)}
    for given in ([(1, "x", 1.0)], base(spark).toPandas(), "planes"):
        with pytest.raises(UsageError, match=f"state 'planes': {argument} is a .*, not a DataFrame of Spark: give one"):
            change(job, **{argument: given})
    assert {*files(catalog)} == before


def files(catalog):
    return (found.path for found in catalog._storage.list("jobs") if "/shared/" in found.path)


def test_changes_of_what_is_no_keyed_state_are_refused(spark, job):
    with job.checkpoint() as checkpoint:
        checkpoint.write_bytes("bytes", b"1")
        checkpoint.write(STATE, base(spark))
    for state, said in (("bytes", "is kept as 'bytes', not as a DataFrame"), (STATE, "was written without a key")):
        with pytest.raises(UsageError, match=said), job.checkpoint() as checkpoint:
            checkpoint.write_changes(state, frame(spark, [(1, "x", None)]), key="id")
    with pytest.raises(UsageError, match="deletes: there is no column 'id'"), job.checkpoint() as checkpoint:
        checkpoint.write_changes("new", deletes=spark.sql("select 1 AS other"), key="id")


def test_the_session_need_not_be_as_it_comes(spark, job):
    ids = {"spark.sql.parquet.fieldId.read.enabled": "true", "spark.sql.parquet.fieldId.read.ignoreMissing": "true"}
    with session_settings(spark, {**ids, "spark.sql.ansi.enabled": "false", "spark.sql.adaptive.enabled": "false"}):
        full(job, base(spark))
        change(job, frame(spark, [(3, "new", None)]), frame(spark, [(4,)], "id int"))
        assert read(spark, job)[3] == ("new", None)
