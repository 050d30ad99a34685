"""Base and change sets read as one: against a dict that every layer writes into."""

import math
import random
import re
from collections import Counter

import pyarrow as pa
import pytest

from holdfast.catalog.key_groups import groups_of
from holdfast.catalog.layers import seen_chunks
from holdfast.catalog.storage.local import LocalStorage
from holdfast.catalog.types import Role
from holdfast.writers.parquet import plan
from holdfast.writers.parquet.duckdb_read import read_duckdb
from holdfast.writers.parquet.plan import Scan, as_one, together
from holdfast.writers.parquet.report import state_info
from holdfast.writers.spark import merge
from holdfast.writers.spark.native import NativeUploader
from holdfast.writers.spark.read import read_state
from holdfast.writers.upload import chunks_of
from tests.support.layered_state import LayeredState
from tests.support.spark_support import context_for, file_rows, new_storage, row_texts, session_settings
from tests.writers.spark.uploader_contract import MANY_TYPES

pytestmark = pytest.mark.usefixtures("keeps_change_sets")

GROUPS = 16
SCHEMA = pa.schema([("name", pa.string()), ("x", pa.float64()), ("_layer", pa.int64()), ("rank", pa.string())])
KEY = ("name", "x")
NAMES = [None, "", "a", "b", "c", "dd", "é"]
NUMBERS = [None, math.nan, 0.0, -0.0, 1.5, math.inf]


def canonical(row):
    """The key of a row as a dict tells keys apart: nulls are equal, so are NaNs, so are zeros."""
    x = row["x"]
    return (row["name"], "nan" if x is not None and math.isnan(x) else None if x is None else x + 0.0)


def comparable(rows):
    return Counter((canonical(row), row["_layer"], row["rank"]) for row in rows)


def distinct(rows):
    return [*{canonical(row): row for row in rows}.values()]


def empty_state(spark, storage):
    json = spark.createDataFrame([], "name string, x double, _layer long, rank string").schema.json()
    return LayeredState(storage, SCHEMA, json, KEY, GROUPS)


class History:
    """A random history: a state of several layers, and beside it the rows that it must have."""

    def __init__(self, spark, storage, seed):
        self.rng = random.Random(seed)
        self.state = empty_state(spark, storage)
        self.rows = {}
        self.layer = 0
        self.rebase(range(GROUPS))
        for _ in range(self.rng.randint(2, 4)):
            self.layer += 1
            if self.rng.random() < 0.3:
                first = self.rng.randrange(GROUPS)
                self.rebase(range(first, self.rng.randint(first, GROUPS - 1) + 1))
            else:
                self.change()
        if self.rng.random() < 0.5:
            self.state.chunks = seen_chunks(self.state.chunks, GROUPS)

    def new_rows(self, most):
        rows = [
            {"name": self.rng.choice(NAMES), "x": self.rng.choice(NUMBERS), "_layer": self.layer, "rank": f"r{i}"}
            for i in range(self.rng.randint(0, most))
        ]
        return distinct(rows)

    def rebase(self, groups):
        """A new base of these key groups, in one file with exact bounds, or in row groups with what they leave empty told."""
        rows = self.new_rows(40)
        rows = [row for row, group in zip(rows, self.state.groups(rows), strict=True) if group in groups]
        self.rows = {key: row for key, row in self.rows.items() if self.state.groups([row])[0] not in groups}
        self.rows |= {canonical(row): row for row in rows}
        found = {*self.state.groups(rows)}
        if rows and self.rng.random() < 0.5 and len(groups) == GROUPS:
            self.state.add(self.layer, Role.BASE, rows, row_groups=self.rng.randint(1, 4))
        elif rows:
            self.state.add(self.layer, Role.BASE, rows, bounds=groups)
        else:
            self.state.add_empty(self.layer, groups)
        assert found <= {*groups}

    def change(self):
        upserts = self.new_rows(12)
        deletes = [row for row in self.new_rows(12) if canonical(row) not in {canonical(row) for row in upserts}]
        if upserts:
            self.state.add(self.layer, Role.UPSERTS, upserts, row_groups=self.rng.randint(1, 3))
        if deletes:
            self.state.add(self.layer, Role.DELETES, deletes, row_groups=self.rng.randint(1, 2))
        self.rows = {key: row for key, row in self.rows.items() if key not in {canonical(row) for row in deletes}}
        self.rows |= {canonical(row): row for row in upserts}

    def of(self, groups):
        rows = [*self.rows.values()]
        return [row for row, group in zip(rows, self.state.groups(rows), strict=True) if group in groups]


@pytest.mark.parametrize("join", ["broadcast", "shuffled"])
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 6))])
def test_a_random_history_reads_as_its_rows(spark, tmp_path, monkeypatch, seed, join):
    if join == "shuffled":
        monkeypatch.setattr(merge, "BROADCAST_BYTES", -1)
    history = History(spark, LocalStorage(tmp_path), seed)
    kept = history.state.read(spark, verify=seed % 2 == 0)
    assert kept.columns == SCHEMA.names
    assert comparable(row.asDict() for row in kept.collect()) == comparable(history.rows.values())
    groups = range(3, 11)
    some = history.state.read(spark, key_groups=groups)
    assert comparable(row.asDict() for row in some.collect()) == comparable(history.of(groups))


@pytest.mark.parametrize("seed", range(40))
def test_duckdb_reads_the_same_rows(spark, tmp_path, seed):
    history = History(spark, LocalStorage(tmp_path), seed)
    state = history.state
    kept = read_duckdb(state.storage, state.info, state.chunks, state.files, max_parallelism=GROUPS, verify=seed % 2 == 0)
    assert kept.columns == SCHEMA.names
    rows = [dict(zip(kept.columns, row, strict=True)) for row in kept.fetchall()]
    assert comparable(rows) == comparable(history.rows.values())


def test_subtasks_of_a_layered_state_get_the_rows_of_their_groups(spark, tmp_path):
    history = History(spark, LocalStorage(tmp_path), 3)
    parts = history.state.read(spark, parallelism=5).rdd.glom().collect()
    assert len(parts) == 5
    for i, rows in enumerate(parts):
        assert comparable(row.asDict() for row in rows) == comparable(history.of(groups_of(i, 5, GROUPS)))


def test_rows_of_the_base_that_no_change_names_are_all_kept(spark, tmp_path):
    """As often as they are there. A full write does not demand that a key is unique."""
    state = empty_state(spark, LocalStorage(tmp_path))
    row = {"name": "a", "x": 1.5, "_layer": 0, "rank": "r"}
    other = {**row, "name": "b"}
    state.add(0, Role.BASE, [row, row, other, other])
    state.add(1, Role.UPSERTS, [{**other, "rank": "new"}])
    expected = comparable([row, row, {**other, "rank": "new"}])
    assert comparable(each.asDict() for each in state.read(spark).collect()) == expected
    kept = read_duckdb(state.storage, state.info, state.chunks, state.files, max_parallelism=GROUPS)
    assert comparable(dict(zip(kept.columns, each, strict=True)) for each in kept.fetchall()) == expected


ROW = {"name": "a", "x": 1.5, "_layer": 0, "rank": "r"}


def layered(spark, storage, *roles):
    """A base and, in layers above it, one row each of these roles, all of one key."""
    state = empty_state(spark, storage)
    for layer, role in enumerate([Role.BASE, *roles]):
        state.add(layer, role, [{**ROW, "_layer": layer}])
    return state


@pytest.mark.parametrize("roles", [[Role.UPSERTS], [Role.DELETES], [Role.UPSERTS] * 3, [Role.UPSERTS, Role.DELETES]])
def test_keys_are_looked_up_by_one_long_however_few_layers_there_are(spark, tmp_path, roles):
    """A second key, which Spark adds where it knows that all ranks are equal, doubles the time of the join."""
    rows = layered(spark, new_storage(tmp_path / "s"), *roles).read(spark)
    joins = [line for line in rows._jdf.queryExecution().executedPlan().toString().splitlines() if "BroadcastHashJoin" in line]
    assert len(joins) == (2 if len(roles) > 1 else 1)
    for join in joins:
        assert re.search(r"BroadcastHashJoin \[xxhash64\([^\]]*\)\], \[changed_hash#\d+L\], LeftAnti", join), join


@pytest.mark.parametrize("roles", [[Role.DELETES, Role.UPSERTS], [Role.DELETES]])
def test_upserts_that_nothing_lies_above_are_not_joined(spark, tmp_path, roles):
    rows = layered(spark, new_storage(tmp_path / "s"), *roles).read(spark)
    assert rows._jdf.queryExecution().optimizedPlan().toString().count("Join LeftAnti") == 1


@pytest.mark.parametrize(("layers_in_a_scan", "top"), [(1, Role.UPSERTS), (2, Role.DELETES), (32, Role.UPSERTS), (32, Role.DELETES)])
def test_of_many_layers_the_highest_says_what_a_key_is_worth(spark, tmp_path, monkeypatch, layers_in_a_scan, top):
    monkeypatch.setattr(plan, "LAYERS_IN_A_SCAN", layers_in_a_scan)
    state = layered(spark, new_storage(tmp_path / "s"), *[Role.UPSERTS] * 4, Role.DELETES, *[Role.UPSERTS] * 3, top)
    assert [row._layer for row in state.read(spark).collect()] == ([9] if top is Role.UPSERTS else [])


def test_scans_are_one_while_the_names_of_files_tell_their_layers():
    """And while they are not too many."""

    def scan(layer, name, groups=None):
        return Scan(layer=layer, paths=(f"d{layer}/{name}", f"d{layer}/x{layer}"), groups=groups)

    def layers(scans):
        return [[scan.layer for scan in alike] for alike in together(scans)]

    part = (range(3),)
    assert layers([]) == []
    assert layers([scan(layer, f"p{layer}") for layer in range(70)]) == [[*range(32)], [*range(32, 64)], [*range(64, 70)]]
    assert layers([scan(1, "a"), scan(2, "b"), scan(3, "a"), scan(4, "b")]) == [[1, 2], [3, 4]]
    assert layers([scan(1, "a"), scan(2, "b", part), scan(3, "c"), scan(4, "d", part)]) == [[1, 3], [2, 4]]
    assert as_one([scan(1, "a"), scan(2, "b")]).paths == ("d1/a", "d1/x1", "d2/b", "d2/x2")


def test_a_row_of_a_file_that_no_layer_has_is_an_error(spark, tmp_path, monkeypatch):
    """What it replaces would come back."""
    state = layered(spark, new_storage(tmp_path / "s"), Role.UPSERTS)
    monkeypatch.setattr(Scan, "names", ("another.parquet",))
    with pytest.raises(Exception, match=r"a file of no layer: part-1\.parquet"):
        state.read(spark).collect()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.sql.sources.useV1SourceList", ""),
        ("spark.sql.parser.quotedRegexColumnNames", "true"),
        ("spark.sql.parser.escapedStringLiterals", "true"),
        ("spark.sql.caseSensitive", "true"),
    ],
)
def test_no_setting_of_the_session_changes_what_is_read(spark, tmp_path, setting, value):
    history = History(spark, LocalStorage(tmp_path), 2)
    with session_settings(spark, {setting: value}):
        kept = history.state.read(spark).collect()
        some = history.state.read(spark, key_groups=range(3, 11)).collect()
    assert comparable(row.asDict() for row in kept) == comparable(history.rows.values())
    assert comparable(row.asDict() for row in some) == comparable(history.of(range(3, 11)))


@pytest.mark.parametrize("join", ["broadcast", "shuffled"])
def test_keys_of_every_type_meet_their_changes(spark, tmp_path, monkeypatch, join):
    if join == "shuffled":
        monkeypatch.setattr(merge, "BROADCAST_BYTES", -1)
    storage = LocalStorage(tmp_path)
    df = spark.sql(MANY_TYPES)
    key = tuple(name for name in df.columns if name not in ("id", "map"))
    acks = NativeUploader().write(df, context_for(storage, key=key))
    changes = df.where("id != 2").selectExpr("id + 10 AS id", *df.columns[1:])
    deletes = df.where("id = 2").select(*key)
    upserted = NativeUploader().write(changes, context_for(storage, key=key, call=1, layer=1, role=Role.UPSERTS))
    deleted = NativeUploader().write(deletes, context_for(storage, key=key, call=2, layer=1, role=Role.DELETES))
    info = state_info(df, context_for(storage, key=key), acks)
    every = [*acks, *upserted, *deleted]
    chunks = [chunk for ack in every for chunk in ack.chunks]
    kept = read_state(spark, storage, info, chunks, file_rows(every), max_parallelism=128)
    assert row_texts(kept) == row_texts(changes)
    again = read_duckdb(storage, info, chunks, file_rows(every), max_parallelism=128)
    assert sorted(again.project("id").fetchall()) == [(11,), (13,)]


def test_an_empty_state_has_its_columns_in_duckdb(spark, tmp_path):
    storage = LocalStorage(tmp_path)
    df = spark.sql(MANY_TYPES)
    full = NativeUploader().write(df, context_for(storage))
    info = state_info(df, context_for(storage), full)
    columns = read_duckdb(storage, info, chunks_of(full), file_rows(full), max_parallelism=128).types
    none = read_duckdb(storage, state_info(df, context_for(storage), []), [], {}, max_parallelism=128)
    assert none.fetchall() == []
    assert (none.columns, none.types) == (df.columns, columns)
