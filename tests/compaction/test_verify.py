"""Verify beside retention and vacuum: only what is live and not as it was committed is damage."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.delta_history import DeltaHistory
from holdfast.catalog.paths import MARKER
from holdfast.catalog.storage.local import open_storage
from holdfast.compaction.queries import SqlQueries
from holdfast.compaction.verify import Damage, VerifyReport, run_verify
from tests.support.faults import Faults, Hook
from tests.support.faulty_storage import FaultyStorage

BIG = b"x" * 20_001  # a file of its own


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[holdfast.Catalog]:
    with holdfast.open(tmp_path / "catalog", create=True) as opened:
        write_checkpoint(opened, BIG)
        yield opened


def write_checkpoint(catalog: holdfast.Catalog, model: bytes) -> None:
    with catalog.coordinate("flights", retention=holdfast.KeepLast(1)) as job, job.checkpoint() as checkpoint:
        checkpoint.write_bytes("model", model)


def verify(catalog: holdfast.Catalog, on_call: Hook | None = None) -> VerifyReport:
    storage = FaultyStorage(open_storage(catalog.address), Faults(on_call=on_call))
    queries = SqlQueries.at(f"{catalog.address}/ledger")
    return run_verify(1, queries.live_files(), storage, live_files=queries.live_files)


def test_files_that_a_vacuum_takes_while_verify_reads_are_no_damage(catalog: holdfast.Catalog) -> None:
    """Seen: a healthy catalog was reported as damaged, because nothing is pinned between the question and the reading."""

    def retain_and_vacuum(n: int, _verb: str, _path: str) -> None:
        if n == 1:
            write_checkpoint(catalog, BIG + b"2")
            assert catalog.vacuum().deleted_files == 2

    report = verify(catalog, retain_and_vacuum)
    assert report.files == 2
    assert report.damages == ()


def test_a_file_that_is_still_live_and_missing_or_changed_is_damage(catalog: holdfast.Catalog) -> None:
    (path,) = Path(catalog.address).glob("jobs/*/exclusive/*")
    name = str(path.relative_to(catalog.address))
    path.write_bytes(BIG + b"!")
    assert verify(catalog).damages == (Damage(path=name, what="20002 bytes, committed 20001"),)
    path.unlink()
    assert verify(catalog).damages == (Damage(path=name, what="missing"),)


def test_damage_of_a_rebuilt_ledger_is_named_where_it_is(catalog: holdfast.Catalog) -> None:
    """A marker may name another directory than the first."""
    root = Path(catalog.address)
    (root / "ledger").rename(root / "ledger-2")
    marker = root / MARKER
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "ledger": "ledger-2"}))
    damaged = max((root / "ledger-2").glob("*.parquet"))
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    with holdfast.open(root) as opened:
        found = [root / damage.path for damage in opened.verify().damages]
    assert damaged in found
    assert all(path.exists() for path in found)


def test_damage_of_the_history_is_named_where_it_is(catalog: holdfast.Catalog) -> None:
    """What is live is not in doubt: it does not depend on the history."""
    root = Path(catalog.address)
    ledger = DeltaLedger.open(root / "ledger")
    DeltaHistory.of(root / "history", "ledger").tell(ledger.commits(0), ledger.version)
    with holdfast.open(root) as opened:
        whole = opened.verify()
        assert whole.damages == ()
        (damaged,) = (root / "history").glob("*.parquet")
        data = bytearray(damaged.read_bytes())
        data[len(data) // 2] ^= 1
        damaged.write_bytes(data)
        found = opened.verify()
    assert [root / damage.path for damage in found.damages] == [damaged]
    assert (found.files, found.ledger_files) == (whole.files, whole.ledger_files)
