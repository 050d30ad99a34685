"""A state under another name within a job: what older checkpoints have stays as it was, and nothing is lost either way."""

from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.support.front_door import LARGE, ask, contents
from tests.support.places import GOLDEN


def write(job: holdfast.Coordinator, **states: bytes) -> None:
    with job.checkpoint() as checkpoint:
        for name, data in states.items():
            checkpoint.write_bytes(name, data)


def test_a_renamed_state_is_carried_and_old_checkpoints_keep_the_old_name(catalog: holdfast.Catalog) -> None:
    """A rollback to before has the old name, with the bytes that it had; going on from there, the new one is gone."""
    with catalog.coordinate("flights", retention=holdfast.KeepAll()) as job:
        write(job, small=b"1", large=LARGE, other=b"3")
        with job.checkpoint() as checkpoint:
            checkpoint.rename("small", "tiny")
            checkpoint.rename("large", "big")
        write(job, other=b"4")
        assert contents(job.latest()) == {"tiny": b"1", "big": LARGE, "other": b"4"}
    with catalog.coordinate("flights", retention=holdfast.KeepAll(), start=1) as job:
        assert contents(job.latest()) == {"small": b"1", "large": LARGE, "other": b"3"}
        write(job, other=b"5")
        assert contents(job.latest()) == {"small": b"1", "large": LARGE, "other": b"5"}
    assert ask(catalog, "SELECT checkpoint_id, list_sort(list(state)) FROM states GROUP BY ALL ORDER BY ALL") == [
        (1, ["large", "other", "small"]), (2, ["big", "other", "tiny"]), (3, ["big", "other", "tiny"]), (5, ["large", "other", "small"]),
    ]  # fmt: skip
    for number in (2, 3):
        catalog.drop("flights", number)
    assert catalog.vacuum().deleted_files == 3, "the copy, and two manifests"
    assert not catalog.verify().damages
    assert not catalog.scrub(dry_run=True).plan.orphans
    assert contents(catalog.checkpoint("flights", 1)) == {"small": b"1", "large": LARGE, "other": b"3"}


def test_files_of_the_old_name_go_with_the_last_checkpoint_that_has_them(catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("flights", retention=holdfast.KeepLast(1)) as job:
        write(job, large=LARGE)
        with job.checkpoint() as checkpoint:
            checkpoint.rename("large", "big")
        assert catalog.vacuum().deleted_files == 2
        assert contents(job.latest()) == {"big": LARGE}


def test_a_renamed_store_shares_its_files_with_the_next_checkpoint(catalog: holdfast.Catalog, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "1.sst").write_bytes(LARGE)
    with catalog.coordinate("flights") as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write_directory("rocks", tmp_path / "store")
        with job.checkpoint() as checkpoint:
            checkpoint.rename("rocks", "stones")
        (tmp_path / "store" / "2.sst").write_bytes(b"2")
        with job.checkpoint() as checkpoint:
            checkpoint.write_directory("stones", tmp_path / "store")
        assert checkpoint.result is not None
        assert checkpoint.result.new_bytes < len(LARGE)
        latest = job.latest()
        assert latest is not None
        latest.restore_directory("stones", tmp_path / "back")
    assert (tmp_path / "back" / "1.sst").read_bytes() == LARGE


@pytest.mark.parametrize(
    ("renames", "kind", "message"),
    [
        ([("none", "new")], holdfast.NotFoundError, "cannot rename state 'none': its parent has a, b"),
        ([("a", "b")], holdfast.RefusedError, "its parent has a state of that name"),
        ([("a", "a")], holdfast.RefusedError, "its parent has a state of that name"),
        ([("a", "c"), ("b", "c")], holdfast.RefusedError, "'c' is already written"),
        ([("a", "c"), ("a", "d")], holdfast.RefusedError, "'a' is already removed"),
        ([("a", "")], holdfast.UsageError, "name of a state"),
        ([(None, "c")], holdfast.UsageError, "name of a state"),
    ],
)
def test_a_name_that_cannot_be_given_is_refused(
    catalog: holdfast.Catalog, renames: list[tuple[Any, str]], kind: type[Exception], message: str
) -> None:
    with catalog.coordinate("flights") as job:
        write(job, a=b"1", b=b"2")
        with pytest.raises(kind, match=message), job.checkpoint() as checkpoint:
            for old, new in renames:
                checkpoint.rename(old, new)
        assert contents(job.latest()) == {"a": b"1", "b": b"2"}


def test_rows_in_layers_are_the_same_under_a_new_name(catalog: holdfast.Catalog) -> None:
    """Of every type, and with change sets: what a released version wrote, read by DuckDB."""
    (exported,) = (GOLDEN / "export").glob("jobs/*/chk-*")
    with catalog.coordinate("flights", start=exported) as job:
        before = job.latest()
        assert before is not None
        with job.checkpoint() as checkpoint:
            for state in before.states:
                checkpoint.rename(state, f"new {state}")
        after = job.latest()
        assert after is not None
        assert after.states == tuple(f"new {state}" for state in before.states)
        layered = [info.state for info in before.manifest.states if info.format == "parquet"]
        assert max(info.layers for info in before.manifest.states) > 1
        for state in layered:
            assert sorted(map(repr, after.duckdb(f"new {state}").fetchall())) == sorted(map(repr, before.duckdb(state).fetchall()))
    assert not catalog.verify().damages
