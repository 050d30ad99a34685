"""States with decimals that Holdfast 0.1.0 rounded before it hashed them: found by whatever reads by groups, and by verify; not by others."""

import json
from dataclasses import replace
from decimal import Context, Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast
from holdfast import data_source
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.errors import CorruptionError
from holdfast.catalog.file_checks import files_of_rows, may_be_misplaced, problem_in, rows_of
from holdfast.catalog.murmur3 import key_group_of
from holdfast.catalog.storage.local import LocalStorage
from holdfast.catalog.types import FileId, Role, Scope, StateInfo, StoredFile
from holdfast.compaction.verify import run_verify
from holdfast.writers.parquet.duckdb_read import read_duckdb
from holdfast.writers.parquet.report import acks_for
from holdfast.writers.spark.read import state_schema
from holdfast.writers.spark.streamed import upload_tables
from holdfast.writers.upload import in_full
from tests.support.layered_state import LayeredState
from tests.support.places import GOLDEN

M = 16
SCHEMA = pa.schema([("k", pa.decimal128(38, 0)), ("v", pa.int64())])
JSON = (
    '{"type":"struct","fields":[{"name":"k","type":"decimal(38,0)","nullable":true,"metadata":{}},'
    '{"name":"v","type":"long","nullable":true,"metadata":{}}]}'
)
ROWS = [{"k": Decimal(f"{i + 10}34567890123456789012345678901{i:03d}"), "v": i} for i in range(60)]
WAY_OUT = r"whole .*checkpoint.write\('s', job.latest\(\).read\(spark, 's'\), key=\['k'\]\)"


class RoundedState(LayeredState):
    """With the groups that Holdfast 0.1.0 gave such keys."""

    def groups(self, rows):
        rounded = [Context(prec=28).create_decimal(row["k"]) for row in rows]
        return key_group_of([pa.array(rounded, SCHEMA.field("k").type)], self.max_parallelism).to_pylist() if rows else []


def state(kind, tmp_path, row_groups=1):
    found = kind(LocalStorage(tmp_path), SCHEMA, JSON, ["k"], M)
    found.add(0, Role.BASE, ROWS, row_groups=row_groups)
    return found


def with_upserts(of):
    """Every row replaced by what Spark wrote, in the right groups."""
    right = LayeredState(of.storage, SCHEMA, JSON, ["k"], M)
    right.chunks, right.files = of.chunks, of.files
    right.add(1, Role.UPSERTS, [{**row, "v": row["v"] + 1000} for row in ROWS])
    return right


def source_rows(of, partitions, monkeypatch):
    """As `format("holdfast")` reads it."""
    monkeypatch.setattr(data_source, "PARTITION_BYTES", sum(size for _, size, _ in of.files.values()) // partitions)
    found = data_source.FoundState(
        catalog=of.storage, storage=of.storage, what="the state", ref=None, info=of.info, schema=state_schema(of.info),
        chunks=tuple(of.chunks), files=of.files, max_parallelism=M,
    )  # fmt: skip
    reader = data_source.SourceReader(found, found.schema)
    return [row for share in reader.partitions() for batch in reader.read(share) for row in batch.to_pylist()]


def stored(of):
    return [
        StoredFile(file_id=FileId(file_id), path=path, size_bytes=size, sha256=sha256, scope=Scope.SHARED)
        for file_id, (path, size, sha256) in of.files.items()
    ]


def verified(of, what="state 's' of job 'j'"):
    rows = rows_of(of.info, M, what)
    return run_verify(1, stored(of), of.storage, rows={path: rows for path, _, _ in of.files.values()})


def test_spark_refuses_parts_of_it_and_reads_it_whole(spark, tmp_path):
    wrong = state(RoundedState, tmp_path / "wrong", 3)
    for how in ({"key_groups": range(3)}, {"parallelism": 2, "verify": False}):
        with pytest.raises(CorruptionError, match=rf"part-0.parquet: state 's' has a row in key group \d+ .* belongs to .*{WAY_OUT}"):
            wrong.read(spark, **how)
    assert with_upserts(wrong).read(spark).where("v >= 1000").count() == len(ROWS)
    assert state(LayeredState, tmp_path / "right", 3).read(spark, parallelism=2).count() == len(ROWS)


def test_the_format_refuses_it_where_it_splits_by_groups(tmp_path, monkeypatch):
    wrong, right = (with_upserts(state(kind, tmp_path / kind.__name__)) for kind in (RoundedState, LayeredState))
    assert sorted(row["v"] for row in source_rows(right, 4, monkeypatch)) == [*range(1000, 1060)]
    with pytest.raises(CorruptionError, match=WAY_OUT):
        source_rows(wrong, 4, monkeypatch)
    assert len(source_rows(wrong, 1, monkeypatch)) == len(ROWS), "read whole, keys meet their changes wherever they lie"
    assert len(source_rows(state(RoundedState, tmp_path / "base"), 4, monkeypatch)) == len(ROWS)


def test_duckdb_refuses_it_where_groups_are_hidden_and_reads_it_whole(tmp_path):
    wrong = with_upserts(state(RoundedState, tmp_path))

    def read():
        return read_duckdb(wrong.storage, wrong.info, wrong.chunks, wrong.files, max_parallelism=M)

    assert read().filter("v >= 1000").count("*").fetchone() == (len(ROWS),)
    wrong.add_empty(2, range(3))
    with pytest.raises(CorruptionError, match=WAY_OUT):
        read()


def test_verify_looks_at_every_row_and_names_state_file_and_the_way_out(tmp_path):
    """One wrong row in the middle of a row group, which no look at the edges finds."""
    sound = state(LayeredState, tmp_path / "right")
    assert verified(sound).damages == ()

    class OneWrong(LayeredState):
        def groups(self, rows):
            groups = super().groups(rows)
            middle = sorted(range(len(groups)), key=lambda i: groups[i])[30]
            return [group if i != middle else (group + 1) % M for i, group in enumerate(groups)]

    wrong = state(OneWrong, tmp_path / "wrong")
    (damage,) = verified(wrong).damages
    assert damage.path == next(iter(wrong.files.values()))[0]
    assert damage.what.startswith("state 's' of job 'j' has a row in key group ")
    assert "read(spark, 's'), key=['k'])" in damage.what


def test_verify_tells_rows_that_cannot_be_read(tmp_path):
    """It passes over keys that only Spark hashes."""
    of = state(LayeredState, tmp_path)
    of.info = replace(of.info, key_columns=("gone",))
    (damage,) = verified(of).damages
    assert "cannot be read from it, although its digest is right" in damage.what
    lists = pa.table({"k": pa.array([[1], [2]]), "_key_group": pa.array([3, 4], pa.int32())})
    place = tmp_path / "lists.parquet"
    pq.write_table(lists, place)
    assert problem_in(of.storage, "lists.parquet", rows_of(replace(of.info, key_columns=("k",)), M, "it")) is None


@pytest.mark.parametrize(
    ("dtype", "is_asked"),
    [
        ("decimal(28,3)", False),
        ("decimal(29,0)", True),
        ("decimal(38,38)", True),
        ("string", False),
        ({"type": "struct", "fields": [{"name": "x", "type": "decimal(30,2)", "nullable": True, "metadata": {}}]}, True),
        ({"type": "array", "elementType": "decimal(38,0)", "containsNull": True}, True),
    ],
    ids=str,
)
def test_only_keys_that_were_ever_rounded_cost_a_look(dtype, is_asked):
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in (("k", dtype), ("other", "decimal(38,0)"))]
    info = StateInfo(
        operator="main", state="s", format="parquet", key_columns=("k",), schema=json.dumps({"type": "struct", "fields": fields})
    )
    assert may_be_misplaced(info) is is_asked


def test_a_catalogs_verify_finds_it_in_what_is_live(catalog):
    """By way of the manifests, which say whose rows a file has."""

    def write(job, of):
        def upload(context):
            table = pa.Table.from_pylist(ROWS, SCHEMA).append_column("_key_group", pa.array(of.groups(of, ROWS), pa.int32()))
            acks = acks_for([upload_tables(iter([table]), "here", context, SystemEnvironment())], context, upload_ms=0)
            return in_full(acks, StateInfo(operator="main", state="s", format="parquet", key_columns=("k",), schema=JSON, rows=len(ROWS)))

        with job.checkpoint() as checkpoint:
            context = checkpoint._attempt.context("s", ["k"])
            checkpoint._attempt.take(upload(context), context)

    with catalog.coordinate("j", max_parallelism=M) as job:
        write(job, type("Right", (LayeredState,), {"key": ["k"], "schema": SCHEMA, "max_parallelism": M}))
        assert catalog.verify().damages == ()
        write(job, type("Wrong", (RoundedState,), {"key": ["k"], "schema": SCHEMA, "max_parallelism": M}))
        (damage,) = catalog.verify().damages
        assert damage.path.endswith(".parquet")
        assert damage.what.startswith("state 's' of checkpoint 2 of job 'j' has a row in key group ")


def test_files_of_the_first_version_have_nothing_wrong():
    """Every type, written by Spark and by streams, as Holdfast 0.1.0 left them."""
    golden = GOLDEN
    (manifest,) = golden.glob("export/jobs/*/chk-*")
    checked = 0
    for checkpoint in (holdfast.open_savepoint(golden / "savepoint"), holdfast.open_manifest(manifest)):
        for path, rows in files_of_rows(checkpoint.manifest).items():
            assert problem_in(checkpoint.storage, path, rows) is None
            checked += bool(rows.key_columns)
    assert checked > 3
