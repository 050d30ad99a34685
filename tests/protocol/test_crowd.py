"""Many jobs commit at one moment, as triggers that are aligned to the clock make them: a commit that conflicts with nobody does not fail."""

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.catalog.creation import open_transactor
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.ledger import turns
from holdfast.catalog.rules import jobs
from holdfast.catalog.storage.local import open_storage
from holdfast.catalog.types import JobId
from tests.support.invariants import assert_catalog_sound

ROUNDS = 5
PROCESSES, THREADS = 16, 4


def commit_rounds(root: Path, names: list[str], moment: Any, done: Any) -> None:
    """A process of the crowd: a thread for each of its jobs, a commit of each at each moment. Tells what went wrong."""
    failures: list[str] = []

    def commit(name: str) -> None:
        try:
            transactor = open_transactor(open_storage(root), SystemEnvironment())
            job_id = JobId(f"{name}-00000000")
        except Exception as error:
            moment.abort()
            failures.append(f"{name}: {error!r}")
            return
        for round_ in range(ROUNDS):
            moment.wait()
            try:
                if round_ == 0:
                    transactor.run(lambda state: jobs.register(state, job_id, name, 128))
                else:
                    transactor.run(lambda state: jobs.start(state, job_id, None))
            except Exception as error:
                failures.append(f"{name} in round {round_}: {error!r}")

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(commit, names))
    done.put(failures)


def assert_all_committed(root: Path, names: list[str], failures: list[str]) -> None:
    assert failures == []
    with holdfast.open(root) as catalog:
        jobs = dict(catalog.duckdb().execute("SELECT job, epoch FROM jobs").fetchall())
        assert jobs == dict.fromkeys(names, ROUNDS - 1)
        assert_catalog_sound(catalog)


@pytest.mark.slow
def test_of_64_committers_at_one_moment_none_fails(tmp_path: Path) -> None:
    holdfast.open(tmp_path, create=True).close()
    spawn = multiprocessing.get_context("spawn")
    moment, done = spawn.Barrier(PROCESSES * THREADS), spawn.Queue()
    crowd = [[f"job-{p}-{t}" for t in range(THREADS)] for p in range(PROCESSES)]
    processes = [spawn.Process(target=commit_rounds, args=(tmp_path, names, moment, done)) for names in crowd]
    for process in processes:
        process.start()
    failures = [failure for _ in processes for failure in done.get(timeout=600)]
    for process in processes:
        process.join()
    assert_all_committed(tmp_path, [name for names in crowd for name in names], failures)


class Told:
    """What a queue between processes is to threads."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def put(self, failures: list[str]) -> None:
        self.failures += failures


@pytest.mark.slow
@pytest.mark.parametrize("has_turns", [True, False])
def test_of_twelve_committers_at_one_moment_none_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_turns: bool) -> None:
    """Without turns (on other hosts, or where no lock is to be had) they only race, and none fails either."""
    if not has_turns:
        monkeypatch.setattr(turns, "_open", lambda _: None)
    holdfast.open(tmp_path, create=True).close()
    names, told = [f"job-{n}" for n in range(12)], Told()
    commit_rounds(tmp_path, names, threading.Barrier(len(names)), told)
    assert_all_committed(tmp_path, names, told.failures)


def test_a_crowd_of_readers_of_one_job_pins_it_without_a_failure(tmp_path: Path) -> None:
    """They do conflict, each with each: every pin is a transaction of the one job."""
    with holdfast.open(tmp_path, create=True) as catalog, catalog.coordinate("flights") as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write_bytes("offsets", b"1")
    catalogs = [holdfast.open(tmp_path) for _ in range(16)]
    moment = threading.Barrier(len(catalogs))

    def read(catalog: holdfast.Catalog) -> tuple[bool, bytes]:
        moment.wait()
        with catalog:
            checkpoint = catalog.checkpoint("flights")
            return checkpoint.is_pinned, checkpoint.read_bytes("offsets")

    with ThreadPoolExecutor(len(catalogs)) as pool:
        assert set(pool.map(read, catalogs)) == {(True, b"1")}
