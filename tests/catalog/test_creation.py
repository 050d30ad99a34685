"""Making and opening a catalog: two at once get the same one, and what does not belong together is refused before anything is written."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import holdfast
from holdfast.catalog.creation import create_catalog, open_ledger
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.errors import AddressError, AlreadyExistsError, CorruptionError, DamagedLedgerError, FormatError, NotFoundError
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.delta_table import CONFIGURATION
from holdfast.catalog.marker import Marker
from holdfast.catalog.schema import SCHEMA
from holdfast.catalog.storage.local import open_storage
from tests.support.faults import Crash, Faults
from tests.support.faulty_storage import FaultyStorage


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_a_catalog_that_another_process_made_meanwhile_is_taken_over(tmp_path: Path) -> None:
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


def test_a_directory_with_foreign_files_does_not_become_a_catalog(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(AlreadyExistsError, match=r"mine\.txt"):
        holdfast.open(tmp_path, create=True)
    assert tree(tmp_path) == {"mine.txt"}


def content(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_user_s_table_at_the_ledger_s_place_is_not_taken_over(tmp_path: Path) -> None:
    """Seen: it has no fact, so that it passed for an empty ledger, got a marker without an id, and then our facts."""
    write_deltalake(str(tmp_path / "ledger"), pa.table({"x": [1]}))
    before = content(tmp_path)
    with pytest.raises(AlreadyExistsError, match=r"is not empty \(ledger/part-.*parquet\)"):
        holdfast.open(tmp_path, create=True)
    assert content(tmp_path) == before


NEARLY = {
    "no columns of ours": (pa.schema([("kind", pa.string())]), {**CONFIGURATION, "holdfast.catalogId": "0123456789abcdef"}),
    "one column more": (SCHEMA.append(pa.field("x", pa.int64())), {**CONFIGURATION, "holdfast.catalogId": "0123456789abcdef"}),
    "no catalog id": (SCHEMA, CONFIGURATION),
    "an empty catalog id": (SCHEMA, {**CONFIGURATION, "holdfast.catalogId": ""}),
    "another format": (SCHEMA, {**CONFIGURATION, "holdfast.catalogId": "0123456789abcdef", "holdfast.format": "3"}),
}


@pytest.mark.parametrize(("schema", "configuration"), NEARLY.values(), ids=NEARLY)
def test_an_empty_table_that_no_creation_makes_is_not_taken_over(
    tmp_path: Path, schema: pa.Schema, configuration: Mapping[str, str]
) -> None:
    table = DeltaTable.create(tmp_path / "ledger", schema, configuration=dict(configuration), raise_if_key_not_exists=False)
    (tmp_path / "ledger" / "_delta_log" / "_last_checkpoint").write_text("{")  # an opening would mend it
    before = content(tmp_path)
    with pytest.raises(AlreadyExistsError, match="not a ledger of Holdfast"):
        holdfast.open(tmp_path, create=True)
    assert content(tmp_path) == before
    assert table.version() == 0


def test_a_ledger_that_a_crash_left_without_a_marker_keeps_its_id(tmp_path: Path) -> None:
    made = DeltaLedger.create(tmp_path / "ledger", catalog_id="0123456789abcdef")
    assert create_catalog(open_storage(tmp_path), SystemEnvironment()).catalog_id == made.catalog_id == "0123456789abcdef"


@pytest.mark.parametrize("left", ["holdfast.json.bak", "ledger/x", "ledger-1/_delta_log/00000000000000000000.json"])
def test_what_no_creation_leaves_keeps_a_directory_from_becoming_a_catalog(tmp_path: Path, left: str) -> None:
    (tmp_path / left).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / left).write_text("mine")
    with pytest.raises(AlreadyExistsError, match=r"is not empty"):
        holdfast.open(tmp_path, create=True)


def test_a_catalog_is_not_made_inside_another_one(tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    holdfast.open(outer, create=True).close()
    before = tree(tmp_path)
    (tmp_path / "elsewhere").symlink_to(outer / "jobs")
    for inside in (outer / "jobs" / "inner", outer / "a" / "b" / "c", tmp_path / "elsewhere" / "inner"):
        with pytest.raises(AlreadyExistsError, match=rf"lies in the catalog at {outer}: "):
            holdfast.open(inside, create=True)
    (tmp_path / "elsewhere").unlink()
    assert tree(tmp_path) == before
    holdfast.open(tmp_path / "outer-2", create=True).close()


@pytest.mark.parametrize("below", ["", "/sub", "/sub/sub"])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_place_where_no_directory_can_be_made_is_refused_and_named(tmp_path: Path, below: str, is_link: bool) -> None:
    place = tmp_path / "place"
    if is_link:
        place.symlink_to(tmp_path / "nowhere")
    else:
        place.write_text("a file")
    with pytest.raises(AddressError, match=rf"no catalog can be made at {place}{below} .*: give a directory"):
        holdfast.open(f"{place}{below}", create=True)
    assert tree(tmp_path) == {"place"}


def test_a_marker_or_ledger_without_a_catalog_id_is_refused(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    DeltaTable.create(tmp_path / "ledger", SCHEMA)
    with pytest.raises(FormatError, match="do not belong together"):
        open_ledger(storage, Marker(catalog_id=""))
    storage.create("holdfast.json", Marker(catalog_id="").data)
    with pytest.raises(CorruptionError, match="catalog id is empty"):
        holdfast.open(tmp_path)


def test_a_file_in_the_ledger_s_place_is_a_ledger_that_is_gone(tmp_path: Path) -> None:
    holdfast.open(tmp_path, create=True).close()
    shutil.rmtree(tmp_path / "ledger")
    (tmp_path / "ledger").write_text("a file")
    with pytest.raises(DamagedLedgerError, match="is gone"):
        holdfast.open(tmp_path)


def test_opening_what_is_not_there_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        holdfast.open(tmp_path / "none")
    assert tree(tmp_path) == set()


def test_a_newer_format_and_a_lost_ledger_are_errors_of_their_own(tmp_path: Path) -> None:
    """So is a ledger that was exchanged for another, and nothing is written."""
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
