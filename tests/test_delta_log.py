"""What a loss of power, or a careless hand, does to the log, and what opening makes of it."""

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from holdfast.catalog import delta_log, delta_tail
from holdfast.catalog.delta_log import TornCommitError, commit_name, parse_commit
from holdfast.catalog.delta_tail import LAST_CHECKPOINT, LedgerRepairWarning
from holdfast.catalog.errors import DamagedLedgerError
from holdfast.catalog.ledger_delta import DeltaLedger
from holdfast.catalog.schema import SCHEMA
from tests.ledger_contract import dropped, put

VERSIONS = 25  # the Delta checkpoint is at 19 or 20


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """A ledger of three commits, without a Delta checkpoint."""
    return _make(tmp_path / "ledger", 3)


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """A ledger with a Delta checkpoint and commits above it."""
    directory = _make(tmp_path / "ledger", VERSIONS)
    assert len(_checkpoints(directory)) == 1
    return directory


def _make(directory: Path, count: int) -> Path:
    ledger = DeltaLedger.create(directory, catalog_id="c0ffee")
    for seq in range(1, count + 1):
        put(ledger, dropped(seq), key="job/a", operation_id=f"op{seq}")
        ledger.refresh()
    return directory


def _log(directory: Path) -> Path:
    return directory / "_delta_log"


def _commit(directory: Path, version: int) -> Path:
    return _log(directory) / commit_name(version)


def _checkpoints(directory: Path) -> list[Path]:
    return sorted(_log(directory).glob("*.checkpoint.parquet"))


def _seqs(ledger: DeltaLedger) -> list[int]:
    return [fact.seq for fact in ledger.scan() if fact.kind == "drop"]


def _everything(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _halve(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _zero_the_end(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2].ljust(len(data), b"\0"))


def _drop_last_line(path: Path) -> None:
    path.write_bytes(b"".join(line + b"\n" for line in path.read_bytes().splitlines()[:-1]))


def _drop_commit_info(path: Path) -> None:
    path.write_bytes(b"".join(line + b"\n" for line in path.read_bytes().splitlines() if b'"commitInfo"' not in line))


TEARS = [_empty, _halve, _zero, _zero_the_end, _drop_last_line, _drop_commit_info]
Tear = Callable[[Path], None]


def test_a_whole_log_is_left_as_it_is(long: Path) -> None:
    before = _everything(long)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger = DeltaLedger.open(long)
    assert _seqs(ledger) == list(range(1, VERSIONS + 1))
    assert _everything(long) == before


@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_last_commit_becomes_void_and_the_ledger_goes_on(short: Path, tear: Tear) -> None:
    """The machine lost power before the last commit was synced. An empty file would be read as an empty commit, a cut one makes the
    table unreadable."""
    tear(_commit(short, 3))
    with pytest.warns(LedgerRepairWarning, match=r"0003\.json.*never acknowledged"):
        ledger = DeltaLedger.open(short)
    assert ledger.version == 3
    assert _seqs(ledger) == [1, 2]
    put(ledger, dropped(3), key="job/a", operation_id="again")
    assert [(c.version, c.operation_id) for c in ledger.refresh()] == [(4, "again")]
    assert _seqs(DeltaLedger.open(short)) == [1, 2, 3]
    info = json.loads(_commit(short, 3).read_bytes())["commitInfo"]
    assert info["operation_id"] is None
    assert "never acknowledged" in info["reason"]


@pytest.mark.parametrize("tear", TEARS)
def test_every_torn_commit_at_the_end_becomes_void(short: Path, tear: Tear) -> None:
    """Two writers had each sent a commit, and neither had come to syncing its own, when the power went: nobody was told of either."""
    tear(_commit(short, 2))
    tear(_commit(short, 3))
    with pytest.warns(LedgerRepairWarning) as told:
        ledger = DeltaLedger.open(short)
    assert ["0002.json" in str(told[0].message), "0003.json" in str(told[1].message)] == [True, True]
    assert (ledger.version, _seqs(ledger)) == (3, [1])
    put(ledger, dropped(2), key="job/a", operation_id="again")
    assert _seqs(DeltaLedger.open(short)) == [1, 2]


def test_a_delta_checkpoint_goes_from_the_lowest_torn_commit_upwards(long: Path) -> None:
    (checkpoint,) = _checkpoints(long)
    lowest = int(checkpoint.name[:20])
    for version in range(lowest, VERSIONS + 1):
        _empty(_commit(long, version))
    with pytest.warns(LedgerRepairWarning):
        ledger = DeltaLedger.open(long)
    assert _checkpoints(long) == []
    assert not (_log(long) / LAST_CHECKPOINT).exists()
    assert (ledger.version, _seqs(ledger)) == (VERSIONS, list(range(1, lowest)))


class Died(BaseException):
    """The process that mends the log died here."""


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_mending_that_dies_between_two_commits_is_finished_by_the_next_opening(
    short: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """The lowest becomes void first. The other way round a torn commit would lie below a void one, which is damage."""
    for version in (1, 2, 3):
        _empty(_commit(short, version))
    replace, mended = Path.replace, []

    def replace_or_die(path: Path, target: Path) -> Path:
        if len(mended) == done:
            raise Died
        mended.append(target.name)
        return replace(path, target)

    with monkeypatch.context() as patched, pytest.raises(Died):
        patched.setattr(Path, "replace", replace_or_die)
        delta_tail.check_tail(_log(short))
    assert mended == [commit_name(version) for version in range(1, done + 1)]
    with pytest.warns(LedgerRepairWarning):
        ledger = DeltaLedger.open(short)
    assert (ledger.version, _seqs(ledger)) == (3, [])


def test_a_void_commit_is_passed_over_by_a_refresh(short: Path) -> None:
    _empty(_commit(short, 3))
    table = DeltaTable(short, version=2)
    with pytest.warns(LedgerRepairWarning):
        delta_tail.check_tail(_log(short))
    ledger = DeltaLedger(short, table)
    assert list(ledger.refresh()) == []
    assert ledger.version == 3


def test_each_void_commit_is_made_durable_before_the_next_and_before_opening_goes_on(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _empty(_commit(short, 2))
    _empty(_commit(short, 3))
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def recorded_fsync(handle: int) -> None:
        steps.append(Path(f"/proc/self/fd/{handle}").readlink().suffix)
        fsync(handle)

    def recorded_replace(path: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "replace", recorded_replace)
    with pytest.warns(LedgerRepairWarning):
        delta_tail.check_tail(_log(short))
    assert steps == [".tmp", "rename", ""] * 2


def test_a_commit_that_was_mended_meanwhile_is_not_replaced(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes open the ledger after a power loss; the first has mended it when the second's turn comes."""
    whole = _commit(short, 3).read_bytes()
    _empty(_commit(short, 3))
    plan = delta_tail.plan_repair(_log(short))

    def planned_before(_: Path) -> delta_tail.RepairPlan:
        _commit(short, 3).write_bytes(whole)
        return plan

    monkeypatch.setattr(delta_tail, "plan_repair", planned_before)
    with pytest.warns(LedgerRepairWarning):
        delta_tail.check_tail(_log(short))
    assert _commit(short, 3).read_bytes() == whole


@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_commit_below_a_whole_one_is_damage_and_nothing_is_changed(short: Path, tear: Tear) -> None:
    tear(_commit(short, 2))
    before = _everything(short)
    with pytest.raises(DamagedLedgerError, match=r"0002\.json"):
        DeltaLedger.open(short)
    assert _everything(short) == before


def test_a_hole_in_the_log_is_damage_and_nothing_is_changed(short: Path) -> None:
    _commit(short, 2).unlink()
    _empty(_commit(short, 3))
    before = _everything(short)
    with pytest.raises(DamagedLedgerError, match=r"hole.*0002\.json"):
        DeltaLedger.open(short)
    assert _everything(short) == before


def test_a_hole_between_torn_commits_is_damage_and_nothing_is_changed(short: Path) -> None:
    _empty(_commit(short, 1))
    _commit(short, 2).unlink()
    _empty(_commit(short, 3))
    before = _everything(short)
    with pytest.raises(DamagedLedgerError, match=r"0001\.json is empty|hole.*0002\.json"):
        DeltaLedger.open(short)
    assert _everything(short) == before


def test_a_hole_below_a_whole_delta_checkpoint_is_none(long: Path) -> None:
    for version in range(5, 10):
        _commit(long, version).unlink()
    assert _seqs(DeltaLedger.open(long)) == list(range(1, VERSIONS + 1))


def test_a_ledger_whose_first_commit_is_torn_is_damaged(tmp_path: Path) -> None:
    directory = _make(tmp_path / "ledger", 0)
    _empty(_commit(directory, 0))
    with pytest.raises(DamagedLedgerError, match=r"0000\.json"):
        DeltaLedger.open(directory)


@pytest.mark.parametrize("tear", [_empty, _halve, _zero, _zero_the_end])
def test_a_torn_delta_checkpoint_goes_together_with_its_hint(long: Path, tear: Tear) -> None:
    (checkpoint,) = _checkpoints(long)
    tear(checkpoint)
    with pytest.warns(LedgerRepairWarning, match=checkpoint.name):
        ledger = DeltaLedger.open(long)
    assert not checkpoint.exists()
    assert not (_log(long) / LAST_CHECKPOINT).exists()
    assert _seqs(ledger) == list(range(1, VERSIONS + 1))


def test_a_torn_delta_checkpoint_that_nothing_can_replace_is_damage_and_stays(long: Path) -> None:
    (checkpoint,) = _checkpoints(long)
    _halve(checkpoint)
    _commit(long, 4).unlink()
    before = _everything(long)
    with pytest.raises(DamagedLedgerError, match=checkpoint.name):
        DeltaLedger.open(long)
    assert _everything(long) == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 7}', '{"version": 7, "size": 3}'])
def test_a_hint_that_does_not_parse_or_names_nothing_goes_alone(long: Path, text: str) -> None:
    (_log(long) / LAST_CHECKPOINT).write_text(text)
    with pytest.warns(LedgerRepairWarning, match=LAST_CHECKPOINT):
        ledger = DeltaLedger.open(long)
    assert len(_checkpoints(long)) == 1
    assert not (_log(long) / LAST_CHECKPOINT).exists()
    assert _seqs(ledger) == list(range(1, VERSIONS + 1))


def test_a_delta_checkpoint_of_a_live_writer_is_none_of_the_opening_s_business(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It appears, with its hint, after the log was listed: the hint was read before, and names nothing that is not in the listing."""
    listed = delta_log.checkpoint_versions

    def list_then_write(log: Path) -> list[int]:
        found = listed(log)
        if not (log / LAST_CHECKPOINT).exists():
            DeltaTable(short).create_checkpoint()
        return found

    monkeypatch.setattr(delta_tail, "checkpoint_versions", list_then_write)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _seqs(DeltaLedger.open(short)) == [1, 2, 3]
    assert len(_checkpoints(short)) == 1
    assert (_log(short) / LAST_CHECKPOINT).exists()


def test_a_delta_checkpoint_that_its_hint_does_not_fit_goes_too(long: Path) -> None:
    hint = json.loads((_log(long) / LAST_CHECKPOINT).read_text())
    (_log(long) / LAST_CHECKPOINT).write_text(json.dumps(hint | {"size": hint["size"] + 1}))
    with pytest.warns(LedgerRepairWarning, match=LAST_CHECKPOINT):
        ledger = DeltaLedger.open(long)
    assert _checkpoints(long) == []
    assert _seqs(ledger) == list(range(1, VERSIONS + 1))


def test_a_delta_checkpoint_does_not_outlive_the_torn_commit_that_it_contains(tmp_path: Path) -> None:
    """The hook wrote the checkpoint of the very commit that the power loss tore: a scan would show facts that no refresh had told."""
    directory = _make(tmp_path / "ledger", VERSIONS)
    (checkpoint,) = _checkpoints(directory)
    version = int(checkpoint.name[:20])
    for above in range(version + 1, VERSIONS + 1):
        _commit(directory, above).unlink()
    _empty(_commit(directory, version))
    with pytest.warns(LedgerRepairWarning) as told:
        ledger = DeltaLedger.open(directory)
    assert len(told) == 2
    assert ledger.version == version
    assert _seqs(ledger) == list(range(1, version))


def test_a_missing_data_file_is_damage_and_is_named(short: Path) -> None:
    data = sorted(short.glob("*.parquet"))[1]
    data.unlink()
    with pytest.raises(DamagedLedgerError, match=data.name):
        DeltaLedger.open(short)


def test_a_data_file_of_another_size_is_damage_and_is_named(short: Path) -> None:
    data = sorted(short.glob("*.parquet"))[1]
    _halve(data)
    with pytest.raises(DamagedLedgerError, match=data.name):
        DeltaLedger.open(short)


def test_data_files_that_a_compaction_replaced_are_not_missed(short: Path) -> None:
    table = DeltaTable(short)
    old = table.file_uris()
    table.optimize.compact()
    for path in old:
        Path(path).unlink()
    assert _seqs(DeltaLedger.open(short)) == [1, 2, 3]


def test_a_commit_cut_at_any_byte_is_never_taken_for_another_commit(short: Path) -> None:
    """Only the missing of the last newline is forgiven."""
    data = _commit(short, 3).read_bytes().rstrip(b"\n")
    whole = parse_commit(3, data)
    assert (whole.operation_id, whole.keys) == ("op3", {"job/a"})
    for length in range(len(data)):
        with pytest.raises(TornCommitError):
            parse_commit(3, data[:length])


def test_the_first_commit_says_what_its_table_is_and_a_torn_one_says_nothing(short: Path) -> None:
    found = delta_log.read_metadata(_log(short))
    assert found is not None
    assert found.properties["holdfast.catalogId"] == "c0ffee"
    assert [column["name"] for column in found.columns["fields"]] == SCHEMA.names
    _halve(_commit(short, 0))
    assert delta_log.read_metadata(_log(short)) is None
    assert delta_log.read_metadata(short / "nowhere") is None
