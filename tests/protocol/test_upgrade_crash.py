"""An upgrade that dies, loses a response, or meets others at each of its calls: the next one finishes, and nothing that was told is lost."""

import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast
from holdfast.catalog.errors import FencedError, FormatError, HoldfastError
from holdfast.catalog.ledger.delta import DeltaLedger
from tests.support import format_1
from tests.support.faults import MODES, Crash, Faults, Hook, Mode
from tests.support.invariants import assert_catalog_sound
from tests.support.upgrades import OldWriter, holds_of, make_small, upgrade_with

MOST_CALLS = 40  # an upgrade has fewer: a test that goes over them all asks whether it went too far


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_small(tmp_path_factory.mktemp("small") / "catalog")
    writer = OldWriter(root)
    for _ in range(2):
        writer.write()
    return root


def copied(small: Path, target: Path) -> Path:
    return Path(shutil.copytree(small, target))


def calls_of(small: Path, target: Path) -> list[tuple[str, str]]:
    faults = Faults()
    upgrade_with(copied(small, target), faults)
    return faults.log


def assert_upgraded(root: Path, holds: list[str]) -> None:
    """It opens, says what the old one said, once, and takes commits."""
    with holdfast.open(root) as catalog:
        assert holds_of(catalog) == sorted(holds)
        assert {n: catalog.checkpoint("flights", n).read_bytes("state") for n in (2, 3)} == {2: b"1", 3: b"2"}
        catalog.hold("flights", 3, "afterwards")
        with catalog.coordinate("flights") as job, job.checkpoint() as checkpoint:
            checkpoint.write_bytes("state", b"new")
        assert not catalog.verify().damages
        assert_catalog_sound(catalog)
    operations = [row.operation.operation_id for row in _ledger(root).rows() if row.fact.kind == "hold"]
    assert len(operations) == len(set(operations))


def _ledger(root: Path) -> DeltaLedger:
    return DeltaLedger.open(root / json.loads((root / "holdfast.json").read_text())["ledger"])


def finished(root: Path, how: str) -> None:
    """By another upgrade; or by whoever opens, where only the last step is missing."""
    if how == "opened":
        try:
            holdfast.open(root).close()
        except FormatError as error:
            assert "holdfast upgrade" in str(error)
        else:
            return
    holdfast.upgrade(root)


def test_the_order_of_its_steps_is_the_argument(small: Path, tmp_path: Path) -> None:
    """Told and folded before the close, durable before the marker, which is last but for what nobody's answer depends on."""
    verbs = [verb for verb, _ in calls_of(small, tmp_path / "catalog")]
    told, folded, closed, replaced = map(verbs.index, ("history.tell", "successor.fold", "ledger.close", "replace"))
    settled = verbs.index("ledger.make_durable")
    assert settled < told < folded < closed < replaced
    assert "ledger.make_durable" in verbs[closed:replaced]
    assert len(verbs) < MOST_CALLS


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["upgraded", "opened"])
def test_a_crash_at_any_call_is_finished_by_who_comes_next(small: Path, tmp_path: Path, mode: Mode, how: str) -> None:
    for n in range(1, len(calls_of(small, tmp_path / "whole")) + 1):
        _crash_and_finish(copied(small, tmp_path / str(n)), n, mode, how)


@pytest.mark.parametrize("verb", ["history.tell", "successor.fold", "ledger.close", "replace"])
def test_a_crash_after_a_step_that_counts_is_finished(small: Path, tmp_path: Path, verb: str) -> None:
    verbs = [verb for verb, _ in calls_of(small, tmp_path / "whole")]
    _crash_and_finish(copied(small, tmp_path / "catalog"), verbs.index(verb) + 1, "after", "opened")


def _crash_and_finish(root: Path, n: int, mode: Mode, how: str) -> None:
    writer = OldWriter(root)
    try:
        upgrade_with(root, Faults({n: mode}))
        assert mode == "lost", "a response that is lost may be done without"
    except (Crash, OSError, HoldfastError):
        writer.write()  # it still runs, or is refused by now
        finished(root, how)
    assert_upgraded(root, ["hold 0", "hold 1", *writer.told])


def busy(writer: OldWriter) -> Hook:
    """Commits before each call, until the close has lost three times: one who never stops there keeps an upgrade from its end."""
    closes = 0

    def hook(_n: int, verb: str, _path: str) -> None:
        nonlocal closes
        closes += verb == "ledger.close"
        if closes <= 3 or not verb.startswith(("ledger.", "history.", "successor.")):
            writer.write()

    return hook


@pytest.mark.slow
def test_writers_of_format_1_at_every_call_lose_nothing(small: Path, tmp_path: Path) -> None:
    """One commits before each call of the upgrade, until it is refused; and from then on it always is."""
    root = copied(small, tmp_path / "catalog")
    writer = OldWriter(root)
    upgrade_with(root, Faults(on_call=busy(writer)))
    assert len(writer.told) > 10
    assert writer.refused
    assert all(isinstance(error, FencedError) for error in writer.refused)
    assert_upgraded(root, ["hold 0", "hold 1", *writer.told])


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_crash_with_writers_of_format_1_at_every_call_loses_nothing(small: Path, tmp_path: Path, mode: Mode) -> None:
    for n in range(1, len(calls_of(small, tmp_path / "whole")) + 1, 2):
        root = copied(small, tmp_path / str(n))
        writer = OldWriter(root)
        try:
            upgrade_with(root, Faults({n: mode}, on_call=busy(writer)))
        except (Crash, OSError, HoldfastError):
            holdfast.upgrade(root)
        writer.write()
        assert isinstance(writer.refused[-1], FencedError)
        assert_upgraded(root, ["hold 0", "hold 1", *writer.told])


def _whole_upgrade_at(root: Path, at: int) -> Callable[[int, str, str], None]:
    def hook(n: int, _verb: str, _path: str) -> None:
        if n == at:
            holdfast.upgrade(root)

    return hook


@pytest.mark.slow
def test_two_upgrades_at_once_have_one_result(small: Path, tmp_path: Path) -> None:
    """A whole one runs before each call of another, in turn."""
    for n in range(1, len(calls_of(small, tmp_path / "whole")) + 1):
        root = copied(small, tmp_path / str(n))
        report = upgrade_with(root, Faults(on_call=_whole_upgrade_at(root, n)))
        assert report.is_now == 2
        marker = json.loads((root / "holdfast.json").read_text())
        assert report.ledger == marker["ledger"]
        assert {path.name for path in root.glob("ledger*")} == {"ledger", marker["ledger"]}, f"at call {n} a ledger is left"
        assert_upgraded(root, ["hold 0", "hold 1"])


@pytest.mark.slow
def test_another_upgrade_that_got_further_and_died_does_not_stop_one(small: Path, tmp_path: Path) -> None:
    """It has told the history of commits that this one had not read when it opened the ledger."""
    verbs = [verb for verb, _ in calls_of(small, tmp_path / "whole")]
    for n in range(1, verbs.index("ledger.close") + 1):
        root = copied(small, tmp_path / str(n))
        writer = OldWriter(root)

        def hook(at: int, *_: str, n: int = n, root: Path = root, writer: OldWriter = writer) -> None:
            if at == n:
                writer.write()
                with pytest.raises(Crash):
                    upgrade_with(root, Faults({verbs.index("ledger.close") + 1: "before"}))

        upgrade_with(root, Faults(on_call=hook))
        assert writer.told
        assert_upgraded(root, ["hold 0", "hold 1", *writer.told])


def test_upgrades_of_many_threads_have_one_result(small: Path, tmp_path: Path) -> None:
    """Beside a writer of format 1."""
    root, done = copied(small, tmp_path / "catalog"), threading.Event()
    writer = OldWriter(root)

    def write() -> None:
        while not done.is_set():
            writer.write()

    with ThreadPoolExecutor(4) as pool:
        writing = pool.submit(write)
        reports = [each.result() for each in [pool.submit(holdfast.upgrade, root) for _ in range(3)]]
        done.set()
        writing.result()
    writer.write()
    assert writer.refused
    assert len({report.ledger for report in reports}) == 1
    assert {path.name for path in root.glob("ledger*")} == {"ledger", reports[0].ledger}
    assert_upgraded(root, ["hold 0", "hold 1", *writer.told])


def test_a_crash_before_the_close_leaves_the_old_catalog_as_it_was(small: Path, tmp_path: Path) -> None:
    verbs = [verb for verb, _ in calls_of(small, tmp_path / "whole")]
    root = copied(small, tmp_path / "catalog")
    with pytest.raises(Crash):
        upgrade_with(root, Faults({verbs.index("ledger.close") + 1: "before"}))
    with format_1.open_catalog(root) as old:
        assert holds_of(old) == ["hold 0", "hold 1"]
        old.hold("flights", 3, "still there")
        assert not old.scrub().deleted_files
        assert not old.verify().damages
