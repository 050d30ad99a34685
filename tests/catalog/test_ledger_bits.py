"""Any bit of any file of a ledger flips, two files change places, an older one comes back: an error that names the file, or the right answer.

Never a deleted live file, never a lost checkpoint, never another exception. `ROUNDS` says how many times at random.
"""

import os
import shutil
import warnings
from pathlib import Path
from random import Random

import pytest

import holdfast
from holdfast.catalog.errors import CorruptionError, DamagedLedgerError
from holdfast.catalog.ledger import delta_data
from holdfast.catalog.ledger.delta_verify import check_files
from tests.support.small_catalog import SmallCatalog, SmallCatalogs

ROUNDS = int(os.environ.get("ROUNDS", "500"))
FEW = 10


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, small_catalogs: SmallCatalogs) -> SmallCatalog:
    made = small_catalogs.copy(tmp_path_factory.mktemp("bits") / "catalog", checkpoints=7)
    assert len(made.needed) >= 8  # manifests and states
    return made


def damage(catalog: SmallCatalog, random: Random) -> tuple[str, set[str]]:
    """Do one thing to the ledger; what, and the names of the files that it was done to."""
    files = catalog.ledger_files()
    one = random.choice(files)
    how = random.choice(["flip", "flip", "flip", "flip", "swap", "older"])
    if how == "flip":
        data = bytearray(one.read_bytes())
        at, bit = random.randrange(len(data)), random.randrange(8)
        data[at] ^= 1 << bit
        one.write_bytes(data)
        return f"bit {bit} of byte {at} of {one.name}", {one.name}
    other = random.choice([path for path in files if path.suffix == one.suffix and path != one] or files)
    if how == "older":
        shutil.copyfile(other, one)
        return f"{other.name} in the place of {one.name}", {one.name, other.name}
    aside = one.read_bytes()
    shutil.copyfile(other, one)
    other.write_bytes(aside)
    return f"{one.name} and {other.name} in each other's place", {one.name, other.name}


def use(catalog: SmallCatalog) -> CorruptionError | None:
    """Open, ask, vacuum, scrub and read everything back; the error that stopped it."""
    try:
        with holdfast.open(catalog.root) as opened:
            opened.duckdb().close()
            opened.vacuum()
            opened.scrub()
            assert catalog.read(opened) == catalog.states
            with opened.coordinate("alpha") as job:
                latest = job.latest()
                assert latest is not None
                assert latest.checkpoint_id == max(number for name, number in catalog.states if name == "alpha")
    except CorruptionError as error:
        return error
    return None


def assert_harmless(whole: SmallCatalog, target: Path, seed: int) -> None:
    catalog = whole.copied(target)
    what, names = damage(catalog, Random(seed))
    context = f"seed {seed}: {what}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            error = use(catalog)
    except Exception as unexpected:
        raise AssertionError(context) from unexpected
    assert error is None or any(name in str(error) for name in names), f"{context}: {error}"
    # Whatever was said: all that is live is still there, as it was.
    assert {path for path in whole.needed if not (catalog.root / path).samefile(whole.root / path)} == set(), context
    shutil.rmtree(catalog.root)


@pytest.mark.parametrize("seed", range(FEW))
def test_a_damaged_ledger_is_named_or_harmless(whole: SmallCatalog, tmp_path: Path, seed: int) -> None:
    assert_harmless(whole, tmp_path / "catalog", seed)


@pytest.mark.slow
def test_five_hundred_damaged_ledgers_are_named_or_harmless(whole: SmallCatalog, tmp_path: Path) -> None:
    for seed in range(FEW, FEW + ROUNDS):
        assert_harmless(whole, tmp_path / str(seed), seed)


def test_every_flipped_byte_of_a_data_file_is_damage(whole: SmallCatalog) -> None:
    path = max((whole.root / "ledger").glob("*.parquet"))
    data = bytearray(path.read_bytes())
    assert delta_data.facts_in(path, bytes(data))
    for at in range(len(data)):
        data[at] ^= 1 << at % 8
        with pytest.raises(DamagedLedgerError, match=path.name):
            delta_data.facts_in(path, bytes(data))
        data[at] ^= 1 << at % 8


def test_each_damaged_file_of_the_ledger_is_found_and_verify_reports_it(whole: SmallCatalog, tmp_path: Path) -> None:
    """The catalog is open: what it has read was whole then."""
    catalog = whole.copied(tmp_path / "catalog")
    ledger = catalog.root / "ledger"
    files = [path for path in catalog.ledger_files() if not path.name.startswith(".")]
    assert {file.path: file.what for file in check_files(str(ledger))} == {str(path.relative_to(ledger)): None for path in files}
    for path in files:
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert str(path.relative_to(ledger)) in {file.path for file in check_files(str(ledger)) if file.what}
        path.write_bytes(data)
    with holdfast.open(catalog.root) as opened:
        report = opened.verify()
        of_history = sum(1 for _ in check_files(str(catalog.root / "history")))
        assert (report.damages, report.ledger_files) == ((), len(files) + of_history)
        last = max(ledger.glob("*.parquet"))
        last.write_bytes(last.read_bytes()[::-1])
        assert [damage.path for damage in opened.verify().damages] == [f"ledger/{last.name}"]
