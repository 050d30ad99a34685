"""`many_jobs`: many processes with a job each in one catalog, and one job beside a thousand others.

`rate`: 16 processes commit to one ledger as fast as they can, each to a job of its own; the peer is 16 processes that append the same rows
to one Delta table by delta-rs with the same syncs, each append tried until it lands. They take turns of some seconds.
`crowd` and `memory`: the commit of a job beside 1,000 others, and the peak memory of a process that opens it, against a catalog of one job.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from benchmarks.commit import Floor, Job
from benchmarks.harness import Result, interleave, ratio, spread, tell
from benchmarks.long_life import peak_memory_kb
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.facts import Fact
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.memory import MemoryLedger, MemoryLog
from holdfast.catalog.schema import Operation

PROCESSES, ROUNDS, SECONDS = 16, 3, 10.0
OTHERS, CHECKPOINTS_OF_OTHERS, COMMITS = 1_000, 3, 100

RATE_AT_LEAST, CROWD_AT_MOST, MEMORY_AT_MOST = 0.8, 1.2, 1.2


def run(
    scratch: Path, processes: int = PROCESSES, rounds: int = ROUNDS, window_s: float = SECONDS, others: int = OTHERS, commits: int = COMMITS
) -> list[Result]:
    """`rate`, `crowd` and `memory`."""
    return [_rate(scratch, processes, rounds, window_s), *_crowd(scratch, others, commits)]


# ---- many processes -------------------------------------------------------------------------------------------------------


def _rate(scratch: Path, processes: int, rounds: int, window_s: float) -> Result:
    DeltaLedger.create(scratch / "shared" / "ledger", catalog_id="many-jobs")
    Floor.create(scratch / "floor")
    workers = [Worker.start(scratch, n) for n in range(processes)]
    landed: dict[str, list[int]] = {"holdfast": [], "delta-rs": []}
    try:
        for n in range(rounds):
            for side, counts in landed.items():
                tell(f"many_jobs: round {n + 1} of {rounds}, {side}")
                for worker in workers:
                    worker.ask(side, window_s)
                counts.append(sum(worker.told() for worker in workers))
    finally:
        for worker in workers:
            worker.stop()
    tell("")
    rates = {side: [count / window_s for count in counts] for side, counts in landed.items()}
    return Result(
        benchmark="many_jobs",
        measures="rate",
        ratio=round(sum(landed["holdfast"]) / sum(landed["delta-rs"]), 3),
        at_least=RATE_AT_LEAST,
        figures={
            "processes": processes,
            "window_s": window_s,
            "commits_per_s": {side: [round(r, 1) for r in rates[side]] for side in rates},
        },
    )


@dataclass(slots=True)
class Worker:
    """A process that commits when it is asked to, and tells how many commits landed."""

    process: "subprocess.Popen[str]"

    @classmethod
    def start(cls, scratch: Path, n: int) -> "Worker":
        command = [sys.executable, "-c", "from benchmarks.many_jobs import work; work()", str(scratch), f"job-{n}"]
        worker = cls(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        worker.told()  # it is ready
        return worker

    def ask(self, side: str, window_s: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([side, window_s]) + "\n")
        self.process.stdin.flush()

    def told(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def work() -> None:
    """The program of a worker: its job on the shared ledger, and the same rows appended to the floor's table."""
    scratch, name = Path(sys.argv[1]), sys.argv[2]
    job = Job.on(DeltaLedger.open(scratch / "shared" / "ledger"), name)
    job.commit(0)
    floor = Floor(scratch / "floor", DeltaTable(scratch / "floor"))
    print(0, flush=True)
    for line in sys.stdin:
        side, window_s = json.loads(line)
        until, landed = time.monotonic() + window_s, 0
        while time.monotonic() < until:
            if side == "holdfast":
                job.commit(0)
            else:
                _append(floor, job.facts, name)
            landed += 1
        print(landed, flush=True)


def _append(floor: Floor, facts: Sequence[Fact], name: str) -> None:
    while True:
        try:
            floor.commit(facts, name)
        except DeltaError:  # it lost its 15 races
            floor.table.update_incremental()
        else:
            return


# ---- a job beside many others ---------------------------------------------------------------------------------------------


def _crowd(scratch: Path, others: int, commits: int) -> list[Result]:
    crowded, alone = scratch / "crowded" / "ledger", scratch / "alone" / "ledger"
    for directory, count in ((crowded, others), (alone, 0)):
        _fill(DeltaLedger.create(directory, catalog_id="many-jobs"), count)
    jobs = {"beside_others": Job.on(DeltaLedger.open(crowded), "one"), "alone": Job.on(DeltaLedger.open(alone), "one")}
    for job in jobs.values():
        for _ in range(10):
            job.commit(0)
    taken = interleave({name: job.commit for name, job in jobs.items()}, commits, what="commit")
    memory = {name: peak_memory_kb(place, jobs[name].job_id) for name, place in (("beside_others", crowded), ("alone", alone))}
    return [
        Result(
            benchmark="many_jobs",
            measures="crowd",
            ratio=ratio(taken["beside_others"], taken["alone"]),
            at_most=CROWD_AT_MOST,
            figures={"other_jobs": others, **{name: spread(each, "ms") for name, each in taken.items()}},
        ),
        Result(
            benchmark="many_jobs",
            measures="memory",
            ratio=round(memory["beside_others"] / memory["alone"], 3),
            at_most=MEMORY_AT_MOST,
            figures={f"{name}_kb": size for name, size in memory.items()},
        ),
    ]


def _fill(ledger: DeltaLedger, others: int) -> None:
    """Jobs with a few checkpoints each, made by the same decisions in memory and appended a hundred jobs at a time."""
    environment = SystemEnvironment()
    for first in range(0, others, 100):
        log = MemoryLog()
        for n in range(first, min(first + 100, others)):
            job = Job.on(MemoryLedger(log), f"other-{n}")
            for _ in range(CHECKPOINTS_OF_OTHERS):
                job.commit(0)
        facts: list[Any] = [fact for commit in log.commits for fact in commit.facts]
        ledger.append(facts, keys={}, operation=Operation.new(environment))
        ledger.refresh()
        ledger.make_durable()
