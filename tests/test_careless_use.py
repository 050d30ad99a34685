"""What a careless user does, and is told before anything is lost."""

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.catalog.ledger_memory import MemoryLedger
from holdfast.catalog.state import CatalogState
from holdfast.catalog.transactions import Transactor
from tests.support.invariants import assert_catalog_sound
from tests.support.world import World


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[holdfast.Catalog]:
    with holdfast.open(tmp_path / "catalog", create=True) as opened:
        yield opened


def write(catalog: holdfast.Catalog, job: str, data: bytes, **options: Any) -> int:
    with catalog.coordinate(job, **options) as coordinator:
        with coordinator.checkpoint() as checkpoint:
            checkpoint.write_bytes("offsets", data)
    return int(checkpoint.checkpoint_id)


# ---- arguments: nothing is registered for a call that cannot succeed ---------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retention": 1}, "is no retention"),
        ({"retention": None}, "is no retention"),
        ({"upload": "fax"}, "give 'native' or 'streamed'"),
        ({"start": 5}, "has no job named 'typo'"),
        ({"start": True}, "cannot start from True"),
        ({"start": "chk-1"}, "neither the directory of a checkpoint"),
        ({"max_parallelism": "128"}, "give a number"),
        ({"max_parallelism": 0}, "give 1 to"),
    ],
)
def test_a_call_that_cannot_succeed_registers_no_job(catalog: holdfast.Catalog, options: dict[str, Any], message: str) -> None:
    with pytest.raises(holdfast.UsageError, match=message):
        catalog.coordinate("typo", **options)
    with catalog.duckdb() as connection:
        assert connection.execute("select count(*) from jobs").fetchone() == (0,)


@pytest.mark.parametrize("name", ["", " b", "b ", "a\nb", "e\u0301", 7, None])
def test_a_name_that_could_be_taken_for_another_is_refused(catalog: holdfast.Catalog, name: Any) -> None:
    with pytest.raises(holdfast.UsageError, match="cannot be the name of a job"):
        catalog.coordinate(name)


def test_keep_last_takes_its_number_by_position(catalog: holdfast.Catalog) -> None:
    assert write(catalog, "flights", b"1", retention=holdfast.KeepLast(2)) == 1


def test_a_job_starts_from_a_path_through_a_link_to_its_own_catalog(catalog: holdfast.Catalog, tmp_path: Path) -> None:
    number = write(catalog, "flights", b"1", retention=holdfast.KeepAll())
    (tmp_path / "link").symlink_to(catalog.address)
    path = next((tmp_path / "link").glob(f"jobs/*/chk-{number}"))
    with catalog.coordinate("flights", start=path) as job:
        latest = job.latest()
        assert latest is not None
        assert latest.checkpoint_id == number


# ---- within the block of a checkpoint ------------------------------------------------------------------------------------


def test_a_write_that_failed_and_was_swallowed_is_not_committed_as_the_older_state(catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("flights") as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write_bytes("offsets", b"day 1")
        with pytest.raises(holdfast.RefusedError, match="the write of 'offsets' failed"), job.checkpoint({"day": 2}) as checkpoint:
            with pytest.raises(holdfast.UsageError):
                checkpoint.write_bytes("offsets", "day 2")  # type: ignore[arg-type]
        latest = job.latest()
        assert latest is not None
        assert latest.read_bytes("offsets") == b"day 1"
        assert latest.progress is None


@pytest.mark.parametrize("mended", ["written", "removed"])
def test_a_write_that_failed_may_be_repeated_or_the_state_removed(catalog: holdfast.Catalog, mended: str) -> None:
    with catalog.coordinate("flights") as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write_bytes("offsets", b"day 1")
        with job.checkpoint() as checkpoint:
            with pytest.raises(holdfast.UsageError):
                checkpoint.write_bytes("offsets", 2)  # type: ignore[arg-type]
            checkpoint.write_bytes("offsets", b"day 2") if mended == "written" else checkpoint.remove("offsets")
        latest = job.latest()
        assert latest is not None
        assert latest.states == (("offsets",) if mended == "written" else ())


def test_an_unknown_outcome_of_something_else_within_the_block_aborts_the_attempt(catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("flights") as job:
        with pytest.raises(holdfast.UnknownOutcomeError, match="of another job"), job.checkpoint() as checkpoint:
            checkpoint.write_bytes("offsets", b"1")
            raise holdfast.UnknownOutcomeError("of another job")
        with pytest.raises(holdfast.RefusedError, match="has ended"):
            checkpoint.write_bytes("more", b"lost without a word")
        with catalog.duckdb() as connection:
            assert connection.execute("select status from attempts").fetchall() == [("aborted",)]


def test_a_coordinator_is_not_closed_within_a_block_nor_used_after_it_is_closed(catalog: holdfast.Catalog) -> None:
    job = catalog.coordinate("flights")
    with job.checkpoint() as checkpoint:
        with pytest.raises(holdfast.RefusedError, match="end that block before"):
            job.close()
        checkpoint.write_bytes("offsets", b"1")
    job.close()
    job.close()
    with pytest.raises(holdfast.RefusedError, match="is closed"), job.checkpoint():
        pass
    with catalog.duckdb() as connection:
        assert connection.execute("select count(*) from attempts where status = 'open'").fetchone() == (0,)


def test_a_fenced_coordinator_is_told_so_when_it_asks_for_the_latest(catalog: holdfast.Catalog) -> None:
    """And not that a manifest is missing, which the newer coordinator's retention dropped and a vacuum took."""
    with catalog.coordinate("flights") as old, old.checkpoint() as checkpoint:
        checkpoint.write_bytes("offsets", b"1")
    old = catalog.coordinate("flights")
    write(catalog, "flights", b"2")
    catalog.vacuum()
    with pytest.raises(holdfast.FencedError, match="stop this process"):
        old.latest()


# ---- manifests -----------------------------------------------------------------------------------------------------------


def test_a_manifest_that_was_copied_elsewhere_is_not_taken_for_another_checkpoint(catalog: holdfast.Catalog) -> None:
    number = write(catalog, "flights", b"1", retention=holdfast.KeepAll())
    directory = next(Path(catalog.address).glob(f"jobs/*/chk-{number}"))
    shutil.copytree(directory, directory.with_name("chk-77"))
    assert holdfast.open_manifest(directory).checkpoint_id == number
    with pytest.raises(holdfast.DamagedFileError, match="holds the manifest of checkpoint 1"):
        holdfast.open_manifest(directory.with_name("chk-77"))


# ---- interrupted -----------------------------------------------------------------------------------------------------------


def test_an_interrupt_while_the_ledger_is_folded_leaves_no_half_state_to_decide_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a state at the newest version would pass every compare-and-swap: a lost update."""
    world = World()
    process = world.process()
    process.checkpoint(process.coordinate(), {"offsets": b"1"})
    transactor = Transactor(MemoryLedger(world.log), process.environment)
    whole, apply = transactor.fresh().job_named("flights").seq, CatalogState.apply

    def interrupted(state: CatalogState, facts: Any) -> None:
        apply(state, list(facts)[:3])
        raise KeyboardInterrupt

    transactor.keep_handles_of("*")
    monkeypatch.setattr(CatalogState, "apply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        transactor.fresh()
    monkeypatch.undo()
    assert transactor.known().job_named("flights").seq == whole
    assert_catalog_sound(world)


@pytest.mark.parametrize("name", ["", "  "])
def test_a_hold_without_a_name_is_refused(catalog: holdfast.Catalog, name: str) -> None:
    write(catalog, "flights", b"1")
    with pytest.raises(holdfast.UsageError, match="needs a name"):
        catalog.hold("flights", 1, name)


# ---- pins ----------------------------------------------------------------------------------------------------------------


def open_pins(catalog: holdfast.Catalog) -> int:
    with catalog.duckdb() as connection:
        row = connection.execute("select count(*) from attempts where purpose = 'read' and status = 'open'").fetchone()
    assert row is not None
    return int(row[0])


def test_a_checkpoint_stays_pinned_when_the_catalog_object_is_collected(catalog: holdfast.Catalog) -> None:
    write(catalog, "flights", b"x" * 50_000)
    checkpoint = holdfast.open(catalog.address).checkpoint("flights")
    write(catalog, "flights", b"y" * 50_000)
    catalog.vacuum()
    assert checkpoint.is_pinned
    assert checkpoint.read_bytes("offsets") == b"x" * 50_000
    checkpoint.close()
    assert open_pins(catalog) == 0


def test_reading_one_checkpoint_twice_is_one_pin_which_ends_with_the_last_reader(catalog: holdfast.Catalog) -> None:
    write(catalog, "flights", b"1")
    with holdfast.open(catalog.address) as reader:
        with reader.checkpoint("flights") as first:
            second = reader.checkpoint("flights")
            assert open_pins(catalog) == 1
        assert first.checkpoint_id == second.checkpoint_id
        assert open_pins(catalog) == 1
        second.close()
        second.close()
        assert open_pins(catalog) == 0


def test_a_closed_catalog_may_pin_again_and_be_closed_again(catalog: holdfast.Catalog) -> None:
    write(catalog, "flights", b"1")
    reader = holdfast.open(catalog.address)
    for _ in range(2):
        reader.checkpoint("flights")
        assert open_pins(catalog) == 1
        reader.close()
        assert open_pins(catalog) == 0


def test_a_checkpoint_that_was_dropped_pins_nothing(catalog: holdfast.Catalog) -> None:
    write(catalog, "flights", b"1")
    write(catalog, "flights", b"2")
    with pytest.raises(holdfast.RefusedError, match="it was dropped"):
        catalog.checkpoint("flights", 1)
    assert open_pins(catalog) == 0


def test_one_release_that_fails_stops_no_other_and_is_tried_again(catalog: holdfast.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    for job in ("a", "b", "c"):
        write(catalog, job, b"1")
    reader = holdfast.open(catalog.address)
    for job in ("a", "b", "c"):
        reader.checkpoint(job)
    ledger = reader._transactor.ledger
    append, calls = ledger.append, []

    def full_at_first(facts: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(facts, **options)

    monkeypatch.setattr(ledger, "append", full_at_first)
    with pytest.raises(holdfast.RetryError, match="No space left"):
        reader.close()
    assert open_pins(catalog) == 1
    reader.close()
    assert open_pins(catalog) == 0


def test_a_process_that_may_not_write_to_the_ledger_reads_unpinned(catalog: holdfast.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    write(catalog, "flights", b"x" * 50_000)

    def read_only(facts: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with holdfast.open(catalog.address) as reader:
        monkeypatch.setattr(reader._transactor.ledger, "append", read_only)
        checkpoint = reader.checkpoint("flights")
        assert not checkpoint.is_pinned
        assert checkpoint.read_bytes("offsets") == b"x" * 50_000
        with pytest.raises(holdfast.RefusedError, match="may not write to the ledger"):
            reader.hold("flights", 1, "mine")
        write(catalog, "flights", b"2")
        catalog.vacuum()
        with pytest.raises(holdfast.DamagedFileError, match="the checkpoint was dropped meanwhile"):
            checkpoint.read_bytes("offsets")
