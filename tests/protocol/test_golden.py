"""What released versions wrote is read by this one: savepoints and exported checkpoints in `tests/golden`, one directory for each format."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import holdfast
from holdfast.catalog.key_groups import groups_of
from holdfast.catalog.manifest import MANIFEST_FORMAT
from holdfast.catalog.types import CheckpointProperties, Role
from tests.golden import make
from tests.support.invariants import assert_catalog_sound

FORMATS = sorted(make.GOLDEN.glob("format-*"))
CURRENT = make.GOLDEN / f"format-{MANIFEST_FORMAT}"
FACTS = {
    "savepoint": CheckpointProperties(
        is_incremental=False, is_key_group_aware=False, is_savepoint=True, is_self_contained=True, format="canonical"
    ),
    "export": CheckpointProperties(
        is_incremental=True, is_key_group_aware=False, is_savepoint=False, is_self_contained=False, format="native"
    ),
}

every_format = pytest.mark.parametrize("golden", FORMATS, ids=lambda path: path.name)
both_kinds = pytest.mark.parametrize("kind", FACTS)


def opened(golden: Path, kind: str) -> holdfast.Checkpoint:
    if kind == "savepoint":
        return holdfast.open_savepoint(golden / kind)
    (place,) = (golden / kind).glob("jobs/*/chk-*")
    return holdfast.open_manifest(place)


def expected_of(golden: Path) -> dict[str, Any]:
    return json.loads((golden / "expected.json").read_text())


def rows_expected(golden: Path) -> dict[str, list[dict[str, Any]]]:
    states = expected_of(golden)["states"]
    return {name: state["content"] for name, state in states.items() if state["format"] == "parquet"}


def files_of(golden: Path, kind: str) -> set[str]:
    return {str(path.relative_to(golden / kind)) for path in (golden / kind).rglob("*") if path.is_file()}


def spark_rows(df) -> list[dict[str, Any]]:
    return make.rows_of(df.toArrow())


# ---- they are there, and are what they should be ------------------------------------------------------------------------------


def test_the_current_format_has_golden_files() -> None:
    assert CURRENT in FORMATS, f"manifests have format {MANIFEST_FORMAT} now: run `python -m tests.golden.make`, and keep {CURRENT}"


def test_golden_files_are_never_written_again() -> None:
    with pytest.raises(FileExistsError, match="never written again"):
        make.main()


@every_format
@both_kinds
def test_a_manifest_has_the_format_of_its_directory(golden: Path, kind: str) -> None:
    checkpoint = opened(golden, kind)
    header = pq.read_metadata(f"{checkpoint.path}/_metadata").metadata[b"holdfast"]
    assert f"format-{json.loads(header)['format']}" == golden.name


@every_format
def test_they_have_every_kind_of_chunk(golden: Path) -> None:
    """Row groups and footers in the savepoint; in the export two change sets, bases of key groups, and one of a key group without rows."""
    savepoint, export = opened(golden, "savepoint").manifest, opened(golden, "export").manifest
    keyed = [chunk for chunk in savepoint.chunks if chunk.state == make.EVERY_TYPE]
    assert [sum(chunk.role is role for chunk in keyed) for role in (Role.BASE, Role.FOOTER)] == [5, 2]
    layers = {(chunk.state, chunk.layer, chunk.role) for chunk in export.chunks if chunk.role is not Role.FOOTER}
    changes = {(make.EVERY_TYPE, layer, role) for layer in (1, 2) for role in (Role.UPSERTS, Role.DELETES)}
    assert layers >= changes | {(state, 0, Role.BASE) for state in (make.EVERY_TYPE, "by_groups")}
    assert layers >= {("by_groups", layer, Role.BASE) for layer in (1, 2)}
    assert [chunk.rows for chunk in export.chunks if chunk.state == "by_groups" and chunk.inline is not None] == [0]
    for manifest in (savepoint, export):
        assert {chunk.state for chunk in manifest.chunks if chunk.inline} == {"small"}


@every_format
@both_kinds
def test_every_file_is_one_of_the_manifest_and_below_its_directory(golden: Path, kind: str) -> None:
    checkpoint = opened(golden, kind)
    assert files_of(golden, kind) == {checkpoint.manifest.path, *(file.path for file in checkpoint.manifest.files.values())}


# ---- they are read -------------------------------------------------------------------------------------------------------------


@every_format
@both_kinds
def test_every_state_is_read_as_it_was_written(golden: Path, kind: str) -> None:
    checkpoint = opened(golden, kind)
    assert make.facts_of(checkpoint) == expected_of(golden)
    assert checkpoint.properties == FACTS[kind]
    assert checkpoint.manifest.savepoint == (make.NAME if kind == "savepoint" else None)


@every_format
@both_kinds
def test_a_job_starts_from_them_in_a_new_catalog(golden: Path, kind: str, tmp_path: Path) -> None:
    shutil.copytree(golden / kind, tmp_path / golden.name / kind)
    with holdfast.open(tmp_path / "catalog", create=True) as catalog:
        with catalog.coordinate(make.JOB, start=opened(tmp_path / golden.name, kind).path):
            pass
        shutil.rmtree(tmp_path / golden.name)
        assert make.facts_of(catalog.checkpoint(make.JOB)) == expected_of(golden)
        assert_catalog_sound(catalog)


@every_format
@both_kinds
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_damaged_byte_is_found_when_its_state_is_read(golden: Path, kind: str, place: str, tmp_path: Path) -> None:
    """Of each chunk. (A file may have a stretch that no chunk names any more: the row group of key groups that have a newer base.)"""
    copy = tmp_path / golden.name
    shutil.copytree(golden / kind, copy / kind)
    manifest = opened(copy, kind).manifest
    in_files = [chunk for chunk in manifest.chunks if chunk.file_id in manifest.files]
    assert {manifest.files[chunk.file_id].path for chunk in in_files} | {manifest.path} == files_of(golden, kind)
    for chunk in in_files:
        file = copy / kind / manifest.files[chunk.file_id].path
        undo = damage(file, chunk.offset_bytes, chunk.length_bytes, place)
        with pytest.raises(holdfast.DamagedFileError):
            read_state(opened(copy, kind), chunk.state)
        undo()
    undo = damage(copy / kind / manifest.path, 0, (copy / kind / manifest.path).stat().st_size, place)
    with pytest.raises(holdfast.DamagedFileError):
        opened(copy, kind)
    undo()
    assert make.facts_of(opened(copy, kind)) == expected_of(golden)


def damage(file: Path, offset_bytes: int, length_bytes: int, place: str) -> Callable[[], object]:
    """Flip a bit in a stretch of a file; returns what undoes it."""
    whole = file.read_bytes()
    at = offset_bytes + {"first": 0, "middle": length_bytes // 2, "last": length_bytes - 1}[place]
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    return lambda: file.write_bytes(whole)


def read_state(checkpoint: holdfast.Checkpoint, state: str) -> None:
    """This state and no other."""
    if checkpoint.manifest.state("main", state).format == "bytes":
        checkpoint.read_bytes(state)
    else:
        checkpoint.duckdb(state)


# ---- they are read with Spark ----------------------------------------------------------------------------------------------------


@every_format
@both_kinds
def test_spark_reads_the_same_rows(spark, golden: Path, kind: str) -> None:
    checkpoint = opened(golden, kind)
    assert {name: spark_rows(checkpoint.read(spark, name)) for name in rows_expected(golden)} == rows_expected(golden)


@every_format
def test_parts_by_key_group_have_every_row_once(spark, golden: Path) -> None:
    checkpoint = opened(golden, "savepoint")
    groups = checkpoint.manifest.max_parallelism
    for name in (make.EVERY_TYPE, "by_groups"):
        parts = [spark_rows(checkpoint.read(spark, name, key_groups=groups_of(i, 2, groups))) for i in range(2)]
        assert make.in_order(row for part in parts for row in part) == rows_expected(golden)[name]
        split = spark_rows(checkpoint.read(spark, name, parallelism=2).selectExpr("*", "spark_partition_id() AS _partition"))
        numbered = [(row.pop("_partition"), row) for row in split]
        assert [make.in_order(row for number, row in numbered if number == i) for i in range(2)] == parts


@every_format
def test_digests_of_key_groups_are_still_those_that_were_kept(spark, golden: Path, tmp_path: Path) -> None:
    """Else the first `changed-groups` checkpoint after an upgrade would write a state anew of which nothing changed."""
    with holdfast.open(tmp_path / "catalog", create=True) as catalog:
        with catalog.coordinate(make.JOB, start=opened(golden, "export").path) as job:
            with job.checkpoint() as checkpoint:
                rows = opened(golden, "export").read(spark, "by_groups")
                checkpoint.write("by_groups", rows, key=["code"], mode="changed-groups")
            assert checkpoint.result.new_bytes == 0
