"""Making and opening a catalog: two at once get the same one, and what does not belong together is refused before anything is written."""

import json
import shutil
from pathlib import Path

import pytest

import holdfast
from holdfast.catalog.clock import SystemEnvironment
from holdfast.catalog.creation import create_catalog, open_ledger
from holdfast.catalog.errors import AlreadyExistsError, DamagedLedgerError, FormatError, NotFoundError
from holdfast.catalog.storage_local import open_storage
from tests.support.faults import Crash, Faults
from tests.support.faulty_storage import FaultyStorage


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_a_catalog_made_and_filled_by_another_process_meanwhile_is_taken_over(tmp_path: Path) -> None:
    """Seen in the soak: one process found no marker; another made the catalog and registered a job; the first then saw facts and no marker."""

    def another_process(_n: int, verb: str, _path: str) -> None:
        if verb == "list":  # after the look for the marker, before the ledger is opened
            with holdfast.open(tmp_path, create=True) as catalog:
                catalog.coordinate("flights").close()

    storage = FaultyStorage(open_storage(tmp_path), Faults(on_call=another_process))
    marker = create_catalog(storage, SystemEnvironment())
    assert marker.catalog_id == holdfast.open(tmp_path).catalog_id


@pytest.mark.parametrize("mode", ["before", "after"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_creation_that_crashed_anywhere_is_finished_by_the_next(tmp_path: Path, call: int, mode) -> None:
    with pytest.raises(Crash):
        create_catalog(FaultyStorage(open_storage(tmp_path), Faults({call: mode})), SystemEnvironment())
    with holdfast.open(tmp_path, create=True) as catalog:
        catalog.coordinate("flights").close()


def test_a_directory_with_files_of_something_else_does_not_become_a_catalog(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(AlreadyExistsError, match=r"mine\.txt"):
        holdfast.open(tmp_path, create=True)
    assert tree(tmp_path) == {"mine.txt"}


def test_opening_what_is_not_there_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        holdfast.open(tmp_path / "none")
    assert tree(tmp_path) == set()


def test_a_newer_format_and_a_lost_or_exchanged_ledger_are_errors_of_their_own_and_nothing_is_written(tmp_path: Path) -> None:
    for name in ("one", "other"):
        holdfast.open(tmp_path / name, create=True).close()
    one, other = tmp_path / "one", tmp_path / "other"
    shutil.copy(other / "holdfast.json", one / "holdfast.json")
    before = tree(tmp_path)
    with pytest.raises(FormatError, match="do not belong together"):
        holdfast.open(one)
    shutil.rmtree(other / "ledger")
    with pytest.raises(DamagedLedgerError, match="is gone"):
        holdfast.open(other, create=True)
    marker = json.loads((one / "holdfast.json").read_text())
    (one / "holdfast.json").write_text(json.dumps(marker | {"format_version": 999}))
    with pytest.raises(FormatError, match="has format 999"):
        holdfast.open(one)
    assert tree(tmp_path) == {path for path in before if not path.startswith("other/ledger")}


def test_a_ledger_with_facts_and_no_marker_is_not_taken_over(tmp_path: Path) -> None:
    with holdfast.open(tmp_path, create=True) as catalog:
        catalog.coordinate("flights").close()
    (tmp_path / "holdfast.json").unlink()
    with pytest.raises(AlreadyExistsError, match="restore the marker"):
        create_catalog(open_storage(tmp_path), SystemEnvironment())


def test_a_ledger_is_opened_only_with_the_marker_that_names_it(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    assert open_ledger(storage, create_catalog(storage, SystemEnvironment())).version == 0
