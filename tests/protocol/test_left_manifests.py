"""A commit that fails after its manifest was written: the abort names the manifest, so that vacuum finds it by query and scrub need not."""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

import holdfast
from holdfast.catalog import paths
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.errors import AttemptEndedError, NotDurableError, RetryError, UnknownOutcomeError
from holdfast.catalog.manifest import decode, encode
from holdfast.catalog.marker import read_marker
from holdfast.catalog.storage import PassingStorage
from holdfast.catalog.storage.local import LocalStorage
from holdfast.catalog.types import AttemptToken, CheckpointId
from holdfast.facade import Catalog
from holdfast.opening import catalog_at
from holdfast.writers.failure_policy import FailurePolicy
from tests.protocol.test_doubt import DeafLedger
from tests.support.front_door import LARGE, ask
from tests.support.invariants import assert_catalog_sound, assert_clean
from tests.support.tables import table
from tests.support.world import World


@dataclass(frozen=True, slots=True)
class Failing(PassingStorage):
    """Everything has been written, and then nothing is committed: something fails at the manifest, or at the driver's last look."""

    failure: str = ""

    def create(self, path: str, data: bytes) -> None:
        if not path.endswith("/_metadata"):
            self.inner.create(path, data)
            return
        if self.failure == "nothing written":
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if self.failure == "half written":
            self.inner.create(path, data[: len(data) // 2])
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        self.inner.create(path, data)
        if self.failure in ERRORS:
            raise ERRORS[self.failure](path)

    def size(self, path: str) -> int:
        if self.failure == "last look" and path.endswith(".bytes"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return self.inner.size(path)


ERRORS: dict[str, Callable[[str], BaseException]] = {
    "names not synced": lambda path: NotDurableError(f"{path} could not be made durable"),
    "response lost": lambda path: OSError(errno.EIO, os.strerror(errno.EIO), path),
    "sent twice": FileExistsError,
    "interrupted": lambda _: KeyboardInterrupt(),
}
WITHOUT_A_MANIFEST = {"nothing written", "half written"}  # the half of one is nobody's: scrub takes it by its place


def checkpoint(catalog: Catalog) -> None:
    with catalog.coordinate("j") as job, job.checkpoint() as cp:
        cp.write_bytes("bytes", LARGE)


def savepoint(catalog: Catalog, name: str = "s") -> None:
    catalog.savepoint("j", name)


@pytest.mark.parametrize("write", [checkpoint, savepoint])
def test_the_abort_of_a_failed_commit_names_the_manifest(tmp_path: Path, write: Callable[..., None]) -> None:
    root = tmp_path / "catalog"
    with holdfast.open(root, create=True) as healthy:
        checkpoint(healthy)
    with table() as case:
        for failure in ("last look", *ERRORS, *sorted(WITHOUT_A_MANIFEST)):
            with case(failure):
                fail(root, write if write is checkpoint else partial(write, name=failure), failure)
    with holdfast.open(root) as catalog:
        assert_catalog_sound(catalog)
        assert_clean(catalog)


def fail(root: Path, write: Callable[[Catalog], None], failure: str) -> None:
    """A write that fails, and what cleanup finds of it."""
    storage, marker = LocalStorage(root), read_marker(LocalStorage(root))
    with catalog_at(Failing(storage, failure), marker, SystemEnvironment()) as catalog:
        with pytest.raises((OSError, AttemptEndedError, KeyboardInterrupt)):
            write(catalog)
    with holdfast.open(root) as catalog:
        left = [path for (path,) in ask(catalog, "SELECT path FROM unreferenced_files ORDER BY path")]
        assert [path.rpartition("/")[2] == "_metadata" for path in left].count(True) == (failure not in WITHOUT_A_MANIFEST)
        assert all((root / path).is_file() for path in left)
        assert catalog.vacuum().deleted_files == len(left)
        assert catalog.scrub().deleted_files == (failure == "half written")


@pytest.mark.parametrize("write", [checkpoint, savepoint])
def test_a_manifest_that_another_attempt_has_there_is_never_named(tmp_path: Path, write: Callable[[Catalog], None]) -> None:
    """The ledger was restored from a backup: what is at the place of the next checkpoint is the newer state. A failed write must not make
    it the aborted attempt's, or a vacuum would delete it."""
    root = tmp_path / "catalog"
    with holdfast.open(root, create=True) as healthy:
        checkpoint(healthy)
    (one,) = root.glob("jobs/*/chk-1")
    shutil.copytree(one, one.with_name("chk-2"))
    newer = decode((one / "_metadata").read_bytes(), "chk-1")
    place = one.with_name("chk-2") / "_metadata"
    place.write_bytes(encode(replace(newer, attempt=AttemptToken("f" * 16), checkpoint_id=CheckpointId(2))))
    marker = read_marker(LocalStorage(root))
    for failure in ("", "nothing written"):
        with catalog_at(Failing(LocalStorage(root), failure), marker, SystemEnvironment()) as catalog:
            with contextlib.suppress(OSError, holdfast.ForeignTokensError):
                write(catalog)
    with holdfast.open(root) as catalog:
        catalog.vacuum()
        assert place.exists()
        assert not ask(catalog, "SELECT path FROM files WHERE path LIKE '%chk-2/_metadata'")


# ---- in the ledger, and by the clock ---------------------------------------------------------------------------------


@pytest.fixture
def world() -> World:
    return World()


def assert_vacuum_takes_it(world: World, number: int) -> None:
    """The manifest of an attempt that has ended, and the one file that it wrote; scrub finds nothing."""
    process = world.process()
    job = world.job()
    manifest = paths.manifest_path(job.job_id, number)
    assert manifest in world.paths()
    planned = {file.path for file in process.plan_vacuum().unreferenced}
    assert manifest in planned
    assert process.vacuum().deleted_files == len(planned) == 2
    assert process.plan_scrub().orphans == ()
    assert_catalog_sound(world)


def test_a_commit_in_doubt_that_did_not_land_names_its_manifest(world: World) -> None:
    """When the coordinator goes on, or closes, the attempt is still open."""
    for ends in ("goes on", "closes"):
        process = world.process()
        coordinator = process.coordinate()
        deaf = DeafLedger(coordinator._transactor.ledger)
        coordinator._transactor._ledger = deaf
        with pytest.raises(UnknownOutcomeError), coordinator.checkpoint() as writer:
            writer.write_bytes("model", LARGE)
            deaf.shut(lands=False)
        if ends == "closes":
            coordinator.close()
        else:
            with pytest.raises(ZeroDivisionError), coordinator.checkpoint():
                raise ZeroDivisionError
        assert_vacuum_takes_it(world, writer.checkpoint_id)
        coordinator.close()


@pytest.mark.parametrize("told_by", ["the alarm", "the next step"])
def test_an_end_by_time_after_the_manifest_names_it(world: World, told_by: str) -> None:
    """The time is over while the driver looks at what was written."""
    process = world.process()
    coordinator = process.coordinate(patience=FailurePolicy(timeout_s=600))

    def over(_: int, verb: str, path: str) -> None:
        if verb == "size" and process.environment.alarms:
            process.environment.passed_s = 601
            if told_by == "the alarm":
                process.environment.ring()
            else:
                raise OSError(errno.EIO, "and the disk refuses")

    with pytest.raises((AttemptEndedError, OSError)), coordinator.checkpoint() as writer:
        writer.write_bytes("model", LARGE)
        process.arm(on_call=over)
    process.arm()
    coordinator.close()
    assert_vacuum_takes_it(world, writer.checkpoint_id)


def test_a_commit_that_the_ledger_refuses_names_its_manifest(world: World) -> None:
    process = world.process()
    coordinator = process.coordinate()

    def refuse(_: int, verb: str, path: str) -> None:
        if verb == "append" and not refused and f"jobs/{coordinator.job_id}/chk-1/_metadata" in world.paths():
            refused.append(path)
            raise OSError(errno.EIO, "the ledger refuses")

    refused: list[str] = []
    process.arm(on_call=refuse)
    with pytest.raises(RetryError, match="did not land"), coordinator.checkpoint() as writer:
        writer.write_bytes("model", LARGE)
    process.arm()
    coordinator.close()
    assert refused
    assert_vacuum_takes_it(world, writer.checkpoint_id)
