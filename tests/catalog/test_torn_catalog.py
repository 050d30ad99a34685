"""A catalog whose ledger a loss of power has torn, as its users see it."""

import errno
from pathlib import Path

import pytest

import holdfast
from holdfast.catalog.errors import ReadOnlyError, RetryError, StorageFullError
from holdfast.catalog.ledger import log_repair
from holdfast.catalog.ledger.log_repair import LedgerRepairWarning
from tests.support.invariants import assert_catalog_sound
from tests.support.small_catalog import SmallCatalog, SmallCatalogs

pytestmark = pytest.mark.filterwarnings("ignore::holdfast.catalog.ledger.log_repair.LedgerRepairWarning")


@pytest.fixture
def torn(tmp_path: Path, small_catalogs: SmallCatalogs) -> SmallCatalog:
    """Its last two commits were sent by two writers that raced, and died: a hold of one job, which is torn, and a drop of the other."""
    small = small_catalogs.copy(tmp_path / "catalog", checkpoints=3)
    with holdfast.open(small.root) as one, holdfast.open(small.root) as other:
        assert one._transactor.known().whole().names == other._transactor.known().whole().names
        one.hold("alpha", 2, "mine")
        other.drop("beta", 2)
    last = sorted((small.root / "ledger/_delta_log").glob("*.json"))[-2]
    last.write_bytes(b"")
    return small


def test_what_only_reads_goes_on_below_and_the_first_commit_mends(torn: SmallCatalog) -> None:
    before = {path: path.read_bytes() for path in torn.ledger_files()}
    with pytest.warns(LedgerRepairWarning):
        opened = holdfast.open(torn.root)
    with opened as catalog:
        with catalog.duckdb() as connection:
            assert connection.execute("SELECT count(*) FROM holds").fetchone() == (0,)
            assert connection.execute("SELECT count(*) FROM checkpoints WHERE status = 'live'").fetchone() == (4,)
        assert catalog.plan_vacuum().unreferenced
        assert {path: path.read_bytes() for path in torn.ledger_files()} == before
        assert torn.read(catalog) == torn.states  # pins: commits
        rows = catalog.duckdb().execute("SELECT outcome, figures FROM maintenance_runs WHERE what = 'repair'").fetchall()
        assert [(outcome, "never acknowledged" in figures) for outcome, figures in rows] == [("done", True)]
        assert catalog.vacuum().deleted_files
        catalog.scrub()
        assert torn.read(catalog) == torn.states
        assert_catalog_sound(catalog)


@pytest.mark.parametrize(("number", "error"), [(errno.EROFS, ReadOnlyError), (errno.ENOSPC, StorageFullError), (errno.EIO, RetryError)])
def test_where_it_cannot_be_mended_nothing_is_committed_and_reads_go_on(
    torn: SmallCatalog, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    """A torn tail on a read-only mount was a raw OSError."""

    def fails(*_: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(log_repair, "mend", fails)
    with pytest.warns(LedgerRepairWarning):
        opened = holdfast.open(torn.root)
    with opened as catalog:
        with pytest.raises(error):
            catalog.hold("alpha", 2, "mine")
        if number != errno.EIO:
            assert not catalog.checkpoint("alpha").is_pinned
            assert torn.read(catalog) == torn.states
