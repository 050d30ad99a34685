"""What is not understood is refused and not passed over: in the marker, in a row; and a ledger that the catalog has no more is fenced."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.catalog.creation import create_catalog, open_transactor
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.errors import CorruptionError, FencedError, FormatError, UnknownOutcomeError
from holdfast.catalog.facts import KINDS
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.marker import FEATURES, Marker, read_marker, replace_marker, require_ledger
from holdfast.catalog.schema import FORMAT_VERSION, SCHEMA, Operation, from_table, to_table
from holdfast.catalog.storage.local import LocalStorage, open_storage
from holdfast.catalog.storage.memory import MemoryStorage
from tests.catalog.ledger_contract import EXAMPLES, operation
from tests.support.upgrades import register

ENVIRONMENT = SystemEnvironment()
GOOD: Mapping[str, Any] = {"catalog_id": "c0ffee", "format_version": 2, "features": [], "ledger": "ledger", "history": "history"}


def storage_with(said: object) -> MemoryStorage:
    storage = MemoryStorage()
    storage.create("holdfast.json", json.dumps(said).encode())
    return storage


def test_a_marker_comes_back_as_it_was_written() -> None:
    marker = Marker(catalog_id="c0ffee", ledger="ledger-12")
    assert read_marker(storage_with(json.loads(marker.data))) == marker
    assert json.loads(marker.data) == {**GOOD, "ledger": "ledger-12"}
    assert GOOD["format_version"] == FORMAT_VERSION


OF_NEWER = {
    "a newer format": ({"format_version": 3}, "has format 3"),
    "a newer format, in which all else is another": ({"format_version": 3, "ledger": {"at": "s3"}, "history": None}, "has format 3"),
    "a feature": ({"features": ["trash"]}, "has the feature 'trash'"),
    "two features": ({"features": ["trash", "proposals"]}, "has the feature 'proposals', 'trash'"),
}


@pytest.mark.parametrize(("changes", "words"), OF_NEWER.values(), ids=OF_NEWER)
def test_what_a_newer_version_wrote_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    assert not FEATURES & {"trash", "proposals"}
    with pytest.raises(FormatError, match=rf"{words}, and Holdfast .* knows format 2.*: use the newer Holdfast that wrote it; nothing"):
        read_marker(storage_with({**GOOD, **changes}))


OF_NOBODY: dict[str, Any] = {
    "format 0": {**GOOD, "format_version": 0},
    "a format that is text": {**GOOD, "format_version": "2"},
    "a format that is true": {**GOOD, "format_version": True},
    "features that are text": {**GOOD, "features": "trash"},
    "a feature that is a number": {**GOOD, "features": [1]},
    "no history": {name: value for name, value in GOOD.items() if name != "history"},
    "a history elsewhere": {**GOOD, "history": "../history"},
    "a history that is a ledger": {**GOOD, "history": "ledger"},
    "a ledger elsewhere": {**GOOD, "ledger": "/ledger"},
    "no ledger": {name: value for name, value in GOOD.items() if name != "ledger"},
    "no id": {**GOOD, "catalog_id": ""},
    "a list": [GOOD],
}


@pytest.mark.parametrize("said", OF_NOBODY.values(), ids=OF_NOBODY)
def test_what_no_version_wrote_is_damage(said: object) -> None:
    with pytest.raises(CorruptionError, match="does not read as a marker"):
        read_marker(storage_with(said))


def test_of_two_that_replace_a_marker_one_does(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    first = create_catalog(storage, ENVIRONMENT)
    one, other = (Marker(catalog_id=first.catalog_id, ledger=f"ledger-{n}") for n in (1, 2))
    assert replace_marker(storage, one, first.data) == one
    assert replace_marker(storage, other, first.data) == one
    assert read_marker(storage) == one


# ---- rows -----------------------------------------------------------------------------------------------------------------------


def with_value(column: str, value: str, job_id: str) -> pa.Table:
    """A row of a job, of a kind that has this column, with a value of nobody's."""
    fact = next(fact for fact in EXAMPLES if column == "kind" or getattr(fact, column, None) is not None)
    table = to_table([fact], operation())
    table = table.set_column(table.schema.get_field_index("job_id"), SCHEMA.field("job_id"), pa.array([job_id], pa.string()))
    return table.set_column(table.schema.get_field_index(column), SCHEMA.field(column), pa.array([value], pa.string()))


@pytest.mark.parametrize("column", ["kind", "purpose", "status", "scope", "role"])
def test_an_unknown_word_in_a_row_is_refused_by_name(tmp_path: Path, column: str) -> None:
    """Wherever it is met: by a replay, by a scan for other kinds, by a fold, by who opens the catalog."""
    with holdfast.open(tmp_path, create=True) as catalog, catalog.coordinate("flights") as job:
        job_id = job.job_id
    reader, writer = (DeltaLedger.open(tmp_path / "ledger") for _ in range(2))
    table = with_value(column, "zebra", job_id)
    with pytest.raises(FormatError, match=r"'zebra'.*which 'tester@host holdfast/test' wrote, and Holdfast .* use the newer Holdfast"):
        list(from_table(table))
    writer.add(table, keys={f"holdfast/job/{job_id}": 99}, operation=Operation(operation_id="x", at=ENVIRONMENT.now(), by="me"))
    (commit,) = reader.refresh()
    for read in (commit.facts, reader.scan, reader.rows, lambda: reader.commits(-1)):
        with pytest.raises(FormatError, match="'zebra'"):
            read()
    if column == "kind":
        for kinds in ([kind] for kind in KINDS):
            with pytest.raises(FormatError, match="'zebra'"):
                reader.scan(kinds)
    if column in ("kind", "purpose", "status"):  # the others are of handles and files, of jobs that this one does not ask for
        with holdfast.open(tmp_path) as catalog, pytest.raises(FormatError, match="'zebra'"):
            catalog.coordinate("flights")


# ---- between the commit and its acknowledgement ---------------------------------------------------------------------------------


def replaced(root: Path, **changes: Any) -> None:
    said = json.loads((root / "holdfast.json").read_text())
    (root / "holdfast.json").write_text(json.dumps({**said, **changes}))


FENCED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "another ledger": ({"ledger": "ledger-1"}, FencedError, "has the ledger 'ledger-1' .* by now, and this process opened 'ledger'"),
    "another catalog": ({"catalog_id": "other"}, FencedError, "of catalog other"),
    "format 1, from a backup": ({"format_version": 1}, FencedError, "by now"),
    "a newer format": ({"format_version": 3}, UnknownOutcomeError, "has format 3"),
    "a feature since": ({"features": ["trash"]}, UnknownOutcomeError, "has the feature 'trash'"),
}


@pytest.mark.parametrize(("changes", "error", "words"), FENCED.values(), ids=FENCED)
def test_a_commit_is_acknowledged_only_by_the_ledger_that_the_catalog_has(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    """A rebuild replaces the marker first, for what cannot be read cannot be closed."""
    holdfast.open(tmp_path, create=True).close()
    transactor = open_transactor(open_storage(tmp_path), ENVIRONMENT)
    register(transactor, "before")
    replaced(tmp_path, **changes)
    with pytest.raises(error, match=words):
        register(transactor, "after")
    with pytest.raises((FencedError, FormatError)):
        transactor.fresh()


def test_a_root_without_a_marker_is_no_answer(tmp_path: Path) -> None:
    holdfast.open(tmp_path, create=True).close()
    storage = LocalStorage(tmp_path)
    marker = read_marker(storage)
    require_ledger(storage, marker)
    (tmp_path / "holdfast.json").unlink()
    require_ledger(storage, marker)
