"""`thousand_jobs`: 1,000 jobs in one catalog with a checkpoint a minute each, 17 commits a second, by 16 processes on this host.

The commits are those of `commit`, ledger only. Each job has its own handle on the ledger, as a coordinator has, so that at each commit it
meets what the others committed within the minute. Upkeep runs beside, whenever a hundred commits have landed since the last fold. The jobs
are there before: their registrations and first checkpoints are made by the same decisions in memory and appended.

`landed` is what landed of what was due within the window. Printed with it: how late the commits began, how long they took, what they cost
in CPU, and what upkeep took.
"""

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.commit import Job, Keeper
from benchmarks.harness import Result, own_peak_kb, seconds, spread, tell
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.ledger import delta_log
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.memory import MemoryLedger, MemoryLog
from holdfast.catalog.schema import Operation
from holdfast.catalog.transactions import Transactor
from holdfast.compaction.upkeep import FOLD_EVERY

JOBS, PROCESSES, EVERY_S, SECONDS = 1_000, 16, 60.0, 120.0
CHECKPOINTS_BEFORE = 3
LANDED_AT_LEAST = 0.99


def run(scratch: Path, jobs: int = JOBS, processes: int = PROCESSES, every_s: float = EVERY_S, window_s: float = SECONDS) -> list[Result]:
    """`landed`."""
    keeper = _fill(scratch, jobs)
    first_upkeep_s = seconds(keeper.run)
    workers = [_start(scratch, n, processes) for n in range(processes)]
    try:
        for worker in workers:
            _told(worker)
        begins = time.time() + 1
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(json.dumps([begins, every_s, window_s]) + "\n")
            worker.stdin.flush()
        upkeep_s = _keep(scratch, keeper, begins + window_s)
        told = [_told(worker) for worker in workers]
    finally:
        for worker in workers:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.close()
            worker.wait(60)
            worker.stdout.close()
    return [_result(scratch, told, [first_upkeep_s, *upkeep_s], int(jobs * window_s / every_s), window_s)]


def _result(scratch: Path, told: Sequence[dict[str, Any]], upkeep_s: list[float], due: int, window_s: float) -> Result:
    taken, late = ([each for worker in told for each in worker[name]] for name in ("taken_s", "late_s"))
    return Result(
        benchmark="thousand_jobs",
        measures="landed",
        ratio=round(len(taken) / due, 3),
        at_least=LANDED_AT_LEAST,
        figures={
            "commits_per_s": round(len(taken) / window_s, 1),
            "commit": spread(taken, "ms") | {"p99_ms": round(quantiles(taken, n=100)[-1] * 1000, 1)},
            "late": spread(late, "ms") | {"p99_ms": round(quantiles(late, n=100)[-1] * 1000, 1)},
            "cpu_ms_a_commit": round(1000 * sum(worker["cpu_s"] for worker in told) / max(len(taken), 1), 1),
            "process_kb": max(worker["memory_kb"] for worker in told),
            "upkeep": spread(upkeep_s),
            "log_entries": len(delta_log.commit_versions(scratch / "ledger" / "_delta_log")),
            "rows": len(DeltaLedger.open(scratch / "ledger").rows()),
        },
    )


@dataclass(frozen=True, slots=True)
class Begun:
    """Where a job stands, for the process that continues it."""

    job_id: Any
    attempt: Any
    parent: Any
    number: int

    def on(self, ledger: DeltaLedger) -> Job:
        environment = SystemEnvironment()
        transactor = Transactor(ledger, environment)
        transactor.work_for(self.job_id)
        transactor.known().job(self.job_id)
        return Job(transactor, environment, self.job_id, self.attempt, self.parent, self.number)


def _fill(scratch: Path, jobs: int) -> Keeper:
    """The jobs with a few checkpoints each, appended a hundred jobs at a time; how to go on with them stands in a file beside."""
    ledger, environment, begun = DeltaLedger.create(scratch / "ledger", catalog_id="jobs"), SystemEnvironment(), []
    for first in range(0, jobs, 100):
        log = MemoryLog()
        for n in range(first, min(first + 100, jobs)):
            job = Job.on(MemoryLedger(log), f"job-{n}")
            for _ in range(CHECKPOINTS_BEFORE):
                job.commit(0)
            begun.append(Begun(job.job_id, job.attempt, job.parent, job.number))
        facts: list[Any] = [fact for commit in log.commits for fact in commit.facts]
        ledger.append(facts, keys={}, operation=Operation.new(environment))
        ledger.refresh()
        ledger.make_durable()
    (scratch / "begun").write_bytes(pickle.dumps(begun))
    return Keeper.of(scratch)


def _keep(scratch: Path, keeper: Keeper, until: float) -> list[float]:
    """Upkeep whenever it is due, until a moment; the seconds of each."""
    taken, ledger = [], DeltaLedger.open(scratch / "ledger")
    while time.time() < until:
        tell(f"thousand_jobs: {until - time.time():.0f} s more")
        if DeltaLedger.open(scratch / "ledger").version - max(ledger.folded_to, 0) >= FOLD_EVERY:
            taken.append(seconds(keeper.run))
            ledger = DeltaLedger.open(scratch / "ledger")
        time.sleep(0.5)
    tell("")
    return taken


def _start(scratch: Path, n: int, processes: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", "from benchmarks.thousand_jobs import work; work()", str(scratch), str(n), str(processes)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _told(worker: "subprocess.Popen[str]") -> dict[str, Any]:
    assert worker.stdout is not None
    told: dict[str, Any] = json.loads(worker.stdout.readline())
    return told


def work() -> None:
    """The program of a worker: its share of the jobs, each with its own moment within the interval."""
    scratch, n, processes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    begun: list[Begun] = pickle.loads((scratch / "begun").read_bytes())
    shares = [(place, begun[place].on(DeltaLedger.open(scratch / "ledger"))) for place in range(n, len(begun), processes)]
    print("{}", flush=True)
    begins, every_s, window_s = json.loads(sys.stdin.readline())
    before, taken, late = time.process_time(), [], []
    due = sorted(
        (begins + every_s * (place / len(begun) + k), place, job) for place, job in shares for k in range(int(window_s / every_s) + 1)
    )
    for moment, _, job in due:
        if moment >= begins + window_s or time.time() >= begins + window_s:
            break
        time.sleep(max(moment - time.time(), 0))
        late.append(max(time.time() - moment, 0.0))
        taken.append(job.commit(0))
    told = {"taken_s": taken, "late_s": late, "cpu_s": time.process_time() - before, "memory_kb": own_peak_kb()}
    print(json.dumps(told), flush=True)
    sys.stdin.readline()
