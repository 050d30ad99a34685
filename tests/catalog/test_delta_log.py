"""What a loss of power, or a careless hand, does to the log, and what opening makes of it."""

import json
import os
import shutil
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable

from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.errors import AlreadyExistsError, DamagedLedgerError
from holdfast.catalog.ledger import delta_checkpoint, delta_entry, delta_log, log_repair
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.delta_checkpoint import LAST_CHECKPOINT
from holdfast.catalog.ledger.delta_entry import DamagedCommitError, TornCommitError, parse_commit
from holdfast.catalog.ledger.delta_log import commit_name
from holdfast.catalog.ledger.delta_verify import check_files
from holdfast.catalog.ledger.log_repair import LedgerRepairWarning
from holdfast.catalog.rules import jobs
from holdfast.catalog.schema import SCHEMA
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import JobId
from tests.catalog.ledger_contract import dropped, operation, put
from tests.support import format_1

VERSIONS = 25  # the Delta checkpoint is at 20


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """A ledger of three commits of three writers who raced, none of them synced, without a Delta checkpoint."""
    directory = _make(tmp_path / "ledger", 0)
    for seq, writer in enumerate([DeltaLedger.open(directory) for _ in range(3)], 1):
        put(writer, dropped(seq), key=f"job/{seq}", operation_id=f"op{seq}")
    return directory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _make(tmp_path_factory.mktemp("long") / "ledger", VERSIONS)


@pytest.fixture
def long(made: Path, tmp_path: Path) -> Path:
    """A ledger with a Delta checkpoint and commits above it."""
    directory = Path(shutil.copytree(made, tmp_path / "ledger"))
    assert len(_checkpoints(directory)) == 1
    return directory


def _make(directory: Path, count: int) -> Path:
    """A ledger of one writer, who syncs each commit before the next."""
    return _filled(DeltaLedger.create(directory, catalog_id="c0ffee"), count)


def _filled(ledger: DeltaLedger, count: int) -> Path:
    for seq in range(1, count + 1):
        put(ledger, dropped(seq), key="job/a", operation_id=f"op{seq}")
        ledger.refresh()
        ledger.make_durable()
    return ledger.directory


def _without_digest(directory: Path) -> Path:
    """As if the Delta checkpoint had been made by delta-rs's hook, as before there were digests."""
    for path in _log(directory).glob(".*.checkpoint.sha256"):
        path.unlink()
    return directory


def _mended(directory: Path) -> DeltaLedger:
    ledger = DeltaLedger.open(directory)
    ledger.mend()
    ledger.refresh()
    return ledger


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


TEARS = [_empty, _halve, _zero, _zero_the_end, _drop_last_line]
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
    held = _commit(short, 3).read_bytes()
    with pytest.warns(LedgerRepairWarning, match=r"0003\.json.*never acknowledged"):
        ledger = DeltaLedger.open(short)
    assert (ledger.version, ledger.is_torn, _seqs(ledger)) == (2, True, [1, 2])
    assert len(ledger.mend()) == 1
    assert list(ledger.mend()) == list(ledger.refresh()) == []
    put(ledger, dropped(3), key="job/a", operation_id="again")
    assert [(c.version, c.operation_id) for c in ledger.refresh()] == [(4, "again")]
    assert _seqs(DeltaLedger.open(short)) == [1, 2, 3]
    info = json.loads(_commit(short, 3).read_bytes())["commitInfo"]
    assert info["operation_id"] is None
    assert "never acknowledged" in info["reason"]
    (kept,) = _log(short).glob(f".{commit_name(3)}.*.kept")
    assert kept.read_bytes() == held


@pytest.mark.parametrize("tear", TEARS)
def test_who_only_reads_stands_below_a_torn_commit_and_mends_nothing(short: Path, tear: Tear) -> None:
    """`holdfast jobs` on a read-only mount mended the log, or failed with an OSError that named neither."""
    tear(_commit(short, 2))
    before = _everything(short)
    with pytest.warns(LedgerRepairWarning):
        reader = DeltaLedger.open(short)
    assert (reader.version, _seqs(reader), list(reader.refresh())) == (1, [1], [])
    assert _everything(short) == before
    with pytest.warns(LedgerRepairWarning):
        writer = _mended(short)
    put(writer, dropped(2), key="job/a", operation_id="again")
    assert [c.operation_id for c in reader.refresh()] == ["again"]
    assert _seqs(reader) == [1, 2]


@pytest.mark.parametrize("tear", TEARS)
def test_all_that_stands_on_a_torn_commit_becomes_void_with_it(short: Path, tear: Tear) -> None:
    """Three writers had each sent a commit when the power went, and the disk had kept the later ones: nobody was told of any. What is
    built on a void start or registration must not be there either."""
    tear(_commit(short, 1))
    with pytest.warns(LedgerRepairWarning) as reported:
        ledger = _mended(short)
    reasons = [str(warning.message) for warning in reported]
    assert ["stands on" in reason for reason in reasons] == [False, True, True]
    assert (ledger.version, _seqs(ledger)) == (3, [])
    assert len(list(_log(short).glob("*.kept"))) == len(list(_log(short).glob(".*.kept"))) == 3
    put(ledger, dropped(1), key="job/a", operation_id="again")
    assert _seqs(DeltaLedger.open(short)) == [1]


@pytest.mark.parametrize("tear", TEARS)
def test_a_commit_whose_writer_synced_the_torn_one_proves_it_was_whole(tmp_path: Path, tear: Tear) -> None:
    """It was acknowledged, and what stands on it as well: thirteen jobs of one commit each were void because one of them had rotted."""
    directory = _make(tmp_path / "ledger", 0)
    for seq in range(1, 4):  # another process each time
        put(DeltaLedger.open(directory), dropped(seq), key=f"job/{seq}", operation_id=f"op{seq}")
    tear(_commit(directory, 2))
    before = _everything(directory)
    with pytest.raises(DamagedLedgerError, match=r"0002\.json .*stand on it"):
        DeltaLedger.open(directory)
    assert _everything(directory) == before


def test_a_commit_says_up_to_where_its_writer_has_synced(tmp_path: Path) -> None:
    ledger, racing = DeltaLedger.create(tmp_path / "ledger", catalog_id="c0ffee"), DeltaLedger.open(tmp_path / "ledger")
    for seq in range(1, 4):
        put(ledger, dropped(seq), key="job/a", operation_id=f"op{seq}")
        ledger.refresh()
    put(racing, dropped(1), key="job/b", operation_id="passed over three")
    commits = [delta_log.read_commit(_log(tmp_path / "ledger"), version) for version in range(1, 5)]
    assert [commit.durable_to for commit in commits] == [0, 1, 2, 0]


def test_many_that_mend_at_once_leave_one_log_that_opens(tmp_path: Path) -> None:
    """They took each other's draft: the void entry of one version stood in the place of another, and nothing opened the ledger again."""
    for round_ in range(6):
        directory = _make(tmp_path / str(round_), 0)
        for seq, writer in enumerate([DeltaLedger.open(directory) for _ in range(8)], 1):
            put(writer, dropped(seq), key=f"job/{seq}", operation_id=f"op{seq}")
        _empty(_commit(directory, 1))
        menders = [DeltaLedger.open(directory) for _ in range(6)]
        moment = threading.Barrier(len(menders))

        def mend(ledger: DeltaLedger, moment: threading.Barrier = moment) -> None:
            moment.wait()
            ledger.mend()

        with ThreadPoolExecutor(len(menders)) as pool:
            list(pool.map(mend, menders))
        assert (DeltaLedger.open(directory).version, _seqs(DeltaLedger.open(directory))) == (8, [])


def test_what_is_kept_of_a_commit_does_not_depend_on_its_name_staying(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to a name that another process replaces at that moment is refused (ENOENT), or is of the other's bytes."""
    plain, torn, link = _commit(short, 2), b'{"commitInfo"', os.link

    def link_or_fail(source: Path, target: Path) -> None:
        assert source != plain, "linked a name that others replace"
        link(source, target)

    plain.write_bytes(torn)
    monkeypatch.setattr(os, "link", link_or_fail)
    log_repair.mend(_log(short), log_repair.examine(_log(short)))
    assert [path.read_bytes() for path in _log(short).glob(f".{plain.name}.*.kept")] == [torn]


def test_a_torn_commit_below_one_that_does_not_say_is_damage(short: Path) -> None:
    """Commits of before there were digests prove nothing either way: they are not given up."""
    _as_before_digests(_commit(short, 3))
    _empty(_commit(short, 2))
    with pytest.raises(DamagedLedgerError, match=r"0002\.json"):
        DeltaLedger.open(short)


def _as_before_digests(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for key in (delta_entry.DIGEST, delta_entry.DURABLE_TO, delta_entry.VERSION):
        lines[0]["commitInfo"].pop(key, None)
    for line in lines[1:]:
        if "add" in line:
            old = line["add"]["path"]
            line["add"]["path"] = f"{old[:40]}.parquet"
            (path.parent.parent / old).rename(path.parent.parent / line["add"]["path"])
    path.write_text("\n".join(json.dumps(line) for line in lines))


def test_a_ledger_of_before_there_were_digests_reads_as_ever(tmp_path: Path) -> None:
    short = format_1.make_ledger(tmp_path / "ledger").directory
    for seq, writer in enumerate([DeltaLedger.open(short) for _ in range(3)], 1):
        put(writer, dropped(seq), key=f"job/{seq}", operation_id=f"op{seq}")
    for version in range(4):
        _as_before_digests(_commit(short, version))
    ledger = DeltaLedger.open(short)
    assert _seqs(ledger) == [1, 2, 3]
    put(ledger, dropped(4), key="job/a")
    assert _seqs(DeltaLedger.open(short)) == [1, 2, 3, 4]
    _halve(_commit(short, 4))
    with pytest.warns(LedgerRepairWarning):
        assert _seqs(_mended(short)) == [1, 2, 3]


class Died(BaseException):
    """The process that mends the log died here."""


@pytest.mark.parametrize("torn", [{1}, {1, 3}, {1, 2, 3}])
@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_mending_that_dies_between_two_commits_is_finished_by_the_next(
    short: Path, monkeypatch: pytest.MonkeyPatch, done: int, torn: set[int]
) -> None:
    """From the top down: the other way round, what stood on a void commit would be believed."""
    for version in torn:
        _empty(_commit(short, version))
    replace, mended = Path.replace, []

    def replace_or_die(path: Path, target: Path) -> Path:
        if len(mended) == done:
            raise Died
        mended.append(target.name)
        return replace(path, target)

    plan = log_repair.examine(_log(short))
    with monkeypatch.context() as patched, pytest.raises(Died):
        patched.setattr(Path, "replace", replace_or_die)
        log_repair.mend(_log(short), plan)
    assert mended == [commit_name(version) for version in (3, 2, 1)][:done]
    with pytest.warns(LedgerRepairWarning):
        ledger = _mended(short)
    assert (ledger.version, _seqs(ledger)) == (3, [])


def test_each_void_commit_is_made_durable_before_the_next(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the last of them before the opening goes on."""
    _empty(_commit(short, 2))
    plan = log_repair.examine(_log(short))
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def recorded_fsync(handle: int) -> None:
        steps.append(Path(f"/proc/self/fd/{handle}").readlink().suffix)
        fsync(handle)

    def recorded_replace(path: Path, target: Path) -> Path:
        steps.append(target.name)
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "replace", recorded_replace)
    log_repair.mend(_log(short), plan)
    kept = [".tmp", ""]
    assert steps == [*kept, ".tmp", commit_name(3), "", *kept, ".tmp", commit_name(2), ""]


def test_a_commit_that_was_mended_meanwhile_is_not_replaced(short: Path) -> None:
    """Two processes open the ledger after a power loss; the first has mended it, and gone on, when the second's turn comes."""
    _empty(_commit(short, 2))
    plan = log_repair.examine(_log(short))
    with pytest.warns(LedgerRepairWarning):
        first = _mended(short)
    put(first, dropped(2), key="job/a", operation_id="again")
    before = _everything(short)
    log_repair.mend(_log(short), plan)
    assert _everything(short) == before


def test_a_hole_in_the_log_is_damage_and_nothing_is_changed(short: Path) -> None:
    _commit(short, 2).unlink()
    _empty(_commit(short, 3))
    before = _everything(short)
    with pytest.raises(DamagedLedgerError, match=r"hole.*0002\.json"):
        DeltaLedger.open(short)
    assert _everything(short) == before


def test_a_delta_checkpoint_without_a_digest_goes_with_its_torn_commit(tmp_path: Path) -> None:
    """In format 1. The hook of delta-rs wrote it of commits that nobody had synced: a scan would show facts that no refresh passed over."""
    long = _filled(format_1.make_ledger(tmp_path / "ledger"), VERSIONS)
    (checkpoint,) = _checkpoints(_without_digest(long))
    lowest = int(checkpoint.name[:20])
    for version in range(lowest, VERSIONS + 1):
        _empty(_commit(long, version))
    with pytest.warns(LedgerRepairWarning):
        reader = DeltaLedger.open(long)
    assert (reader.version, _seqs(reader)) == (lowest - 1, list(range(1, lowest)))
    assert _checkpoints(long) == [checkpoint]
    with pytest.warns(LedgerRepairWarning):
        ledger = _mended(long)
    assert _checkpoints(long) == []
    assert not (_log(long) / LAST_CHECKPOINT).exists()
    assert (ledger.version, _seqs(ledger)) == (VERSIONS, list(range(1, lowest)))


def test_a_delta_checkpoint_with_a_digest_proves_the_commits_below_it(long: Path) -> None:
    """It is made of synced commits only: a torn one below it was whole once, and what it said is in the checkpoint."""
    _empty(_commit(long, 20))
    _halve(_commit(long, 7))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _seqs(DeltaLedger.open(long)) == list(range(1, VERSIONS + 1))


def test_a_hole_between_torn_commits_is_damage_and_nothing_is_changed(short: Path) -> None:
    _empty(_commit(short, 1))
    _commit(short, 2).unlink()
    _empty(_commit(short, 3))
    before = _everything(short)
    with pytest.raises(DamagedLedgerError, match=r"hole.*0002\.json"):
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


@pytest.mark.parametrize("has_digest", [True, False])
@pytest.mark.parametrize("tear", [_empty, _halve, _zero, _zero_the_end])
def test_a_torn_delta_checkpoint_goes_together_with_its_hint(long: Path, tear: Tear, has_digest: bool) -> None:
    (checkpoint,) = _checkpoints(long if has_digest else _without_digest(long))
    tear(checkpoint)
    with pytest.warns(LedgerRepairWarning, match=checkpoint.name):
        ledger = DeltaLedger.open(long)
    assert not checkpoint.exists()
    assert not (_log(long) / LAST_CHECKPOINT).exists()
    assert _seqs(ledger) == list(range(1, VERSIONS + 1))


def test_a_delta_checkpoint_of_another_program_is_not_believed(long: Path) -> None:
    """It is taken away where the log says the same, and is damage where only it would."""
    DeltaTable(long).create_checkpoint()
    theirs = _log(long) / delta_log.checkpoint_name(VERSIONS)
    with pytest.warns(LedgerRepairWarning, match=f"{theirs.name} has no digest, so that Holdfast did not make it"):
        assert _seqs(DeltaLedger.open(long)) == list(range(1, VERSIONS + 1))
    assert not theirs.exists()
    assert len(_checkpoints(long)) == 1
    DeltaTable(long).create_checkpoint()
    _commit(long, VERSIONS - 1).unlink()
    with pytest.raises(DamagedLedgerError, match=f"has a hole.*{theirs.name} cannot stand in for it"):
        DeltaLedger.open(long)


def test_an_irreplaceable_torn_delta_checkpoint_is_damage_and_stays(long: Path) -> None:
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


def test_a_live_writers_delta_checkpoint_is_none_of_an_openings_business(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It appears, with its hint, after the log was listed: the hint was read before, and names nothing that is not in the listing."""
    (checkpoint,), listed = _checkpoints(long), delta_log.checkpoint_versions
    for name in (checkpoint.name, LAST_CHECKPOINT, delta_checkpoint.digest_name(20)):
        (_log(long) / name).unlink()

    def list_then_write(log: Path) -> list[int]:
        found = listed(log)
        if not (log / LAST_CHECKPOINT).exists():
            assert delta_checkpoint.make(log, 20)
        return found

    monkeypatch.setattr(log_repair, "checkpoint_versions", list_then_write)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _seqs(DeltaLedger.open(long)) == list(range(1, VERSIONS + 1))
    assert len(_checkpoints(long)) == 1
    assert (_log(long) / LAST_CHECKPOINT).exists()


def test_a_delta_checkpoint_that_its_hint_does_not_fit_goes_too(long: Path) -> None:
    hint = json.loads((_log(_without_digest(long)) / LAST_CHECKPOINT).read_text())
    (_log(long) / LAST_CHECKPOINT).write_text(json.dumps(hint | {"size": hint["size"] + 1}))
    with pytest.warns(LedgerRepairWarning, match=LAST_CHECKPOINT):
        ledger = DeltaLedger.open(long)
    assert _checkpoints(long) == []
    assert _seqs(ledger) == list(range(1, VERSIONS + 1))


def test_a_delta_checkpoint_is_made_once_and_of_whole_commits_alone(long: Path) -> None:
    assert not delta_checkpoint.make(_log(long), 20)
    assert delta_checkpoint.make(_log(long), 24)
    DeltaTable(long)
    _halve(_commit(long, 25))
    with pytest.raises(TornCommitError):
        delta_checkpoint.make(_log(long), 25)
    assert [path.name[:20].lstrip("0") for path in _checkpoints(long)] == ["20", "24"]
    assert sorted(path.name for path in _log(long).iterdir() if path.name.startswith(".")) == [
        delta_checkpoint.digest_name(20), delta_checkpoint.digest_name(24)
    ]  # fmt: skip


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


def test_data_files_that_a_fold_replaced_are_not_missed(short: Path) -> None:
    old, ledger = DeltaTable(short).file_uris(), DeltaLedger.open(short)
    assert ledger.fold(ledger.rows(), operation("fold"))
    for path in old:
        Path(path).unlink()
    assert _seqs(DeltaLedger.open(short)) == [1, 2, 3]


@pytest.mark.parametrize("how", ["opened", "refreshed", "behind a Delta checkpoint"])
def test_what_another_program_compacted_is_not_believed(short: Path, how: str) -> None:
    """Nobody knows whether what it read was what had been written: its files have no digests."""
    ledger = DeltaLedger.open(short)
    DeltaTable(short).optimize.compact()
    with pytest.raises(DamagedLedgerError, match=r"Holdfast did not write it.*one that compacts"):
        if how == "opened":
            DeltaLedger.open(short)
        elif how == "refreshed":
            ledger.refresh()
        else:
            DeltaTable(short).create_checkpoint()
            DeltaLedger.open(short).scan()
    found = [file.path for file in check_files(str(short)) if file.what is not None]
    assert [path[-5:] for path in found] == [".json", "rquet"]


def test_a_commit_cut_or_zeroed_at_any_byte_is_torn_and_nothing_else(short: Path) -> None:
    """Only the missing of the last newline is forgiven. (Of the first commit, without which there is no ledger, either is an end.)"""
    for version in range(4):
        data = _commit(short, version).read_bytes().rstrip(b"\n")
        assert parse_commit(version, data).is_digested
        for length in range(0, len(data), 1 if version == 3 else 131):
            for left in (data[:length], data[:length].ljust(len(data), b"\0"), data[:length] + bytes(4096)):
                with pytest.raises(TornCommitError if version else (TornCommitError, DamagedCommitError)):
                    parse_commit(version, left)


def test_a_commit_with_a_block_of_zeros_is_torn_and_with_one_zero_damaged(short: Path) -> None:
    data = _commit(short, 0).read_bytes()
    assert len(data) > 2048
    with pytest.raises(TornCommitError):
        parse_commit(0, data[:512] + bytes(1024) + data[1536:])
    with pytest.raises(TornCommitError):
        parse_commit(0, bytes(512) + data[512:])
    with pytest.raises(DamagedCommitError):
        parse_commit(0, data[:700] + b"\0" + data[701:])


def test_every_flipped_bit_of_a_commit_is_damage_or_says_nothing(short: Path) -> None:
    """Never torn: the last commit would be made void, and it may have been acknowledged."""
    harmless = 0
    for version in (0, 3):
        data = _commit(short, version).read_bytes()
        whole = parse_commit(version, data)
        for at in range(0, len(data), 1 if version == 3 else 29):
            for bit in range(8):
                flipped = bytearray(data)
                flipped[at] ^= 1 << bit
                try:
                    found = parse_commit(version, bytes(flipped))
                except DamagedCommitError:
                    continue
                assert (found.keys, found.added, found.operation_id) == (whole.keys, whole.added, whole.operation_id)
                harmless += 1
    assert harmless  # the engine's own words: times, versions


def test_a_commit_in_the_place_of_another_is_damage(short: Path) -> None:
    for version, other in ((1, 2), (2, 1), (3, 2), (0, 1)):
        with pytest.raises(DamagedCommitError):
            parse_commit(version, _commit(short, other).read_bytes())


@pytest.mark.parametrize("text", ['{"version": Infinity, "size": 1}', '{"version": 1e999, "size": 1}', '{"version": 20, "size": [1]}'])
def test_a_hint_of_any_content_is_only_a_hint(long: Path, text: str) -> None:
    (_log(long) / LAST_CHECKPOINT).write_text(text)
    with pytest.warns(LedgerRepairWarning, match=LAST_CHECKPOINT):
        assert _seqs(DeltaLedger.open(long)) == list(range(1, VERSIONS + 1))


def test_names_that_look_like_the_end_of_an_entry_are_not_told_apart_by_it(tmp_path: Path) -> None:
    transactor = Transactor(DeltaLedger.create(tmp_path / "ledger", catalog_id="c0ffee"), SystemEnvironment())
    for n, name in enumerate(("a}}", "tpl-{{x}}-run", "}")):
        transactor.run(lambda state, n=n, name=name: jobs.register(state, JobId(f"j-{n:08x}"), name, 1))
        data = _commit(tmp_path / "ledger", n + 1).read_bytes()
        assert parse_commit(n + 1, data).keys == {f"holdfast/job/j-{n:08x}", f"holdfast/name/{name.replace('}', '%7D')}"}
        for length in range(len(data)):
            with pytest.raises(TornCommitError):
                parse_commit(n + 1, data[:length])
    with pytest.raises(AlreadyExistsError):
        transactor.run(lambda state: jobs.register(state, JobId("j-0000000f"), "a}}", 1))


def test_the_first_commit_says_what_its_table_is_and_a_torn_one_nothing(short: Path) -> None:
    found = delta_log.read_metadata(_log(short))
    assert found is not None
    assert found.properties["holdfast.catalogId"] == "c0ffee"
    assert [column["name"] for column in found.columns["fields"]] == SCHEMA.names
    _halve(_commit(short, 0))
    assert delta_log.read_metadata(_log(short)) is None
    assert delta_log.read_metadata(short / "nowhere") is None
