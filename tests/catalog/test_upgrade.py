"""From format 1 to format 2: nothing is lost, who is left behind is refused, and what is not understood stops it before the close."""

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

import holdfast
from holdfast.catalog.creation import open_ledger
from holdfast.catalog.errors import (
    AlreadyExistsError,
    CorruptionError,
    DamagedLedgerError,
    FencedError,
    FormatError,
    HoldfastError,
    ReadOnlyError,
    RetryError,
    StorageFullError,
)
from holdfast.catalog.ledger import delta_log
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.delta_entry import TornCommitError, parse_commit
from holdfast.catalog.ledger.delta_history import HISTORY_SCHEMA, DeltaHistory
from holdfast.catalog.ledger.log_repair import LedgerRepairWarning
from holdfast.catalog.marker import read_marker
from holdfast.catalog.schema import SCHEMA, Operation
from holdfast.catalog.storage.local import LocalStorage
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.views import duckdb_engine
from tests.support import format_1
from tests.support.history import SMALL_LEDGER
from tests.support.invariants import assert_catalog_sound
from tests.support.spark_support import session_settings
from tests.support.upgrades import ENVIRONMENT, OldWriter, holds_of, make_small, register


@pytest.fixture(scope="module")
def _small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small(tmp_path_factory.mktemp("small") / "catalog")


@pytest.fixture
def root(_small: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(_small, tmp_path / "catalog"))


def states(root: Path) -> dict[int, bytes]:
    with holdfast.open(root) as catalog:
        return {n: catalog.checkpoint("flights", n).read_bytes("state") for n in (2, 3)}


def log(root: Path) -> Path:
    return root / "ledger" / "_delta_log"


def content(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# ---- what an upgrade does ------------------------------------------------------------------------------------------------------


def test_a_catalog_of_format_1_is_opened_by_its_upgrade_alone(root: Path) -> None:
    before = content(root)
    for create in (False, True):
        with pytest.raises(FormatError, match=rf"has format 1, and .* run `holdfast upgrade {root}`; programs of the older version"):
            holdfast.open(root, create=create)
    with pytest.raises(FormatError, match="holdfast upgrade"):
        read_marker(LocalStorage(root))
    assert content(root) == before
    report = holdfast.upgrade(root)
    assert (report.was, report.is_now, report.ledger, report.history, report.old_ledger) == (1, 2, "ledger-1", "history", "ledger")
    assert report.facts > report.kept_facts > 0
    assert states(root) == {2: b"1", 3: b"2"}


def test_the_files_of_checkpoints_are_not_touched(root: Path) -> None:
    before = content(root / "jobs")
    holdfast.upgrade(root)
    assert content(root / "jobs") == before


def test_the_marker_says_what_the_format_is_made_of(root: Path) -> None:
    holdfast.upgrade(root)
    assert json.loads((root / "holdfast.json").read_text()) == {
        "catalog_id": format_1.CATALOG_ID,
        "format_version": 2,
        "features": [],
        "ledger": "ledger-1",
        "history": "history",
    }


def test_a_catalog_that_has_the_format_is_left_alone(root: Path, tmp_path: Path) -> None:
    holdfast.upgrade(root)
    holdfast.open(tmp_path / "new", create=True).close()
    for place in (root, tmp_path / "new"):
        before = content(place)
        report = holdfast.upgrade(place)
        assert (report.was, report.is_now, report.facts) == (2, 2, 0)
        assert content(place) == before


def test_the_history_has_every_fact_of_the_old_ledger_once(root: Path) -> None:
    old = DeltaLedger.open(root / "ledger")
    told = {(commit.version, row.fact.kind, row.operation) for commit in old.commits(-1) for row in commit.rows}
    rows = sum(len(commit.rows) for commit in old.commits(-1))
    assert holdfast.upgrade(root).facts == rows
    table = DeltaTable(root / "history").to_pyarrow_table()
    assert set(table["ledger"].to_pylist()) == {"ledger"}
    assert table.num_rows == rows
    columns = [table[name].to_pylist() for name in ("version", "kind", "operation_id", "at", "by")]
    assert {(v, kind, Operation(operation_id=i, at=at, by=by)) for v, kind, i, at, by in zip(*columns, strict=True)} == told
    assert DeltaHistory.of(root / "history", "ledger").told_to == old.version
    successor = DeltaLedger.open(root / "ledger-1")
    assert not successor.commits(-1), "what the history was told of as the old ledger's is told again as its successor's"


def test_work_goes_on_where_it_was(root: Path) -> None:
    holdfast.upgrade(root)
    with holdfast.open(root) as catalog:
        with catalog.coordinate("flights", retention=holdfast.KeepLast(1)) as job:
            latest = job.latest()
            assert latest is not None
            assert latest.progress == {"n": 2}
            with job.checkpoint({"n": 3}) as checkpoint:
                checkpoint.write_bytes("large", b"3" * 50_000)
        assert catalog.vacuum().deleted_files
        assert not catalog.scrub().deleted_files
        assert not catalog.verify().damages
        assert catalog.checkpoint("flights").read_bytes("state") == b"2"
        assert_catalog_sound(catalog)


def test_a_copy_of_an_upgraded_catalog_opens(root: Path, tmp_path: Path) -> None:
    holdfast.upgrade(root)
    assert states(Path(shutil.copytree(root, tmp_path / "copy"))) == states(root)


def test_progress_goes_up_to_all_steps(root: Path) -> None:
    seen: list[tuple[int, int]] = []
    holdfast.upgrade(root, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(n, 5) for n in range(1, 6)]


# ---- a ledger that is closed ---------------------------------------------------------------------------------------------------


def test_a_closed_ledger_takes_no_commit_of_any_handle(root: Path) -> None:
    """Of one that was opened before, of one that has refreshed since, of a fresh one; nor of other programs."""
    before, refreshed = (Transactor(DeltaLedger.open(root / "ledger"), ENVIRONMENT) for _ in range(2))
    before.fresh()
    holdfast.upgrade(root)
    refreshed.fresh()
    for n, transactor in enumerate((before, refreshed, Transactor(DeltaLedger.open(root / "ledger"), ENVIRONMENT))):
        for _ in range(2):
            with pytest.raises(FencedError, match=r"closed.*ledger-1 next to it has its facts.*open the catalog again"):
                register(transactor, f"late-{n}")
    with pytest.raises(DeltaError, match="Unsupported table features"):
        write_deltalake(str(root / "ledger"), pa.table([pa.array([], field.type) for field in SCHEMA], schema=SCHEMA), mode="append")
    with pytest.raises(DeltaError):
        DeltaTable(root / "ledger").optimize.compact()
    assert states(root) == {2: b"1", 3: b"2"}


def test_a_closed_ledger_reads_as_before(root: Path) -> None:
    def counted() -> set[int]:
        ledger = DeltaLedger.open(root / "ledger")
        with duckdb.connect() as connection:
            duckdb_engine._load_delta(connection, duckdb_engine.extension_path())
            (found,) = connection.execute(f"SELECT count(*) FROM delta_scan('{root}/ledger')").fetchone() or (None,)
        return {len(ledger.scan()), found, DeltaTable(root / "ledger").to_pyarrow_table().num_rows}

    before = counted()
    assert len(before) == 1
    holdfast.upgrade(root)
    assert counted() == before
    assert DeltaLedger.open(root / "ledger").successor == "ledger-1"


def test_spark_reads_a_closed_ledger_and_its_successor(spark, root: Path) -> None:
    with session_settings(spark, SMALL_LEDGER):
        before = spark.read.format("delta").load(str(root / "ledger")).count()
        report = holdfast.upgrade(root)
        assert spark.read.format("delta").load(str(root / "ledger")).count() == before == report.facts
        assert spark.read.format("delta").load(str(root / "ledger-1")).count() == report.kept_facts
        with holdfast.open(root) as catalog:
            catalog.register(spark)
            assert spark.sql("SELECT * FROM checkpoints WHERE status = 'live'").count() == 2


def test_a_program_that_has_the_old_catalog_open_is_refused(root: Path) -> None:
    with format_1.open_catalog(root) as old:
        old.hold("flights", 3, "before")
        holdfast.upgrade(root)
        with pytest.raises(FencedError):
            old.hold("flights", 3, "after")
        with pytest.raises(FencedError):
            old.coordinate("flights")
    with holdfast.open(root) as catalog:
        assert holds_of(catalog) == ["before"]


# ---- what is not as it should be -----------------------------------------------------------------------------------------------


def _append(root: Path, **columns: object) -> None:
    """A row of the next version's, in the old ledger."""
    row = {"kind": "drop", "operation_id": "x", "at": ENVIRONMENT.now(), "by": "me holdfast/9.9", "job_id": "j", **columns}
    table = pa.table([pa.array([row.get(field.name)], field.type) for field in SCHEMA], schema=SCHEMA)
    DeltaLedger.open(root / "ledger").add(table, keys={}, operation=Operation(operation_id="x", at=ENVIRONMENT.now(), by="me"))


def _flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])


def _foreign_history(root: Path) -> None:
    DeltaHistory.make(root / "history", pa.schema([pa.field("x", pa.string())]), catalog_id="other")


def _of_another_catalog(root: Path) -> None:
    holdfast.open(root.parent / "other", create=True).close()
    shutil.copytree(root.parent / "other" / "history", root / "history")


def _restored(root: Path) -> None:
    """An upgrade began, and told the history; then the ledger alone was put back from a backup."""
    shutil.copytree(root / "ledger", root.parent / "backup")
    OldWriter(root).write()
    holdfast.upgrade(root)
    for made in ("ledger", "ledger-1"):
        shutil.rmtree(root / made)
    shutil.copytree(root.parent / "backup", root / "ledger")
    (root / "holdfast.json").write_text(json.dumps({"catalog_id": format_1.CATALOG_ID, "format_version": 1, "ledger": "ledger"}))


def _restored_and_gone_on(root: Path) -> None:
    _restored(root)
    for _ in range(3):
        OldWriter(root).write()


SICK: dict[str, tuple[Callable[[Path], None], type[HoldfastError], str]] = {
    "a kind of a later version": (
        lambda root: _append(root, kind="trash"), FormatError, "facts of kind 'trash', which 'me holdfast/9.9' wrote"),
    "a purpose of a later version": (
        lambda root: _append(root, kind="attempt_opened", seq=9, attempt="a", purpose="proposal"), FormatError, "purpose 'proposal'"),
    "a fact of no job": (lambda root: _append(root, seq=9, checkpoint_id=1, reason="r"), DamagedLedgerError, "never registered"),
    "a flipped bit in a data file": (
        lambda root: _flip(sorted((root / "ledger").glob("*.parquet"))[1]), DamagedLedgerError, "does not have|do not have the digest"),
    "a flipped bit in an entry": (lambda root: _flip(log(root) / delta_log.commit_name(2)), DamagedLedgerError, "is damaged"),
    "a missing data file": (lambda root: sorted((root / "ledger").glob("*.parquet"))[1].unlink(), DamagedLedgerError, "is missing"),
    "a missing entry": (lambda root: (log(root) / delta_log.commit_name(2)).unlink(), DamagedLedgerError, "has a hole"),
    "a stranger's table where the history is made": (_foreign_history, AlreadyExistsError, "not a history of Holdfast"),
    "the history of another catalog": (_of_another_catalog, AlreadyExistsError, "is the history of catalog"),
    "a ledger from a backup beside a newer history": (_restored, DamagedLedgerError, "restored from a backup since an upgrade began"),
    "a ledger from a backup that went on": (_restored_and_gone_on, DamagedLedgerError, "restored from a backup since an upgrade began"),
}  # fmt: skip


@pytest.mark.parametrize(("sicken", "error", "words"), SICK.values(), ids=SICK)
def test_what_is_not_understood_stops_it_before_the_close(
    root: Path, sicken: Callable[[Path], None], error: type[HoldfastError], words: str
) -> None:
    sicken(root)
    before = content(root / "ledger")
    with pytest.raises(error, match=words):
        holdfast.upgrade(root)
    assert content(root / "ledger") == before
    assert json.loads((root / "holdfast.json").read_text())["format_version"] == 1
    assert not [path for path in root.iterdir() if path.name.startswith("ledger-")], "a successor that nobody names is left"


def _torn(root: Path) -> None:
    OldWriter(root).write()
    last = log(root) / delta_log.commit_name(delta_log.commit_versions(log(root))[-1])
    last.write_bytes(last.read_bytes()[:-100])


def _compacted(root: Path) -> None:
    DeltaTable(root / "ledger").optimize.compact()
    for path in (root / "ledger").glob("0*.parquet"):
        path.unlink()


def _cleaned(root: Path) -> None:
    DeltaTable(root / "ledger").create_checkpoint()
    for version in delta_log.commit_versions(log(root))[:-1]:
        (log(root) / delta_log.commit_name(version)).unlink()


def _half_done(root: Path) -> None:
    """A process died that had just begun to fill its successor."""
    DeltaLedger.create(root / "ledger-1", catalog_id=format_1.CATALOG_ID)


def _half_told(root: Path) -> None:
    DeltaHistory.make(root / "history", HISTORY_SCHEMA, catalog_id=format_1.CATALOG_ID)
    history, old = DeltaHistory.of(root / "history", "ledger"), DeltaLedger.open(root / "ledger")
    history.tell(old.commits(-1)[:3], old.commits(-1)[2].version)


ODD: dict[str, Callable[[Path], None]] = {
    "a torn tail": _torn,
    "compacted by another program, its old files deleted": _compacted,
    "its log cleaned by another program": _cleaned,
    "a directory of an upgrade that died": _half_done,
    "a history that was told in part": _half_told,
}


def _closed(root: Path) -> Path:
    """The closing entry of a catalog whose marker was not replaced yet."""
    before = (root / "holdfast.json").read_bytes()
    holdfast.upgrade(root)
    (root / "holdfast.json").write_bytes(before)
    return log(root) / delta_log.commit_name(delta_log.commit_versions(log(root))[-1])


def test_a_closing_entry_cut_anywhere_is_torn_and_nothing_else(root: Path) -> None:
    """Its line of the schema has many braces inside; only the missing of the last newline is forgiven."""
    last = _closed(root)
    version, data = int(last.stem), last.read_bytes().rstrip(b"\n")
    assert parse_commit(version, data).successor == "ledger-1"
    for length in range(len(data)):
        with pytest.raises(TornCommitError):
            parse_commit(version, data[:length])


@pytest.mark.filterwarnings(f"ignore::{LedgerRepairWarning.__module__}.{LedgerRepairWarning.__name__}")
def test_a_close_that_a_loss_of_power_tore_is_no_close(root: Path) -> None:
    """It was not durable, so that no marker named its successor: the old ledger works on, and the next upgrade has another successor."""
    last = _closed(root)
    last.write_bytes(last.read_bytes()[:-200])
    with format_1.open_catalog(root) as old:
        old.hold("flights", 3, "afterwards")
    assert holdfast.upgrade(root).ledger == "ledger-2"
    with holdfast.open(root) as catalog:
        assert holds_of(catalog) == ["afterwards"]
    assert states(root) == {2: b"1", 3: b"2"}


def test_a_close_is_finished_by_whoever_opens(root: Path) -> None:
    _closed(root)
    assert states(root) == {2: b"1", 3: b"2"}
    assert json.loads((root / "holdfast.json").read_text())["ledger"] == "ledger-1"


@pytest.mark.filterwarnings(f"ignore::{LedgerRepairWarning.__module__}.{LedgerRepairWarning.__name__}")
@pytest.mark.parametrize("make_odd", ODD.values(), ids=ODD)
def test_what_is_odd_and_whole_is_carried_over(root: Path, make_odd: Callable[[Path], None]) -> None:
    make_odd(root)
    report = holdfast.upgrade(root)
    assert states(root) == {2: b"1", 3: b"2"}
    table = DeltaTable(root / "history").to_pyarrow_table().drop_columns(["ledger", "version"])
    assert table.num_rows == report.facts
    with holdfast.open(root) as catalog:
        assert not catalog.verify().damages
        catalog.coordinate("flights").close()


def test_a_log_that_is_cleaned_meanwhile_asks_for_another_try(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = DeltaLedger.commits

    def cleaned_before(ledger: DeltaLedger, above: int) -> object:
        if above >= 0:
            OldWriter(root).write()
            _cleaned(root)
        return commits(ledger, above)

    OldWriter(root).write()
    _half_told(root)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaLedger, "commits", cleaned_before)
        with pytest.raises((RetryError, DamagedLedgerError)):
            holdfast.upgrade(root)
    assert json.loads((root / "holdfast.json").read_text())["format_version"] == 1


@pytest.mark.parametrize(
    ("number", "error"), [(errno.EROFS, ReadOnlyError), (errno.EACCES, ReadOnlyError), (errno.ENOSPC, StorageFullError)]
)
@pytest.mark.parametrize("place", ["the successor", "the marker"])
def test_a_disk_that_takes_nothing_is_named_and_may_be_tried_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[HoldfastError], place: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(number, "no")

    with monkeypatch.context() as patched:
        if place == "the marker":
            patched.setattr(LocalStorage, "replace", fails)
        else:
            patched.setattr(DeltaLedger, "fold", fails)
        with pytest.raises(error):
            holdfast.upgrade(root)
        if place == "the marker":
            with pytest.raises(error):
                holdfast.open(root)
    assert json.loads((root / "holdfast.json").read_text())["format_version"] == 1
    holdfast.upgrade(root)
    assert states(root) == {2: b"1", 3: b"2"}


def test_a_closed_ledger_whose_successor_is_gone_is_damage(root: Path) -> None:
    holdfast.upgrade(root)
    shutil.rmtree(root / "ledger-1")
    (root / "holdfast.json").write_text(json.dumps({"catalog_id": format_1.CATALOG_ID, "format_version": 1, "ledger": "ledger"}))
    for call in (holdfast.open, holdfast.upgrade):
        with pytest.raises(CorruptionError, match=r"the ledger of catalog .* is gone: .*/ledger-1"):
            call(root)


def test_marker_and_ledger_of_two_formats_do_not_belong_together(root: Path, tmp_path: Path) -> None:
    holdfast.open(tmp_path / "new", create=True).close()
    marker = read_marker(LocalStorage(tmp_path / "new"))
    shutil.rmtree(tmp_path / "new" / "ledger")
    format_1.make_ledger(tmp_path / "new" / "ledger", marker.catalog_id)
    with pytest.raises(FormatError, match=r"in format 2, its ledger of .* in format 1: they do not belong together"):
        open_ledger(LocalStorage(tmp_path / "new"), marker)
