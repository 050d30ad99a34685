"""The machine loses power while several writers have sent commits and synced none: registrations and starts among them."""

import itertools
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.errors import DamagedLedgerError
from holdfast.catalog.ledger import delta_log
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.log_repair import LedgerRepairWarning
from holdfast.catalog.rules import checkpoints, decision, jobs
from holdfast.catalog.schema import Operation
from holdfast.catalog.state import CatalogState
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import AttemptToken, JobId

OLD, NEW, OTHER = JobId("old-00000001"), JobId("new-00000002"), JobId("other-00000003")
ENVIRONMENT = SystemEnvironment()
Lose = Callable[[bytes], bytes]
LOSSES: dict[str, Lose] = {
    "whole": lambda data: data,
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) * 2 // 3],
    "zeroed": lambda data: bytes(len(data)),
}


Decide = Callable[[CatalogState], decision.Decision]


@pytest.fixture(scope="module")
def unsynced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A ledger with two acknowledged jobs, above which three writers who raced have sent a registration, a start and an attempt, and synced
    none; and the version of the first of them."""
    directory = tmp_path_factory.mktemp("power") / "ledger"
    transactor = Transactor(DeltaLedger.create(directory, catalog_id="c0ffee"), ENVIRONMENT)
    transactor.run(lambda state: jobs.register(state, OLD, "old", 128))
    transactor.run(lambda state: jobs.register(state, OTHER, "other", 128))
    epoch = transactor.run(lambda state: jobs.start(state, OLD, None))
    first = transactor.ledger.version + 1
    decisions: list[Decide] = [
        lambda state: jobs.register(state, NEW, "new", 128),
        lambda state: jobs.start(state, OTHER, None),
        lambda state: checkpoints.open_checkpoint(state, OLD, epoch, AttemptToken("a" * 16), None),
    ]
    writers = [DeltaLedger.open(directory) for _ in decisions]
    for writer, decide in zip(writers, decisions, strict=True):
        transaction = decide(Transactor(DeltaLedger.open(directory), ENVIRONMENT).fresh())
        operation = Operation(operation_id=ENVIRONMENT.new_id(), at=ENVIRONMENT.now(), by="w")
        writer.append(transaction.facts, keys=transaction.keys, operation=operation)
    return directory, first


@pytest.mark.parametrize("losses", list(itertools.product(LOSSES, repeat=3)), ids="-".join)
def test_after_any_loss_the_ledger_opens_and_what_stands_on_it_is_void(
    unsynced: tuple[Path, int], tmp_path: Path, losses: tuple[str, ...]
) -> None:
    source, first = unsynced
    directory = Path(shutil.copytree(source, tmp_path / "ledger"))
    for version, loss in enumerate(losses, first):
        path = directory / "_delta_log" / delta_log.commit_name(version)
        path.write_bytes(LOSSES[loss](path.read_bytes()))
    whole = next((n for n, loss in enumerate(losses) if loss != "whole"), len(losses))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", LedgerRepairWarning)
        transactor = Transactor(DeltaLedger.open(directory), ENVIRONMENT)
    assert len(told) == len(losses) - whole
    for _ in range(2):  # as it is read, and then as it is mended
        state = transactor.fresh()
        assert state.job(OLD).epoch == 1  # acknowledged
        assert (state.find(NEW) is not None, state.job(OTHER).epoch) == (whole > 0, int(whole > 1))
        assert len(state.job(OLD).open_attempts) == int(whole > 2)
        transactor.settle()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = Transactor(DeltaLedger.open(directory), ENVIRONMENT)
        if whole == 0:
            again.run(lambda state: jobs.register(state, NEW, "new", 128))
        assert again.run(lambda state: jobs.start(state, OTHER, None)) == 1 + int(whole > 1)
    runs = [fact for fact in again.ledger.scan(["run"]) if fact.kind == "run"]
    assert [run.what for run in runs] == ["repair"] * (whole < len(losses))


@pytest.mark.parametrize("loss", ["empty", "cut", "zeroed"])
def test_what_a_later_writer_saw_it_had_synced_so_that_its_loss_is_damage(unsynced: tuple[Path, int], tmp_path: Path, loss: str) -> None:
    """A start of the job that was registered just before: who had seen the registration made it durable before it sent the start."""
    directory = Path(shutil.copytree(unsynced[0], tmp_path / "ledger"))
    Transactor(DeltaLedger.open(directory), ENVIRONMENT).run(lambda state: jobs.start(state, NEW, None))
    path = directory / "_delta_log" / delta_log.commit_name(unsynced[1])
    path.write_bytes(LOSSES[loss](path.read_bytes()))
    with pytest.raises(DamagedLedgerError, match=path.name):
        DeltaLedger.open(directory)
