"""A reader's process, and whether it has died."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.catalog import process_identity
from holdfast.catalog.process_identity import has_died, this_process

READ_AND_DIE = """
import os, sys, holdfast
catalog = holdfast.open(sys.argv[1])
catalog.checkpoint("flights")
os._exit(9)
"""


SAVE_AND_DIE = """
import os, sys, holdfast
from holdfast.writers.savepoints import content
content.store_manifest = lambda place, manifest: os._exit(9)
holdfast.open(sys.argv[1]).savepoint("flights", "mine")
"""


def test_this_process_lives_and_an_ended_one_has_died() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "from holdfast.catalog.process_identity import this_process; print(this_process())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert not has_died(this_process())
    assert has_died(ended)


def test_an_id_that_came_again_is_another_process() -> None:
    host, pid, start = this_process().split(":")
    assert has_died(f"{host}:{pid}:{int(start) + 1}")
    assert not has_died(f"{host}:{pid}:0")


HOST, _, _ = this_process().split(":")
NAME, NAMESPACE, BOOT = HOST.split("/")
NOBODY = 999_999_999  # no process has this id: above the greatest that Linux gives


@pytest.mark.parametrize(
    "host",
    [
        "elsewhere", NAME, f"{NAME}/{NAMESPACE}", f"{NAME}/1/{BOOT}", f"elsewhere/{NAMESPACE}/{BOOT}", f"{NAME}/{NAMESPACE}/", f"{NAME}//",
        f"{NAME}/{NAMESPACE}/00000000-0000-4000-8000-000000000000", f"{HOST}/x", f" {HOST}", HOST.upper() + "x", "",
    ],
)  # fmt: skip
def test_of_another_host_container_or_boot_nobody_can_tell(host: str) -> None:
    """A host of the same name has the same number of its first namespace; so have the notes of before the boot was told."""
    assert has_died(f"{HOST}:{NOBODY}:1")
    assert not has_died(f"{host}:{NOBODY}:1")


@pytest.mark.parametrize(
    "rest", ["", "pid:1", ":1", "0:1", "-1:1", "\u0661:1", "\u00b2:1", f"{10**30}:1", "999999999:x", "999999999", "1:1:1x"]
)
def test_what_is_no_process_has_not_died(rest: str) -> None:
    assert not has_died(f"{HOST}:{rest}")
    assert not has_died(rest)


def test_where_the_boot_is_not_told_no_process_is_known_to_have_died(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    for place in ("missing", "empty"):
        monkeypatch.setattr(process_identity, "_BOOT_ID", tmp_path / place)
        assert this_process().startswith(f"{NAME}:{os.getpid()}:")
        assert not has_died(f"{NAME}:{NOBODY}:1")


def test_a_vacuum_ends_the_readings_and_savepoints_of_dead_processes(tmp_path) -> None:
    """It deletes what they kept."""
    with holdfast.open(tmp_path / "catalog", create=True) as catalog:

        def ended() -> list[tuple]:
            with catalog.duckdb() as connection:
                return connection.execute(
                    "select purpose, status, reason from attempts where purpose in ('read', 'savepoint') order by 1, 2"
                ).fetchall()

        for data in (b"1", b"2"):
            with catalog.coordinate("flights", retention=holdfast.KeepLast(1)) as job, job.checkpoint() as checkpoint:
                checkpoint.write_bytes("big", data * 50_000)
            for program in (READ_AND_DIE, SAVE_AND_DIE) if data == b"1" else ():
                done = subprocess.run([sys.executable, "-c", program, catalog.address], capture_output=True, text=True, check=False)
                assert done.returncode == 9, done.stderr
        own = catalog.checkpoint("flights")
        assert not catalog.vacuum(dry_run=True).plan.files
        assert ended() == [("read", "open", None), ("read", "open", None), ("savepoint", "open", None)]
        assert catalog.vacuum().deleted_files == 2, "the file and the manifest of the checkpoint that both had pinned"
        died = "its process has died"
        assert ended() == [("read", "killed", died), ("read", "open", None), ("savepoint", "killed", died)]
        assert catalog.scrub().deleted_files == 1, "what the savepoint had written"
        assert own.read_bytes("big") == b"2" * 50_000


def test_readers_that_died_are_found_and_ended_and_the_living_are_left(tmp_path) -> None:
    with holdfast.open(tmp_path / "catalog", create=True) as catalog:
        with catalog.coordinate("flights") as job, job.checkpoint() as checkpoint:
            checkpoint.write_bytes("offsets", b"1")
        done = subprocess.run([sys.executable, "-c", READ_AND_DIE, catalog.address], capture_output=True, text=True, check=False)
        assert done.returncode == 9, done.stderr
        catalog.checkpoint("flights")
        with catalog.duckdb() as connection:
            readers = connection.execute("select attempt, checkpoint_id, process from readers").fetchall()
        assert [n for _, n, _ in readers] == [1, 1]
        dead = [attempt for attempt, _, process in readers if process != this_process()]
        assert catalog.end_dead_readers() == dead
        with catalog.duckdb() as connection:
            assert connection.execute("select process from readers").fetchall() == [(this_process(),)]
        assert catalog.end_dead_readers() == []
