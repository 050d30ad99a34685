"""Savepoints: whole, in a directory of their own, wherever that is; apart from the job's line; gone only when they are disposed of."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.catalog.errors import FencedError
from tests.support.front_door import LARGE, ask, contents
from tests.support.invariants import assert_catalog_sound, assert_clean


def write(catalog: holdfast.Catalog, job: str = "flights", **states: bytes) -> int:
    with catalog.coordinate(job, retention=holdfast.KeepLast(1)) as coordinator:
        with coordinator.checkpoint({"of": sorted(states)}) as checkpoint:
            for name, data in states.items():
                checkpoint.write_bytes(name, data)
    return int(checkpoint.checkpoint_id)


# ---- taking them -----------------------------------------------------------------------------------------------------------


def test_a_savepoint_refers_to_nothing_outside_its_directory(catalog: holdfast.Catalog, tmp_path: Path) -> None:
    """It opens wherever it is copied."""
    write(catalog, offsets=b"1", big=LARGE)
    savepoint = catalog.savepoint("flights", "before-upgrade")
    files = {str(path.relative_to(savepoint.path)) for path in Path(savepoint.path).rglob("*") if path.is_file()}
    assert files == {"_metadata", *(file.path for file in savepoint.manifest.files.values())}
    shutil.copytree(savepoint.path, tmp_path / "elsewhere")
    shutil.rmtree(catalog.address)
    for path in (tmp_path / "elsewhere", tmp_path / "elsewhere" / "_metadata"):
        copy = holdfast.open_savepoint(path)
        assert contents(copy) == {"offsets": b"1", "big": LARGE}
        assert copy.progress == {"of": ["big", "offsets"]}
        assert copy.is_savepoint


def test_a_savepoint_outlives_its_checkpoint_and_every_retention(catalog: holdfast.Catalog) -> None:
    write(catalog, big=LARGE)
    savepoint = catalog.savepoint("flights", "mine")
    for n in range(3):
        write(catalog, big=LARGE + bytes([n]))
    catalog.vacuum()
    catalog.scrub()
    assert contents(catalog.checkpoint("flights", savepoint.checkpoint_id)) == {"big": LARGE}
    assert ask(catalog, "select is_savepoint, name, status, is_self_contained from checkpoints where is_savepoint") == [
        (True, "mine", "live", True)
    ]
    assert_catalog_sound(catalog)
    catalog.close()
    assert_clean(catalog)


def test_checkpoints_go_on_while_a_savepoint_is_taken(catalog: holdfast.Catalog) -> None:
    """They share one counter of ids with it."""
    with catalog.coordinate("flights") as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write_bytes("big", LARGE)
        with job.checkpoint() as checkpoint:
            savepoint = job.savepoint("in between")
            checkpoint.write_bytes("big", LARGE + b"2")
        assert (checkpoint.checkpoint_id, savepoint.checkpoint_id) == (2, 3)
        assert contents(savepoint) == {"big": LARGE}
        with job.checkpoint() as checkpoint:
            pass
        latest = job.latest()
        assert latest is not None
        assert contents(latest) == {"big": LARGE + b"2"}
    assert_catalog_sound(catalog)


def test_a_name_is_taken_for_ever(catalog: holdfast.Catalog) -> None:
    write(catalog, offsets=b"1")
    catalog.savepoint("flights", "mine")
    catalog.dispose("flights", "mine")
    with pytest.raises(holdfast.AlreadyExistsError, match="a name is never used again"):
        catalog.savepoint("flights", "mine")


def test_the_name_of_an_aborted_savepoint_is_told_as_tried_and_not_as_had(catalog: holdfast.Catalog) -> None:
    write(catalog, big=LARGE)
    next(Path(catalog.address).glob("jobs/*/exclusive/*")).write_bytes(b"damaged")
    with pytest.raises(holdfast.DamagedFileError):
        catalog.savepoint("flights", "mine")
    told = r"was tried and aborted \(DamagedFileError: .*a name is never used again: take another"
    with pytest.raises(holdfast.AlreadyExistsError, match=told):
        catalog.savepoint("flights", "mine")
    with pytest.raises(holdfast.NotFoundError, match=f"nothing to dispose of: .*{told}"):
        catalog.dispose("flights", "mine")


def test_a_checkpoint_whose_manifest_is_damaged_costs_no_name(catalog: holdfast.Catalog) -> None:
    write(catalog, big=LARGE)
    next(Path(catalog.address).glob("jobs/*/chk-1/_metadata")).write_bytes(b"damaged")
    with pytest.raises(holdfast.DamagedFileError):
        catalog.savepoint("flights", "mine")
    assert ask(catalog, "select count(*) from attempts where purpose = 'savepoint'") == [(0,)]


@pytest.mark.parametrize("below", [".", "deeper/place"])
def test_a_target_that_cannot_be_made_costs_no_name(catalog: holdfast.Catalog, tmp_path: Path, below: str) -> None:
    write(catalog, big=LARGE)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(holdfast.AddressError, match="nothing can be written to the target .*: give a directory that"):
        catalog.savepoint("flights", "mine", target=tmp_path / "file" / below)
    with pytest.raises(holdfast.AddressError, match="nothing can be written to the target"):
        catalog.export(catalog.checkpoint("flights"), tmp_path / "file" / below)
    assert contents(catalog.savepoint("flights", "mine", target=tmp_path / "away")) == {"big": LARGE}


def test_a_savepoint_that_fails_outside_leaves_nothing_there(catalog: holdfast.Catalog, tmp_path: Path) -> None:
    write(catalog, first=LARGE, second=LARGE)
    [*Path(catalog.address).glob("jobs/*/exclusive/*")][1].write_bytes(b"damaged")
    with pytest.raises(holdfast.DamagedFileError):
        catalog.savepoint("flights", "mine", target=tmp_path / "away")
    assert [*(tmp_path / "away").iterdir()] == []


@pytest.mark.parametrize("name", ["", " a", "a\n", 7])
def test_what_is_no_name_is_refused_before_anything_is_opened(catalog: holdfast.Catalog, name: Any) -> None:
    write(catalog, offsets=b"1")
    with pytest.raises(holdfast.UsageError, match="cannot be the name of a savepoint"):
        catalog.savepoint("flights", name)
    assert ask(catalog, "select count(*) from attempts where purpose = 'savepoint'") == [(0,)]


def test_a_savepoint_of_a_damaged_checkpoint_aborts_and_leaves_nothing(catalog: holdfast.Catalog) -> None:
    write(catalog, first=LARGE, second=LARGE)
    victim = [*Path(catalog.address).glob("jobs/*/exclusive/*")][1]
    victim.write_bytes(b"damaged")
    with pytest.raises(holdfast.DamagedFileError):
        catalog.savepoint("flights", "mine")
    assert ask(catalog, "select status from attempts where purpose = 'savepoint'") == [("aborted",)]
    catalog.vacuum()
    catalog.scrub()
    assert not [*Path(catalog.address).glob("jobs/*/savepoints/*")]


# ---- outside the catalog -----------------------------------------------------------------------------------------------------


def test_a_savepoint_outside_is_a_row_with_its_address(catalog: holdfast.Catalog, tmp_path: Path) -> None:
    """It is no cleaner's business."""
    write(catalog, big=LARGE)
    savepoint = catalog.savepoint("flights", "away", target=tmp_path / "backups")
    assert Path(savepoint.path).parent == tmp_path / "backups"
    assert not [*Path(catalog.address).glob("jobs/*/savepoints")]
    assert contents(catalog.checkpoint("flights", savepoint.checkpoint_id)) == {"big": LARGE}
    assert contents(holdfast.open_savepoint(savepoint.path)) == {"big": LARGE}
    assert ask(catalog, "select path from checkpoints where is_savepoint") == [(f"{savepoint.path}/_metadata",)]
    write(catalog, big=b"2")
    catalog.vacuum()
    catalog.scrub()
    assert contents(holdfast.open_savepoint(savepoint.path)) == {"big": LARGE}
    assert_catalog_sound(catalog)
    assert_clean_after_closing(catalog)


def assert_clean_after_closing(catalog: holdfast.Catalog) -> None:
    catalog.close()
    assert_clean(catalog)


def test_one_outside_that_is_gone_is_told_by_its_readers_and_by_verify(catalog: holdfast.Catalog, tmp_path: Path) -> None:
    write(catalog, big=LARGE)
    savepoint = catalog.savepoint("flights", "away", target=tmp_path)
    assert catalog.verify().damages == ()
    shutil.rmtree(savepoint.path)
    with pytest.raises(holdfast.DamagedFileError, match="was lost or moved"):
        catalog.checkpoint("flights", savepoint.checkpoint_id)
    assert [damage.path for damage in catalog.verify().damages] == [f"{savepoint.path}/_metadata"]
    catalog.dispose("flights", "away")
    assert catalog.verify().damages == ()


def test_a_target_within_the_catalog_is_refused(catalog: holdfast.Catalog) -> None:
    write(catalog, big=LARGE)
    with pytest.raises(holdfast.RefusedError, match="is in the catalog"):
        catalog.savepoint("flights", "mine", target=Path(catalog.address) / "savepoints")
    with catalog.coordinate("flights") as job, pytest.raises(holdfast.RefusedError, match="is in the catalog"):
        job.savepoint("mine", target=Path(catalog.address) / "savepoints")


@pytest.mark.parametrize("which", ["this", "another", "linked"])
def test_no_copy_goes_into_any_catalog_whose_scrub_would_delete_it(catalog: holdfast.Catalog, tmp_path: Path, which: str) -> None:
    write(catalog, big=LARGE)
    savepoint = catalog.savepoint("flights", "mine", target=tmp_path / "away")
    other = holdfast.open(tmp_path / "other", create=True)
    (tmp_path / "link").symlink_to(tmp_path / "other")
    root = {"this": Path(catalog.address), "another": Path(other.address), "linked": tmp_path / "link"}[which]
    before = sorted(tmp_path.rglob("*"))
    for target in (root, root / "jobs" / "copies", root / "new"):
        with pytest.raises(holdfast.RefusedError, match="is in the catalog at .*: give a directory outside"):
            catalog.savepoint("flights", "second", target=target)
        with pytest.raises(holdfast.RefusedError, match="is in the catalog"):
            holdfast.rekey(savepoint, max_parallelism=64, target=target)
        with catalog.checkpoint("flights") as checkpoint, pytest.raises(holdfast.RefusedError, match="is in the catalog"):
            catalog.export(checkpoint, target)
    assert [path for path in sorted(tmp_path.rglob("*")) if "ledger" not in path.parts] == [
        path for path in before if "ledger" not in path.parts
    ]


@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
def test_dispose_is_the_one_way_it_goes(catalog: holdfast.Catalog, tmp_path: Path, outside: bool) -> None:
    write(catalog, big=LARGE)
    savepoint = catalog.savepoint("flights", "mine", target=tmp_path / "away" if outside else None)
    notes = Path(savepoint.path) / "notes.txt"
    if outside:
        notes.write_text("mine")
    files = len(savepoint.manifest.files) + 1
    found = catalog.dispose("flights", "mine")
    assert (found.found, found.path, found.deleted_files) == (
        ("whole", savepoint.path, files) if outside else ("in the catalog", savepoint.path, 0)
    )
    again = catalog.dispose("flights", "mine")
    assert (again.found, again.deleted_files) == ("absent" if outside else "in the catalog", 0)
    catalog.vacuum()
    catalog.scrub()
    left = [*Path(savepoint.path).rglob("*")] if Path(savepoint.path).exists() else []
    assert left == ([notes] if outside else []), "a stranger's file stays"
    with pytest.raises(holdfast.NotFoundError, match="no savepoint named 'other'"):
        catalog.dispose("flights", "other")


def test_drop_refuses_a_savepoint_and_names_the_way_out(catalog: holdfast.Catalog) -> None:
    write(catalog, big=LARGE)
    number = catalog.savepoint("flights", "mine").checkpoint_id
    told = r"is the savepoint 'mine', which is never dropped: dispose of it, catalog.dispose\('flights', 'mine'\)"
    with pytest.raises(holdfast.RefusedError, match=told):
        catalog.drop("flights", number)
    with catalog.coordinate("flights", retention=holdfast.KeepLast(1)) as job, pytest.raises(holdfast.RefusedError, match=told):
        job.drop(number)
    assert contents(catalog.checkpoint("flights", number)) == {"big": LARGE}


def test_a_savepoint_outside_that_is_gone_or_moved_is_told_as_absent(catalog: holdfast.Catalog, tmp_path: Path) -> None:
    """It is disposed of all the same."""
    write(catalog, big=LARGE)
    for name in ("gone", "moved"):
        savepoint = catalog.savepoint("flights", name, target=tmp_path / "away")
        shutil.move(savepoint.path, tmp_path / name)
        disposal = catalog.dispose("flights", name)
        assert (disposal.name, disposal.path, disposal.found, disposal.deleted_files) == (name, savepoint.path, "absent", 0)
    assert ask(catalog, "select distinct status from checkpoints where is_savepoint") == [("dropped",)]
    assert contents(holdfast.open_savepoint(tmp_path / "moved")) == {"big": LARGE}, "what was moved is its owner's"


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_a_savepoint_outside_is_disposed_of_by_its_own_names_alone(catalog: holdfast.Catalog, tmp_path: Path, damage: str) -> None:
    """Its manifest is missing or damaged."""
    write(catalog, big=LARGE, second=LARGE)
    savepoint, other = (catalog.savepoint("flights", name, target=tmp_path / "away") for name in ("mine", "other"))
    place, elsewhere = Path(savepoint.path), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("a stranger's")
    (place / "notes.txt").write_text("a stranger's")
    (place / "data" / "link").symlink_to(elsewhere)
    manifest = place / "_metadata"
    manifest.write_bytes(manifest.read_bytes()[1:])
    if damage == "missing":
        manifest.unlink()
    disposal = catalog.dispose("flights", "mine")
    assert (disposal.found, disposal.deleted_files) == ("damaged", 2 + 1 + (damage != "missing"))
    assert [*place.iterdir()] == [place / "notes.txt"]
    assert (elsewhere / "precious").exists()
    assert contents(holdfast.open_savepoint(other.path)) == {"big": LARGE, "second": LARGE}


def test_a_savepoint_outside_is_not_disposed_of_under_its_reader(catalog: holdfast.Catalog, tmp_path: Path) -> None:
    write(catalog, big=LARGE)
    number = catalog.savepoint("flights", "away", target=tmp_path / "away").checkpoint_id
    reader = catalog.checkpoint("flights", number)
    [(token, process)] = ask(catalog, "select attempt, process from readers")
    with pytest.raises(holdfast.RefusedError, match=rf"is being read: attempt {token} of job 'flights' \(read of {process}\) pins it"):
        catalog.dispose("flights", "away")
    assert contents(reader) == {"big": LARGE}
    reader.close()
    assert catalog.dispose("flights", "away").found == "whole"


def test_a_held_savepoint_is_not_disposed_of(catalog: holdfast.Catalog, tmp_path: Path) -> None:
    write(catalog, big=LARGE)
    savepoint = catalog.savepoint("flights", "mine", target=tmp_path / "away")
    catalog.hold("flights", savepoint.checkpoint_id, "audit")
    with pytest.raises(holdfast.RefusedError, match="held by audit"):
        catalog.dispose("flights", "mine")
    assert contents(holdfast.open_savepoint(savepoint.path)) == {"big": LARGE}


# ---- restoring from them -------------------------------------------------------------------------------------------------------


def test_a_job_starts_from_a_savepoint_that_was_moved_into_another_catalog(catalog: holdfast.Catalog, tmp_path: Path) -> None:
    write(catalog, offsets=b"1", big=LARGE)
    savepoint = catalog.savepoint("flights", "mine")
    shutil.move(savepoint.path, tmp_path / "moved")
    shutil.rmtree(catalog.address)
    with holdfast.open(tmp_path / "other", create=True) as other:
        with other.coordinate("flights", start=tmp_path / "moved", retention=holdfast.KeepLast(1)) as job:
            shutil.rmtree(tmp_path / "moved")
            latest = job.latest()
            assert latest is not None
            assert contents(latest) == {"offsets": b"1", "big": LARGE}
            with job.checkpoint({"week": 2}) as checkpoint:
                checkpoint.write_bytes("offsets", b"2")
            latest = job.latest()
            assert latest is not None
            assert contents(latest) == {"offsets": b"2", "big": LARGE}
        other.vacuum()
        other.scrub()
        assert_catalog_sound(other)
        assert_clean(other)


def test_a_job_goes_back_to_its_own_savepoint_and_shares_nothing_with_it(catalog: holdfast.Catalog) -> None:
    write(catalog, big=LARGE)
    savepoint = catalog.savepoint("flights", "mine")
    write(catalog, big=b"worse")
    with catalog.coordinate("flights", start=savepoint, retention=holdfast.KeepLast(1)) as job:
        latest = job.latest()
        assert latest is not None
        assert contents(latest) == {"big": LARGE}
        assert latest.checkpoint_id > savepoint.checkpoint_id
    catalog.dispose("flights", "mine")
    catalog.vacuum()
    catalog.scrub()
    assert contents(catalog.checkpoint("flights")) == {"big": LARGE}


def test_states_are_mapped_by_name_and_none_is_lost_without_a_word(catalog: holdfast.Catalog) -> None:
    write(catalog, old_name=LARGE, gone=b"gone", kept=b"kept")
    savepoint = catalog.savepoint("flights", "mine")
    with pytest.raises(holdfast.RefusedError, match="has state 'old_name', which the program does not have"):
        catalog.coordinate("next", start=savepoint, states={"new_name", "kept"}, allow_non_restored=["gone"])
    assert ask(catalog, "select job from jobs") == [("flights",)]
    options: dict[str, Any] = {"states": {"new_name", "kept", "fresh"}, "allow_non_restored": ["gone"], "renamed": {"old_name": "new_name"}}
    with catalog.coordinate("next", start=savepoint, **options) as job:
        latest = job.latest()
        assert latest is not None
        assert contents(latest) == {"new_name": LARGE, "kept": b"kept"}
    with pytest.raises(holdfast.RefusedError, match="no state 'typo'"):
        catalog.coordinate("third", start=savepoint, renamed={"typo": "x"})
    with pytest.raises(holdfast.RefusedError, match="two states would get one name"):
        catalog.coordinate("third", start=savepoint, renamed={"old_name": "kept"})


def test_a_state_the_program_no_longer_has_is_left_by_name_at_the_head(catalog: holdfast.Catalog) -> None:
    write(catalog, gone=b"gone", kept=b"kept")
    with pytest.raises(holdfast.RefusedError, match="has state 'gone', which the program does not have"):
        catalog.coordinate("flights", states=["kept"])
    with catalog.coordinate("flights", states=["kept"], allow_non_restored=["gone"]) as job:
        with job.checkpoint():
            pass
        latest = job.latest()
        assert latest is not None
        assert contents(latest) == {"kept": b"kept"}


def test_a_damaged_savepoint_is_not_restored_and_the_head_stays(catalog: holdfast.Catalog) -> None:
    write(catalog, big=LARGE)
    savepoint = catalog.savepoint("flights", "mine")
    write(catalog, big=b"head")
    (file,) = Path(savepoint.path).glob("data/*")
    for damaged, told in ((b"y" * len(LARGE), "was not copied"), (b"half of it", "nothing was begun")):
        file.write_bytes(damaged)
        with pytest.raises(holdfast.DamagedFileError, match=told):
            catalog.coordinate("flights", start=savepoint)
    assert contents(catalog.checkpoint("flights")) == {"big": b"head"}


def test_max_parallelism_comes_with_the_savepoint_and_cannot_be_changed(catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("flights", max_parallelism=64) as job, job.checkpoint() as checkpoint:
        checkpoint.write_bytes("offsets", b"1")
    savepoint = catalog.savepoint("flights", "mine")
    catalog.coordinate("same", start=savepoint).close()
    assert ask(catalog, "select max_parallelism from jobs where job = 'same'") == [(64,)]
    with pytest.raises(holdfast.RefusedError, match=r"holdfast.rekey\(savepoint, max_parallelism=128\)"):
        catalog.coordinate("other", start=savepoint, max_parallelism=128)


# ---- checkpoints that move -----------------------------------------------------------------------------------------------------


def test_an_exported_checkpoint_under_another_number_starts_no_job(catalog: holdfast.Catalog, tmp_path: Path) -> None:
    write(catalog, offsets=b"1")
    with catalog.checkpoint("flights") as checkpoint:
        path = Path(catalog.export(checkpoint, tmp_path / "copy"))
    renamed = path.rename(path.with_name("chk-7"))
    with pytest.raises(holdfast.DamagedFileError, match="holds the manifest of checkpoint 1 .*: it was copied or moved there"):
        catalog.coordinate("next", start=renamed)
    with pytest.raises(holdfast.DamagedFileError, match="copied or moved there"):
        holdfast.open_manifest(renamed)


def test_properties_are_those_of_the_view(catalog: holdfast.Catalog) -> None:
    write(catalog, offsets=b"1", big=LARGE)
    with catalog.coordinate("flights") as job, job.checkpoint() as checkpoint:
        checkpoint.write_bytes("offsets", b"2")  # the other state is carried
    catalog.hold("flights", checkpoint.checkpoint_id, "mine")
    savepoint = catalog.savepoint("flights", "mine")
    names = "is_incremental, is_key_group_aware, is_savepoint, is_self_contained, format"
    for number, expected in (
        (checkpoint.checkpoint_id, (True, True, False, False, "native")),
        (savepoint.checkpoint_id, (False, True, True, True, "canonical")),
    ):
        properties = catalog.checkpoint("flights", number).properties
        assert dataclasses.astuple(properties) == expected
        assert ask(catalog, f"select {names} from checkpoints where checkpoint_id = {number}") == [expected]


def test_an_exported_checkpoint_is_exactly_its_files(catalog: holdfast.Catalog, tmp_path: Path) -> None:
    """It starts a job elsewhere."""
    write(catalog, offsets=b"1", big=LARGE)
    write(catalog, offsets=b"2")
    checkpoint = catalog.checkpoint("flights")
    path = catalog.export(checkpoint, tmp_path / "copy")
    files = {str(found.relative_to(tmp_path / "copy")) for found in (tmp_path / "copy").rglob("*") if found.is_file()}
    assert files == {f"{path.removeprefix(f'{tmp_path}/copy/')}/_metadata", *(file.path for file in checkpoint.manifest.files.values())}
    assert contents(holdfast.open_manifest(path)) == {"offsets": b"2", "big": LARGE}
    with holdfast.open(tmp_path / "other", create=True) as other, other.coordinate("flights", start=path) as job:
        latest = job.latest()
        assert latest is not None
        assert contents(latest) == {"offsets": b"2", "big": LARGE}
    with pytest.raises(holdfast.AlreadyExistsError, match="give an empty or new directory"):
        catalog.export(checkpoint, tmp_path / "copy")


def test_an_export_goes_to_no_directory_with_files_and_writes_nothing(catalog: holdfast.Catalog, tmp_path: Path) -> None:
    write(catalog, big=LARGE)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / ".notes").write_text("a stranger's")
    with pytest.raises(holdfast.AlreadyExistsError, match="is not empty, it has .notes: give an empty or new directory"):
        catalog.export(catalog.checkpoint("flights"), tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").rglob("*")] == [".notes"]


# ---- restore modes ---------------------------------------------------------------------------------------------------------------


def test_a_fork_copies_nothing_and_is_not_hurt_by_what_the_first_job_drops(catalog: holdfast.Catalog) -> None:
    write(catalog, big=LARGE, offsets=b"1")
    files = {*Path(catalog.address).glob("jobs/*/exclusive/*")}
    with catalog.coordinate("what-if", start=catalog.checkpoint("flights"), mode="fork", retention=holdfast.KeepLast(1)) as fork:
        latest = fork.latest()
        assert latest is not None
        assert contents(latest) == {"big": LARGE, "offsets": b"1"}
        catalog.close()
        write(catalog, big=b"flights goes on")
        catalog.vacuum()
        with fork.checkpoint() as checkpoint:
            checkpoint.write_bytes("offsets", b"what if")
        assert checkpoint.result is not None
        assert checkpoint.result.reused_bytes == len(LARGE)
        catalog.vacuum()
        catalog.scrub()
        assert files <= {*Path(catalog.address).glob("jobs/*/exclusive/*")}
        latest = fork.latest()
        assert latest is not None
        assert contents(latest) == {"big": LARGE, "offsets": b"what if"}
    with holdfast.open(catalog.address) as again:
        assert contents(again.checkpoint("flights")) == {"big": b"flights goes on", "offsets": b"1"}
    assert_catalog_sound(catalog)


def test_a_forks_origin_stays_pinned_through_an_aborted_first_checkpoint(catalog: holdfast.Catalog) -> None:
    write(catalog, big=LARGE)
    fork = catalog.coordinate("what-if", start=catalog.checkpoint("flights"), mode="fork", retention=holdfast.KeepLast(1))
    catalog.close()
    with pytest.raises(ZeroDivisionError), fork.checkpoint() as checkpoint:
        checkpoint.write_bytes("big", bytes(1 // 0))
    write(catalog, big=b"2")
    catalog.vacuum()
    with fork.checkpoint():
        pass
    latest = fork.latest()
    assert latest is not None
    assert contents(latest) == {"big": LARGE}
    fork.close()


def test_no_claim_uses_nothing_of_its_source(catalog: holdfast.Catalog) -> None:
    write(catalog, big=LARGE)
    with catalog.coordinate("next", start=catalog.checkpoint("flights"), mode="no-claim") as job:
        latest = job.latest()
        assert latest is not None
        own = {file.path for file in latest.manifest.files.values()}
    assert own
    assert all(path.startswith(f"jobs/{job.job_id}/") for path in own)
    assert ask(catalog, "select is_incremental, new_bytes from checkpoints where job = 'next'") == [(False, len(LARGE))]


def test_claim_fences_the_other_coordinator_and_owns_its_checkpoints(catalog: holdfast.Catalog) -> None:
    old = catalog.coordinate("flights", retention=holdfast.KeepAll())
    for n in range(3):
        with old.checkpoint() as checkpoint:
            checkpoint.write_bytes("big", LARGE + bytes([n]))
    with catalog.coordinate("next", start=catalog.checkpoint("flights"), mode="claim", retention=holdfast.KeepLast(2)) as job:
        catalog.close()
        with pytest.raises(FencedError), old.checkpoint():
            pass
        live = "select job, checkpoint_id from checkpoints where status = 'live' order by 1, 2"
        with job.checkpoint():
            pass
        assert ask(catalog, live) == [("flights", 3), ("next", 1)], "two of the head's ancestry, which begins in the other job"
        with job.checkpoint():
            pass
        assert ask(catalog, live) == [("next", 1), ("next", 2)]
        catalog.vacuum()
        catalog.scrub()
        latest = job.latest()
        assert latest is not None
        assert contents(latest) == {"big": LARGE + b"\2"}
    assert_catalog_sound(catalog)


def test_a_start_of_the_claimed_job_takes_it_back(catalog: holdfast.Catalog) -> None:
    write(catalog, big=LARGE)
    job = catalog.coordinate("next", start=catalog.checkpoint("flights"), mode="claim")
    catalog.close()
    write(catalog, big=b"flights again")
    with job.checkpoint():
        pass
    with holdfast.open(catalog.address) as again:
        assert contents(again.checkpoint("flights")) == {"big": b"flights again"}
        assert contents(again.checkpoint("next")) == {"big": LARGE}


def test_a_later_start_of_the_claiming_job_raises_both_epochs(catalog: holdfast.Catalog) -> None:
    write(catalog, big=LARGE)
    catalog.coordinate("next", start=catalog.checkpoint("flights"), mode="claim").close()
    epochs = dict(ask(catalog, "select job, epoch from jobs"))
    catalog.coordinate("next").close()
    assert dict(ask(catalog, "select job, epoch from jobs")) == {job: epoch + 1 for job, epoch in epochs.items()}


def test_another_jobs_checkpoint_without_a_mode_is_refused_with_the_modes(catalog: holdfast.Catalog) -> None:
    write(catalog, big=LARGE)
    source = catalog.checkpoint("flights")
    with pytest.raises(holdfast.RefusedError, match="mode='fork'"):
        catalog.coordinate("next", start=source)
    with pytest.raises(holdfast.RefusedError, match="leave mode='fork' out"):
        catalog.coordinate("flights", start=source, mode="fork")
    with pytest.raises(holdfast.RefusedError, match="needs a checkpoint of another job"):
        catalog.coordinate("next", mode="claim")
    with pytest.raises(holdfast.UsageError, match="pass 'fork', 'no-claim' or 'claim'"):
        catalog.coordinate("next", start=source, mode="steal")  # type: ignore[arg-type]


# ---- the end of a job --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("outcome", "kept"), [("finished", False), ("cancelled", True), ("failed", True)])
def test_an_ended_job_keeps_checkpoints_unless_a_policy_names_its_outcome(catalog: holdfast.Catalog, outcome: str, kept: bool) -> None:
    policy = holdfast.OnEnd(drop=frozenset({holdfast.Outcome.FINISHED}))
    with catalog.coordinate("flights", on_end=policy, retention=holdfast.KeepLast(1)) as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write_bytes("big", LARGE)
        job.savepoint("mine")
        job.end(outcome)
    catalog.vacuum()
    live = ask(catalog, "select is_savepoint from checkpoints where status = 'live' order by 1")
    assert live == ([(False,), (True,)] if kept else [(True,)])
    assert ask(catalog, "select head_checkpoint_id from jobs") == [(1 if kept else None,)]
    with catalog.coordinate("flights", retention=holdfast.KeepLast(1)) as job:
        assert (job.latest() is not None) == kept
    assert_catalog_sound(catalog)
