"""`long_life`: a catalog after 10,000 commits with upkeep, against what it was after its first hundred.

The commits are those of `commit`. Upkeep runs when a commit makes it due, as a coordinator's does: the vacuum's facts (there are no files to
delete, and no manifests to hold against it), the fold, the tidying up of ledger and history. Measured is the worst moment, just before
the next fold is due, and in turns with a fresh catalog, so that a busy minute slows both.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from benchmarks.commit import Job, Keeper
from benchmarks.harness import Result, interleave, ratio, seconds, spread, tell
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.ledger import delta_log
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import JobId
from holdfast.compaction.upkeep import FOLD_EVERY

COMMITS = 10_000
EDGE = 100
OPENINGS = 15

COMMIT_AT_MOST, OPEN_AT_MOST, MEMORY_AT_MOST = 1.2, 1.5, 1.2
ENTRIES_AT_MOST, FILES_AT_MOST = 1_500, 300


def run(scratch: Path, commits: int = COMMITS, edge: int = EDGE) -> list[Result]:
    """`commit`, `open` and `memory`; and how many entries and data files there are."""
    Life.begin(scratch / "warm-up").commit_until(edge // 2)
    old, fresh = Life.begin(scratch / "old"), Life.begin(scratch / "fresh")
    old.commit_until(commits - edge)
    while old.since_fold() > 5:  # the last hundred end where the next fold is due
        old.commit(0)
    taken = interleave({"last": old.commit_alone, "first": fresh.commit_alone}, edge - 5, what="commit", within_s=600)
    opened = interleave({"old": lambda _: old.open(), "fresh": lambda _: fresh.open()}, OPENINGS, what="open")
    memory = {name: peak_memory_kb(life.directory / "ledger", life.job.job_id) for name, life in (("old", old), ("fresh", fresh))}
    files = len(old.ledger_files())
    entries = len(delta_log.commit_versions(old.directory / "ledger" / "_delta_log"))
    counted = {
        "commits": old.job.number,
        "log_entries": entries,
        "log_entries_hold": entries <= ENTRIES_AT_MOST,
        "data_files": files,
        "data_files_hold": files <= FILES_AT_MOST,
        "data_files_on_disk": sum(1 for path in (old.directory / "ledger").iterdir() if path.suffix == ".parquet"),
    }
    p99 = round(quantiles(old.commits_s, n=100)[-1] * 1000, 1)
    return [
        Result(
            benchmark="long_life",
            measures="commit",
            ratio=ratio(taken["last"], taken["first"]),
            at_most=COMMIT_AT_MOST,
            figures={"last": spread(taken["last"], "ms"), "first": spread(taken["first"], "ms"), "p99_ms": p99, **counted},
        ),
        Result(
            benchmark="long_life",
            measures="open",
            ratio=ratio(opened["old"], opened["fresh"]),
            at_most=OPEN_AT_MOST,
            figures={"old": spread(opened["old"], "ms"), "fresh": spread(opened["fresh"], "ms"), "upkeep": spread(old.keeper.taken)},
        ),
        Result(
            benchmark="long_life",
            measures="memory",
            ratio=round(memory["old"] / memory["fresh"], 3),
            at_most=MEMORY_AT_MOST,
            figures={"old_kb": memory["old"], "fresh_kb": memory["fresh"]},
        ),
    ]


@dataclass(slots=True)
class Life:
    """A catalog's ledger and history, and the one job that commits to it."""

    directory: Path
    job: Job
    keeper: Keeper
    commits_s: list[float]

    @classmethod
    def begin(cls, directory: Path) -> "Life":
        directory.mkdir(parents=True)
        job = Job.start(directory / "ledger")
        return cls(directory, job, Keeper.of(directory), [])

    def commit_until(self, commits: int) -> None:
        while len(self.commits_s) < commits:
            if len(self.commits_s) % 100 == 0:
                tell(f"{len(self.commits_s)} of {commits} commits")
            self.commit(0)
        tell("")

    def commit(self, _: int) -> float:
        """A commit, and upkeep where that made it due, which is not counted."""
        self.commits_s.append(self.commit_alone(0))
        return self.keeper.after(self.job, self.commits_s[-1])

    def commit_alone(self, n: int) -> float:
        return self.job.commit(n)

    def since_fold(self) -> int:
        ledger = self.job.transactor.ledger
        return (ledger.version - max(ledger.folded_to, 0)) % FOLD_EVERY

    def open(self) -> float:
        """The seconds of a coordinator's opening: the ledger, and its memory of the job."""
        return seconds(self._open)

    def _open(self) -> None:
        opened(str(self.directory / "ledger"), self.job.job_id)

    def ledger_files(self) -> list[str]:
        return [file.path for file in DeltaLedger.open(self.directory / "ledger").files()]


def peak_memory_kb(ledger: Path, job_id: JobId) -> int:
    """The peak memory of a process that opens a ledger as a job's coordinator does."""
    program = "import sys; from benchmarks.harness import own_peak_kb; from benchmarks.long_life import opened; opened(*sys.argv[1:]); print(own_peak_kb())"
    command = [sys.executable, "-c", program, str(ledger), job_id]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()[-1])


def opened(directory: str, job_id: str) -> Transactor:
    """A coordinator's view of the ledger, for a process of its own."""
    transactor = Transactor(DeltaLedger.open(directory), SystemEnvironment())
    transactor.work_for(JobId(job_id))
    transactor.known().job(JobId(job_id))
    return transactor
