"""`verify`: bytes a second of `run_verify` over the files of a catalog, against bare SHA-256 of the same files on as many threads.

The files are those of checkpoints of bytes, of 1 to 64 MB, as the catalog itself wrote them. Ours is what `Catalog.verify` does with them:
asked of the storage with its guard, sizes first, every digest compared, a report at the end. By hand each thread opens the next file, digests
it and closes it. Both read from memory if that has room for the files: what is measured is not the disk. Which files are live, and the
ledger's own files, are asked and read once before, as `garbage` measures.
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import holdfast
from benchmarks.harness import Result, interleave, ratio, seconds, spread, tell
from holdfast.catalog.environment import host_cores
from holdfast.catalog.storage import Storage
from holdfast.catalog.types import StoredFile
from holdfast.compaction.verify import run_verify

ROUNDS = 9
AT_LEAST = 0.8
SIZES_MB = (64, 64, 32, 32, 32, *(8,) * 40, *(1,) * 200)  # 744 MB in 245 files


def run(scratch: Path, sizes_mb: Sequence[float] = SIZES_MB, rounds: int = ROUNDS) -> list[Result]:
    """`rate`: bytes a second, ours against by hand."""
    tell(f"verify: writing {sum(sizes_mb):,} MB")
    with holdfast.open(scratch / "catalog", create=True) as catalog:
        with catalog.coordinate("verified") as job, job.checkpoint() as checkpoint:
            for n, size_mb in enumerate(sizes_mb):
                checkpoint.write_bytes(f"state-{n}", _bytes(n, int(size_mb * 1_000_000)))
        files, storage = catalog._queries.live_files(), catalog._storage
        _verify(files, storage)
        _digest(files, scratch / "catalog")
        taken = interleave(
            {
                "holdfast": lambda _: seconds(lambda: _verify(files, storage)),
                "by_hand": lambda _: seconds(lambda: _digest(files, scratch / "catalog")),
            },
            rounds,
            what="verify",
        )
    total = sum(file.size_bytes for file in files)
    rates = {name: [total / took for took in times] for name, times in taken.items()}
    figures = {
        "holdfast": spread(taken["holdfast"], "ms"),
        "by_hand": spread(taken["by_hand"], "ms"),
        "files": len(files),
        "bytes": total,
        "threads": host_cores(),
    }
    return [
        Result(benchmark="verify", measures="rate", ratio=ratio(rates["holdfast"], rates["by_hand"]), at_least=AT_LEAST, figures=figures)
    ]


def _bytes(seed: int, size_bytes: int) -> bytes:
    """Each another, and quickly made: nothing here compresses or compares."""
    return hashlib.shake_128(str(seed).encode()).digest(min(size_bytes, 4096)) * (size_bytes // 4096 + 1)


def _verify(files: Sequence[StoredFile], storage: Storage) -> None:
    report = run_verify(1, files, storage)
    if report.damages or report.files != len(files):
        msg = f"{report.damages} of files that nobody touched"
        raise AssertionError(msg)


def _digest(files: Sequence[StoredFile], root: Path) -> None:
    def digest(file: StoredFile) -> str:
        with open(root / file.path, "rb", buffering=0) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    with ThreadPoolExecutor(host_cores()) as pool:
        found = list(pool.map(digest, files))
    if found != [file.sha256 for file in files]:
        msg = "the digests differ from those that were committed"
        raise AssertionError(msg)
