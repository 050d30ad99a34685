"""Verify: every file of every live checkpoint, read back and compared with the size and digest that were committed."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from holdfast.catalog.environment import host_cores
from holdfast.catalog.file_checks import RowsOf, problem_in
from holdfast.catalog.storage import Digest, Storage
from holdfast.catalog.types import StoredFile
from holdfast.compaction.runs import Progress

AHEAD = 16  # files for each thread that wait their turn, or for a large one before them to be reported

LiveFiles = Callable[[], Sequence[StoredFile]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A file that is not what was committed, and in what way."""

    path: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What a verification read, and what it found wrong. `ledger_files` are those of the ledger itself, which are not among `files`."""

    checkpoints: int
    files: int
    size_bytes: int
    damages: tuple[Damage, ...]
    ledger_files: int = 0
    ledger_bytes: int = 0

    def with_more(self, other: "VerifyReport") -> "VerifyReport":
        """Both reports as one."""
        return VerifyReport(
            checkpoints=self.checkpoints + other.checkpoints,
            files=self.files + other.files,
            size_bytes=self.size_bytes + other.size_bytes,
            damages=(*self.damages, *other.damages),
            ledger_files=self.ledger_files + other.ledger_files,
            ledger_bytes=self.ledger_bytes + other.ledger_bytes,
        )


def run_verify(
    checkpoints: int,
    files: Sequence[StoredFile],
    storage: Storage,
    progress: Progress | None = None,
    *,
    live_files: LiveFiles | None = None,
    rows: Mapping[str, RowsOf] | None = None,
) -> VerifyReport:
    """Read each file, by as many threads as this process has processors (SHA-256 leaves the interpreter to the others); damage is
    collected, in the order of paths, and never raised. Of files with `rows`, by path, these are looked at as well.

    Nothing is pinned: a file may be dropped and deleted while this runs. So after a finding `live_files` is asked again, and only what
    is live even now counts. What is live at both ends was never free to go in between (I2). None: the caller has the files pinned.
    """
    damages: list[Damage] = []
    for done, damage in enumerate(_in_threads(lambda file: check_file(file, storage, (rows or {}).get(file.path)), files), 1):
        if damage is not None:
            damages.append(damage)
        if progress is not None:
            progress(done, len(files))
    if damages and live_files is not None:
        damaged = {damage.path for damage in damages}
        still_live = {file.path for file in live_files() if file.path in damaged}
        damages = [damage for damage in damages if damage.path in still_live]
    damages.sort(key=lambda damage: damage.path)
    return VerifyReport(checkpoints=checkpoints, files=len(files), size_bytes=sum(f.size_bytes for f in files), damages=tuple(damages))


def _in_threads(check: Callable[[StoredFile], Damage | None], files: Sequence[StoredFile]) -> Iterator[Damage | None]:
    """The checks' answers in the order of the files, of which a bounded number is in memory as work."""
    threads = host_cores()
    waiting: deque[Future[Damage | None]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for file in files:
            if len(waiting) == threads * AHEAD:
                yield waiting.popleft().result()
            waiting.append(pool.submit(check, file))
        while waiting:
            yield waiting.popleft().result()


def check_file(file: StoredFile, storage: Storage, rows: RowsOf | None = None) -> Damage | None:
    """What is wrong with one file, if anything: with its bytes, or with the rows that they were from the beginning."""
    try:
        size_bytes = storage.size(file.path)
        found = storage.digest(file.path) if size_bytes == file.size_bytes else Digest(size_bytes=size_bytes, sha256="")
    except FileNotFoundError:
        return Damage(path=file.path, what="missing")
    except OSError as error:
        return Damage(path=file.path, what=f"unreadable: {error}")
    if found.size_bytes != file.size_bytes:
        return Damage(path=file.path, what=f"{found.size_bytes} bytes, committed {file.size_bytes}")
    if found.sha256 != file.sha256:
        return Damage(path=file.path, what=f"sha256 {found.sha256}, committed {file.sha256}")
    return None if rows is None else _check_rows(file, storage, rows)


def _check_rows(file: StoredFile, storage: Storage, rows: RowsOf) -> Damage | None:
    try:
        problem = problem_in(storage, file.path, rows)
    except FileNotFoundError:  # it went since it was digested
        return Damage(path=file.path, what="missing")
    except (pa.ArrowException, KeyError, OSError) as error:
        problem = f"{rows.what} cannot be read from it, although its digest is right: {error}"
    return None if problem is None else Damage(path=file.path, what=problem)
