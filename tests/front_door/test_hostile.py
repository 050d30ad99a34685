"""What is made to harm does not: nothing of a manifest is SQL or code, nothing that people write acts on a terminal, no secret is kept."""

import json
import os
import shutil
import zlib
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import holdfast
from holdfast import cli
from holdfast.catalog import paths
from holdfast.catalog.errors import CorruptionError
from holdfast.catalog.manifest import CHUNKS, attempt_in, decode, encode
from holdfast.catalog.parquet_pages import unpacked_bytes
from holdfast.catalog.storage import StoredObject
from holdfast.catalog.texts import escaped
from holdfast.catalog.types import Role, StateInfo
from holdfast.catalog.views import duckdb_engine
from holdfast.report import print_json, print_lines
from holdfast.writers.parquet.duckdb_read import state_sql
from holdfast.writers.parquet.plan import plan_reading
from holdfast.writers.spark import group_digests
from tests.catalog.test_manifest import INLINE, PATH, SCHEMA, SMALL, chunk, inline, manifest, state, stored
from tests.golden import make
from tests.support.front_door import LARGE, ask
from tests.support.hostile import opened_manifest, resealed, sealed_manifest
from tests.support.tables import table

GOLDEN = make.GOLDEN / "format-1" / "savepoint"


def schema_of(dtype, name: str = "a", **more) -> str:
    return json.dumps({"type": "struct", "fields": [{"name": name, "type": dtype, "nullable": True, "metadata": {}, **more}]})


def with_schema(text: str):
    return manifest((), states=(state("s", schema=text),))


def with_path(path: str):
    only = chunk(1)
    return manifest((only,), files={only.file_id: replace(stored(only), path=path)})


def with_chunks(*chunks):
    return manifest(chunks, files={c.file_id: stored(c) for c in chunks if c.inline is None})


# ---- manifests with a valid digest --------------------------------------------------------------------------------------------

HOSTILE = {
    "a type that is SQL": with_schema(schema_of("decimal(1,0) AS a); COPY (SELECT 1) TO 'x'; SELECT (1")),
    "a type of no engine": with_schema(schema_of("foo")),
    "a decimal too wide": with_schema(schema_of("decimal(39,0)")),
    "a decimal with its scale beyond": with_schema(schema_of("decimal(3,4)")),
    "a char": with_schema(schema_of("char(3)")),
    "a user-defined type": with_schema(schema_of({"type": "udt", "pyClass": "os.abort", "sqlType": "integer"})),
    "one within an array": with_schema(schema_of({"type": "array", "elementType": {"type": "udt"}, "containsNull": True})),
    "a column twice": with_schema(json.dumps({"type": "struct", "fields": [{"name": n, "type": "long"} for n in "aA"]})),
    "a collation of a number": with_schema(schema_of("long", metadata={"__COLLATIONS": {"a": "icu.UNICODE"}})),
    "a schema that is not JSON": with_schema("a long"),
    "a schema without columns": with_schema('{"type": "struct", "fields": []}'),
    "half of a surrogate pair": with_schema(schema_of("long", name="\ud800")),
    **{f"the path {path[:30]!r}": with_path(path) for path in (
        "../x.parquet", "/etc/passwd", "jobs/x", "jobs/flights-00000001/shared/x.parquet", "holdfast.json", "ledger/_delta_log/0.json",
        "jobs/flights-00000001/chk-7/_metadata", f"jobs/flights-00000001/shared/7-{SMALL.attempt}-0/a').parquet",
        f"jobs/flights-00000001/shared/7-{SMALL.attempt}-0/a\\b.parquet", f"jobs/flights-00000001/shared/7-{SMALL.attempt}-0/*.parquet",
        f"jobs/flights-00000001/shared/7-{SMALL.attempt}-0/{'x' * 300}.parquet", "s3://bucket/x.parquet",
    )},
    "small state with another digest": with_chunks(replace(INLINE, sha256="0" * 64)),
    "small state with another length": with_chunks(replace(INLINE, length_bytes=99)),
    "a chunk twice": with_chunks(chunk(1), chunk(1)),
    "a chunk beyond its file": with_chunks(chunk(1, length_bytes=10_000_001)),
    "a chunk of no state": with_chunks(chunk(1, state="other")),
    "a chunk before its file": with_chunks(chunk(1, offset_bytes=-1)),
    "key groups beyond the last": with_chunks(chunk(1, key_group_from=0, key_group_to=128)),
    "key groups without an end": with_chunks(chunk(1, key_group_from=0)),
    "a digest that is not one": with_chunks(chunk(1, sha256="0")),
    "an id that is not one": with_chunks(chunk(1, file_id="x")),
    "rows of a store": with_chunks(chunk(1, role=Role.FILE, name="x", subtask=0)),
    "a file named out of its directory": with_chunks(chunk(1, state="rocks", role=Role.FILE, name="../x", subtask=0)),
    "a file that is a directory": with_chunks(*(chunk(i, state="rocks", role=Role.FILE, name=n, subtask=0) for i, n in enumerate(("a", "a/b")))),
    "a file of no subtask": with_chunks(chunk(1, state="rocks", role=Role.FILE, name="x")),
    "a job that is a path": manifest((), job_id="../x-00000001"),
    "a name with an escape": manifest((), job="\x1b[31m"),
    "too many key groups": manifest((), max_parallelism=2**31),
    "no key groups": manifest((), max_parallelism=0),
    "a state twice": manifest((), states=(state("s", schema=SCHEMA), state("s", schema=SCHEMA))),
    "a key that is not a column": manifest((), states=(state("s", schema=SCHEMA, key_columns=("z",)),)),
    "digests beyond its key groups": manifest((), states=(state("s", schema=SCHEMA, group_digests="A" * 100_000),)),
}  # fmt: skip


@pytest.mark.parametrize("given", HOSTILE.values(), ids=HOSTILE)
def test_a_manifest_that_holdfast_does_not_write_is_refused_whole_as_it_is(given) -> None:
    with pytest.raises(holdfast.DamagedFileError, match=f"{PATH} is not a manifest that Holdfast has written: "):
        decode(encode(given), PATH)


def test_a_state_of_another_format_is_a_newer_versions() -> None:
    with pytest.raises(holdfast.FormatError, match="has a state of format 'pickle': use a newer Holdfast"):
        decode(encode(manifest((), states=(state("s", format="pickle"),))), PATH)


def test_a_million_chunks_in_a_few_bytes_are_not_unpacked() -> None:
    header, rows = opened_manifest(encode(with_chunks(chunk(1))))
    data = sealed_manifest(header, rows * 200_000)
    assert len(data) < 100_000
    with pytest.raises(holdfast.DamagedFileError, match="200000 chunks of"):
        decode(data, PATH)


def test_what_a_manifest_unpacks_to_is_asked_of_its_pages_not_its_footer() -> None:
    """Zeros pack to nearly nothing, and a footer may say that there are ten of them."""
    data = encode(with_chunks(inline(bytes(20_000))))
    footer = pq.read_metadata(pa.BufferReader(data))
    begin = footer.row_group(0).column(CHUNKS.names.index("inline")).dictionary_page_offset
    assert data[begin : begin + 3] == b"\x15\x04\x15"  # the type of a dictionary, then its size unpacked: three bytes, times two
    forged = data[: begin + 3] + b"\xfe\xff\x7f" + data[begin + 6 :]
    assert unpacked_bytes(forged, footer) == unpacked_bytes(data, footer) - 20_004 + 2**20 - 1
    with pytest.raises(holdfast.DamagedFileError):
        decode(resealed(forged), PATH)


def test_whose_a_manifest_is_can_be_asked_of_one_that_is_not_read() -> None:
    """Scrub deletes nothing of an attempt that the ledger never knew, whichever version wrote its manifest."""
    assert attempt_in(encode(HOSTILE["too many key groups"]), PATH) == SMALL.attempt


def test_digests_of_key_groups_inflate_to_as_many_as_there_are() -> None:
    bomb = b64encode(zlib.compress(bytes(28 * 1_000_000))).decode()
    for text in (bomb, bomb[:-8], "%%%", b64encode(zlib.compress(bytes(56))).decode()):
        with pytest.raises(holdfast.DamagedFileError, match="digests of a state's key groups"):
            group_digests.decode(text, 128)


# ---- nothing of it is SQL -----------------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A savepoint in a directory whose name looks like a pattern."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "a[b]*?'c" / "savepoint"))


def test_names_and_types_of_a_schema_stay_one_statement(tmp_path: Path) -> None:
    evil = f"""a" , 1); COPY (SELECT 1) TO '{tmp_path}/x'; SELECT ('"""
    info = StateInfo(operator="main", state="s", format="parquet", schema=schema_of("long", name=evil))
    with duckdb_engine.offline_connection() as connection:
        assert duckdb_engine.query(connection, state_sql(str(tmp_path), info, plan_reading([], {}, 1))).columns == [evil]
        with pytest.raises(CorruptionError, match="2 statements of the query"):
            duckdb_engine.query(connection, "SELECT 1; SELECT 2")
    assert not os.listdir(tmp_path)


def test_a_relation_reads_what_lies_below_its_savepoint_and_nothing_else(root: Path, tmp_path: Path) -> None:
    relation = holdfast.open_savepoint(root).duckdb("no_key")
    assert len(relation.fetchall()) == 7
    for sql in (
        "SELECT * FROM read_text('/etc/passwd')",
        f"COPY (SELECT 1) TO '{tmp_path}/x'",
        "SET enable_external_access = true",
        "LOAD httpfs",
    ):
        with pytest.raises(Exception, match="disabled|locked"):
            relation.query("state", sql)
    assert sorted(os.listdir(tmp_path)) == ["a[b]*?'c"]


def test_the_connection_of_a_catalog_opens_no_file_outside_of_it(catalog: holdfast.Catalog, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("a\n1\n")
    with catalog.duckdb() as connection:
        for sql in (
            f"SELECT * FROM '{tmp_path}/mine.csv'",
            f"COPY (SELECT 1) TO '{tmp_path}/x'",
            f"ATTACH '{tmp_path}/x.db'",
            f"SELECT * FROM read_text('{catalog.address}/../mine.csv')",
            "SET allowed_directories = ['/']",
        ):
            with pytest.raises(Exception, match="disabled|locked"):
                connection.execute(sql)
        assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
    done = CliRunner().invoke(cli.main, ["sql", catalog.address, f"SELECT * FROM '{tmp_path}/mine.csv'"])
    assert (done.exit_code, "disabled by configuration" in done.stderr) == (cli.USAGE, True)
    assert sorted(os.listdir(tmp_path)) == ["catalog", "mine.csv"]


def test_file_names_are_literals_for_spark_and_schemas_have_no_defaults(spark, tmp_path: Path) -> None:
    """A name that ends the text it stands in called any static method of Java; a default of a column is SQL that Spark runs."""
    from holdfast.writers.parquet.plan import Scan
    from holdfast.writers.spark.read import _with_rank, state_schema

    spark.range(3).coalesce(1).write.parquet(str(tmp_path / "rows"))
    (real,) = (path.name for path in (tmp_path / "rows").glob("*.parquet"))
    evil = f"a') THEN 0 WHEN reflect('java.lang.System', 'setProperty', 'holdfast.run', 'yes') IS NULL OR rank IN ('{real}"
    frame = _with_rank(spark.read.parquet(str(tmp_path / "rows")), "rank", [Scan(layer=1, paths=(evil,)), Scan(layer=4, paths=(real,))])
    assert {row["rank"] for row in frame.collect()} == {5}
    assert spark._jvm.java.lang.System.getProperty("holdfast.run") is None
    notes = {"EXISTS_DEFAULT": "reflect('a', 'b')", "CURRENT_DEFAULT": "1", "parquet.field.id": 1, "comment": "kept"}
    info = StateInfo(operator="main", state="s", format="parquet", schema=schema_of("long", metadata=notes))
    assert state_schema(info)["a"].metadata == {"comment": "kept"}


# ---- what people write --------------------------------------------------------------------------------------------------------

ACTING = ["\x1b[31mred", "a\nfoo: ok", "a\rb", "\u202egnp", "\x9b31m", "\ud800"]


@pytest.mark.parametrize("text", ACTING, ids=ascii)
def test_what_would_act_on_a_terminal_is_refused_where_it_is_given(catalog: holdfast.Catalog, text: str) -> None:
    with catalog.coordinate("flights", retention=holdfast.KeepAll()) as job:
        for data in (b"1", b"2"):
            with job.checkpoint() as checkpoint:
                checkpoint.write_bytes("s", data)
        for call in (
            lambda: catalog.hold("flights", 1, text),
            lambda: catalog.hold("flights", 1, "mine", text),
            lambda: catalog.drop("flights", 1, text),
            lambda: catalog.kill("flights", "0" * 16, text),
            lambda: job.end("finished", text),
        ):
            with pytest.raises(holdfast.UsageError, match="one line of printable characters"):
                call()
    assert ask(catalog, "SELECT count(*) FROM holds") == [(0,)]


@pytest.mark.parametrize("text", ACTING, ids=ascii)
def test_what_would_act_on_a_terminal_is_escaped_where_it_is_shown(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an older catalog, or a stranger's file that scrub lists."""
    print_lines([f"  {StoredObject(path=text, size_bytes=1).path}"])
    print_json({"path": text})
    shown = capsys.readouterr().out
    assert shown.count("\n") == 2
    assert all(line.isprintable() for line in shown.splitlines())
    assert json.loads(shown.splitlines()[1]) == {"path": text}
    assert escaped("Zürich ✈") == "Zürich ✈"


def test_the_ledger_keeps_the_type_of_a_programs_error_and_not_its_text(catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("flights") as job:
        with pytest.raises(ValueError, match="S3cret"), job.checkpoint():
            raise ValueError("connect failed: jdbc:postgresql://etl:S3cret@db/x")
    assert ask(catalog, "SELECT reason FROM attempts WHERE reason LIKE '%Error%'") == [("ValueError",)]


def test_progress_that_no_query_could_read_is_refused(catalog: holdfast.Catalog) -> None:
    deep: dict = {}
    for _ in range(100_000):
        deep = {"a": deep}
    hostile = [{"a": "\ud800"}, {"\udfff": 1}, {"a": "x" * 1_000_000}, {"a": float("inf")}, [["a", 1]], "a", deep]
    with catalog.coordinate("flights") as job:
        with table() as case:
            for progress in hostile:
                with case(ascii(progress)[:20] if progress is not deep else "deep"):
                    with pytest.raises(holdfast.UsageError, match="progress"), job.checkpoint(progress):
                        pass
        with job.checkpoint({"a": "ü😀"}) as checkpoint:
            checkpoint.write_bytes("s", b"1")
    assert ask(catalog, "SELECT progress::JSON->>'$.a' FROM checkpoints") == [("ü😀",)]


# ---- what lies in storage, and what is begun ----------------------------------------------------------------------------------


@pytest.mark.parametrize("planted", [b"", b"notes", encode(HOSTILE["no key groups"])], ids=["empty", "a note", "a forged manifest"])
def test_a_strangers_file_in_the_place_of_a_manifest_is_told_as_one(catalog: holdfast.Catalog, planted: bytes) -> None:
    with catalog.coordinate("flights") as job:
        place = Path(catalog.address, paths.manifest_path(job.job_id, 1))
        place.parent.mkdir(parents=True)
        place.write_bytes(planted)
        with pytest.raises(holdfast.ForeignTokensError, match="is taken by something that is not a manifest"):
            with job.checkpoint() as checkpoint:
                checkpoint.write_bytes("s", b"1")
        with job.checkpoint() as checkpoint:
            checkpoint.write_bytes("s", b"1")
    assert place.read_bytes() == planted
    assert ask(catalog, "SELECT checkpoint_id FROM checkpoints") == [(2,)]


def test_a_start_that_is_refused_registers_no_job(catalog: holdfast.Catalog, tmp_path: Path) -> None:
    with catalog.coordinate("flights", retention=holdfast.KeepAll()) as job:
        for _ in range(2):
            with job.checkpoint() as checkpoint:
                checkpoint.write_bytes("s", LARGE)
        dropped = f"{catalog.address}/{paths.checkpoint_directory(job.job_id, 1)}"
        catalog.drop("flights", 1)
    copied = Path(shutil.copytree(GOLDEN, tmp_path / "copied"))
    next(copied.glob("data/*.bytes")).unlink()
    for start, mode in ((dropped, "fork"), (dropped, "claim"), (dropped, "no-claim"), (str(copied), None)):
        with pytest.raises((holdfast.RefusedError, holdfast.DamagedFileError)):
            catalog.coordinate("other", start=start, mode=mode)
    assert ask(catalog, "SELECT job FROM jobs") == [("flights",)]
