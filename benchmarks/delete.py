"""`delete`: 20,000 files by vacuum's deletion, against a bare loop of unlinks on 8 threads with the same syncs of directories.

The files lie as a catalog's do: manifests in a directory each, native writes with eight files a directory, the rest flat in `shared/` and
`exclusive/`. Ours is what a vacuum does for its batches of 1,000, in its order: the look at the marker, every file deleted through directories
that are opened one in the other without following a link, each directory synced once, then those that are empty removed and their parents
synced. By hand the same batches are unlinked, removed and synced, by 8 threads, by paths, and nothing is asked or looked at. The two commits
of each batch (condemned, gone) are not in it: `commit` measures those.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.harness import Result, interleave, ratio, seconds, spread, tell
from holdfast.catalog import paths
from holdfast.catalog.marker import create_marker
from holdfast.catalog.storage import Storage
from holdfast.catalog.storage.guard import GuardedStorage
from holdfast.catalog.storage.local import LocalStorage, make_root
from holdfast.catalog.types import AttemptToken, CheckpointId, FileId, JobId
from holdfast.compaction import vacuum
from holdfast.compaction.garbage import GarbageFile, GarbageFiles
from holdfast.compaction.runs import batches

ROUNDS = 7
AT_MOST = 1.2
FILES = 20_000
PARTS = 8  # files of a native write
THREADS = 8

JOB = JobId("bench-00000000")
BYTES = b"x" * 100


def run(scratch: Path, files: int = FILES, rounds: int = ROUNDS) -> list[Result]:
    """`time`: until all are gone, durably."""
    ours, by_hand = scratch / "ours", scratch / "by-hand"
    for root in (ours, by_hand):
        make_root(str(root))
        create_marker(LocalStorage(root), "bench")
    storage = GuardedStorage(LocalStorage(ours), "bench")
    names = _paths(files)

    def vacuumed(n: int) -> float:
        _fill(ours, names)
        taken = seconds(lambda: _vacuum(names, storage))
        _require_gone(ours)
        return taken

    def unlinked(n: int) -> float:
        _fill(by_hand, names)
        taken = seconds(lambda: _unlink(names, by_hand))
        _require_gone(by_hand)
        return taken

    tell("delete: warming up")
    vacuumed(0)
    unlinked(0)
    taken = interleave({"holdfast": vacuumed, "by_hand": unlinked}, rounds, what="delete")
    figures = {
        "holdfast": spread(taken["holdfast"], "ms"),
        "by_hand": spread(taken["by_hand"], "ms"),
        "files": len(names),
        "directories": len({paths.parent(name) for name in names}),
    }
    return [Result(benchmark="delete", measures="time", ratio=ratio(taken["holdfast"], taken["by_hand"]), at_most=AT_MOST, figures=figures)]


def _paths(count: int) -> list[str]:
    """As a vacuum's plan has them: two fifths in native directories, two fifths and a tenth flat, a tenth manifests."""
    found = []
    for n in range(1, count // 10 + 1):
        number, token = CheckpointId(n), AttemptToken(f"{n:016x}")
        found += [paths.manifest_path(JOB, number), paths.exclusive_file(JOB, number, token, 0, "bytes")]
        found += [paths.streamed_file(JOB, number, token, 1, i) for i in range(4)]
        if n % 2:
            found += [f"{paths.native_directory(JOB, number, token, 2)}/part-{i:05}.parquet" for i in range(PARTS)]
    return sorted(found)


def _fill(root: Path, names: Sequence[str]) -> None:
    for directory in {paths.parent(name) for name in names}:
        (root / directory).mkdir(parents=True, exist_ok=True)
    for name in names:
        (root / name).write_bytes(BYTES)
    os.sync()  # that of the files is not to be paid for by who deletes them


def _vacuum(names: Sequence[str], storage: Storage) -> None:
    files = GarbageFiles.of(GarbageFile(file_id=FileId(name), job_id=JOB, path=name, size_bytes=len(BYTES)) for name in names)
    failed: list[str] = []
    for batch in batches(files):
        vacuum.delete(batch, storage, failed)
    if failed:
        msg = f"not deleted: {failed[0]}"
        raise AssertionError(msg)


def _unlink(names: Sequence[str], root: Path) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        for batch in batches(names):
            _in_threads(pool, lambda name: os.unlink(root / name), batch)
            directories = {paths.parent(name) for name in batch}
            _in_threads(pool, lambda directory: _sync(root / directory), directories)
            emptied = [directory for directory in directories if paths.attempt_directory(f"{directory}/x") is not None]
            _in_threads(pool, lambda directory: _remove(root / directory), emptied)
            _in_threads(pool, lambda directory: _sync(root / directory), {paths.parent(directory) for directory in emptied})


def _in_threads(pool: ThreadPoolExecutor, act: Callable[[str], None], todo: Iterable[str]) -> None:
    """A share for each thread: a task for each name would cost more than what it does."""

    def do(share: Sequence[str]) -> None:
        for one in share:
            act(one)

    names = list(todo)
    list(pool.map(do, [names[n::THREADS] for n in range(THREADS)]))


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _remove(directory: Path) -> None:
    try:
        os.rmdir(directory)
    except OSError:  # a native write's files may be of two batches
        if not directory.is_dir():
            raise


def _require_gone(root: Path) -> None:
    left = [found for found in (root / paths.job_directory(JOB)).rglob("*") if found.name not in ("shared", "exclusive")]
    if left:
        msg = f"{len(left)} files and directories are left, such as {left[0]}"
        raise AssertionError(msg)
