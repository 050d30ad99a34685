"""`mode="changed-groups"`: what is compared, what is written, and what is referred to."""

from collections import Counter
from itertools import pairwise

import pyarrow.parquet as pq
import pytest

import holdfast
from holdfast.catalog.errors import RefusedError, UsageError
from holdfast.catalog.types import ChainLimit, KeepAll, Role
from holdfast.writers.spark import changed_groups
from holdfast.writers.spark.frames import keyed, with_plain_names
from holdfast.writers.spark.group_digests import decode
from holdfast.writers.spark.row_digests import group_digests, row_hash
from tests.support.spark_support import context_for, row_texts, session_settings
from tests.writers.spark.uploader_contract import MANY_TYPES

STATE = "planes"
GROUPS = 8
NO_LIMIT = ChainLimit(change_sets=1000, share_of_base=1e9)


@pytest.fixture(params=["native", pytest.param("streamed", marks=pytest.mark.slow)])
def job(request, catalog):
    with catalog.coordinate(
        "flights", max_parallelism=GROUPS, upload=request.param, chain=NO_LIMIT, retention=holdfast.KeepLast(1)
    ) as coordinator:
        yield coordinator


@pytest.fixture
def streamed_job(catalog):
    with catalog.coordinate("flights", max_parallelism=GROUPS, upload="streamed", chain=NO_LIMIT, retention=KeepAll()) as coordinator:
        yield coordinator


def write(job, df, key="id", mode="changed-groups"):
    """Write one checkpoint of one state; returns its manifest and its result."""
    with job.checkpoint() as checkpoint:
        checkpoint.write(STATE, df, key=key, mode=mode)
    return job.latest().manifest, checkpoint.result


def rows(spark, numbers=range(40), text="a"):
    return spark.createDataFrame([(n, text) for n in numbers], "id int, text string")


def with_text(df, ids, text):
    chosen = ", ".join(map(str, ids))
    return df.selectExpr("id", f"if(id IN ({chosen}), '{text}', text) AS text")


def groups_of(spark, df):
    """id -> key group, by Spark's own hash."""
    return {row[0]: row[1] for row in df.selectExpr("id", f"pmod(hash(id), {GROUPS})").collect()}


def ids_in(spark, df, wanted):
    return [n for n, group in groups_of(spark, df).items() if group in wanted]


def new_chunks(before, after):
    old = {chunk.identity for chunk in before.chunks}
    return [chunk for chunk in after.chunks if chunk.identity not in old]


def assert_reads(spark, job, df):
    assert row_texts(job.latest().read(spark, STATE)) == row_texts(df)


# ---- what is written --------------------------------------------------------------------------------------------------------


def test_the_first_write_is_full_and_keeps_a_digest_of_each_group(spark, job):
    df = rows(spark)
    manifest, result = write(job, df)
    (info,) = manifest.states
    counts = Counter(groups_of(spark, df).values())
    assert {group: digest.rows for group, digest in decode(info.group_digests, manifest.max_parallelism).items()} == counts
    assert (info.rows, info.layers, result.reused_bytes) == (40, 1, 0)
    assert_reads(spark, job, df)


def test_only_groups_that_differ_are_written(spark, job, catalog):
    df = rows(spark).repartition(3)
    before, _ = write(job, df)
    changed = with_text(df, [7], "b")
    group = groups_of(spark, df)[7]
    after, result = write(job, changed)
    (new,) = new_chunks(before, after)
    assert (new.role, new.layer, new.key_group_from, new.key_group_to) == (Role.BASE, 1, group, group)
    written = pq.read_table(f"{catalog.address}/{after.files[new.file_id].path}").to_pylist()
    assert {row["id"] for row in written} == {*ids_in(spark, df, {group})}
    assert result.new_bytes == new.length_bytes
    assert {chunk.identity for chunk in before.chunks} < {chunk.identity for chunk in after.chunks}
    (info,) = after.states
    assert (info.rows, info.layers, info.total_bytes) == (40, 2, sum(chunk.length_bytes for chunk in after.chunks))
    assert_reads(spark, job, changed)


def test_a_state_that_is_the_same_costs_nothing(spark, job, catalog):
    df = rows(spark)
    before, first = write(job, df)
    after, second = write(job, df.orderBy("text", df.id.desc()).repartition(5))
    assert after.chunks == before.chunks
    assert after.states == before.states
    assert (second.new_bytes, second.new_handles, second.reused_bytes) == (0, 0, first.total_bytes)
    with catalog.duckdb() as connection:
        found = connection.execute("select bytes_written, bytes_reused from ack_metrics where checkpoint_id = 2").fetchall()
    assert found == [(0, first.total_bytes)]
    assert_reads(spark, job, df)


@pytest.mark.parametrize("rows_here", [1000, 0], ids=["few", "many"])
def test_a_chunk_spans_no_group_that_was_not_written(spark, streamed_job, rows_here, monkeypatch):
    monkeypatch.setattr(changed_groups, "ROWS_HERE", rows_here)
    df = rows(spark, range(100))
    before, _ = write(streamed_job, df)
    changed = with_text(df, ids_in(spark, df, {1, 2, 5, 7}), "b")
    after, _ = write(streamed_job, changed)
    new = [chunk for chunk in new_chunks(before, after) if chunk.role is Role.BASE]
    assert sorted((chunk.key_group_from, chunk.key_group_to) for chunk in new) == [(1, 2), (5, 5), (7, 7)]
    assert len({chunk.file_id for chunk in new}) == 1
    assert_reads(spark, streamed_job, changed)


def test_many_rows_go_to_several_files_and_no_group_to_two(spark, streamed_job, monkeypatch):
    monkeypatch.setattr(changed_groups, "ROWS_HERE", 0)
    monkeypatch.setattr(changed_groups, "FILE_ROWS", 20)
    df = rows(spark, range(100))
    before, _ = write(streamed_job, df)
    changed = with_text(df, ids_in(spark, df, {0, 1, 2, 3, 4, 6}), "b")
    after, _ = write(streamed_job, changed)
    new = [chunk for chunk in new_chunks(before, after) if chunk.role is Role.BASE]
    assert len({chunk.file_id for chunk in new}) > 2
    ranges = sorted((chunk.key_group_from, chunk.key_group_to) for chunk in new)
    assert all(high < low for (_, high), (low, _) in pairwise(ranges))
    assert_reads(spark, streamed_job, changed)


def test_a_group_that_became_empty_is_a_chunk_without_a_file(spark, job, catalog):
    df = rows(spark)
    before, _ = write(job, df)
    left = df.filter(~df.id.isin(ids_in(spark, df, {2, 3})))
    after, result = write(job, left)
    (new,) = new_chunks(before, after)
    assert (new.key_group_from, new.key_group_to, new.rows, new.inline, new.layer) == (2, 3, 0, b"", 1)
    assert (result.new_bytes, result.new_handles, after.states[0].rows) == (0, 1, left.count())
    assert_reads(spark, job, left)
    with job.checkpoint():
        pass
    catalog.vacuum()
    assert_reads(spark, job, left)
    write(job, df)
    assert_reads(spark, job, df)


def test_chunks_that_are_hidden_whole_are_no_longer_the_checkpoints(spark, streamed_job, catalog):
    df = rows(spark)
    write(streamed_job, df)
    once, _ = write(streamed_job, with_text(df, [7], "b"))
    twice, _ = write(streamed_job, with_text(df, [7], "c"))
    assert len(twice.chunks) == len(once.chunks)
    assert len(new_chunks(once, twice)) == 1
    with catalog.duckdb() as connection:
        open_handles = connection.execute("select count(*) from handles where to_seq is null and role <> 'manifest'").fetchone()
    assert open_handles == (len(twice.chunks),)


@pytest.mark.parametrize(
    ("rows_here", "zone"),
    [
        pytest.param(1000, "UTC", id="few-UTC"),
        pytest.param(0, "America/St_Johns", id="many-St_Johns"),
        pytest.param(1000, "America/St_Johns", id="few-St_Johns", marks=pytest.mark.slow),
        pytest.param(0, "UTC", id="many-UTC", marks=pytest.mark.slow),
    ],
)
def test_all_types_and_odd_names_come_back_as_they_were(spark, streamed_job, zone, rows_here, monkeypatch):
    monkeypatch.setattr(changed_groups, "ROWS_HERE", rows_here)
    job = streamed_job
    with session_settings(spark, {"spark.sql.session.timeZone": zone}):
        flat = [f for f in spark.sql(MANY_TYPES).schema.fields if f.name not in ("struct", "array", "map")]
        df = spark.sql(MANY_TYPES).select(*[f.name for f in flat]).toDF("id", *[f"a.b `{f.name}`" for f in flat[1:]]).cache()
        write(job, df)
        assert write(job, df.repartition(2))[1].new_bytes == 0
        changed = df.withColumn("a.b `string`", df["`a.b ``string```"].substr(2, 9))
        _, result = write(job, changed)
        assert result.reused_bytes > 0
        assert_reads(spark, job, changed)


@pytest.mark.parametrize("names", [("id", "price_", "price_${cur}"), ("i.d", "i_d", "x"), ("k1", "k${x}", "k${spark.app.name}")])
def test_a_name_that_spark_would_take_for_another_is_its_column(spark, streamed_job, names):
    """In the text of an expression Spark replaces `${...}` before it parses, and may take quoted names for patterns."""

    def state(b="id * 2", c="text"):
        return rows(spark).selectExpr("id", f"{b} AS b", f"{c} AS c").toDF(*names)

    with session_settings(spark, {"spark.sql.parser.quotedRegexColumnNames": "true"}):
        write(streamed_job, state(), key=names[0])
        assert write(streamed_job, state(), key=names[0])[1].new_bytes == 0
        for changed in (state(c="if(id = 7, 'z', text)"), state(b="if(id = 7, 15, id * 2)")):
            assert write(streamed_job, changed, key=names[0])[1].new_bytes > 0
    latest = streamed_job.latest()
    groups = dict(rows(spark).selectExpr("id", f"pmod(hash(id), {GROUPS})").collect())
    for some in (range(3), range(3, GROUPS)):
        read = latest.read(spark, STATE, key_groups=some).collect()
        assert {row[0] for row in read} == {key for key, of in groups.items() if of in some}
    assert {tuple(row) for row in latest.read(spark, STATE).collect()} == {(n, 15 if n == 7 else 2 * n, "a") for n in range(40)}


# ---- when all of it is written ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"mode": "full"}, {}),
        ({}, {"key": ("text", "id")}),
        ({}, {"df": "select id, text, 1 AS more from rows"}),
        ({}, {"df": "select cast(id AS bigint) AS id, text from rows"}),
        ({}, {"df": "select text, id from rows"}),
    ],
    ids=["no digests", "another key", "another column", "another type", "another order"],
)
def test_a_parent_that_cannot_be_compared_makes_the_write_full(spark, streamed_job, first, second):
    rows(spark).createOrReplaceTempView("rows")
    write(streamed_job, spark.table("rows"), **first)
    options = dict(second)
    df = spark.sql(options.pop("df", "select * from rows"))
    after, result = write(streamed_job, df, **options)
    assert result.reused_bytes == 0
    assert after.states[0].group_digests is not None
    assert {chunk.layer for chunk in after.chunks} == {1}
    assert_reads(spark, streamed_job, df)
    assert write(streamed_job, df, **options)[1].new_bytes == 0


def test_nullability_is_no_difference(spark, streamed_job):
    write(streamed_job, spark.range(10).toDF("id"))
    nullable = spark.createDataFrame([(n,) for n in range(10)], "id bigint")
    assert write(streamed_job, nullable)[1].new_bytes == 0


def test_beyond_the_limit_all_is_written(spark, catalog):
    df = rows(spark)
    with catalog.coordinate(
        "flights", max_parallelism=GROUPS, upload="streamed", chain=ChainLimit(change_sets=2, share_of_base=9.0)
    ) as job:
        layers = []
        for n in range(6):
            manifest, _ = write(job, with_text(df, [n], "b"))
            layers.append(len({chunk.layer for chunk in manifest.chunks}))
        assert max(layers) == 3
        assert layers.count(1) >= 2
    with catalog.coordinate("share", max_parallelism=GROUPS, upload="streamed", chain=ChainLimit(share_of_base=0.3)) as job:
        write(job, df)
        assert write(job, with_text(df, ids_in(spark, df, {0, 1, 2, 3}), "b"))[1].reused_bytes == 0


# ---- what is told apart -------------------------------------------------------------------------------------------------------

APART = {
    "a null in another column": ("1, cast(null AS int)", "cast(null AS int), 1"),
    "values in other columns": ("1, 2", "2, 1"),
    "null and zero": ("cast(null AS int)", "0"),
    "null and empty": ("cast(null AS string)", "''"),
    "negative zero": ("0.0D", "-0.0D"),
    "negative zero as float": ("float('0.0')", "float('-0.0')"),
    "equal texts of a collation": ("'a' COLLATE UTF8_LCASE", "'A' COLLATE UTF8_LCASE"),
    "where a text ends": ("'ab', 'c'", "'a', 'bc'"),
    "a decimal": ("1.10BD", "1.20BD"),
    "a wide decimal": ("cast(1 AS decimal(38, 3))", "cast(2 AS decimal(38, 3))"),
    "a microsecond": ("TIMESTAMP'2013-01-01 00:00:00.000001'", "TIMESTAMP'2013-01-01 00:00:00'"),
    "a null far to the right": (
        ", ".join(["cast(null AS int)"] * 39 + ["1"]),
        ", ".join(["cast(null AS int)"] * 38 + ["1", "cast(null AS int)"]),
    ),
}


@pytest.mark.parametrize("values", APART.values(), ids=APART)
def test_rows_that_differ_have_different_hashes(spark, values):
    one, other = (spark.sql(f"select {value}") for value in values)
    hashes = [df.selectExpr(row_hash(df.schema.fields)).head()[0] for df in map(with_plain_names, (one, other))]
    assert hashes[0] != hashes[1]


def test_a_row_that_is_there_twice_is_seen(spark, tmp_path):
    context = context_for(None, key=("id",))

    def digests(numbers):
        return group_digests(keyed(spark.createDataFrame([(n,) for n in numbers], "id int"), context))

    once, twice, other = digests([1]), digests([1, 1]), digests([1, 1, 1])
    assert once != twice != other != once
    assert digests([1, 2, 3]) == digests([3, 1, 2])


def test_sums_go_beyond_64_bits_and_around(spark):
    digest = group_digests(keyed(spark.range(100_000), context_for(None, key=(), max_parallelism=1)))[0]
    hashes = [row[0] for row in spark.range(100_000).selectExpr(row_hash(spark.range(1).schema.fields)).collect()]
    assert digest.rows == 100_000
    assert digest.sum == (sum(hashes) + 2**63) % 2**64 - 2**63


# ---- what is refused ----------------------------------------------------------------------------------------------------------


def test_nested_columns_are_refused_by_name(spark, streamed_job):
    df = spark.sql("select 1 AS id, array(1) AS tags, map('a', 1) AS m, named_struct('x', 1) AS s, 'x' AS plain")
    with pytest.raises(UsageError, match=r"nested columns 'tags' \(array<int>\), 'm' \(map<string,int>\), 's' \(struct<x:int>\) apart"):
        write(streamed_job, df)


def test_without_a_key_there_are_no_groups_to_compare(spark, streamed_job):
    with pytest.raises(RefusedError, match=r"is_key_group_aware is false.* Give key=\[...\], unique columns, or .* mode='full'"):
        write(streamed_job, rows(spark), key=())
    assert streamed_job.latest() is None


def test_what_is_no_dataframe_of_spark_is_refused_by_its_argument(spark, streamed_job):
    for mode in ("full", "changed-groups"):
        for given, kind in (([(1, "a")], "list"), (rows(spark).toPandas(), r"pandas\..*DataFrame"), (None, "NoneType")):
            with pytest.raises(UsageError, match=f"state 'planes': df is a {kind}, not a DataFrame of Spark: give one"):
                write(streamed_job, given, mode=mode)
    assert streamed_job.latest() is None


def test_a_key_that_is_twice_in_a_changed_group_is_named(spark, streamed_job):
    df = rows(spark)
    write(streamed_job, df)
    twice = df.union(rows(spark, [7, 9], "more")).union(rows(spark, [7, None, None], "b"))
    with pytest.raises(UsageError, match="needs a key that is unique, and these appear more than once") as raised:
        write(streamed_job, twice)
    assert all(found in str(raised.value) for found in ("id=7 (3 times)", "id=9 (2 times)", "id=None (2 times)"))
    assert streamed_job.latest().checkpoint_id == 1
    write(streamed_job, df.union(rows(spark, [None], "b")))


def test_a_key_of_several_columns_is_unique_as_a_whole(spark, streamed_job):
    """Their names may be odd."""
    df = rows(spark).selectExpr("id AS `a.b`", "text AS `count_all`", "id AS n")
    key = ("a.b", "count_all")
    write(streamed_job, df, key=key)
    more = df.limit(3).selectExpr("`a.b`", "'other' AS count_all", "n")
    assert write(streamed_job, df.union(more), key=key)[1].reused_bytes > 0
    with pytest.raises(UsageError, match=r"a\.b=\d+, count_all='other' \(2 times\)"):
        write(streamed_job, df.union(more).union(more.selectExpr("`a.b`", "count_all", "n + 1")), key=key)


@pytest.mark.parametrize("rows_here", [1000, 0], ids=["few", "many"])
@pytest.mark.parametrize("is_first", [True, False], ids=["in full", "some groups"])
def test_a_plan_that_gives_other_rows_when_it_runs_again_is_refused(spark, streamed_job, is_first, rows_here, monkeypatch):
    """Digests of the one run with rows of the other would let a later checkpoint keep rows that it should not."""
    monkeypatch.setattr(changed_groups, "ROWS_HERE", rows_here)
    df = rows(spark)
    if not is_first:
        write(streamed_job, df)
    with pytest.raises(UsageError, match=r"state 'planes' of checkpoint .* gave 40 rows to digest|gave \d rows to digest"):
        write(streamed_job, df.selectExpr("id", "if(id = 7, java_method('java.util.UUID', 'randomUUID'), text) AS text"))
    assert (streamed_job.latest() is None) is is_first
