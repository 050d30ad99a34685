"""What a careless user does, and is told before anything is lost."""

import atexit
import errno
import gc
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.catalog.ledger.memory import MemoryLedger
from holdfast.catalog.state import CatalogState
from holdfast.catalog.transactions import Transactor
from tests.support.invariants import assert_catalog_sound
from tests.support.world import World

KEEP_ONE = holdfast.KeepLast(1)


def write(catalog: holdfast.Catalog, job: str, data: bytes, **options: Any) -> int:
    with catalog.coordinate(job, **{"retention": KEEP_ONE, **options}) as coordinator:
        with coordinator.checkpoint() as checkpoint:
            checkpoint.write_bytes("offsets", data)
    return int(checkpoint.checkpoint_id)


# ---- arguments: nothing is registered for a call that cannot succeed ---------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retention": 1}, "is not a retention policy"),
        ({"retention": None}, "is not a retention policy"),
        ({"on_end": "finished"}, r"on_end='finished' is not a policy .*: pass OnEnd\(drop="),
        ({"on_end": holdfast.Outcome.FINISHED}, "is not a policy"),
        ({"chain": 3}, r"chain=3 is not a limit of chains: pass ChainLimit\("),
        ({"upload": "fax"}, "pass 'native' or 'streamed'"),
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


@pytest.mark.parametrize("drop", ["finished", {"done"}, [7], None, 5], ids=str)
def test_a_policy_names_outcomes_and_nothing_else(drop: Any) -> None:
    """A text would be asked whether the outcome is a part of it: 'unfinished' would drop what is finished."""
    with pytest.raises(holdfast.UsageError, match=r"is not a set of outcomes: pass some of 'finished', 'cancelled', 'failed'"):
        holdfast.OnEnd(drop=drop)
    assert holdfast.OnEnd(drop=["failed"]) == holdfast.OnEnd(drop={holdfast.Outcome.FAILED})


@pytest.mark.parametrize(
    "limit", [{"change_sets": "3"}, {"change_sets": 2.5}, {"change_sets": True}, {"change_sets": -1}, {"share_of_base": None}], ids=str
)
def test_a_limit_of_chains_is_a_number_of_change_sets_and_a_share(limit: dict[str, Any]) -> None:
    with pytest.raises(holdfast.UsageError, match="is not a limit of chains: pass change_sets"):
        holdfast.ChainLimit(**limit)


@pytest.mark.parametrize("outcome", ["done", None, ""])
def test_a_job_ends_by_an_outcome_that_there_is_or_goes_on(catalog: holdfast.Catalog, outcome: Any) -> None:
    with catalog.coordinate("flights") as job:
        with pytest.raises(holdfast.UsageError, match=f"outcome={outcome!r} is not .*: give 'finished', 'cancelled' or 'failed'"):
            job.end(outcome)
        with job.checkpoint() as checkpoint:
            checkpoint.write_bytes("offsets", b"1")


@pytest.mark.parametrize("key", [{"id"}, 5, None, [1], b"id"], ids=repr)
def test_a_key_is_a_list_of_names(catalog: holdfast.Catalog, key: Any) -> None:
    with catalog.coordinate("flights") as job, job.checkpoint() as checkpoint:
        for write in (checkpoint.write, checkpoint.write_changes):
            with pytest.raises(holdfast.UsageError, match=r"is not a list of key columns: pass their names, as key=\['id'\]"):
                write("planes", None, key=key)  # type: ignore[operator]
        checkpoint.write_bytes("planes", b"else its failed write is told at the end")


@pytest.mark.parametrize("name", ["", " b", "b ", "a\nb", "e\u0301", 7, None])
def test_a_name_that_could_be_taken_for_another_is_refused(catalog: holdfast.Catalog, name: Any) -> None:
    with pytest.raises(holdfast.UsageError, match="cannot be the name of a job"):
        catalog.coordinate(name)


def test_a_rollback_is_possible_where_nobody_thought_of_retention(catalog: holdfast.Catalog) -> None:
    """Three are kept by default, as the README says."""
    with catalog.coordinate("flights") as job:
        for data in (b"1", b"2", b"3", b"4"):
            with job.checkpoint() as checkpoint:
                checkpoint.write_bytes("offsets", data)
    with catalog.duckdb() as connection:
        live = connection.execute("SELECT checkpoint_id FROM checkpoints WHERE status = 'live' ORDER BY seq").fetchall()
    assert live == [(2,), (3,), (4,)]
    with catalog.coordinate("flights", start=2) as job:
        latest = job.latest()
        assert latest is not None
        assert latest.read_bytes("offsets") == b"2"


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


def test_a_failed_write_that_was_swallowed_does_not_commit_the_older_state(catalog: holdfast.Catalog) -> None:
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


def test_an_unknown_outcome_of_something_else_aborts_the_attempt(catalog: holdfast.Catalog) -> None:
    """Something else that was called within the block."""
    with catalog.coordinate("flights") as job:
        with pytest.raises(holdfast.UnknownOutcomeError, match="of another job"), job.checkpoint() as checkpoint:
            checkpoint.write_bytes("offsets", b"1")
            raise holdfast.UnknownOutcomeError("of another job")
        with pytest.raises(holdfast.RefusedError, match="has ended"):
            checkpoint.write_bytes("more", b"lost without a word")
        with catalog.duckdb() as connection:
            assert connection.execute("select status from attempts").fetchall() == [("aborted",)]


def test_a_coordinator_is_not_closed_within_a_block_nor_used_when_closed(catalog: holdfast.Catalog) -> None:
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


def test_a_copied_manifest_is_not_taken_for_another_checkpoint(catalog: holdfast.Catalog) -> None:
    number = write(catalog, "flights", b"1", retention=holdfast.KeepAll())
    directory = next(Path(catalog.address).glob(f"jobs/*/chk-{number}"))
    shutil.copytree(directory, directory.with_name("chk-77"))
    assert holdfast.open_manifest(directory).checkpoint_id == number
    with pytest.raises(holdfast.DamagedFileError, match="holds the manifest of checkpoint 1"):
        holdfast.open_manifest(directory.with_name("chk-77"))


# ---- interrupted -----------------------------------------------------------------------------------------------------------


def test_an_interrupt_while_the_ledger_is_folded_leaves_no_half_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a state at the newest version would pass every compare-and-swap: a lost update."""
    world = World()
    process = world.process()
    process.checkpoint(process.coordinate(), {"offsets": b"1"})
    transactor = Transactor(MemoryLedger(world.log), process.environment)
    job_id, whole = transactor.look(lambda state: (state.job_named("flights").job_id, state.job_named("flights").seq))
    apply = CatalogState.apply

    def interrupted(state: CatalogState, facts: Any) -> None:
        apply(state, list(facts)[:3])
        raise KeyboardInterrupt

    transactor.work_for(job_id)
    monkeypatch.setattr(CatalogState, "apply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        transactor.look(lambda state: state.job(job_id))
    monkeypatch.undo()
    assert transactor.known().job_named("flights").seq == whole
    assert_catalog_sound(world)


@pytest.mark.parametrize("name", ["", "  ", None, 7])
def test_a_hold_without_a_name_is_refused(catalog: holdfast.Catalog, name: Any) -> None:
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


def test_reading_a_checkpoint_twice_is_one_pin_that_the_last_reader_ends(catalog: holdfast.Catalog) -> None:
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


def test_a_closed_catalog_pins_no_more_and_may_be_closed_again(catalog: holdfast.Catalog) -> None:
    write(catalog, "flights", b"1")
    with holdfast.open(catalog.address) as reader:
        reader.checkpoint("flights")
        assert open_pins(catalog) == 1
    for _ in range(2):
        with pytest.raises(holdfast.RefusedError, match="this catalog object is closed.*open the catalog again"):
            reader.checkpoint("flights")
        reader.close()
        assert open_pins(catalog) == 0


@pytest.mark.parametrize("first", [0, 1])
def test_readers_of_a_pin_that_was_killed_share_the_next_one(catalog: holdfast.Catalog, first: int) -> None:
    """Seen: the first reader's close ended the pin that a second one had taken anew."""
    write(catalog, "flights", b"1")
    with holdfast.open(catalog.address) as reader:
        readers = [reader.checkpoint("flights")]
        (token,) = reader.duckdb().sql("select attempt from readers").fetchone()  # type: ignore[misc]
        catalog.kill("flights", token)
        readers.append(reader.checkpoint("flights"))
        readers[first].close()
        assert (open_pins(catalog), readers[1 - first].is_pinned) == (1, True)
        readers[1 - first].close()
        assert open_pins(catalog) == 0


def test_a_reader_that_let_go_of_all_it_pinned_is_held_by_nobody(catalog: holdfast.Catalog) -> None:
    """Seen: each reading left a callback for the interpreter's end, which held the catalog's state."""
    write(catalog, "flights", b"1")
    reader, before = holdfast.open(catalog.address), atexit._ncallbacks()  # type: ignore[attr-defined]
    for _ in range(3):
        with reader.checkpoint("flights"):
            pass
    assert not reader._pins._readers
    reference = weakref.ref(reader._pins)
    del reader
    gc.collect()
    assert (reference(), atexit._ncallbacks()) == (None, before)  # type: ignore[attr-defined]


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


FAILURES = [
    (OSError(errno.EROFS, "Read-only file system"), holdfast.RefusedError, "may not write to the ledger"),
    (OSError(errno.ENOSPC, "No space left on device"), holdfast.StorageFullError, "the disk of the ledger is full"),
    (OSError(errno.EDQUOT, "Disk quota exceeded"), holdfast.StorageFullError, "the disk of the ledger is full"),
    (OSError("Generic error: No space left on device (os error 28)"), holdfast.StorageFullError, "the disk of the ledger is full"),
    (Exception("Generic error: Read-only file system (os error 30)"), holdfast.RefusedError, "may not write to the ledger"),
]


@pytest.mark.parametrize(("failure", "kind", "text"), FAILURES)
def test_a_process_that_cannot_write_to_the_ledger_reads_unpinned(
    catalog: holdfast.Catalog, monkeypatch: pytest.MonkeyPatch, failure: Exception, kind: type[Exception], text: str
) -> None:
    write(catalog, "flights", b"x" * 50_000)

    def refuse(facts: Any, **options: Any) -> None:
        raise failure

    with holdfast.open(catalog.address) as reader:
        monkeypatch.setattr(reader._transactor.ledger, "append", refuse)
        checkpoint = reader.checkpoint("flights")
        assert not checkpoint.is_pinned
        assert checkpoint.read_bytes("offsets") == b"x" * 50_000
        with pytest.raises(kind, match=text):
            reader.hold("flights", 1, "mine")
        write(catalog, "flights", b"2")
        catalog.vacuum()
        with pytest.raises(
            holdfast.RefusedError, match="checkpoint 1 of job 'flights' was dropped meanwhile.*it may not write to the ledger"
        ):
            checkpoint.read_bytes("offsets")


# ---- dropped meanwhile, and damaged ----------------------------------------------------------------------------------------


def lose_files(catalog: holdfast.Catalog) -> None:
    for path in Path(catalog.address).glob("jobs/*/exclusive/*"):
        path.unlink()


def test_what_was_closed_and_then_dropped_is_not_told_as_damaged(catalog: holdfast.Catalog) -> None:
    write(catalog, "flights", b"x" * 50_000)
    with catalog.checkpoint("flights") as checkpoint:
        pass
    write(catalog, "flights", b"2")
    catalog.vacuum()
    with pytest.raises(
        holdfast.RefusedError, match="was dropped meanwhile.*the checkpoint or its catalog object was closed. Nothing is damaged"
    ):
        checkpoint.read_bytes("offsets")


def test_a_pin_that_was_killed_is_told_where_its_checkpoint_was_dropped(catalog: holdfast.Catalog) -> None:
    write(catalog, "flights", b"x" * 50_000)
    checkpoint = catalog.checkpoint("flights")
    with catalog.duckdb() as connection:
        ((attempt,),) = connection.execute("select attempt from readers").fetchall()
    catalog.kill("flights", attempt)
    write(catalog, "flights", b"2")
    catalog.vacuum()
    with pytest.raises(holdfast.RefusedError, match="was dropped meanwhile.*ended by somebody else"):
        checkpoint.read_bytes("offsets")


def test_the_latest_of_before_the_last_commit_is_told_as_dropped(catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("flights", retention=KEEP_ONE) as job:
        read = []
        for data in (b"x" * 50_000, b"y" * 50_000):
            with job.checkpoint() as checkpoint:
                checkpoint.write_bytes("offsets", data)
            latest = job.latest()
            assert latest is not None
            read.append(latest)
        before, latest = read
        catalog.vacuum()
        with pytest.raises(holdfast.RefusedError, match="checkpoint 1 of job 'flights' was dropped meanwhile.*that has committed since"):
            before.read_bytes("offsets")
        lose_files(catalog)
        with pytest.raises(holdfast.DamagedFileError, match="is missing"):
            latest.read_bytes("offsets")


@pytest.mark.parametrize("how", ["live", "pinned", "closed, and pinned by another", "closed"])
def test_a_file_that_is_gone_though_the_ledger_keeps_it_is_damage(catalog: holdfast.Catalog, how: str) -> None:
    write(catalog, "flights", b"x" * 50_000)
    checkpoint = catalog.checkpoint("flights")
    other = holdfast.open(catalog.address).checkpoint("flights")
    if how != "live":
        write(catalog, "flights", b"2")
    if how.startswith("closed"):
        checkpoint.close()
    if how == "closed":
        other.close()
    lose_files(catalog)
    kind = holdfast.RefusedError if how == "closed" else holdfast.DamagedFileError
    with pytest.raises(kind, match="dropped meanwhile"):
        checkpoint.read_bytes("offsets")
    other.close()


def test_a_ledger_that_cannot_be_read_leaves_damage_damage(catalog: holdfast.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    write(catalog, "flights", b"x" * 50_000)
    checkpoint = catalog.checkpoint("flights")
    checkpoint.close()
    write(catalog, "flights", b"2")
    catalog.vacuum()

    def unreadable() -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(catalog._transactor.ledger, "refresh", unreadable)
    with pytest.raises(holdfast.DamagedFileError, match="is missing"):
        checkpoint.read_bytes("offsets")


def test_a_manifest_vacuumed_before_an_unpinned_reader_came_is_no_damage(
    catalog: holdfast.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(catalog, "flights", b"1")

    def too_late(facts: Any, **options: Any) -> None:
        write(catalog, "flights", b"2")
        catalog.vacuum()
        raise OSError(errno.EROFS, "Read-only file system")

    with holdfast.open(catalog.address) as reader:
        monkeypatch.setattr(reader._transactor.ledger, "append", too_late)
        with pytest.raises(holdfast.RefusedError, match="was dropped"):
            reader.checkpoint("flights")


@pytest.mark.slow
@pytest.mark.parametrize("verify", [True, False])
def test_rows_of_a_dropped_checkpoint_are_told_as_dropped(spark: Any, catalog: holdfast.Catalog, verify: bool) -> None:
    """Those of a live one are told as damaged."""
    with catalog.coordinate("flights", retention=KEEP_ONE) as job:
        for count in (10, 20):
            with job.checkpoint() as checkpoint:
                checkpoint.write("planes", spark.range(count), key=["id"])
            if count == 10:
                with catalog.checkpoint("flights") as read:
                    pass
    catalog.vacuum()
    for reading in (lambda of: of.read(spark, "planes", verify=verify), lambda of: of.duckdb("planes", verify=verify)):
        with pytest.raises(holdfast.RefusedError, match="checkpoint 1 of job 'flights' was dropped meanwhile.*was closed"):
            reading(read)
    live = catalog.checkpoint("flights")
    for path in Path(catalog.address).glob("jobs/*/shared/**/*.parquet"):
        path.unlink()
    for reading in (lambda of: of.read(spark, "planes", verify=verify), lambda of: of.duckdb("planes", verify=verify)):
        with pytest.raises(holdfast.DamagedFileError, match="is missing"):
            reading(live)


@pytest.mark.slow
def test_what_was_made_of_a_read_dataframe_gives_right_rows_or_an_error(spark: Any, catalog: holdfast.Catalog) -> None:
    """The error is the engine's. As `docs/guarantees.md` says: these do not know of the pin."""
    with catalog.coordinate("flights", retention=KEEP_ONE) as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write("planes", spark.range(10), key=["id"])
        with catalog.checkpoint("flights") as read:
            frame = read.read(spark, "planes")
            frame.createOrReplaceTempView("lent")
            late = [frame.where("id >= 0").count, spark.table("lent").count, read.duckdb("planes").fetchall]
        assert late[0]() == late[1]() == 10
        with job.checkpoint() as checkpoint:
            checkpoint.write("planes", spark.range(20), key=["id"])
    assert catalog.vacuum().deleted_files > 0
    for reading in late:
        with pytest.raises(Exception, match=r"(?s)shared/1-.*parquet") as raised:
            reading()
        assert not isinstance(raised.value, holdfast.HoldfastError)
